"""Which mesh for a model on so many chips: every strategy, counted and timed.

One that does not fit is timed when its seconds are read.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from .._core.validate import as_integer, close_name, integer, one_of, or_words
from .._core.words import count_words, join_words
from .._errors import (
    NotDivisible,
    NotUnderstood,
    SpecError,
    UnknownAxis,
    UnknownTopology,
)
from .._shardings.sharding import itemsize
from .._time.rates import Rates, rates_of, with_own
from .._training.axes import OTHER_AXES
from .._training.dtypes import type_name
from .._training.many import Bytes, Counts
from .._training.model import MLP, Transformer
from .._training.models import model_of
from .._training.setup import ATTENTION
from .._training.training_memory import training_memory
from .candidates import POLICIES, Way, meshes, policies_of, useful_axes, ways
from .cluster import ORDER, Chips, read_chips
from .exchanges import Exchange, Prices, in_passes, of_gradients, of_new_parameters
from .plan import Plan
from .seconds import least_seconds, products, seconds_of
from .step import AXES_OF_BATCH, Step
from .strategy import Strategy

# Within what nine of ten stored strategies are of `step_time` of the compiled program;
# for TPUs four are stored, and numbers of the formula were chosen with all of them.
ERROR = {"gpu": 0.1, "tpu": 0.2}
# For how many hosts the largest of them was compiled, and of TPUs for how many chips.
HOSTS, TPU_CHIPS = 4, 8
# What products are timed in: the rates of others are of other kernels.
_TIMED = ("bfloat16", "float16", "float32")
# Of more meshes than this, those are left out that take so many times as long as the
# best, whatever their policy.
MANY, FAR = 100, 1.5
_MOST = 10**12  # sequences, or tokens of one
# What changes the products or the exchanges of a layer in ways that are not timed.
_NOT_TIMED = ("kv_lora_rank", "patch_size")
_TYPES = ("param_dtype", "compute_dtype")
# With one of these given, Adam's moments are of another type than the parameters.
_OF_MOMENTS = ("moment_dtype", "mu_dtype", "master_weights")
_ERRORS = (NotUnderstood, SpecError, UnknownTopology)


def plan_mesh(
    model: Transformer | MLP | str,
    topology: str,
    *,
    batch: int,
    seq: int | None = None,
    axes: Sequence[str] | None = None,
    recompute: str | Sequence[str] | None = None,
    attention: str | None = None,
    rates: "Mapping[str, Any] | None" = None,
    **training: Any,
) -> Plan:
    """Plan how to train a model: every mesh of the chips, the fastest that fits first.

    Every mesh with the axes `stage`, `data`, `fsdp`, `expert`, `context` and `model`
    that the model and the batch divide into, with each stage of ZeRO that `data` can
    have and each policy of recomputation. Memory is `training_memory`'s. Seconds are by
    formula: products and attention at the rates of `step_time`, what else moves memory,
    and each exchange by its kind, its bytes and the links that its groups cross.
    Nothing is compiled and JAX is not needed.

    >>> plan = plan_mesh("llama-3-8b", "h100:2x8", batch=32, seq=4096)
    >>> plan.best.fits, plan.best.mfu > 0.3
    (True, True)

    Exchanges are assumed to be hidden as the compilers' schedules hide them: a fixed
    part of each kind is exposed (of an all-gather less than of a sum, which something
    waits for), and more where the exchanges of a pass have more to hide than the pass
    has work.
    Of more than 100 meshes those are left out that take more than 1.5 times as long as
    the best with any policy, and strategies whose state alone is larger than a chip;
    notes say how many.

    What was checked: seconds were compared with compiled programs over up to 4 hosts;
    none ran over more than one. All were planned and compiled with `attention='plain'`.
    The default, 'flash', and 'ring' over `context`, were never compared. Beyond 4
    hosts nothing was timed, nor for more than 8 TPUs, and such a plan has no `error`.
    Between hosts a collective sends what a ring does, and waits for the round trips of
    XLA's model; beyond 4 hosts the waiting grows as in NCCL's model of rings and trees.

    A model with experts has `expert` in place of `stage`, and no policy that saves some
    of the products. Each token is sent to the devices of its experts and back, in as
    many rows as `capacity_factor` gives them room. A pipeline over `stage` is 1F1B, or
    interleaved with two chunks of layers per device, for dense transformers under
    'nothing_saveable' and without `context`. It has 8, 4, 2 or 1 times as many
    microbatches as stages; of the numbers that divide a device's sequences the two
    largest are planned. A stage waits (stage - 1) / (chunks * microbatches) of its work
    (Narayanan et al. 2021, arXiv:2104.04473), if no other stage holds it up between: a
    single jitted program, in which all stages take each tick together, takes longer.
    Gradients are summed and weights gathered for every microbatch, as in one jitted
    program; systems that reduce once a step send less. The seconds of a pipeline were
    not checked.

    Args:
        model: a Transformer, an MLP, or a name in MODELS.
        topology: the chips, as `gpu_mesh` ("h100:2x8") or `tpu_mesh` ("v5p:4x4x4")
            take them. On a TPU only meshes are planned whose axes have directions of
            the torus of their own, and of which JAX's search finds them in the order
            stage, data, fsdp, expert, context, model.
        batch: sequences a step, over all devices together (of an MLP: rows).
        seq: tokens of a sequence; the model's own if not given.
        axes: which axes a mesh may have, of 'stage' (each device has a part of the
            layers), 'data' (shards the batch, and the state by `zero`), 'fsdp' (the
            batch and the state), 'expert' (the batch and the experts), 'context' (the
            tokens of a sequence) and 'model' (heads, d_ff and vocabulary). All that the
            model has a use for, if not given.
        recompute: one policy or several: 'everything_saveable' (recompute nothing),
            'dots_with_no_batch_dims_saveable' (save the products with weights),
            'nothing_saveable' (recompute every layer). All three, if not given.
        attention: as `training_memory` has it. Not given, 'flash', and over `context`
            'ring', which 'ring' means too. 'ring' is counted as the lines that `code()`
            prints: the scores of every block are computed and written. A ring of
            kernels is faster.
        rates: your own, as `step_time` takes them.
        training: other arguments of `training_memory`, such as `optimizer` or
            `param_dtype`, but for those that change what a step runs, such as
            `sequence_parallel`. `compute_dtype` is 'bfloat16', 'float16' or 'float32'.

    Returns:
        A `Plan`.

    Raises:
        UnknownTopology: there are no such chips.
        UnknownAxis: `axes` has another one.
        NotDivisible: no mesh of these chips divides the model and the batch.
        NotUnderstood: an argument is not of its kind, or the model has no use for it.

    Used in chapter 14, to choose a mesh.
    """
    try:
        chips = read_chips(topology)
        model = _checked_model(model)
        batch = integer("batch", batch, most=_MOST)
        if seq is not None and isinstance(model, Transformer):
            seq = integer("seq", seq, most=_MOST)
        axes = _checked_axes(model, axes)
        policies = _checked_policies(model, axes, recompute)
        training = _with_type_names(training)
        _check_training(training)
        if attention is not None and not isinstance(attention, str):
            one_of("attention", attention, ATTENTION)
        # A ring needs context, which one device has not.
        is_ring = attention == "ring" and isinstance(model, Transformer)
        # Whatever does not divide, a single device has all of it.
        alone = training_memory(
            model,
            mesh={},
            batch=batch,
            seq=seq,
            attention=None if is_ring else attention,
            chip=chips.chip,
            **training,
        )
        allowed = alone.left_bytes(chips.chip) + alone.total_bytes
        known = rates_of(chips.chip)
        if rates is not None:
            known = with_own(known, rates)
        state = alone.params_bytes, alone.optimizer_bytes
        planner = _Planner(
            model, chips, batch, seq, attention, known, allowed, state, training
        )
        chosen = planner.all(axes, policies)
        if not chosen:
            raise _nothing_divides(planner, axes, policies)
    except _ERRORS as error:
        raise error.with_traceback(None) from None
    unchecked = _unchecked(chips)
    return Plan(
        what=planner.what,
        chips=chips.name,
        strategies=chosen,
        allowed_bytes=allowed,
        error=None if unchecked else ERROR[chips.chip.kind],
        notes=tuple(_notes(known, chips, planner, chosen)),
        remedy=_remedy(model, training),
        training=dict(training),
        unchecked=unchecked,
    )


def _remedy(model: Transformer | MLP, training: Mapping[str, Any]) -> str:
    """What to change where nothing fits, of what is not changed already."""
    others = ["more chips", "a smaller batch"]
    if isinstance(model, Transformer):
        others.append("shorter sequences")
    fewer = ""
    is_adam = training.get("optimizer", "adam") in ("adam", "adamw")
    if itemsize(training.get("param_dtype", "float32")) > 2:
        fewer = "param_dtype='bfloat16'"
        given = [training.get(key) for key in _OF_MOMENTS]
        if is_adam and all(one is None or one is False for one in given):
            fewer += ", which makes Adam's moments bfloat16 too"
    elif is_adam:
        fewer = "optimizer='lion'"
    if not fewer:
        return f"Take {or_words(others)}."
    return f"Take {or_words(others)}, or state of fewer bytes, such as {fewer}."


class _Planner:
    """The arguments that all strategies share."""

    def __init__(
        self,
        model: Transformer | MLP,
        chips: Chips,
        batch: int,
        seq: int | None,
        attention: str | None,
        rates: Rates,
        allowed: int,
        state: tuple[int, int],
        training: dict[str, Any],
    ) -> None:
        self.model, self.chips, self.batch = model, chips, batch
        self.given_seq, self.attention, self.rates = seq, attention, rates
        self.allowed, self.state = allowed, state
        self.training = {key: x for key, x in training.items() if key not in _ONE}
        is_mlp = isinstance(model, MLP)
        self.seq = 1 if isinstance(model, MLP) else model.seq if seq is None else seq
        self.prices = Prices(chips, rates)
        shared = self.training | {"chip": chips.chip}
        self.counts = Counts(model, batch, seq, shared)
        self.shared: dict[tuple[int, ...], _Shared] = {}
        self.products: dict[tuple[str, str], tuple[float, float, float]] = {}
        self.refused: NotDivisible | None = None
        self.far = self.too_large = 0
        flops = (
            model.flops(batch) if isinstance(model, MLP) else model.flops(batch, seq)
        )
        self.model_flops = flops
        name = model.name or f"{type(model).__name__} of {model.layers} layers"
        rows = count_words(batch, "row" if is_mlp else "sequence")
        tokens = "" if is_mlp else f" of {self.seq} tokens"
        self.what = f"{name}, {rows}{tokens}, on {chips.name}"

    def all(self, axes: Sequence[str], policies: Sequence[str]) -> tuple[Strategy, ...]:
        """Every strategy, in order."""
        every = _ordered(self.each(axes, policies))
        for rank, one in enumerate(every, 1):
            one._put_at(rank)
        return tuple(every)

    def each(self, axes: Sequence[str], policies: Sequence[str]) -> Iterator[Strategy]:
        """Every strategy; `refused` is the last reason why the model did not divide.

        Of many meshes those are left out that take far longer than the best, and of
        their strategies those whose state alone is too large.
        """
        every = [
            mesh
            for mesh in meshes(self.model, self.chips, axes, self.batch, self.seq)
            if ways(self.model, mesh, policies, self.batch)
        ]
        if len(every) <= MANY:
            for mesh in every:
                yield from self._on(mesh, policies)
            return
        bounds = [self._least(mesh, policies[0]) for mesh in every]
        order = sorted(range(len(every)), key=bounds.__getitem__)
        best, near = inf, []
        for place, number in enumerate(order):
            if bounds[number] > FAR * best:
                self.far = len(order) - place
                break
            for one in self._on(every[number], policies, self._too_large):
                if one.fits:
                    best = min(best, one.total_s)
                near.append(one)
        if best < inf:
            yield from near
            return
        self.too_large = 0  # the nearest may be one of them
        for mesh in every:
            yield from self._on(mesh, policies)

    def _too_large(self, way: Way, mesh: dict[str, int]) -> bool:
        """Whether parameters and the optimizer's state alone are too large."""
        cut = mesh["fsdp"] * mesh["model"] * mesh["expert"] * mesh["stage"]
        by_data = mesh["data"] if way.zero else 1
        params, optimizer = self.state
        is_so = params / cut + optimizer / cut / by_data > self.allowed
        self.too_large += is_so
        return is_so

    def _on(
        self,
        mesh: dict[str, int],
        policies: Sequence[str],
        is_left_out: Callable[[Way, dict[str, int]], bool] = lambda way, mesh: False,
    ) -> Iterator[Strategy]:
        """Every strategy on a mesh."""
        shared = self._shared(mesh)
        for way in ways(self.model, mesh, policies, self.batch):
            if is_left_out(way, mesh):
                continue
            one = self._strategy(way, mesh, shared)
            if one is not None:
                yield one

    def _least(self, mesh: dict[str, int], policy: str) -> float:
        """Seconds that no strategy on a mesh is faster than: with its best schedule."""
        bounds, shared = [], self._shared(mesh)
        policy = policy if mesh["stage"] == 1 else POLICIES[-1]
        for way in ways(self.model, mesh, (policy,), self.batch):
            # The stages of ZeRO have the same passes.
            if way.zero == 0:
                step = shared.step(way, self._step)
                shares, moved = self._products(step), shared.passes(step)
                bounds.append(least_seconds(step, shares, moved, self.rates))
        return min(bounds)

    def _shared(self, mesh: dict[str, int]) -> "_Shared":
        """What the strategies on a mesh have in common, one for each mesh."""
        sizes = tuple(mesh.values())
        if sizes not in self.shared:
            attention = self._attention(mesh)
            self.shared[sizes] = _Shared(mesh, attention, self.prices.on(mesh))
        return self.shared[sizes]

    def _step(self, way: Way, mesh: dict[str, int], attention: str) -> Step:
        return Step(
            self.model,
            mesh,
            way.zero,
            way.recompute,
            attention,
            self.batch,
            self.seq,
            self.training.get("param_dtype", "float32"),
            self.training.get("compute_dtype", "bfloat16"),
            way.microbatches,
            way.chunks,
            self.training.get("capacity_factor") or 1.0,
        )

    def with_batch(self, batch: int) -> "_Planner":
        """The same for another batch."""
        return _Planner(
            self.model,
            self.chips,
            batch,
            self.given_seq,
            self.attention,
            self.rates,
            self.allowed,
            self.state,
            self.training,
        )

    def _strategy(
        self, way: Way, mesh: dict[str, int], shared: "_Shared"
    ) -> Strategy | None:
        """A way with what it takes; None if the model does not divide."""
        known = shared.strategies.get(way)
        if known is None:
            try:
                known = self._made(way, mesh, shared)
            except NotDivisible as error:
                known = error.with_traceback(None)
            shared.strategies[way] = known
        if isinstance(known, Strategy):
            return known
        self.refused = known
        return None

    def _made(self, way: Way, mesh: dict[str, int], shared: "_Shared") -> Strategy:
        """A strategy, not ranked yet.

        Raises:
            NotDivisible: the mesh does not divide the model.
        """
        schedule = way.microbatches, way.chunks
        memory = self.counts.of(
            mesh, way.zero, way.recompute, shared.attention, *schedule
        )
        return Strategy._timed_later(
            partial(self._times, way, memory, shared),
            rank=0,
            mesh=shared.mesh,
            zero=way.zero,
            recompute=way.recompute,
            attention=shared.attention,
            memory_bytes=memory.total,
            left_bytes=self.allowed - memory.total,
        )

    def _times(self, way: Way, memory: Bytes, shared: "_Shared") -> dict[str, Any]:
        """The attributes of a strategy that say how fast it is."""
        step = shared.step(way, self._step)
        update, moved = _update_bytes(memory), shared.exchanges(step)
        seconds = seconds_of(step, update, self._products(step), moved, self.rates)
        peak = self.chips.chip.bf16_flops_per_s * self.chips.devices
        return {
            "seconds": seconds,
            "tokens_per_s": self.batch * self.seq / seconds.total_s,
            "mfu": self.model_flops / peak / seconds.total_s,
            "step": step,
        }

    def _products(self, step: Step) -> tuple[float, float, float]:
        """Seconds of the products, which every mesh divides alike."""
        key = (step.recompute, step.attention)
        if key not in self.products:
            self.products[key] = products(step, self.rates)
        return self.products[key]

    def _attention(self, mesh: Mapping[str, int]) -> str:
        if isinstance(self.model, MLP):
            return "plain"
        if self.attention in (None, "ring"):
            return "flash" if mesh["context"] == 1 else "ring"
        return str(self.attention)


