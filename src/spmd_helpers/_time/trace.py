"""A trace of JAX's profiler as a list of runs of kernels.

Seen on jax 0.11.2 with CUDA 13: a GPU is a plane '/device:GPU:0' with a line for each
stream. An event names its instruction in `hlo_op` and the operation of the reader's
code in `name`. A kernel of a CUDA graph names the graph instead, 'command_buffer_3'.
"""

import gzip
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from .._errors import NotUnderstood

_KIND = re.compile(
    r"(all-gather|all-reduce|reduce-scatter|all-to-all|ragged-all-to-all|"
    r"collective-permute|collective-broadcast)"
)
_DEVICE = re.compile(r"/device:GPU:(\d+)")
_TPU = re.compile(r"/device:TPU:\d+")
_SIZE = re.compile(r"\bsize:(\d+)")
_GRAPH = re.compile(r"command_buffer")


@dataclass(frozen=True)
class KernelRun:
    """One run of a kernel, a copy or a collective, on the first device of a trace.

    Attributes:
        name: the kernel's name, as the card's driver gives it.
        op: the instruction that it belongs to, or the CUDA graph.
        op_name: the operation of the traced function; empty if the trace names none.
        start_s: when it starts; what time 0 is, the trace decides.
        end_s: when it ends.
        node: of a kernel in a CUDA graph, which one of the graph's it is.
        copied_bytes: of a copy, its size.
    """

    name: str
    op: str
    op_name: str
    start_s: float
    end_s: float
    node: int | None = None
    copied_bytes: int | None = None

    @property
    def kind(self) -> str | None:
        """The kind of a collective; None of a kernel."""
        match = _KIND.match(self.op)
        return match[1] if match else None

    @property
    def is_in_graph(self) -> bool:
        """Whether a CUDA graph ran it, and `op` names that."""
        return bool(_GRAPH.match(self.op))


def read_runs(jax: ModuleType, path: Path, program: str) -> tuple[KernelRun, ...]:
    """The runs of a program on the first GPU of a trace, in the order they start.

    Args:
        jax: the module.
        path: a file `*.xplane.pb`, a folder with one, or runs that `write_runs` wrote.
        program: the name of the compiled program, 'jit_step'.

    Raises:
        NotUnderstood: there is no such file, it has no GPU, or that program did not
            run there.
    """
    file = _file(path)
    if file.name.endswith(".json.gz"):
        rows = json.loads(gzip.decompress(file.read_bytes()))
        return tuple(KernelRun(*row) for row in rows)
    with warnings.catch_warnings():  # the bindings' types have no module
        warnings.simplefilter("ignore", DeprecationWarning)
        data = jax.profiler.ProfileData.from_file(str(file))
        return runs_of(data, program, str(path))


def write_runs(runs: Iterable[KernelRun], path: Path) -> None:
    """Keep runs in a small file, which `read_runs` reads."""
    rows = [[getattr(run, each.name) for each in fields(run)] for run in runs]
    text = json.dumps(rows, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def runs_of(data: Any, program: str, path: str) -> tuple[KernelRun, ...]:
    """The runs of a program in what JAX's profiler recorded."""
    planes = {
        int(match[1]): plane
        for plane in data.planes
        if (match := _DEVICE.fullmatch(plane.name))
    }
    if not planes and any(_TPU.match(plane.name) for plane in data.planes):
        raise NotUnderstood(
            f"path={path!r} is a trace of a TPU, which read_trace does not read: XProf "
            "shows it, and spmd.step_time predicts the step by line"
        )
    if not planes:
        raise NotUnderstood(
            f"path={path!r} is a trace without a GPU: record one with "
            "jax.profiler.trace(folder) around some steps on GPUs"
        )
    runs, others = [], Counter[str]()
    for line in planes[min(planes)].lines:
        for event in line.events:
            known = {str(key): value for key, value in event.stats}
            module = str(known.get("hlo_module", ""))
            if module != program:
                others[module] += 1
                continue
            start = event.start_ns * 1e-9
            node = known.get("cuda_graph_node_id")
            size = _SIZE.search(str(known.get("memcpy_details", "")))
            runs.append(
                KernelRun(
                    name=event.name,
                    op=str(known.get("hlo_op", "")),
                    op_name=str(known.get("name", "")),
                    start_s=start,
                    end_s=start + event.duration_ns * 1e-9,
                    node=None if node is None else int(node),
                    copied_bytes=int(size[1]) if size else None,
                )
            )
    if not runs:
        there = ", ".join(name for name, _ in others.most_common(5) if name)
        raise NotUnderstood(
            f"path={path!r} has no kernel of {program}: it has those of "
            f"{there or 'no program'}. Give the report of the program that was traced"
        )
    return tuple(sorted(runs, key=lambda run: (run.start_s, run.end_s)))


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted(path.rglob("*.xplane.pb")) if path.is_dir() else []
    if not files:
        raise NotUnderstood(
            f"path={str(path)!r} is neither a trace nor a folder with one "
            "(*.xplane.pb): give what you gave to jax.profiler.trace"
        )
    return max(files, key=lambda file: file.stat().st_mtime)
