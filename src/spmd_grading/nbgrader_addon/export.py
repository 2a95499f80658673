"""`nbgrader export`: a CSV that tells a score of 0 from no score.

nbgrader's own CSV gives 0 to a submission that could not be graded. This one leaves
its score empty, says why, and adds a column for each exercise.
"""

import csv
from pathlib import Path
from typing import Any

from nbgrader.api import Assignment, Gradebook, MissingEntry, Student
from nbgrader.plugins import ExportPlugin

from ..report import in_csv
from .mended import REMARKS, read_notebook

COLUMNS = (
    *("assignment", "student_id", "last_name", "first_name", "email"),
    *("duedate", "timestamp", "raw_score", "late_submission_penalty", "score"),
    *("max_score", "graded", "remarks"),
)


class ExportGrades(ExportPlugin):  # type: ignore[misc]  # nbgrader has no types
    """One row for each assignment and student, one column for each exercise."""

    def export(self, gradebook: Gradebook) -> None:
        """Write the table into the file that `--to` names, or grades.csv."""
        target = self.to or "grades.csv"
        assignments = [str(name) for name in self.assignment]
        students = [str(name) for name in self.student]
        rows: list[dict[str, Any]] = []
        exercises: list[str] = []
        for assignment in gradebook.assignments:
            if assignments and assignment.name not in assignments:
                continue
            for notebook in assignment.notebooks:
                exercises += [cell.name for cell in notebook.grade_cells]
            for student in gradebook.students:
                if not students or student.id in students:
                    rows.append(self._row(gradebook, assignment, student))
        exercises = sorted(set(exercises), key=_in_order)
        with open(target, "w", encoding="utf8", newline="") as file:
            names = [*COLUMNS, *exercises]
            writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: _plain(v) for k, v in row.items()} for row in rows)
        ungraded = [row for row in rows if row["graded"] == "no"]
        self.log.info("Exported %d rows to %s", len(rows), target)
        for row in ungraded:
            self.log.warning(
                "%s of %s has NO score: %s",
                *(row["assignment"], row["student_id"], row["remarks"]),
            )

    def _row(
        self, gradebook: Gradebook, assignment: Assignment, student: Student
    ) -> dict[str, Any]:
        row = {
            "assignment": assignment.name,
            "student_id": student.id,
            "last_name": student.last_name,
            "first_name": student.first_name,
            "email": student.email,
            "duedate": assignment.duedate,
            "max_score": assignment.max_score,
        }
        try:
            submission = gradebook.find_submission(assignment.name, student.id)
        except MissingEntry:
            return row | {"score": 0.0, "graded": "nothing handed in"}
        row["timestamp"] = submission.timestamp
        course = self.parent.coursedir
        folder = course.format_path(
            course.autograded_directory, student.id, assignment.name
        )
        remarks: list[str] = []
        for notebook in assignment.notebooks:
            path = Path(folder, f"{notebook.name}.ipynb")
            if not path.is_file():
                return row | {
                    "graded": "no",
                    "remarks": f"{notebook.name}.ipynb was not graded; run `nbgrader "
                    f"autograde {assignment.name} --student {student.id} --force` and "
                    "read what it says",
                }
            graded = read_notebook(path)
            remarks += graded.metadata.get(REMARKS, [])
        penalty = submission.late_submission_penalty or 0.0
        grades = [grade for nb in submission.notebooks for grade in nb.grades]
        by_hand = any(grade.needs_manual_grade for grade in grades)
        return (
            row
            | {
                "raw_score": submission.score,
                "late_submission_penalty": penalty,
                "score": max(0.0, submission.score - penalty),
                "graded": "in part" if by_hand else "yes",
                "remarks": "; ".join(remarks),
            }
            | {
                grade.name: ""
                if grade.auto_score is None and grade.manual_score is None
                else grade.score
                for grade in grades
            }
        )


def _plain(value: object) -> object:
    return in_csv(value) if isinstance(value, str) else value


def _in_order(grade_id: str) -> tuple[list[int], str]:
    """ch02-ex10-check stands behind ch02-ex9-check."""
    digits = "".join(c if c.isdigit() else " " for c in grade_id).split()
    return [int(part) for part in digits], grade_id
