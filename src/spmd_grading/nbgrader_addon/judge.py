"""Two steps of `nbgrader autograde` after the cells ran.

They decide what counts as an error, and what has no score.
"""

from nbformat import NotebookNode
from nbgrader import utils
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from .find_answers import NOT_FOUND, Resources


class WarningsAreNoErrors(NbGraderPreprocessor):  # type: ignore[misc]  # nbgrader: untyped
    """Leaves stderr out of what counts as an error.

    nbgrader takes any text on it for a failed check, so a mere warning of JAX would
    cost all points. An exception is still an error.
    """

    def preprocess_cell(
        self, cell: NotebookNode, resources: Resources, index: int
    ) -> tuple[NotebookNode, Resources]:
        """Keep of a check's outputs what a grade rests on."""
        if utils.is_grade(cell) and cell.cell_type == "code":
            for output in cell.outputs:
                if output.output_type == "stream" and output.name == "stderr":
                    output.name = "stdout"
        return cell, resources


class NoScoreForNotFound(NbGraderPreprocessor):  # type: ignore[misc]  # nbgrader: untyped
    """An answer that was not found needs a person: no score, and a comment."""

    def preprocess(
        self, notebook: NotebookNode, resources: Resources
    ) -> tuple[NotebookNode, Resources]:
        """Take back the scores of answers that were not found."""
        place = resources["nbgrader"]
        where = (place["notebook"], place["assignment"], place["student"])
        with Gradebook(place["db_url"]) as gradebook:
            for cell in notebook.cells:
                comment = cell.metadata.get(NOT_FOUND)
                if comment is None:
                    continue
                name = cell.metadata.nbgrader["grade_id"]
                grade = gradebook.find_grade(f"{name}-check", *where)
                grade.auto_score, grade.needs_manual_grade = None, True
                gradebook.find_comment(name, *where).auto_comment = comment
            gradebook.db.commit()
        return notebook, resources
