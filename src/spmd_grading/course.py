"""A course folder for nbgrader: what lies in it, and how it is written again.

What an instructor has changed there since (own hidden tests, a setting) is kept.
Submissions and grades in the folder are never touched.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

FILES = Path(__file__).with_name("course_folder")
WRITTEN = ".written.json"  # what was written by this module: file -> hash


def course_files(sources: Mapping[str, str]) -> dict[str, str]:
    """Every file of the course folder -> its text.

    Args:
        sources: name of a notebook, which begins with its chapter's two digits, such
            as "03_x.ipynb" -> the instructor's version of it, as text.
    """
    files = {
        path.name: path.read_text("utf8")
        for path in sorted(FILES.iterdir())
        if path.suffix in {".py", ".md"}
    }
    files |= {f"source/ch{name[:2]}/{name}": text for name, text in sources.items()}
    return files


def write_course(files: dict[str, str], folder: Path) -> list[str]:
    """Write what is new or as it was left; return what was kept instead."""
    record = folder / WRITTEN
    try:
        written = json.loads(record.read_text("utf8"))
    except FileNotFoundError:
        written = {}
    kept = []
    for name, text in files.items():
        path = folder / name
        if path.exists():
            now = path.read_bytes()
            if now == text.encode():
                written[name] = _hash(now)
                continue
            if _hash(now) != written.get(name):
                kept.append(name)
                continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf8", newline="\n")
        written[name] = _hash(text.encode())
    folder.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n", "utf8")
    return kept


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
