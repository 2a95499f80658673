"""What the tools that measure cards share: where rows go, and what each says of here.

No JAX in here: the tool that starts others, and the page that says how times were
taken, need none.
"""

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINE = ROOT / "my-measurements"  # git ignores it
BOOKS = ROOT / "src" / "spmd_helpers" / "_hardware" / "measurements"

# How a time is taken. Collectives, products and attention (where one call takes less
# than SHORT_S): so many calls are queued, and the wait for the last is divided.
REPEATS, AT_ONCE, SHORT_S = 9, 8, 2e-3
STEPS_AT_ONCE = 3  # of the MLP's steps
MOST, LEAST, LONGEST_S = 7, 3, 12  # of the transformer's, each waited for
SUSTAINED_S = 3  # of nothing but products, before their speed is taken


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


def has_jax() -> bool:
    return importlib.util.find_spec("jax") is not None


NO_JAX = (
    f"{sys.executable} has no JAX. Name a Python whose JAX sees the GPUs:"
    " make hardware PYTHON=/path/to/python/with/jax-cuda"
)


def driver() -> str:
    """The version of the card's driver, "" where no card is."""
    return next(iter(_asked_of_cards("driver_version")), "")


def machine() -> str:
    """A short name of the cards of this machine, "" where no card is: rows with the
    same one ran on the same cards."""
    cards = _asked_of_cards("uuid")
    return hashlib.sha256(" ".join(cards).encode()).hexdigest()[:8] if cards else ""


def _asked_of_cards(what: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return []
    return [line.strip() for line in said.splitlines() if line.strip()]


def write(path: Path, rows: list[dict]) -> None:
    """One row a line. A file of another card or JAX is not written over: it stays
    beside the new one, with a number in its name. (The book's own are in git.)"""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text("utf8")) if path.exists() else []
    mine = path.parent.resolve() != BOOKS
    if (
        mine
        and before
        and not any(_alike(one, other) for one in before for other in rows)
    ):
        number = 1
        while (aside := path.with_suffix(f".{number}.json")).exists():
            number += 1
        path.rename(aside)
        print(f"{path.name} was of another card or JAX: it is {aside.name} now")
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", "utf8")


def _alike(one: dict, other: dict) -> bool:
    return all(one.get(key) == other.get(key) for key in ("device", "jax"))
