"""An HLO text as records: computations, instructions, shapes, source tables."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

# Bits of one element. A token or an opaque handle takes none.
_BITS = {
    "pred": 8, "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8,
    "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64, "f16": 16,
    "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128, "f4e2m1fn": 4,
    "f8e3m4": 8, "f8e4m3": 8, "f8e4m3b11fnuz": 8, "f8e4m3fn": 8, "f8e4m3fnuz": 8,
    "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8,
}  # fmt: skip
_WORDS = {"pred": "bool", "bf16": "bfloat16", "c64": "complex64", "c128": "complex128"}
_KINDS = {"f": "float", "s": "int", "u": "uint"}

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$")
_LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<=\s]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_PAREN = re.compile(r"[()]")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_ROW = re.compile(r"^(\d+) (.*)$")
_FIELD = re.compile(r"(\w+)=(\d+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


@dataclass(frozen=True)
class Shape:
    """One array: its HLO dtype ('bf16') and its dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.dims)

    @property
    def nbytes(self) -> int:
        return (self.elements * _BITS.get(self.dtype, 0) + 7) // 8


@dataclass
class Instruction:
    """One line: what it is called, what it makes, of what, and the rest."""

    name: str
    is_root: bool
    type: str
    opcode: str
    inside: str  # what stands between the parentheses
    rest: str  # the attributes after them

    @cached_property
    def shapes(self) -> list[Shape]:
        return shapes(self.type)

    @cached_property
    def operands(self) -> list[str]:
        names = _NAME.findall(self.inside)
        if names or self.opcode in ("constant", "parameter") or not self.inside:
            return names
        return [part.split()[-1] for part in self.inside.split(",") if part.strip()]

    @cached_property
    def _plain(self) -> str:
        return _QUOTED.sub('""', self.rest)

    def attribute(self, key: str) -> str | None:
        """The text from after `key=` to the end of the line, strings emptied."""
        match = re.search(rf"(?:^|[\s,]){key}=", self._plain)
        return self._plain[match.end() :] if match else None

    def called(self, *keys: str) -> list[str]:
        """The computations named under these attributes, in the order printed."""
        if not keys:  # of most instructions
            return []
        if keys not in self._called:
            self._called[keys] = self._names_under(keys)
        return self._called[keys]

    @cached_property
    def _called(self) -> dict[tuple[str, ...], list[str]]:
        return {}

    def _names_under(self, keys: tuple[str, ...]) -> list[str]:
        names: list[str] = []
        for key in keys:
            value = self.attribute(key)
            if value is None:
                continue
            if value.startswith("{"):
                value = value[1 : value.index("}")]
                names += [part.strip().lstrip("%") for part in value.split(",")]
            else:
                name = re.match(r"%?([\w.\-]+)", value)
                if name is None:
                    raise ValueError(f"{self.name} has no computation after {key}=")
                names.append(name.group(1))
        return names

    def quoted(self, key: str) -> str | None:
        """The string given as `key="…"` anywhere in the attributes."""
        match = re.search(rf'\b{key}="((?:[^"\\]|\\.)*)"', self.rest)
        return match.group(1).replace("\\'", "'") if match else None

    @cached_property
    def index(self) -> int:
        """Which element of a tuple is taken out."""
        index = self.number(r"\bindex=(\d+)")
        if index is None:
            raise ValueError(f"{self.name} does not say which element it takes out")
        return index

    def number(self, pattern: str) -> int | None:
        match = re.search(pattern, self.rest)
        return int(match.group(1)) if match else None


