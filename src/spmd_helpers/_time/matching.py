"""Which instruction of a program each run of a kernel belongs to.

A trace does not always say. XLA renames a collective when it starts it apart from
where it ends, and a kernel of a CUDA graph names the graph.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from .._hlo.parser import Computation, Instruction, Module
from .kernels import FREE
from .record import Part
from .trace import KernelRun

_Places: TypeAlias = "Mapping[str, tuple[Computation, int]]"

_Key: TypeAlias = "tuple[str, ...]"

_LIBRARIES = (
    ("__cudnn", re.compile(r"cudnn|flash|sdpa", re.I)),
    ("__cublas", re.compile(r"nvjet|cublas|gemm|cutlass|xmma", re.I)),
)
_BESIDE = re.compile(r"Mem(set|cpy)|memcpy|splitK|cudnn::fusion", re.I)


def matched(
    module: Module, parts: Sequence[Part], runs: Sequence[KernelRun]
) -> list[str | None]:
    """For each run the name of its instruction, None where that is not known.

    Args:
        module: the program.
        parts: its instructions that take time, in program order.
        runs: what ran, in order of time.
    """
    known = {
        i.name: (computation, number)
        for computation in module.computations.values()
        for number, i in enumerate(computation.instructions)
    }
    renamed = _renamed(known, parts, runs)
    names: list[str | None] = []
    for run in runs:
        name = renamed.get(_key(run))
        if name is None and run.kind is None and run.op in known:
            name = run.op
        names.append(name)
    _Graphs(module, known).fill(runs, names)
    return names


# --- What XLA starts apart from where it ends -----------------------------------------


def _key(run: KernelRun) -> tuple[str, str]:
    """What to compare with a part: its kind, and the name that the trace has."""
    return run.kind or "kernel", run.op


def _renamed(
    known: _Places, parts: Sequence[Part], runs: Sequence[KernelRun]
) -> dict[tuple[str, str], str]:
    """(kind, name in the trace) → instruction, of collectives and of kernels.

    Those of a kind that stem from the same operation run in the order in which the
    program has them.
    """
    ours: dict[str, _Key] = {}
    for part in parts:
        i = _at(known, part.name)
        if i is None or (part.lane == "kernels" and not i.opcode.endswith("-start")):
            continue
        is_kernel = part.lane == "kernels"
        # A copy reads and writes what it copies.
        size = _about(part.nbytes / 2 / (part.count or 1)) if is_kernel else ""
        kind = "kernel" if is_kernel else part.kind
        ours[part.name] = (kind, size, i.quoted("op_name") or "")
    theirs: dict[tuple[str, str], _Key] = {}
    for run in runs:
        key = kind, op = _key(run)
        if not run.is_in_graph and (kind != "kernel" or op not in known):
            size = _about(run.copied_bytes or 0) if kind == "kernel" else ""
            theirs.setdefault(key, (kind, size, run.op_name))
    pairs: dict[tuple[str, str], str] = {}
    for exact in (3, 2, 1):  # kind, size and operation; kind and size; the kind alone
        groups: dict[_Key, tuple[list[str], list[tuple[str, str]]]] = {}
        for name, each in ours.items():
            groups.setdefault(each[:exact], ([], []))[0].append(name)
        for key, each in theirs.items():
            groups.setdefault(each[:exact], ([], []))[1].append(key)
        for names, keys in groups.values():
            if len(names) == len(keys):
                pairs |= zip(keys, names, strict=True)
                for name, key in zip(names, keys, strict=True):
                    del ours[name], theirs[key]
    return pairs


def _about(nbytes: float) -> str:
    """A size without what an index takes."""
    return f"{nbytes:.2e}"


def _at(known: _Places, name: str) -> Instruction | None:
    if name not in known:
        return None
    computation, number = known[name]
    return computation.instructions[number]


# --- CUDA graphs ----------------------------------------------------------------------


class _Graphs:
    """Finds the instructions of kernels in CUDA graphs.

    A graph runs neighbours of one computation in their order. A kernel that XLA made is
    called like its instruction, or like an equal one of which it has the code; one of a
    library is the next call of that library.
    """

    def __init__(self, module: Module, known: _Places) -> None:
        self._known = known
        self._written: dict[str, list[tuple[Computation, int]]] = {}
        self._stems: dict[int, dict[str, list[int]]] = {}
        self._calls: dict[int, list[tuple[int, str]]] = {}
        for computation in module.computations.values():
            stems = self._stems.setdefault(id(computation), {})
            calls = self._calls.setdefault(id(computation), [])
            for number, i in enumerate(computation.instructions):
                if i.opcode == "custom-call":
                    calls.append((number, i.quoted("custom_call_target") or ""))
                if i.opcode not in FREE:
                    stems.setdefault(_stem(i.name), []).append(number)
                    place = (computation, number)
                    self._written.setdefault(_written(i.name), []).append(place)

    def fill(self, runs: Sequence[KernelRun], names: list[str | None]) -> None:
        """Put the names of what graphs ran where `names` has None."""
        computation: Computation | None = None
        at = -1
        for launch in _launches(runs):
            if not runs[launch[0]].is_in_graph:
                (n,) = launch
                if names[n] in self._known:
                    computation, at = self._known[names[n] or ""]
                continue
            inside = self._computation(launch, runs, computation)
            if inside is None:
                continue
            if inside is not computation:
                computation, at = inside, -1
            at = self._follow(computation, at, launch, runs, names)

    def _computation(
        self,
        launch: Sequence[int],
        runs: Sequence[KernelRun],
        current: Computation | None,
    ) -> Computation | None:
        """The computation that has most of the kernels by name."""
        counts: dict[int, int] = {}
        by_id: dict[int, Computation] = {}
        for n in launch:
            for computation, _ in self._written.get(runs[n].name, ()):
                by_id[id(computation)] = computation
                counts[id(computation)] = counts.get(id(computation), 0) + 1
        if not counts:
            return current
        most = max(counts.values())
        if current is not None and counts.get(id(current)) == most:
            return current
        return by_id[max(counts, key=counts.__getitem__)]

    def _follow(
        self,
        computation: Computation,
        at: int,
        launch: Sequence[int],
        runs: Sequence[KernelRun],
        names: list[str | None],
    ) -> int:
        """Name the kernels of one launch; returns the place of the last."""
        stems, calls = self._stems[id(computation)], self._calls[id(computation)]
        for n in launch:
            kernel = runs[n].name
            is_own = _stem(kernel) in stems
            library = None if is_own else _library(kernel)
            if library is not None:
                numbers = [k for k, target in calls if target.startswith(library)]
                if at in numbers and (_BESIDE.search(kernel) or at == max(numbers)):
                    names[n] = computation.instructions[at].name
                    continue
            else:
                numbers = stems.get(_stem(kernel), [])
            if not numbers:
                continue
            at = next((number for number in numbers if number > at), numbers[0])
            names[n] = computation.instructions[at].name
        return at


def _written(name: str) -> str:
    """An instruction's name as a kernel has it."""
    return re.sub(r"[.\-]", "_", name)


def _stem(name: str) -> str:
    """A name without its number."""
    return re.sub(r"(_\d+)+$", "", _written(name))


def _launches(runs: Sequence[KernelRun]) -> list[list[int]]:
    """Numbers of the runs of each launch of a graph, and of each other kernel."""
    launches: list[list[int]] = []
    graph, nodes = "", set[int | None]()
    for n, run in enumerate(runs):
        if run.kind is not None:
            continue  # on a stream of its own
        if not run.is_in_graph or run.op != graph or run.node in nodes:
            launches.append([])
            graph, nodes = run.op if run.is_in_graph else "", set()
        launches[-1].append(n)
        nodes.add(run.node)
    return launches


def _library(kernel: str) -> str | None:
    return next((target for target, known in _LIBRARIES if known.search(kernel)), None)
