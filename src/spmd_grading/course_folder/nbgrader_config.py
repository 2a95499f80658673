"""nbgrader's settings for this course. It reads them when run in this folder."""

import os
import sys
import warnings
from pathlib import Path

# nbgrader calls the program `alembic` by name: look beside this Python first.
BIN = str(Path(sys.executable).parent)
if BIN not in os.environ["PATH"].split(os.pathsep):
    os.environ["PATH"] = os.pathsep.join((BIN, os.environ["PATH"]))

# A learner's `!pip install` would change what all others are graded on.
os.environ["PIP_PYTHON"] = os.devnull

HERE = Path(__file__).resolve().parent

from nbconvert.preprocessors import ClearMetadataPreprocessor  # noqa: E402
from nbgrader.preprocessors import (  # noqa: E402
    AssignLatePenalties,
    CheckCellMetadata,
    ClearOutput,
    DeduplicateIds,
    LimitOutput,
    OverwriteCells,
    OverwriteKernelspec,
    SaveAutoGrades,
)
from sqlalchemy.exc import SAWarning  # noqa: E402

from spmd_grading.nbgrader_addon.export import ExportGrades  # noqa: E402
from spmd_grading.nbgrader_addon.find_answers import ReadsUnderLimits  # noqa: E402
from spmd_grading.nbgrader_addon.judge import NoScore, RunSealed  # noqa: E402

warnings.filterwarnings("ignore", category=SAWarning)  # of nbgrader 0.9's own

c = get_config()  # type: ignore[name-defined]  # noqa: F821 (nbgrader defines it)
c.CourseDirectory.root = str(HERE)
c.CourseDirectory.course_id = "spmd"  # the exchange folder of a JupyterHub

# The stub stands in the cell, so nothing takes the place of a solution.
c.ClearSolutions.code_stub = {"python": ""}

# This course's: reads under limits, and gives back ids that a tool has dropped.
c.Autograde.exporter_class = ReadsUnderLimits
c.Autograde.sanitize_preprocessors = [
    ClearOutput,
    DeduplicateIds,
    OverwriteKernelspec,
    OverwriteCells,
    CheckCellMetadata,
]
c.Autograde.autograde_preprocessors = [
    RunSealed,  # this course's, in place of Execute and a kernel
    ClearMetadataPreprocessor,
    LimitOutput,
    SaveAutoGrades,
    NoScore,  # this course's
    AssignLatePenalties,
    CheckCellMetadata,
]
c.ExportApp.plugin_class = ExportGrades  # this course's

c.RunSealed.timeout_s = 300  # for one submission; one cell may take a quarter of it
c.RunSealed.memory_gib = 4  # for one submission with all its processes