class _Shared:
    """What the strategies on one mesh have in common.

    Args:
        mesh: the size of every axis.
        attention: how attention is computed on it.
        priced: gives the seconds of an exchange on the mesh, and its link.

    Attributes:
        mesh: its axes with several devices; of one device `data`.
        strategies: those that are known, or why the model does not divide.
    """

    def __init__(
        self,
        mesh: dict[str, int],
        attention: str,
        priced: Callable[[Exchange], tuple[float, str]],
    ) -> None:
        self.sizes, self.attention, self.priced = mesh, attention, priced
        self.mesh = {axis: n for axis, n in mesh.items() if n > 1} or {"data": 1}
        self.strategies: dict[Way, Strategy | NotDivisible] = {}
        self.steps: dict[tuple[int, int], Step] = {}
        self.known: dict[tuple[object, ...], list[Exchange]] = {}

    def step(self, way: Way, make: Callable[[Way, dict[str, int], str], Step]) -> Step:
        """The step of a way; the sizes are those of all with the same schedule."""
        schedule = way.microbatches, way.chunks
        last = self.steps.get(schedule)
        if last is None:
            one = make(way, self.sizes, self.attention)
        else:
            one = last.under(way.zero, way.recompute)
        self.steps[schedule] = one
        return one

    def passes(self, step: Step) -> list[Exchange]:
        """The exchanges of the passes, in which `zero` has no part; with seconds."""
        key = (step.microbatches, step.chunks, step.recompute)
        return self._timed(key, in_passes, step)

    def exchanges(self, step: Step) -> list[Exchange]:
        """All exchanges of a step, with their seconds."""
        schedule = step.microbatches, step.chunks
        gradients = self._timed((*schedule, step.zero == 2), of_gradients, step)
        if step.zero:
            more = self._timed(schedule, of_new_parameters, step)
            return self.passes(step) + gradients + more
        return self.passes(step) + gradients

    def _timed(
        self,
        key: tuple[object, ...],
        make: Callable[[Step], Iterator[Exchange]],
        step: Step,
    ) -> list[Exchange]:
        if key not in self.known:
            self.known[key] = [
                one.timed(seconds, seconds, link)
                for one in make(step)
                for seconds, link in [self.priced(one)]
            ]
        return self.known[key]


