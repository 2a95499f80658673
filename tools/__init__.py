"""What generates, builds, measures and checks.

A tool is run from the repository's root: `python -m tools.book.make_notebooks`. The
package is taken from `src`, so a Python where it is not installed can measure too.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