@dataclass
class Computation:
    """The instructions of one computation in program order, and by name."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {i.name: i for i in self.instructions}

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        users: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for name in dict.fromkeys(instruction.operands):
                users.setdefault(name, []).append(instruction)
        return users

    @cached_property
    def root(self) -> Instruction:
        marked = [i for i in self.instructions if i.is_root]
        return (marked or self.instructions)[-1]

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        return {int(i.inside): i for i in self.instructions if i.opcode == "parameter"}


@dataclass
class Module:
    """A parsed text: the header line, the computations, the source tables."""

    header: str
    computations: dict[str, Computation]
    entry: Computation
    tables: dict[str, dict[int, str]]

    @property
    def devices(self) -> int | None:
        """Partitions × replicas, None where the header tells neither."""
        return header_devices(self.header)

    @cached_property
    def own_number(self) -> str:
        """The instruction that tells a device its number: 'partition-id' mostly."""
        replicas = re.search(r"\breplica_count=(\d+)", self.header)
        many = replicas is not None and int(replicas.group(1)) > 1
        return "replica-id" if many else "partition-id"

    def frames(self, instruction: Instruction) -> list[tuple[str, int]]:
        """(file, line) from where an instruction comes outwards, leaf first."""
        frame = instruction.number(r"\bstack_frame_id=(\d+)")
        if frame is None:
            file = instruction.quoted("source_file")
            line = instruction.number(r"\bsource_line=(\d+)")
            return [(file, line)] if file and line else []
        if frame not in self._frames:
            self._frames[frame] = self._lines(frame)
        return self._frames[frame]

    @cached_property
    def _frames(self) -> dict[int, list[tuple[str, int]]]:
        return {}

    def _lines(self, frame: int) -> list[tuple[str, int]]:
        files = self.tables["FileNames"]
        lines: list[tuple[str, int]] = []
        while frame and len(lines) <= len(self.tables["StackFrames"]):
            row = dict(_FIELD.findall(self.tables["StackFrames"].get(frame, "")))
            place = self.tables["FileLocations"].get(
                int(row.get("file_location_id", 0))
            )
            where = dict(_FIELD.findall(place or ""))
            file = files.get(int(where.get("file_name_id", 0)))
            if file:
                lines.append((file, int(where.get("line", 0))))
            # The printed parent is one more than the frame it means.
            frame = int(row.get("parent_frame_id", 1)) - 1
        return lines


def header_devices(header: str) -> int | None:
    """Partitions × replicas of an `HloModule` line, None where it tells neither."""
    counts = re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", header)
    return prod(int(n) for n in counts) if counts else None


def shapes(text: str) -> list[Shape]:
    """Every array of a printed type, tuples flattened: '(f32[2], s32[])' gives two."""
    return [
        Shape(dtype, tuple(int(d.strip(" <=")) for d in dims.split(",") if d.strip()))
        for dtype, dims in _ARRAY.findall(text)
    ]


def dtype_word(dtype: str) -> str:
    """'bf16' to 'bfloat16', 's32' to 'int32', as NumPy and JAX spell them."""
    if dtype in _WORDS:
        return _WORDS[dtype]
    if re.fullmatch(r"[fsu]\d+", dtype):
        return _KINDS[dtype[0]] + dtype[1:]
    return "float" + dtype[1:].replace("e", "_e", 1) if dtype[:1] == "f" else dtype


def parse(text: str) -> Module | None:
    """Split a text into its records, in one pass; None if it is not HLO."""
    lines = text.splitlines()
    starts = (n for n, line in enumerate(lines) if line.startswith("HloModule"))
    start = next(starts, None)
    if start is None:
        return None
    tables: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
    computations: dict[str, Computation] = {}
    entry = table = inside = None
    for line in lines[start + 1 :]:
        if inside is not None:
            if line.startswith("}"):
                inside = None
            elif instruction := _instruction(line):
                inside.instructions.append(instruction)
        elif table is not None and (row := _ROW.match(line)):
            table[int(row.group(1))] = row.group(2).strip('"')
        elif line in tables:
            table = tables[line]
        elif head := _HEAD.match(line.rstrip()):
            inside = Computation(head.group(2))
            computations[inside.name] = inside
            if head.group(1):
                entry = inside
    if entry is None or not all(c.instructions for c in computations.values()):
        return None
    return Module(lines[start], computations, entry, tables)


def _instruction(line: str) -> Instruction | None:
    match = _LINE.match(line)
    if not match:
        return None
    body = line[match.end() :]
    end = _closing(body, 0) if body.startswith("(") else body.find(" ")
    opcode = _OPCODE.search(body, max(end, 0))
    if not opcode:
        return None
    close = _closing(body, opcode.end() - 1)
    inside = body[opcode.end() : close - 1]
    return Instruction(
        name=match.group(2),
        is_root=bool(match.group(1)),
        type=body[: max(end, 0)],
        opcode=opcode.group(1),
        inside=re.sub(r"/\*.*?\*/", "", inside) if "/*" in inside else inside,
        rest=body[close:],
    )


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at `start` has closed, one past it."""
    depth = 0
    for match in _PAREN.finditer(text, start):
        depth += 1 if match.group() == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)
