"""What all tools that measure share: options, child processes, rows, dates, versions.

No JAX in here: the tool that starts others, and the page that says how times were
taken, need none. How a call of JAX is timed is in clock.py.
"""

import argparse
import datetime
import hashlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools import ROOT

MINE = ROOT / "my-measurements"  # git ignores it
BOOKS = ROOT / "src" / "spmd_helpers" / "_hardware" / "measurements"

# How a time is taken. Collectives, products and attention (where one call takes less
# than SHORT_S): so many calls are queued, and the wait for the last is divided.
REPEATS, AT_ONCE, SHORT_S = 9, 8, 2e-3
STEPS_AT_ONCE = 3  # of the MLP's steps
MOST, LEAST, LONGEST_S = 7, 3, 12  # of the transformer's, each waited for
SUSTAINED_S = 3  # of nothing but products, before their speed is taken


def clock(run, most=MOST, least=LEAST, longest=LONGEST_S) -> list[float]:
    """Seconds of `run()`, which waits for what it started, several times."""
    begun, taken = time.perf_counter(), []
    while len(taken) < least or (
        len(taken) < most and time.perf_counter() - begun < longest
    ):
        at = time.perf_counter()
        run()
        taken.append(time.perf_counter() - at)
    return taken


def timed(taken: list[float]) -> dict:
    middle = statistics.median(taken)
    return {"median_s": middle, "least_s": min(taken), "most_s": max(taken)}


def add_places(parser) -> None:
    """The two options that say where rows go."""
    parser.add_argument("--out", type=Path, help="a folder; without: my-measurements/")
    parser.add_argument(
        "--for-the-book",
        action="store_true",
        help="write to the package's data, which the book's page and chapters read",
    )


def place(given) -> Path:
    """The folder that was asked for."""
    if given.out and given.for_the_book:
        sys.exit("--out and --for-the-book are two places: give one of them")
    return given.out or (BOOKS if given.for_the_book else MINE)


def options(doc: str) -> argparse.ArgumentParser:
    """The options of a tool that times cards, for it to add its own."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    add_places(parser)
    parser.add_argument("--tiny", action="store_true", help="a rehearsal anywhere")
    return parser


def has_jax() -> bool:
    return importlib.util.find_spec("jax") is not None


NO_JAX = (
    f"{sys.executable} has no JAX. Name a Python whose JAX sees the GPUs:"
    " make hardware PYTHON=/path/to/python/with/jax-cuda"
)


def no_gpu(device: str) -> str:
    return (
        f"There is no GPU here that JAX sees, only {device}: run it"
        " where jax[cuda] is installed, or rehearse it with --tiny"
    )


# --- A process of its own for what is measured --------------------------------------


def run_child(
    module: str,
    *words: str,
    flags: str = "",
    settings: dict[str, str] | None = None,
    longest: float | None = None,
    quiet: bool = False,
) -> tuple[object, str]:
    """What a module of this folder wrote, or None; and how it ended if not well.

    XLA's flags are read once, an allocator never forgets its peak, and what one row
    breaks no other row shall feel: so each runs in a process of its own.

    Args:
        module: its name; it is given `words` and the name of a file, for its JSON.
        *words: what stands on its command line.
        flags: XLA's, after those that are set; {folder} is the folder of that file.
        settings: more environment variables.
        longest: after so many seconds it is stopped.
        quiet: what it prints is not shown.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        command = [sys.executable, "-m", f"tools.measure.{module}", *words, str(out)]
        before = os.environ.get("XLA_FLAGS", "")
        flags = f"{before} {flags}".strip().replace("{folder}", folder)
        how = {
            **{"cwd": ROOT, "timeout": longest},
            "env": {**os.environ, **(settings or {}), "XLA_FLAGS": flags},
            "stdout": subprocess.DEVNULL if quiet else None,
        }
        ended = ""
        with (Path(folder) / "err").open("w+") as err:
            try:
                done = subprocess.run(command, stderr=err, **how)
                if done.returncode:
                    err.seek(0)
                    ended = f"stopped with {done.returncode}: {_last(err.read())}"
            except subprocess.TimeoutExpired:
                ended = f"stopped after {longest:.0f} s"
        return (json.loads(out.read_text("utf8")) if out.exists() else None), ended


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "Unknown flag" in line]
    return ((named or lines or ["without a word"])[-1])[:300]


def no_room(row: dict) -> bool:
    """Did a row break because it does not fit into the memory?"""
    said = row.get("error", "").lower()
    return "resource_exhausted" in said or "out of memory" in said


# --- What every row says of where and when --------------------------------------------


def today() -> str:
    return datetime.date.today().isoformat()


def here() -> dict:
    return {"driver": driver(), "machine": machine(), "date": today()}


def driver() -> str:
    """The version of the card's driver, "" where no card is."""
    return next(iter(_nvidia_smi("driver_version")), "")


def machine() -> str:
    """A short name of the cards of this machine, "" where no card is.

    Rows with the same one ran on the same cards.
    """
    cards = _nvidia_smi("uuid")
    return hashlib.sha256(" ".join(cards).encode()).hexdigest()[:8] if cards else ""


def _nvidia_smi(what: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return []
    return [line.strip() for line in said.splitlines() if line.strip()]


# --- Rows in files ----------------------------------------------------------------


def stored(path: Path) -> list[dict]:
    return json.loads(path.read_text("utf8")) if path.exists() else []


def write(path: Path, rows: list[dict], aside: bool = True) -> None:
    """Write one row a line.

    A file of another card or JAX is not written over: it stays beside the new one,
    with a number in its name. (The book's own are in git.)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    before = stored(path)
    mine = aside and path.parent.resolve() != BOOKS
    alike = any(_alike(one, other) for one in before for other in rows)
    if mine and before and not alike:
        number = 1
        while (aside := path.with_suffix(f".{number}.json")).exists():
            number += 1
        path.rename(aside)
        print(f"{path.name} was of another card or JAX: it is {aside.name} now")
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f"[\n{lines}\n]\n" if rows else "[]\n", "utf8")


def _alike(one: dict, other: dict) -> bool:
    return all(one.get(key) == other.get(key) for key in ("device", "jax"))
