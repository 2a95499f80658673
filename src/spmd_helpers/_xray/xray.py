"""A function's compiled program, which is read and never run."""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._aot.peak import peak_bytes
from .._core.notebook import InTable
from .._core.source_lines import place_name
from .._core.tables import Table
from .._core.validate import as_integer
from .._core.words import count_words
from .._drawing.draw import Drawing, draw_work
from .._errors import NotUnderstood
from .._findings.evidence import Evidence
from .._findings.find import Finding, find
from .._gpu.memory import are_absent, too_large
from .._hardware.positions import Positions
from .._hlo.collectives import Collective, collectives_of
from .._hlo.constants import constant_bytes
from .._hlo.validate import read_module
from .._hlo.work import work
from .._player.player import CollectivePlayer
from .._runtime.require import require_jax
from .._shardings.from_jax import read_mesh
from . import report as view
from .buffers import shared_buffers
from .compile import Program, compile_it
from .leaves import (
    input_leaves,
    output_leaves,
    pairs,
    varying,
    without_lost_donations,
)
from .positions import positions_of
from .program_shardings import (
    find_mesh,
    shardings_in,
    shardings_like,
    shardings_of_args,
)
from .results import Results, check_references, output_shardings, results_of

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh
    from jax.stages import Compiled, Lowered, Traced

    from .._shardings.types import JaxDevice


@dataclass(frozen=True, repr=False, eq=False)
class XRay(InTable):
    """What a compiled function exchanges, computes and keeps in memory.

    Attributes:
        name: the function's name.
        collectives: every exchange between devices, in program order.
        flops_per_device: floating point operations of the matrix products and
            convolutions that one device does, loops multiplied, 2 for each
            multiply and add; of a conditional the branch with the most, see
            `upper_bound`. None where a loop's trips are unknown.
        redundancy: devices × flops_per_device over the FLOPs of the products that
            are different: 1.0 if no product is computed twice, 8.0 if eight devices
            all compute the same. None if there is no matrix product.
        idle_axes: the mesh axes along which all devices compute the same products, 99 %
            of them or more.
        findings: what looks like a mistake that runs without an error, each with a
            code, a sentence and a remedy.
        peak_memory: bytes that one device needs at once: arguments, results,
            temporaries, and arrays that the function closes over, which are constants
            of the program. None where the backend doesn't say.
        lowered_for: the platform it was compiled for: 'cpu', 'gpu', 'tpu'.
        input_shardings: a tree of ShardingInfos for each positional argument, and last,
            if there are any, a dict of the keyword arguments. None for an
            argument that the program does not use.
        output_shardings: a tree like the result, of ShardingInfos.
        mesh_shape: axis name → size, in mesh order; {} for one device.
        hlo: the compiled program's text.
        upper_bound: whether a conditional may do fewer FLOPs than are counted.
        without_card: whether it was compiled for GPUs that are not there, where no
            kernel is tuned: the peak of a run, by the same JAX, can differ, by 15 % at
            most where it was measured, mostly by less than 1 %.
        pieces: for the device at each position in the mesh, which of the different
            pieces of the largest matrix product it computes, from 0: equal numbers are
            repeated work. () if there is no matrix product.
        positions: the kind of the devices, and the host of each, in the order of the
            mesh; None where only their number is known.
    """

    name: str
    collectives: tuple[Collective, ...]
    flops_per_device: int | None
    redundancy: float | None
    idle_axes: tuple[str, ...]
    findings: tuple[Finding, ...]
    peak_memory: int | None
    lowered_for: str
    input_shardings: tuple[Any, ...]
    output_shardings: Any
    mesh_shape: Mapping[str, int]
    hlo: str = field(repr=False)
    upper_bound: bool = False
    without_card: bool = False
    positions: Positions | None = field(default=None, repr=False)
    pieces: tuple[int, ...] = field(default=(), repr=False)

    def _shown(self) -> Table:
        doubled = any("float32" in c.dtype for c in self.collectives)
        idle = {axis: self.mesh_shape[axis] for axis in self.idle_axes}
        doubled = doubled and self.lowered_for == "cpu" and "bf16[" in self.hlo
        return view.shown(
            view.title(self.name, self.lowered_for, self.mesh_shape),
            view.rows(self.collectives),
            [
                *view.notes(self.collectives, doubled),
                *view.work_notes(
                    self.flops_per_device,
                    self.redundancy,
                    idle,
                    self.peak_memory,
                    self.upper_bound,
                ),
                *([view.WITHOUT_CARD] if self.without_card else []),
                *view.finding_notes(self.findings),
            ],
        )

    def play(self, n: int = 0) -> CollectivePlayer:
        """Play one of the collectives hop by hop.

        Args:
            n: its number in `collectives`, from 0.

        Returns:
            A `CollectivePlayer`, which a notebook shows.

        Raises:
            NotUnderstood: there is no such collective, or it is of a kind that is not
                played, such as a ragged-all-to-all, or an all-reduce with fewer
                elements than devices, such as that of a loss.
        """
        count = len(self.collectives)
        number = as_integer(n, 0, count - 1)
        if number is None:
            if not count:
                raise NotUnderstood(
                    f"n={n!r}: {self.name} has no collective, so there is nothing to "
                    "play; X-ray a program whose devices exchange something."
                )
            raise NotUnderstood(
                f"n={n!r} is none of the {count_words(count, 'collective')} of "
                f"{self.name}; give an integer from 0 to {count - 1}."
            )
        mesh = self.mesh_shape or None
        return CollectivePlayer(self.collectives[number], mesh=mesh)

    def draw_work(self) -> Drawing:
        """Draw which piece of the largest matrix product each device computes.

        Devices of one color compute the same; where there are more than eight pieces
        the numbers say it.

        Returns:
            A `Drawing` of the mesh, which a notebook shows.

        Raises:
            NotUnderstood: the program has no matrix product, or runs on one device.
        """
        if not self.mesh_shape or not self.pieces:
            why = "no matrix product" if self.mesh_shape else "no mesh"
            raise NotUnderstood(
                f"{self.name} has {why}, so there is no work to draw; X-ray a program "
                "that multiplies matrices on several devices."
            )
        return draw_work(self.name, read_mesh(dict(self.mesh_shape)), self.pieces)


