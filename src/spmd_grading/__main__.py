"""`python -m spmd_grading NOTEBOOK ...`: the command line of `grade`."""

import sys

from .grade import main

if __name__ == "__main__":
    sys.exit(main())