def _ordered(strategies: Iterable[Strategy]) -> list[Strategy]:
    """Those that fit by their seconds, the others by their memory; ties by name.

    Of the others only the seconds of those are counted that have the same memory.
    """
    ordered: list[Strategy] = []
    by_memory: dict[int, list[Strategy]] = defaultdict(list)
    for one in strategies:
        (ordered if one.fits else by_memory[one.memory_bytes]).append(one)
    ordered.sort(key=lambda one: (one.total_s, one.memory_bytes, one.zero, str(one)))
    for _, alike in sorted(by_memory.items()):
        if len(alike) > 1:
            alike.sort(key=lambda one: (one.total_s, one.zero, str(one)))
        ordered += alike
    return ordered


def _update_bytes(memory: Bytes) -> int:
    """What the optimizer reads and writes: its numbers and the parameters twice."""
    return 2 * memory.optimizer + 2 * memory.params + memory.grads


# --- What is given --------------------------------------------------------------------


def _checked_model(model: object) -> Transformer | MLP:
    """The model that is given, or named, if its exchanges are known."""
    known = model_of(model)
    for key in _NOT_TIMED:
        value = getattr(known, key, None)
        if value is not None:
            raise NotUnderstood(
                f"{known.name or 'a model'} has {key}={value!r}, whose products and "
                "exchanges a plan does not time; count one mesh with training_memory, "
                "and compile it for step_time."
            )
    return known