def xray(
    f: "Callable[..., Any] | Traced | Lowered | Compiled",
    *args: Any,
    mesh: "Mesh | AbstractMesh | None" = None,
    jit: Mapping[str, Any] | None = None,
    carry: Mapping[int, int] | int | None = None,
    **kwargs: Any,
) -> XRay:
    """Compile a function without running it: communication, work and memory per device.

        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
        >>> by_rows = NamedSharding(mesh, P("data"))
        >>> x = jax.ShapeDtypeStruct((16, 6), jnp.float32, sharding=by_rows)
        >>> report = xray(lambda x: x.sum(axis=0), x)
        >>> [(c.kind, c.axes, c.count) for c in report.collectives]
        [('all-reduce', ('data',), 1)]
        >>> report.collectives[0].result_bytes  # a sum of 6 floats of 4 bytes
        24
        >>> report = xray(lambda x: x.T @ x, x)
        >>> report.flops_per_device  # 2 · 6 · 2 · 6: each device has 16/8 = 2 rows
        144
        >>> report.redundancy, report.idle_axes, report.findings
        (1.0, (), ())

    Args:
        f: a function, plain, jitted or pmapped, or one already lowered or compiled
            (its arguments are then fixed, and none need be given).
        args: arrays or ShapeDtypeStructs, as f takes them. No data is touched: a
            donated, deleted array does.
        mesh: the Mesh whose axes to name; only needed where neither the arguments
            nor the program tell.
        jit: options for `jax.jit` if f is plain: {'donate_argnums': 0}.
        carry: which outputs are the arguments of the next step, to find those whose
            sharding drifts, so that the second step compiles again: {0: 0, 1: 1} says
            that result[0] becomes the first argument and result[1] the second; 2
            says the same.
        kwargs: f's keyword arguments, likewise.

    Returns:
        An `XRay`. `peak_memory` is XLA's own figure, except on CPU, where that one
        leaves out temporaries: there it is arguments + results - aliases +
        temporaries, which is an upper bound; on TPU it is the smaller of the two.
        Findings are fullest for a function: of one that is already lowered or
        compiled, the requests are not known.

    Raises:
        NotUnderstood: f is not a function, or `jit` can't be applied to it, or
            `carry` names outputs or arguments that there are not, or f closes over
            references (`jax.new_ref`).
        MeshMismatch: the program runs on another number of devices than `mesh`.
        DoesNotFit: the compiler says that the program needs more memory than the
            device has.
        What JAX raises where f doesn't trace or compile, with a note.

    Used from chapter 01 on.
    """
    jax = require_jax()
    program = compile_it(jax, f, args, kwargs, jit)
    check_references(program)
    compiled, call = program.compiled, program.call
    out_shardings = output_shardings(jax, program)
    known = [*shardings_in(jax, compiled.input_shardings)]
    known += out_shardings or []
    given = [*shardings_of_args(jax, call.args, call.kwargs), *known]
    if program.pmapped:  # arguments may come from a pmap with another axis name
        given = [*(out_shardings or []), *given]
    program_mesh = find_mesh(jax, program.text, mesh, given)
    devices: list[JaxDevice] = [d for s in known for d in s.device_set]
    log = "\n".join(program.log)
    refused = too_large(
        jax, compiled, devices, call.args, call.kwargs, program.traced, log
    )
    if refused is not None:
        raise refused
    results = results_of(jax, program, out_shardings, program_mesh)
    looked = _Looked(
        program=program,
        results=results,
        mesh_shape=dict(read_mesh(program_mesh).shape)
        if program_mesh is not None
        else {},
        platform=devices[0].platform if devices else jax.default_backend(),
        without_card=are_absent(devices),
        positions=positions_of(program_mesh, devices),
        inputs=shardings_like(
            jax, compiled.in_avals, compiled.input_shardings, program_mesh
        ),
        outputs=shardings_like(jax, results.tree, results.shardings, program_mesh),
    )
    return _report(jax, looked, carry)


