"""`hand_in.py` of a course: what learning platforms export, as a folder or as a zip."""

import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spmd_grading.exports import learner_of, read_export
from spmd_grading.submission import CannotGrade
from tests.grading.small_release import RIGHT, ROOT, WRONG, notebook

pytestmark = pytest.mark.long("courses, made and graded as an instructor does")

NAME = "90_small.ipynb"
EXPORT = {  # a file of an export -> whose it is, its answers
    "Maria Lopez_481_assignsubmission_file/Copy of 90.ipynb": ("Maria-Lopez_481", 90),
    "Maria Lopez_482_assignsubmission_file_/90 (1).ipynb": ("Maria-Lopez_482", 91),
    "lopezmaria_481_77_90-1.ipynb": ("lopezmaria_481", 90),
    "chenwei_LATE_12_78_work.ipynb": ("chenwei_12", 90),
    "Week 2_mlopez_attempt_2026-11-02-10-15-00_90.ipynb": ("mlopez", 90),
    "77-481 - Ana Ruiz - Nov 2, 2026 1015 AM/90.ipynb": ("Ana-Ruiz_77", 90),
    "bo/deep/er/90.ipynb": ("bo", 90),
    "jürgen.ipynb": ("jürgen", 91),
    "../../up/90.ipynb": ("up", 90),
}


@pytest.fixture
def course(tmp_path):
    folder = tmp_path / "course"
    folder.mkdir()
    shutil.copy(ROOT / "src/spmd_grading/course_folder/hand_in.py", folder)
    for chapter in (90, 91):
        path = folder / "release" / f"ch{chapter}" / f"{chapter}_small.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(notebook(chapter=chapter)))

    def hand_in(*arguments):
        path = os.pathsep.join(p for p in sys.path if p.endswith("src"))
        return subprocess.run(
            [sys.executable, "hand_in.py", *map(str, arguments)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
        )

    return folder, hand_in


def handed_in(folder):
    return {
        p.relative_to(folder / "submitted") for p in folder.rglob("submitted/*/*/*")
    }


def zipped(path, files, date=(2026, 11, 2, 10, 0, 0)):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, date), data)
    return path


@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_an_export_is_handed_in(course, tmp_path, kind):
    folder, hand_in = course
    files = {
        name: json.dumps(notebook(RIGHT, chapter=chapter))
        for name, (_, chapter) in EXPORT.items()
        if kind == "zip" or not name.startswith("..")
    }
    if kind == "zip":
        export = zipped(tmp_path / "export.zip", files | {"__MACOSX/x.ipynb": ""})
    else:
        export = tmp_path / "export"
        for name, text in files.items():
            (export / name).parent.mkdir(parents=True, exist_ok=True)
            (export / name).write_text(text)
        (export / ".ipynb_checkpoints").mkdir()
        (export / ".ipynb_checkpoints" / "x.ipynb").write_text("")
    done = hand_in(export)
    assert (done.returncode, done.stderr) == (0, "")
    expected = {
        Path(learner, f"ch{chapter}", f"{chapter}_small.ipynb")
        for name, (learner, chapter) in EXPORT.items()
        if name in files
    }
    assert handed_in(folder) == expected
    assert len(done.stdout.splitlines()) == len(expected)


def test_two_learners_never_become_one(tmp_path):
    """`A B` and `A-B` are one name for nbgrader: both are refused, by name."""
    files = {f"{name}.ipynb": "{}" for name in ("A B", "A-B", "C", " C ", "=1+2", "D")}
    export = read_export(zipped(tmp_path / "x.zip", files))
    said = {one.name: one.problem for one in export if one.problem}
    assert said == {
        "A B.ipynb": "is of a learner who can't be told from 'A-B': rename one",
        "A-B.ipynb": "is of a learner who can't be told from 'A B': rename one",
    }


def test_new_work_is_graded_again(course, tmp_path):
    """nbgrader keeps what it made of earlier work, unless that is gone."""
    folder, hand_in = course
    path = tmp_path / "maria.ipynb"
    path.write_text(json.dumps(notebook(RIGHT)))
    assert hand_in("maria", path).returncode == 0
    outputs = [folder / name / "maria" / "ch90" for name in ("autograded", "feedback")]
    for place in outputs:
        place.mkdir(parents=True)
    assert "new work" not in hand_in("maria", path).stdout  # the same again
    assert all(place.exists() for place in outputs)
    path.write_text(json.dumps(notebook(WRONG)))
    assert "autograde grades it again" in hand_in("maria", path).stdout
    assert not any(place.exists() for place in outputs)


