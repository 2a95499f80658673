"""How `nbgrader autograde` reads a submission: mended, by a process with limits."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode

from ..process import search_path
from ..submission import READ_S, CannotGrade
from .mended import REFUSED, REMARKS, read_notebook

# Without a library that checks addresses, of which a notebook has none: importing it
# takes seconds.
_PROGRAM = "import sys; sys.path[:] = {path!r}; sys.modules['rfc3987_syntax'] = None; "
_PROGRAM += "from spmd_grading.nbgrader_addon.mended import main; main()"

Resources = dict[str, Any]  # what nbgrader hands from one step to the next


class ReadsUnderLimits(NotebookExporter):
    """How `nbgrader autograde` reads: a submission is mended before anything else."""

    def from_filename(
        self, filename: str, resources: Resources | None = None, **more: Any
    ) -> tuple[NotebookNode, Resources]:
        """Read a file; of a submission only the sources of its cells are taken."""
        place, converter = (resources or {})["nbgrader"], cast(Any, self.parent)
        course = converter.coursedir
        where = (place["student"], place["assignment"])
        folder = course.format_path(course.submitted_directory, *where)
        submitted = Path(folder, place["notebook"] + ".ipynb")
        if Path(filename).absolute() != submitted.absolute():
            return super().from_filename(filename, resources=resources, **more)
        release = course.format_path(course.release_directory, ".", place["assignment"])
        shown = submitted
        if submitted.is_relative_to(course.root):
            shown = submitted.relative_to(course.root)
        text = mend(submitted, Path(release, submitted.name), shown)
        with tempfile.TemporaryDirectory(prefix="mended-") as temporary:
            path = Path(temporary, submitted.name)
            path.write_text(text, "utf8")
            for remark in read_notebook(path).metadata[REMARKS]:
                self.log.warning("%s: %s", shown, remark)
            return super().from_filename(str(path), resources=resources, **more)


def mend(submitted: Path, release: Path, shown: Path) -> str:
    """The mended notebook as text, made by a process that has limits.

    Args:
        submitted: what the learner handed in.
        release: what was given out.
        shown: the name of the submission in messages.

    Raises:
        CannotGrade: when it can't be read, or has no exercise of the release.
    """
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-c", _PROGRAM.format(path=search_path())),
                *(submitted.absolute(), release.absolute(), shown),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
        )
        output.seek(0)
        text = output.read().decode("utf8")
    if done.returncode == 0:
        return text
    said = done.stderr.decode("utf8", "replace").strip()
    words = said.splitlines()[-1] if said else "without a word"
    if done.returncode < 0:
        words = f"{shown} was NOT graded: reading it took more than {READ_S} s"
    elif done.returncode != REFUSED:
        words = f"{shown} was NOT graded: reading it ended with {words}"
    raise CannotGrade(words)
