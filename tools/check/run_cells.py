"""Run every notebook's code cells as plain scripts on this machine, accelerators too.

    python -m tools.check.run_cells            # all, solved and open
    python -m tools.check.run_cells 03 13      # these chapters

For a machine that has JAX and an accelerator but no Jupyter: nothing is compared, a
cell that raises is the failure, and shell lines (`!pip install ...`) are left out.
Each notebook has a process of its own. Prints a line per notebook, the last lines of
those that failed, and what `use_devices` chose.
"""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools import ROOT

SECONDS = 300
AT_A_TIME = 4  # they share the card's memory, so none may take it all at once
RUN = """
def _run_cells(path):
    import json, linecache, re

    for number, cell in enumerate(json.load(open(path, encoding="utf8"))["cells"], 1):
        if cell["cell_type"] == "code":
            source, where = "".join(cell["source"]), f"<cell {number}>"
            source = re.sub(r"^( *)[%!].*", r"\\1pass", source, flags=re.M)
            lines = source.splitlines(True)
            linecache.cache[where] = len(source), None, lines, where
            exec(compile(source, where, "exec"), globals())

import sys
_run_cells(sys.argv[1])
"""


def run(path: Path) -> tuple[Path, str, float, str]:
    """(notebook, "" or why it failed, seconds, what it printed)."""
    variables = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "MPLBACKEND": "agg",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])
        ),
    }
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(path)],
            env={**os.environ, **variables},
            cwd=path.parent,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return path, f"took over {SECONDS} s", time.monotonic() - begun, ""
    why = "\n".join(done.stderr.strip().splitlines()[-12:]) if done.returncode else ""
    return path, why, time.monotonic() - begun, done.stdout


def main() -> int:
    chosen = sys.argv[1:] or [""]
    notebooks = sorted(
        path
        for folder in ("notebooks", "solutions")
        for path in (ROOT / folder).glob("*.ipynb")
        if path.name.startswith(tuple(chosen))
    )
    failed = 0
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for path, why, seconds, said in pool.map(run, notebooks):
            name = path.relative_to(ROOT).as_posix()
            right = len(re.findall(r"^Exercise [\d.]+: right", said, re.M))
            still_open = len(re.findall(r"^Exercise [\d.]+ is open", said, re.M))
            devices = next(iter(re.findall(r"^.*devices?\b.*$", said, re.M)), "")
            failed += bool(why)
            print(
                f"{'FAILED' if why else 'ok':6} {name} {seconds:.0f} s,"
                f" {right} right, {still_open} open | {devices}",
                flush=True,
            )
            if why:
                print("       " + why.replace("\n", "\n       "), flush=True)
    print(f"== {len(notebooks) - failed} of {len(notebooks)} notebooks ran")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
