"""What one training takes on many meshes: each part that several share counted once."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .._errors import NotDivisible
from .activations import copies, kept_of_passes
from .model import MLP, Transformer
from .recompute import CHECKPOINTED
from .setup import Setup, check_division, of_stage
from .state import Line, frozen, part_gradients, state
from .training_memory import batch_line, by_phase, training_memory
from .transients import work
from .transients_gpu import gpu_work_of_passes, gpu_work_on_state


class Bytes(NamedTuple):
    """Bytes on each device, as the `TrainingMemory` of a strategy has them.

    Attributes:
        params: of the parameters.
        grads: of the gradients.
        optimizer: of the optimizer's state.
        total: the peak.
    """

    params: int
    grads: int
    optimizer: int
    total: int


class _State(NamedTuple):
    """Bytes of parameters, gradients, optimizer; in each phase with their copies."""

    params: int
    grads: int
    optimizer: int
    phases: tuple[int, ...]


class Counts:
    """Counts of `training_memory` on many meshes, in numbers alone.

    A plan needs thousands that have most in common. The arguments are checked once for
    all meshes with the same axes. What depends on how the state is sharded is counted
    once for all meshes that shard it alike, and what the passes need once for all on
    which a device has the same part of the work.

    Args:
        model: what is trained, without adapters.
        batch: sequences over all devices; rows of an MLP.
        seq: tokens of a sequence, or None.
        training: other arguments of `training_memory` that all counts share; not
            `optimizer="muon"`, nor counting by the published formulas.
    """

    def __init__(
        self,
        model: Transformer | MLP,
        batch: int,
        seq: int | None,
        training: Mapping[str, Any],
    ) -> None:
        self.model, self.batch, self.seq, self.training = model, batch, seq, training
        self._stages: dict[int, Transformer | MLP] = {}
        self._checked: dict[tuple[object, ...], Setup] = {}
        self._setups: dict[tuple[object, ...], Setup] = {}
        self._batches: dict[tuple[object, ...], int] = {}
        self._states: dict[tuple[object, ...], _State] = {}
        self._divided: dict[tuple[object, ...], NotDivisible | None] = {}
        self._copies: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._passes: dict[tuple[object, ...], tuple[int, ...]] = {}

    def of(
        self,
        mesh: Mapping[str, int],
        zero: int,
        recompute: str,
        attention: str,
        parts: int = 1,
        chunks: int = 1,
    ) -> Bytes:
        """The bytes of one strategy.

        Args:
            mesh: the size of every axis, always in the same order, with a product of
                `stage` and `chunks` that divides the layers, of `expert` the experts,
                and of `data`, `fsdp`, `expert` and `parts` the batch.
            zero: from which stage of ZeRO `data` shards the state, 0 to 2.
            recompute: a policy that the model has.
            attention: 'plain', 'flash' or 'ring'.
            parts: of the batch, whose gradients are added up.
            chunks: of layers that each device of `stage` has.

        Raises:
            NotDivisible: the mesh does not divide the model.
            NotUnderstood: an argument is not of its kind.
        """
        where = (*mesh.values(), attention, parts, chunks)
        # From ZeRO-1 on `data` shards the optimizer's state, all of it.
        refused = self._divided.get((where, zero > 0))
        if refused is not None:
            raise refused.with_traceback(None)
        try:
            setup = self._setups.get(where)
            if setup is None:
                setup = self._setup(mesh, zero, recompute, attention, parts, chunks)
                self._setups[where] = setup
                self._batches[where] = batch_line(setup).bytes  # in all phases
            if (where, zero > 0) not in self._divided:
                check_division(_of_strategy(setup, zero, recompute), mesh)
                self._divided[where, zero > 0] = None
            key = self._state_key(setup, zero, recompute)
            state = self._states.get(key)
            if state is None:
                one = _of_strategy(setup, zero, recompute)
                state = self._states[key] = _of_state(one)
        except NotDivisible as error:
            self._divided[where, zero > 0] = error
            raise
        parts_of_it = [state.phases, self._of_passes(setup, zero, recompute)]
        if recompute not in CHECKPOINTED:
            if where not in self._copies:
                one = _of_strategy(setup, zero, recompute)
                self._copies[where] = _phases(copies(one))
            parts_of_it.append(self._copies[where])
        total = self._batches[where] + max(map(sum, zip(*parts_of_it, strict=True)))
        return Bytes(state.params, state.grads, state.optimizer, total)

    def _setup(
        self,
        mesh: Mapping[str, int],
        zero: int,
        recompute: str,
        attention: str,
        parts: int,
        chunks: int,
    ) -> Setup:
        """The arguments on a mesh, checked with the first that has the same axes."""
        several = tuple(size > 1 for size in mesh.values())
        kind = (several, attention, parts > 1, chunks > 1)
        known = self._checked.get(kind)
        if known is None:
            first = training_memory(
                self.model,
                mesh=mesh,
                zero=zero,
                batch=self.batch,
                seq=self.seq,
                recompute=recompute,
                attention=attention,
                gradient_accumulation=parts,
                interleave=chunks,
                **self.training,
            )
            assert first._setup is not None
            known = self._checked[kind] = first._setup
        stages = mesh["stage"]
        if stages not in self._stages:
            self._stages[stages] = of_stage(self.model, stages)
        devices = mesh["data"] * mesh["fsdp"] * mesh["expert"] * parts
        return known.changed(
            zero=zero,
            recompute=recompute,
            model=self._stages[stages],
            data=mesh["data"],
            fsdp=mesh["fsdp"],
            split=mesh["model"],
            context=mesh["context"],
            expert=mesh["expert"],
            stage=stages,
            batch=self.batch // devices,
            parts=parts,
            interleave=chunks,
        )

    def _state_key(self, setup: Setup, zero: int, recompute: str) -> tuple[object, ...]:
        """All that the state and its copies read of a strategy.

        One of the copies is of scores, where these are kept.
        """
        sizes = (setup.split, setup.expert, setup.stage, setup.fsdp, setup.adds_up)
        data = setup.data if zero else 0
        if setup.scores:
            return (*sizes, data, zero, recompute, setup.batch, setup.context)
        return (*sizes, data, zero)

    def _of_passes(self, setup: Setup, zero: int, recompute: str) -> tuple[int, ...]:
        """The bytes of the passes in each phase, by all that they read of a strategy.

        On a GPU they read of `data` and `fsdp` whether there are several devices. A
        TPU's compiler converts the shards of all weights before a pass, and lets
        gradients wait where they are sharded.
        """
        key = (
            *(setup.fsdp > 1, setup.data > 1, 0 if setup.gpu else (setup.fsdp, zero)),
            *(setup.split, setup.context, setup.expert, setup.stage),
            *(setup.batch, setup.parts, setup.interleave, setup.attention, recompute),
        )
        phases = self._passes.get(key)
        if phases is None:
            one = _of_strategy(setup, zero, recompute)
            lines = gpu_work_of_passes(one) if one.gpu else work(one)
            phases = self._passes[key] = _phases([*kept_of_passes(one), *lines])
        return phases


def _of_strategy(setup: Setup, zero: int, recompute: str) -> Setup:
    if setup.zero == zero and setup.recompute == recompute:
        return setup
    return setup.changed(zero=zero, recompute=recompute)


def _of_state(setup: Setup) -> _State:
    params, grads, optimizer = state(setup)
    lines = [params, grads, optimizer, *frozen(setup), *part_gradients(setup)]
    if setup.gpu:
        lines += gpu_work_on_state(setup)
    return _State(params.bytes, grads.bytes, optimizer.bytes, _phases(lines))


def _phases(lines: Sequence[Line]) -> tuple[int, ...]:
    return tuple(by_phase(lines).values())
