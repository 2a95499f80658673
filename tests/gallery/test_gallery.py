"""Programs of the kinds that people run: what a person counted, and no false alarm.

The short tests read texts that are stored, of the CPU's compiler in both JAXes that are
pinned, of the TPU's and of the GPU's (data/hlo/README.md). The long ones compile.
"""

import jax
import pytest

from spmd_helpers._hlo.collectives import read_hlo
from spmd_helpers._runtime.packages import is_older
from tests.findings.texts import of_text
from tests.hlo.texts import HLO, archived

from .gallery import PROGRAMS, devices_of, exchanged, expected, is_for, mistakes, ray

# The compiler that a program's file names -> the archive of what it made.
STORED = {
    "cpu": "gallery.cpu_0.12.0.1",
    "cpu_old": "gallery.cpu_0.10.2",
    "tpu": "gallery.tpu_0.12.0.1",
    "gpu": "gallery.gpu_0.12.0.1",
}
OLD = is_older(jax.__version__, "0.11")
TEXTS = [
    (compiler, name)
    for compiler in STORED
    for name in PROGRAMS
    if is_for(name, compiler.removesuffix("_old"))
]


def test_there_are_twenty_programs_of_each_compiler():
    assert {path.name.split(".tar")[0] for path in HLO.glob("gallery.*")} == {
        *STORED.values()
    }
    for compiler, archive in STORED.items():
        names = {name for of, name in TEXTS if of == compiler}
        assert {*archived(archive)} == names
        assert len(names) >= 20
    assert {code for name in PROGRAMS for code in mistakes(name, "cpu")}


@pytest.mark.parametrize(("compiler", "name"), TEXTS)
def test_a_stored_text(compiler, name):
    text, mesh = archived(STORED[compiler])[name], PROGRAMS[name].MESH
    assert exchanged(read_hlo(text, mesh)) == expected(name, compiler)
    codes = {finding.code for finding in of_text(text, mesh)}
    assert codes <= mistakes(name, compiler)


def compiled(name, platform):
    compiler = "cpu_old" if platform == "cpu" and OLD else platform
    report = ray(name, devices_of(platform))
    assert report.lowered_for == platform
    assert exchanged(report.collectives) == expected(name, compiler)
    codes = {finding.code for finding in report.findings}
    assert codes == mistakes(name, compiler), report.findings


@pytest.mark.long("compiles the gallery")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name):
    compiled(name, "cpu")


@pytest.mark.compiler("tpu")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if is_for(name, "tpu")])
def test_a_program_compiled_for_tpu(name):
    compiled(name, "tpu")


@pytest.mark.compiler("gpu")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if is_for(name, "gpu")])
def test_a_program_compiled_for_gpu(name):
    compiled(name, "gpu")