def _checked_axes(
    model: Transformer | MLP, axes: Sequence[str] | None
) -> tuple[str, ...]:
    """The axes that a mesh may have, in the order of a mesh."""
    useful = useful_axes(model)
    if axes is None:
        return useful
    if isinstance(axes, str) or not isinstance(axes, Sequence) or not axes:
        if hasattr(axes, "axis_names"):
            raise NotUnderstood(
                f"axes={axes!r} is a mesh, and a plan chooses the sizes; give its "
                f"names, axes={tuple(axes.axis_names)!r}."
            )
        raise NotUnderstood(
            f"axes={axes!r} is no tuple of axes; give one such as ('data', 'model')."
        )
    for axis in axes:
        if not isinstance(axis, str) or axis not in ORDER:
            meant = OTHER_AXES.get(str(axis).lower(), "")
            close = meant if meant in ORDER else close_name(axis, ORDER)
            guess = f" Did you mean {close!r}?" if close else ""
            raise UnknownAxis(
                f"axes={tuple(axes)!r} has {axis!r}, which is no axis of a plan."
                f"{guess} Give some of {join_words(list(map(repr, ORDER)))}."
            )
        if axis not in useful:
            name = model.name or f"this {type(model).__name__}"
            raise NotUnderstood(
                f"axes={tuple(axes)!r}: {_useless(model, axis, name)}; leave {axis!r} "
                "out."
            )
    return tuple(axis for axis in ORDER if axis in axes)