def test_every_file_of_an_export_is_taken_or_named(course, tmp_path):
    folder, hand_in = course
    good = json.dumps(notebook(RIGHT))
    files = {
        "a/essay.ipynb": "no",
        "a/90.ipynb": good,
        "b/report.pdf": "%PDF",
        "b/empty.ipynb": "",
        "c/other.ipynb": json.dumps({"cells": [], "nbformat": 4}),
    }
    done = hand_in(zipped(tmp_path / "export.zip", files))
    assert done.returncode == 2
    assert handed_in(folder) == {Path("a", "ch90", NAME)}
    assert "a/90.ipynb -> submitted/a/ch90/90_small.ipynb" in done.stdout
    for words in (
        "a/essay.ipynb is not a notebook",
        "b/report.pdf is no notebook (.ipynb)",
        "b/empty.ipynb is empty, 0 bytes",
        "c/other.ipynb NOT FOUND among the release",
    ):
        assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_of_several_the_newest_is_taken(course, tmp_path):
    folder, hand_in = course
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, day, answers in (("b", 5, RIGHT), ("a", 4, WRONG), ("c", 3, WRONG)):
            entry = zipfile.ZipInfo(f"maria/{name}.ipynb", (2026, 11, day, 9, 0, 0))
            archive.writestr(entry, json.dumps(notebook(answers)))
    done = hand_in(path)
    assert done.returncode == 0
    taken = folder / "submitted" / "maria" / "ch90" / NAME
    assert json.loads(taken.read_text()) == notebook(RIGHT)
    for name in "ac":
        assert f"maria/{name}.ipynb was left out: maria/b.ipynb is newer" in done.stdout


def test_one_learners_files_are_handed_in_by_name(course, tmp_path):
    folder, hand_in = course
    path = tmp_path / "Copy of 90 (1).ipynb"
    path.write_text(json.dumps(notebook(RIGHT)))
    done = hand_in("maria", path, tmp_path / "none.ipynb")
    assert done.returncode == 2
    assert handed_in(folder) == {Path("maria", "ch90", NAME)}
    assert "none.ipynb can't be read: No such file" in done.stderr
    done = hand_in("maria")
    assert "maria is no folder and no zip" in done.stderr


def test_what_is_no_zip_is_said(course, tmp_path):
    _, hand_in = course
    path = tmp_path / "export.zip"
    path.write_bytes(b"PK\x03\x04 and no more")
    done = hand_in(path)
    assert done.returncode == 2
    assert "is no zip that can be read: unpack it" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_zip_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("spmd_grading.exports._LARGEST_BYTES", 2**20)
    monkeypatch.setattr("spmd_grading.exports._ALL_BYTES", 2**22)
    zeros = bytes(2**20 + 1)
    (one,) = read_export(zipped(tmp_path / "one.zip", {"a/x.ipynb": zeros}))
    assert (one.data, one.problem) == (b"", "is larger than 1 MiB")
    many = {f"a/{n}.ipynb": zeros[1:] for n in range(5)}
    with pytest.raises(CannotGrade, match="hand in a part at a time"):
        read_export(zipped(tmp_path / "many.zip", many))


def test_links_are_not_followed(tmp_path):
    secret = tmp_path / "secret.ipynb"
    secret.write_text("secret")
    export = tmp_path / "export"
    (export / "maria").mkdir(parents=True)
    (export / "maria" / "x.ipynb").symlink_to(secret)
    (one,) = read_export(export)
    assert (one.data, one.problem) == (b"", "is no plain file")
    entry = zipfile.ZipInfo("maria/x.ipynb")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(entry, str(secret))
    (one,) = read_export(tmp_path / "x.zip")
    assert one.data == str(secret).encode()  # where it points to, not what is there


@pytest.mark.parametrize(
    "name", ["..", "", "/", "../..", ".ipynb", "...ipynb", "a/../..", "\0/\n.ipynb"]
)
def test_a_learner_is_always_a_name_of_one_folder(name):
    learner = learner_of(name)
    assert learner
    assert learner not in (".", "..")
    assert not set(learner) & set("/\0\n ")
    assert len(learner_of("x" * 5000 + ".ipynb")) <= 100
