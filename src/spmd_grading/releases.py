"""Where the notebooks are that were given out."""

from pathlib import Path

from .submission import CannotGrade, exercises_of, read_cells


def find_releases(named: Path | None) -> list[Path]:
    """The release notebooks: those named, else those of a folder `notebooks/`.

    The folder is here or above, or beside the package in a clone.

    Raises:
        CannotGrade: when there is none.
    """
    here = Path.cwd()
    folders = [folder / "notebooks" for folder in (here, *here.parents)]
    folders.append(Path(__file__).resolve().parents[2] / "notebooks")
    places = [named] if named else folders
    for place in places:
        if place.is_file():
            if not exercises_of(read_cells(place), place):
                raise CannotGrade(f"--release {place}: a notebook without checks")
            return [place]
        releases = [p for p in sorted(place.rglob("*.ipynb")) if _has_checks(p)]
        if releases:
            return releases
    raise CannotGrade(
        f"no release notebooks in {named or 'notebooks/, here or above'}: name the "
        "file or the folder that you gave out, like --release course/release/ps1 (the "
        "book's own are in the folder notebooks/ of its repository)"
    )


def _has_checks(path: Path) -> bool:
    if ".ipynb_checkpoints" in path.parts:
        return False
    try:
        return bool(exercises_of(read_cells(path), path))
    except CannotGrade:
        return False