def _useless(model: Transformer | MLP, axis: str, name: str) -> str:
    """Why a model has no use for an axis."""
    if axis == "context":
        return "an MLP has no sequences that context could shard"
    if axis == "expert":
        return f"{name} has no experts that expert could shard"
    if isinstance(model, MLP):
        return "a pipeline over stage is counted for transformers, not for an MLP"
    return f"a pipeline over stage is not counted for the experts of {name}"


def _checked_policies(
    model: Transformer | MLP,
    axes: Sequence[str],
    recompute: str | Sequence[str] | None,
) -> tuple[str, ...]:
    known = policies_of(model)
    given = (recompute,) if isinstance(recompute, str) else recompute
    if given is None:
        given = known
    if not isinstance(given, Sequence) or not given:
        raise NotUnderstood(
            f"recompute={recompute!r} is no policy; give one or several of "
            f"{or_words(map(repr, known))}."
        )
    for one in given:
        one_of("recompute", one, POLICIES)
        if one not in known:
            raise NotUnderstood(
                f"recompute={one!r} is not counted for a model with experts; give "
                f"{or_words(map(repr, known))}."
            )
    if tuple(axes) == ("stage",) and POLICIES[-1] not in given:
        raise NotUnderstood(
            f"recompute={recompute!r}: a pipeline over stage is counted with "
            f"recompute={POLICIES[-1]!r} alone; give that, or other axes."
        )
    return tuple(policy for policy in known if policy in given)