@dataclass(frozen=True)
class _Looked:
    """A compiled function, its results, and the shardings that it has."""

    program: Program
    results: Results
    mesh_shape: dict[str, int]
    platform: str
    without_card: bool
    positions: Positions | None
    inputs: tuple[Any, Any]  # shardings of the positional and of the named arguments
    outputs: Any


def _report(
    jax: ModuleType, looked: _Looked, carry: Mapping[int, int] | int | None
) -> XRay:
    program, shape = looked.program, looked.mesh_shape
    module = read_module(program.text)
    inputs = input_leaves(jax, program, looked.inputs)
    outputs = output_leaves(jax, program, looked.results, looked.outputs, inputs)
    if program.call.keeps_quiet:
        inputs = without_lost_donations(inputs, outputs)
    done = work(module, shape, varying(jax, program, inputs))
    moved = collectives_of(module, shape, _place, done.exchanged)
    memory = program.compiled.memory_analysis()
    evidence = Evidence(
        inputs=inputs,
        outputs=outputs,
        jaxpr=getattr(program.traced, "jaxpr", None),
        module=module,
        collectives=moved,
        mesh_shape=shape,
        work=done,
        carry=pairs(jax, program, looked.results, carry),
        platform=looked.platform,
        shared=shared_buffers(jax, program, len(inputs)),
        log=program.log,
    )
    positional, named = looked.inputs
    return XRay(
        name=program.name,
        collectives=moved,
        flops_per_device=done.flops,
        redundancy=done.redundancy,
        idle_axes=done.idle_axes,
        findings=find(evidence, _place),
        peak_memory=peak_bytes(memory, looked.platform, constant_bytes(module)),
        lowered_for=looked.platform,
        input_shardings=(*positional, named) if named else tuple(positional),
        output_shardings=looked.outputs,
        mesh_shape=shape,
        hlo=program.text,
        upper_bound=done.upper_bound,
        without_card=looked.without_card,
        positions=looked.positions,
        pieces=done.pieces,
    )


def _place(file: str, line: int) -> str:
    """As `read_hlo` names it, with the number of the notebook cell where it has one."""
    name = place_name(file, line)
    cell = _cell_number(file) if name.startswith("notebook cell") else None
    return name if cell is None else f"cell {cell}, line {line}"


def _cell_number(file: str) -> int | None:
    """The execution count under which this notebook kernel ran a file it made up."""
    get_shell: Callable[[], Any] | None = getattr(
        sys.modules.get("IPython"), "get_ipython", None
    )
    shell = get_shell() if get_shell else None
    label = getattr(getattr(shell, "compile", None), "format_code_name", None)
    labels = label(file) if label else None
    match = re.search(r"\[(\d+)\]", " ".join(labels)) if labels else None
    if shell is None or match is None:
        return None
    number, history = int(match.group(1)), shell.user_ns.get("In", ())
    # A cell that is run without history shares its number with others.
    return number if number < len(history) and history[number] else None
