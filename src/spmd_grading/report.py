"""The results of grading, as a table, as JUnit XML, as Gradescope's JSON and as CSV."""

import csv
import dataclasses
import io
import json
import re
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path

_WIDTH = 88
_UNPRINTABLE = re.compile(
    r"[^\n\t\x20-\x7e\xa0-\u200a\u2010-\u2027\u2030-\u2065\u2070-\ud7ff"
    r"\ue000-\ufffd\U00010000-\U0010ffff]"  # nor what turns a line around
)
_COLORS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

ISOLATION = (
    "This ran the submissions' code as you, on this machine. Isolated: time, memory, "
    "the size of the output, the environment's variables; each submission had its own"
    " process group and temporary folder, and none of its processes was left. Not"
    " isolated: your files, the network, and a determined cheater, whose code shares a"
    " process with the checks. Use a container or an account without rights for people"
    " you don't trust."
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One exercise of one submission; `points` is None where it wasn't graded."""

    exercise: str
    points: float | None
    of: float
    verdict: str
    message: str
    seconds: float = 0
    extra: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """One submission. `problem` says why it, or a part of it, wasn't graded."""

    submission: str
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""
    release: str = ""
    seconds: float = 0
    peak_bytes: int = 0

    @property
    def graded(self) -> bool:
        """Whether every check has given points."""
        return not self.problem and all(r.points is not None for r in self.rows)

    @property
    def points(self) -> float:
        """The sum of the points given."""
        return sum(row.points or 0 for row in self.rows)

    @property
    def of(self) -> float:
        """The sum of the points that there are."""
        return sum(row.of for row in self.rows)


def clean(text: str) -> str:
    """A text that a terminal and an XML file can hold: no codes, no controls."""
    return _UNPRINTABLE.sub("?", _COLORS.sub("", text)).strip()


def to_table(results: list[Result]) -> str:
    """What is printed: a line for each exercise, and under it what the learner got."""
    lines = []
    for result in results:
        lines += _of_submission(result)
    bad = [result for result in results if not result.graded]
    if bad:
        lines += ["NOT GRADED, or not wholly:"]
        lines += [f"  {clean(result.submission)}" for result in bad]
        lines += [""]
    return "\n".join([*lines, textwrap.fill(ISOLATION, _WIDTH)])


def _of_submission(result: Result) -> list[str]:
    name = clean(result.submission)
    if not result.rows:
        return [f"{name}: NOT GRADED", *_indented(result.problem), ""]
    used = f"{result.seconds:.1f} s, {result.peak_bytes / 2**30:.2f} GiB"
    blank = "" if result.graded else ", NOT ALL GRADED"
    lines = [f"{name}: {result.points:g} of {result.of:g} points{blank} ({used})"]
    lines += _indented(f"checks: {result.release}") if result.release else []
    width = max(len(clean(row.exercise)) for row in result.rows)
    for row in result.rows:
        points = "-" if row.points is None else f"{row.points:g}"
        shown = f"{points:>4} of {row.of:<4g}"
        lines.append(f"  {clean(row.exercise):{width}}  {shown}  {row.verdict}")
        if row.verdict != "right":
            lines += _indented(row.message, " " * 6)
    for note in ([result.problem] if result.problem else []) + list(result.notes):
        lines += _indented(f"note: {note}")
    return [*lines, ""]


def _indented(text: str, indent: str = "  ") -> list[str]:
    lines = []
    for line in clean(text).splitlines():
        lines += textwrap.wrap(
            line, _WIDTH, initial_indent=indent, subsequent_indent=indent
        )
    return lines


def to_junit(results: list[Result]) -> str:
    """A testsuite for each submission: not right is a failure, not graded an error."""
    root = ET.Element("testsuites", name="spmd_grading")
    for result in results:
        rows = result.rows or (Row("submission", None, 0, "not found", result.problem),)
        wrong = [r for r in rows if r.points is not None and r.verdict != "right"]
        errors = [r for r in rows if r.points is None]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=clean(result.submission),
            tests=str(len(rows)),
            failures=str(len(wrong)),
            errors=str(len(errors)),
            skipped="0",
            time=f"{result.seconds:.3f}",
        )
        for row in rows:
            case = ET.SubElement(
                suite,
                "testcase",
                classname=clean(result.submission),
                name=clean(row.exercise),
                time=f"{row.seconds:.3f}",
            )
            listed = ET.SubElement(case, "properties")
            for name, value in (("points", row.points), ("of", row.of)):
                shown = "" if value is None else f"{value:g}"
                ET.SubElement(listed, "property", name=name, value=shown)
            if row.verdict != "right":
                kind = "error" if row.points is None else "failure"
                message = clean(row.message)
                element = ET.SubElement(case, kind, type=row.verdict, message=message)
                element.text = message
        remarks = "\n".join(
            [*([result.problem] if result.problem else []), *result.notes]
        )
        if remarks:
            ET.SubElement(suite, "system-out").text = clean(remarks)
    ET.indent(root)
    return ET.tostring(root, "unicode", xml_declaration=True) + "\n"


def to_gradescope(results: list[Result]) -> str:
    """The `results.json` of one learner, whose notebooks all of these are."""
    tests, remarks = [], []
    many = len(results) > 1
    for result in results:
        name = clean(Path(result.submission).name)
        for text in (result.problem, *result.notes):
            remarks += [f"{name}: {clean(text)}"] if text else []
        for row in result.rows:
            before = f"{name}: " if many else ""
            title = "" if row.extra else "Exercise "
            output = clean(row.message)
            if row.points is None:
                output = f"NOT GRADED, the 0 is not a grade. {output}"
            test = {
                "name": f"{before}{title}{clean(row.exercise)}",
                "score": row.points or 0,
                "max_score": row.of,
                "status": "passed" if row.verdict == "right" else "failed",
                "output": output,
                "output_format": "text",
            }
            if row.extra:  # an instructor's own: published together with the grades
                test["visibility"] = "after_published"
            else:
                test["number"] = clean(row.exercise)
            tests.append(test)
        if not result.rows:
            remarks.append(f"{name}: NOT GRADED, the 0 is not a grade.")
    document = {
        "score": sum(result.points for result in results),
        "execution_time": round(sum(result.seconds for result in results)),
        "output": "\n".join(remarks),  # the learner reads this
        "output_format": "text",
        "tests": tests,
    }
    return json.dumps(document, indent=1) + "\n"


def to_csv(results: list[Result]) -> str:
    """A row for each exercise; a text that a spreadsheet would compute is quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["submission", "exercise", "points", "of", "verdict", "message"])
    for result in results:
        name = _plain(result.submission)
        for row in result.rows:
            points = "" if row.points is None else f"{row.points:g}"
            shown = [_plain(row.exercise), points, f"{row.of:g}", row.verdict]
            writer.writerow([name, *shown, _plain(row.message)])
        if not result.rows:
            writer.writerow([name, "", "", "", "not graded", _plain(result.problem)])
    return out.getvalue()


def _plain(text: str) -> str:
    line = " ".join(clean(text).split())
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