# What has to be 1, and why.
_ONE = {
    "gradient_accumulation": (
        "a plan chooses the microbatches of a pipeline, and elsewhere times one pass "
        "over the batch; leave {} out, plan for the batch of one part, and count the "
        "update and the gradients' sum once"
    ),
    "interleave": (
        "a plan chooses how many chunks of layers a device of stage has; leave {} out"
    ),
}
_DECIDED = ("mesh", "zero")
_USELESS = (
    "chip",
    "counting",
    "names_which_can_be_saved",
    "names_which_can_be_offloaded",
)
_OWN = (*_DECIDED, *_USELESS)


# Arguments of training_memory that change a step's products or transfers, and what
# leaves these as they are.
_OTHER_STEPS: dict[str, tuple[Any, ...]] = {
    "lora_rank": (None,),
    "lora_targets": ((),),
    "base_dtype": (None,),
    "offload_optimizer": (False,),
    "sequence_parallel": (False,),
}


def _check_training(training: Mapping[str, Any]) -> None:
    """Refuse what a plan decides itself, and what `training_memory` does not take."""
    names = training_memory.__kwdefaults__ or {}
    for name in training:
        if name in _DECIDED:
            raise NotUnderstood(
                f"{name}={training[name]!r} is what a plan decides; leave {name} out."
            )
        if name in _USELESS:
            raise NotUnderstood(
                f"{name}={training[name]!r} has no use in a plan; leave {name} out."
            )
        if name in _ONE and as_integer(training[name], 1) != 1:
            raise NotUnderstood(
                f"{name}={training[name]!r}: {_ONE[name].format(name)}."
            )
        if name in _OTHER_STEPS and not _is_one(training[name], _OTHER_STEPS[name]):
            raise NotUnderstood(
                f"{name}={training[name]!r} changes what a step runs, which a plan "
                "does not time; leave it out, or count one mesh with training_memory."
            )
        if name not in names:
            known = [*names, "axes", "rates"]
            close = close_name(name, [one for one in known if one not in _OWN])
            raise NotUnderstood(
                f"{name}={training[name]!r} is no argument of plan_mesh or "
                f"training_memory."
                + (f" Did you mean {close!r}?" if close else " Leave it out.")
            )
        value = training[name]
        if name.endswith("_dtype") and not isinstance(value, str | tuple | list | None):
            itemsize(value, name)
    if _is_one(training.get("optimizer"), ("muon",)):
        raise NotUnderstood(
            "optimizer='muon' multiplies matrices in its update, which a plan does not "
            "time; plan with 'adam', or count one mesh with training_memory."
        )
    compute = training.get("compute_dtype", "bfloat16")
    if compute not in _TIMED:
        raise NotUnderstood(
            f"compute_dtype={compute!r}: a plan times products in "
            f"{join_words(_TIMED)} only; give one of these, or count the memory of one "
            "mesh with training_memory."
        )


