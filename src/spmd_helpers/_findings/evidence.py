"""What is known of a compiled function, for whoever looks for mistakes in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .._hlo.collectives import Collective
from .._hlo.dataflow import Place, places
from .._hlo.opcodes import Does, does
from .._hlo.parser import Instruction, Module
from .._hlo.work import Work
from .._jaxprs.walk import ClosedJaxpr
from .._shardings.sharding import ShardingInfo

if TYPE_CHECKING:
    from jax.sharding import Sharding


@dataclass(frozen=True)
class Leaf:
    """One array that goes into a function, or comes out of it.

    Attributes:
        path: where it stands, "args[0]['w1']" or "result[1]['w1']".
        shape, dtype: of the array, not of a block.
        weak_type: whether JAX takes its type for a Python number's.
        sharding_info: how the compiled program has it; None for an argument that the
            program does not use, and for a sharding without axis names.
        sharding: the JAX sharding that the caller's array has, or, of an output,
            that out_shardings gives. None where nothing was said.
        devices: how many devices the caller's array lies on; 1 for an array that
            was never placed, and for an output the devices of the program.
        donated: whether the argument's memory may be reused.
        memory: the kind of memory that it is in: 'device', 'pinned_host'.
        annotated: the axes that a Flax variable says it is sharded over, one entry a
            dimension; None without an annotation.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    weak_type: bool
    sharding_info: ShardingInfo | None
    sharding: "Sharding | None"
    devices: int
    donated: bool = False
    memory: str = "device"
    annotated: tuple[object, ...] | None = None


@dataclass(frozen=True)
class Evidence:
    """All that findings are computed from.

    Attributes:
        inputs, outputs: the leaves, in the order in which JAX flattens them.
        jaxpr: the traced function, a ClosedJaxpr whose invars are `inputs`; None
            where only a lowered or compiled function was given.
        module: the parsed text of the compiled program.
        collectives: what `read_hlo` finds in it.
        mesh_shape: axis name → size; {} for one device.
        work: its FLOPs and the axes along which they are repeated.
        carry: pairs (number of an output leaf, number of an input leaf) that are
            the same thing, one step later.
        platform: 'cpu', 'gpu' or 'tpu'.
        shared: pairs of numbers of inputs whose arrays are in the same memory.
        log: the lines that the compiler logged.
    """

    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    jaxpr: ClosedJaxpr | None
    module: Module
    collectives: tuple[Collective, ...]
    mesh_shape: Mapping[str, int]
    work: Work
    carry: tuple[tuple[int, int], ...]
    platform: str
    shared: tuple[tuple[int, int], ...] = ()
    log: tuple[str, ...] = ()

    @cached_property
    def inputs_like(self) -> dict[tuple[tuple[int, ...], str], list[int]]:
        """The numbers of the inputs of each shape and dtype."""
        numbers: dict[tuple[tuple[int, ...], str], list[int]] = {}
        for number, leaf in enumerate(self.inputs):
            numbers.setdefault((leaf.shape, leaf.dtype), []).append(number)
        return numbers

    @cached_property
    def exchanges(self) -> list[tuple[Place, Instruction]]:
        """The collectives of the text, each once however often it is printed."""
        exchanges = []
        done: set[tuple[str, int | None, str]] = set()
        for place in places(self.module):
            for i in place.computation.instructions:
                if does(i.opcode) is not Does.EXCHANGED:
                    continue
                chain = i.quoted("chain_id")
                if chain is not None:  # TPU prints it where it starts, goes on and ends
                    key = i.opcode, i.number(r"channel_id=(\d+)"), chain
                    if key in done:
                        continue
                    done.add(key)
                exchanges.append((place, i))
        return exchanges
