"""Compile the programs of the measured rows and keep their texts.

    python -m tools.measure.seconds.texts FILE.zip [--only GROUP,…]

With the cards, as they were measured; without them, by the GPU compiler alone, which
tunes no kernel. A row that the archive has already is left as it is.
"""

import argparse
import re
import sys
import time
import zipfile
from pathlib import Path

from tools.measure.seconds.rows import rows

# Not read: where a value lies, how it was tuned, where a file is.
_PLACES = re.compile(r'"/[^"\n]*/(tools|src|site-packages)/')


def main() -> None:
    """Compile what is not there yet, and write it after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    from tools.measure.seconds.programs import KINDS

    wanted = given.only.split(",") if given.only else [*KINDS]
    mode = "a" if given.file.exists() else "w"
    with zipfile.ZipFile(given.file, mode, zipfile.ZIP_DEFLATED) as kept:
        there = {*kept.namelist()}
        for group in wanted:
            for name, row in rows().items():
                member = f"{name}.txt"
                flags = row.get("setting", {}).get("flags")
                if not name.startswith(f"{group}/") or member in there or flags:
                    continue  # flags are read once, when a process starts
                at = time.perf_counter()
                try:
                    text = KINDS[group](row)
                except Exception as error:
                    print(f"{name}: {type(error).__name__}: {error!s:.200}", flush=True)
                    continue
                kept.writestr(member, _PLACES.sub(r'"/home/reader/\1/', text))
                print(f"{name}: {time.perf_counter() - at:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
