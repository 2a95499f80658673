"""The results of grading, as a table, as JUnit XML, as Gradescope's JSON and as CSV."""

import csv
import io
import json
import re
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path

from .result import Result, Row

_WIDTH = 88
_UNPRINTABLE = re.compile(
    r"[^\n\t\x20-\x7e\xa0-\u200a\u2010-\u2027\u2030-\u2065\u2070-\ud7ff"
    r"\ue000-\ufffd\U00010000-\U0010ffff]"  # nor what turns a line around
)
_COMPUTED = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_COLORS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_ISOLATED = (
    "This ran the submissions' code as you, on this machine. Isolated: time, memory, "
    "the size of the output, the environment's variables; each submission had its own"
    " process group and temporary folder, {processes}. Not"
    " isolated: your files, the network, and a determined cheater, whose code shares a"
    " process with the checks. Use a container or an account without rights for people"
    " you don't trust."
)
_CONTAINED = (
    "This ran each submission's code in a container of its own. Isolated: your files, "
    "the results, the work of others, the network, processes, memory, time. Not "
    "isolated: the checks, which share a process with the answers, so a determined "
    "cheater can get points; and this machine's kernel, which the containers share."
)
_NONE_LEFT = "and none of its processes was left"
_NOT_CHECKED = "but whether one of its processes was left could not be checked for all"


def isolation(results: list[Result], in_containers: bool = False) -> str:
    """What was kept apart while these were graded, and what was not."""
    if in_containers:
        return _CONTAINED
    checked = all(result.none_left for result in results)
    return _ISOLATED.format(processes=_NONE_LEFT if checked else _NOT_CHECKED)


def clean(text: str) -> str:
    """A text that a terminal and an XML file can hold: no codes, no controls."""
    return _UNPRINTABLE.sub("?", _COLORS.sub("", text)).strip()


def to_table(results: list[Result], in_containers: bool = False) -> str:
    """What is printed: a line for each exercise, and under it what the learner got."""
    lines = []
    for result in results:
        lines += _of_submission(result)
    bad = [result for result in results if not result.graded]
    if bad:
        lines += ["NOT GRADED, or not wholly:"]
        lines += [f"  {clean(result.submission)}" for result in bad]
        lines += [""]
    return "\n".join([*lines, textwrap.fill(isolation(results, in_containers), _WIDTH)])


def _of_submission(result: Result) -> list[str]:
    name = clean(result.submission)
    notes = [
        line
        for note in (*result.notes, *result.extra_notes)
        for line in _indented(f"note: {note}")
    ]
    if not result.rows:
        return [f"{name}: NOT GRADED", *_indented(result.problem), *notes, ""]
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
    lines += _indented(f"note: {result.problem}") if result.problem else []
    return [*lines, *notes, ""]


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
        problem = [result.problem] if result.problem else []
        remarks = "\n".join([*problem, *result.notes, *result.extra_notes])
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
        before = f"{name}: " if many else ""
        for row in result.rows:
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
                "visibility": "visible",
            }
            if row.extra:  # an instructor's own: published together with the grades
                test["visibility"] = "after_published"
            else:
                test["number"] = clean(row.exercise)
            tests.append(test)
        if result.extra_notes:
            tests.append(
                {
                    "name": f"{before}Notes on the extra checks",
                    "score": 0,
                    "max_score": 0,
                    "output": clean("\n".join(result.extra_notes)),
                    "output_format": "text",
                    "visibility": "after_published",
                }
            )
        if not result.rows:
            remarks.append(f"{name}: NOT GRADED, the 0 is not a grade.")
    document = {
        "score": sum(result.points for result in results),
        "execution_time": round(sum(result.seconds for result in results)),
        "output": "\n".join(remarks),  # the learner reads this
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",  # the table says what hidden checks found
        "tests": tests,
    }
    return json.dumps(document, indent=1) + "\n"


def gradescope_of_none(why: str) -> str:
    """The `results.json` where nothing could be graded, for one reason."""
    document = {
        "score": 0,
        "output": f"NOT GRADED, the 0 is not a grade. {clean(why)}",
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [],
    }
    return json.dumps(document, indent=1) + "\n"


def to_csv(results: list[Result]) -> str:
    """A row for each exercise, and for each file one with the total and the notes.

    A text that a spreadsheet would compute is quoted.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = ("submission", "exercise", "points", "of", "verdict", "message", "notes")
    writer.writerow(columns)
    for result in results:
        name = in_csv(result.submission)
        for row in result.rows:
            points = "" if row.points is None else f"{row.points:g}"
            shown = [in_csv(row.exercise), points, f"{row.of:g}", row.verdict]
            writer.writerow([name, *shown, in_csv(row.message), ""])
        notes = in_csv("; ".join((*result.notes, *result.extra_notes)))
        writer.writerow([name, "total", *_total(result), notes])
    return out.getvalue()


def _total(result: Result) -> list[str]:
    """Points, of how many, how much of it was graded, and why not all of it."""
    if not result.rows:
        return ["", "", "not graded", in_csv(result.problem)]
    lacking = [f"{r.exercise} {r.verdict}" for r in result.rows if r.points is None]
    reasons = [*([result.problem] if result.problem else []), *lacking]
    verdict = "graded" if result.graded else "graded in part"
    shown = [f"{result.points:g}", f"{result.of:g}", verdict]
    return [*shown, in_csv("; ".join(reasons))]


def in_csv(text: str) -> str:
    """A text in one line that no spreadsheet computes.

    They take one for a formula that begins with `=`, `+`, `-` or `@`, or with the wide
    form of one; some leave out a tab or an end of line before it.
    """
    line = " ".join(clean(text).split())
    return f"'{line}" if line.startswith(_COMPUTED) else line
