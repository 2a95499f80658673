"""The texts of the measured rows' programs: compile them, reduce them, read them.

    python -m tools.measure.seconds.texts compile FILE.zip [--only GROUP,…]
    python -m tools.measure.seconds.texts pack FILE.zip [FILE.zip …]

`compile` gives the programs to the GPU compiler, on the cards or without any (then no
kernel is tuned), and goes on where it stopped. Rows with XLA_FLAGS of their own are
left out, since flags are read once. `pack` stores what is read of the texts in
tests/data/hlo/seconds.gpu_JAXVERSION.tar.xz; of a name the first file counts. Texts
that transformer.gpu_….tar.xz has beside it are not stored again.
"""

import argparse
import re
import tarfile
import time
import zipfile
from pathlib import Path

from tools import ROOT
from tools.measure.seconds.rows import rows

DATA = ROOT / "tests" / "data" / "hlo"
# Rows whose programs are those of other rows, to the letter.
SAME = {
    "log/batch 16": "ways/fsdp constrained",
    "log/layers one after another": "log/latency hiding scheduler",
    "log/pipelined collectives": "log/latency hiding scheduler",
}
_HEADER = ("is_scheduled", "num_partitions", "replica_count")
_LABEL = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_METADATA = re.compile(r'metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_NOISE = re.compile(
    r', (?:frontend_attributes|sharding|operand_layout_constraints)=\{(?:[^{}"]|'
    r'"(?:[^"\\]|\\.)*"|\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\})*\}'
)


def reduced(text: str) -> str:
    """What a prediction reads of a text: no source tables, few labels."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("HloModule"):
            lines.append(_header(line))
        elif inside:
            lines.append(_instruction(line))
            inside = not line.startswith("}")
        elif line.rstrip().endswith("{"):
            inside = True
            lines.append(line)
    return "\n".join(lines) + "\n"


def _header(line: str) -> str:
    name, *_ = line.split(",")
    matches = [re.search(rf"\b{key}=\w+", line) for key in _HEADER]
    return ", ".join([name, *(match[0] for match in matches if match)])


def _instruction(line: str) -> str:
    line = _NOISE.sub("", line)
    metadata = _METADATA.search(line)
    if metadata is None:
        return line
    label = _LABEL.search(metadata[0])
    kept = label[1].rsplit("/", 1)[-1] if label and " reduce(" in line else ""
    words = f'metadata={{op_name="{kept}"}}' if kept else "metadata={}"
    return line[: metadata.start()] + words + line[metadata.end() :]


def archived(path: Path) -> dict[str, str]:
    """Name → text, of one archive."""
    texts = {}
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            texts[member.name.removesuffix(".hlo")] = file.read().decode()
    return texts


def stored() -> dict[str, str]:
    """Name of a measured row → the text of its program, of all that are stored."""
    texts: dict[str, str] = {}
    for path in sorted([*DATA.glob("seconds.gpu_*"), *DATA.glob("transformer.gpu_*")]):
        texts |= archived(path)
    return {name: texts[SAME.get(name, name)] for name in rows()
            if SAME.get(name, name) in texts}  # fmt: skip


def compile_into(path: Path, wanted: list[str]) -> None:
    """Compile what an archive does not have yet, and write each when it is there."""
    from tools.measure.seconds.programs import KINDS

    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as kept:
        there = {*kept.namelist()}
        for name, row in rows().items():
            group = name.partition("/")[0]
            flags = row.get("setting", {}).get("flags")
            if f"{name}.txt" in there or flags or group not in (wanted or KINDS):
                continue
            at = time.perf_counter()
            try:
                kept.writestr(f"{name}.txt", KINDS[group](row))
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error!s:.200}", flush=True)
                continue
            print(f"{name}: {time.perf_counter() - at:.1f} s", flush=True)


def pack(paths: list[Path]) -> Path:
    """Store the reduced texts, and return where."""
    from tools.check.make_fixtures import pack as packed

    texts: dict[str, str] = {}
    for path in reversed(paths):
        with zipfile.ZipFile(path) as kept:
            names = kept.namelist()
            texts |= {n.removesuffix(".txt"): kept.read(n).decode() for n in names}
    beside = _beside()
    every = rows()
    wanted = [n for n in every if n in texts and n not in beside and n not in SAME]
    (version,) = {every[name]["jax"] for name in wanted}
    target = DATA / f"seconds.gpu_{version}.tar.xz"
    packed(target, ((name, reduced(texts[name])) for name in wanted))
    return target


def _beside() -> set[str]:
    (path,) = DATA.glob("transformer.gpu_*")
    with tarfile.open(path) as archive:
        return {name.removesuffix(".hlo") for name in archive.getnames()}


def main() -> None:
    """Do what the first argument says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("compile", "pack"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    if given.what == "compile":
        compile_into(given.files[0], given.only.split(",") if given.only else [])
        return
    path = pack(given.files)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