def _is_one(value: object, of: tuple[Any, ...]) -> bool:
    """Whether a value is one of these; an array is none."""
    return isinstance(value, Hashable) and value in of


def _with_type_names(training: Mapping[str, Any]) -> dict[str, Any]:
    """With types of NumPy or JAX by their names, as the formulas and the code want."""
    return {
        key: (type_name(value) or value) if key in _TYPES else value
        for key, value in training.items()
    }


def _nothing_divides(
    planner: _Planner, axes: Sequence[str], policies: Sequence[str]
) -> NotDivisible:
    """What to change where no mesh of so many devices divides anything."""
    model, chips, batch = planner.model, planner.chips, planner.batch
    # A pipeline has as many microbatches as stages, or more.
    sizes = {"batch": batch} if {*AXES_OF_BATCH, "stage"} & {*axes} else {}
    if "model" in axes:
        if model.moe_layers < model.layers:
            sizes["d_ff"] = model.d_ff
        if isinstance(model, Transformer):
            sizes["heads"] = model.heads
            if model.moe_layers:
                sizes["expert_d_ff"] = model.expert_d_ff or 0
    if "context" in axes:
        sizes["seq"] = planner.seq
    if "expert" in axes and isinstance(model, Transformer):
        sizes["experts"] = model.experts or 0
    if "stage" in axes:
        sizes["layers"] = model.layers
    words = join_words([f"{name}={size}" for name, size in sizes.items()])
    count, why = chips.devices, ""
    if planner.refused is not None:
        # Its remedy is for a mesh that somebody gave.
        words = "the model"
        why = f": {str(planner.refused).partition(';')[0].split(', which')[0]}"
    elif chips.torus:
        words += " and lies on the torus"
    remedy = "take another number of chips"
    more = -(-batch // count) * count
    if "batch" in sizes and more != batch:
        other = planner.with_batch(more).each(axes, policies)
        if next(other, None) is not None:
            remedy = f"make batch={more}, or {remedy}"
    return NotDivisible(
        f"topology={chips.name!r}: no mesh of {count} devices over "
        f"{join_words(list(axes))} divides {words}{why}; {remedy}."
    )


def _unchecked(chips: Chips) -> str:
    """Why nobody knows how far the formula is off; nothing where it is known."""
    if chips.torus:
        if chips.devices <= TPU_CHIPS:
            return ""
        return (
            f"No plan was compared with a program for more than {TPU_CHIPS} TPUs, and "
            f"these are {chips.devices}: how far the formula is off was not checked, "
            "and the order may be another."
        )
    hosts = chips.hosts
    if hosts <= HOSTS:
        return ""
    return (
        f"Seconds were compared with compiled programs over up to {HOSTS} hosts; none "
        f"ran over more than one. Beyond {HOSTS} hosts nothing was timed, and these "
        f"are {hosts}: how far the formula is off was not checked, and the order may "
        "be another. What a collective waits before it sends grows as in NCCL's model "
        "of rings and trees."
    )


def _notes(
    rates: Rates, chips: Chips, planner: _Planner, chosen: Sequence[Strategy]
) -> list[str]:
    notes = []
    if planner.far:
        are = "mesh is" if planner.far == 1 else "meshes are"
        notes.append(
            f"{planner.far} more {are} left out: with any policy a step takes more "
            f"than {FAR} times as long as the best."
        )
    if planner.too_large:
        of = count_words(planner.too_large, "strategy", "strategies")
        are = "is" if planner.too_large == 1 else "are"
        notes.append(
            f"{of} more {are} left out: parameters and the optimizer's state alone "
            "are more than a chip gives."
        )
    if rates.error is None:
        notes.append(
            f"No step was measured on chip {chips.chip.name}: its rates are fractions "
            "of the published figures."
        )
    if any(one.attention != "plain" for one in chosen):
        notes.append(
            "Only attention='plain' was compared with compiled programs: 'flash' and "
            "'ring' were never compared."
        )
    if any("stage" in one.mesh for one in chosen):
        notes.append("The seconds of a pipeline over stage were not checked.")
    notes.append(
        "Seconds are by formula, with a part of each exchange assumed to be hidden; "
        "compile the first few and ask step_time."
    )
    return notes
