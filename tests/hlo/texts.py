"""Texts of compiled programs: those that are stored, and pieces to write others of."""

import lzma
import tarfile
from functools import cache
from pathlib import Path

HLO = Path(__file__).parents[1] / "data" / "hlo"
KiB, MiB = 2**10, 2**20
M42 = {"data": 4, "model": 2}
D, M, DM = ("data",), ("model",), ("data", "model")
FWD, BWD, RE = "forward", "backward", "recompute"


def stored(name: str) -> str:
    return (HLO / f"{name}.hlo").read_text("utf8")


@cache
def archived(archive: str) -> dict[str, str]:
    """The texts of an archive, by their names."""
    with tarfile.open(HLO / f"{archive}.tar.xz") as members:
        return {
            member.name.removesuffix(".hlo"): members.extractfile(member)
            .read()
            .decode()
            for member in members.getmembers()
        }


def gpt3_step() -> str:
    with lzma.open(HLO / "gpt3_step.tpu_0.10.2.hlo.xz", "rt") as file:
        return file.read()


def one(op, before="", lines="", devices=8, header=None, shape="f32[2,16]", out=None):
    """A module of one parameter %p, some lines, and the result `op`."""
    header = f", num_partitions={devices}" if header is None else header
    out = out or f"{shape}{{1,0}}"
    return (
        f"HloModule jit_f{header}\n{before}\nENTRY %main (p: {shape}) -> {out} {{\n"
        f"  %p = {shape}{{1,0}} parameter(0)\n  {lines}\n  ROOT %r = {out} {op}\n}}\n"
    )


def entry(t, called, *lines):
    """A module of a parameter %p, of places %at for each device, and some lines."""
    start = [f"%p = {t} parameter(0)", "%me = u32[] partition-id()"]
    start += ["%size = u32[] constant(8)", "%at = u32[] multiply(%me, %size)"]
    inside = "\n  ".join([*start, *lines])
    head = "HloModule jit_f, num_partitions=8"
    return f"{head}\n{called}\nENTRY %main (p: {t}) -> {t} {{\n  {inside}\n}}\n"


def applied(opcode: str, name: str = "") -> str:
    """What a reduction applies, called like its opcode if nothing else is said."""
    return f"""
%{name or opcode} (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] {opcode}(%a, %b)
}}
"""


def condition(state, limit="constant(5)", order="LT", more=""):
    """The condition `%test` of a loop, which compares element 0 of its state."""
    return f"""
%test (t: {state}) -> pred[] {{
  %t = {state} parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %limit = s32[] {limit}
  {more}
  ROOT %c = pred[] compare(%i, %limit), direction={order}
}}
"""


WRAPPED = """
%wrapped (q: f32[4]) -> f32[4] {
  %q = f32[4] parameter(0)
  ROOT %r = f32[4] all-to-all(%q), replica_groups=[4,2]<=[8], dimensions={0}
}
"""
