"""What is planned: every strategy with its memory and its seconds, in order."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .._core.tables import Table
from .._core.validate import as_integer
from .._core.words import bytes_words, count_words
from .._errors import NothingFits, NotUnderstood
from .._time.words import seconds_words
from .code import code_of
from .strategy import Strategy

HEAD = ("", "mesh", "recompute", "memory", "a step", "tokens/s", "MFU", "time goes to")
ROWS = 12


@dataclass(frozen=True, repr=False)
class Plan:
    """Every strategy for a model on so many chips, those that fit first.

    Made by `plan_mesh`. `str()` of it is a table, and so is its view in a notebook.

    Attributes:
        what: the model, the batch and the chips, in words.
        chips: as `gpu_mesh` or `tpu_mesh` takes them.
        strategies: those that fit by their seconds, then the others by their memory;
            each a `Strategy`.
        allowed_bytes: what a strategy may fill of each chip.
        error: at least nine of ten stored values of the formula were within this part
            of `step_time` of the compiled program; two strategies that differ by less
            are a tie. None where nothing was timed over so many hosts, or for so many
            TPUs. All were planned and compiled with `attention='plain'`. A plan's
            default, 'flash', and 'ring' over `context`, were never compared, and
            the seconds of pipelines were not checked.
        unchecked: where there is no error, a sentence on why.
        notes: what else there is to know, a sentence each.
        remedy: what to change where nothing fits.
        training: the arguments that were handed on to `training_memory`.
    """

    what: str
    chips: str
    strategies: tuple[Strategy, ...]
    allowed_bytes: int
    error: float | None
    notes: tuple[str, ...] = ()
    remedy: str = field(default="", compare=False)
    training: Mapping[str, object] = field(default_factory=dict, compare=False)
    unchecked: str = ""

    @property
    def fitting(self) -> tuple[Strategy, ...]:
        """The strategies that fit."""
        return tuple(one for one in self.strategies if one.fits)

    @property
    def best(self) -> Strategy:
        """The fastest strategy that fits.

        Raises:
            NothingFits: none does; the message has the nearest, and what is missing.
        """
        if not self.strategies[0].fits:
            raise NothingFits(f"{self._nearest()} {self.remedy}".strip())
        return self.strategies[0]

    @property
    def ties(self) -> tuple[Strategy, ...]:
        """The strategies that fit and that the formula can't tell from the best.

        All that fit where `error` is None.
        """
        if not self.strategies[0].fits:
            return ()
        if self.error is None:
            return self.fitting
        most = (1 + self.error) * self.strategies[0].total_s
        return tuple(one for one in self.fitting if one.total_s <= most)

    @property
    def table(self) -> str:
        """The first strategies as text, with notes; `str()` of the plan."""
        return self._table().text()

    def why(self, a: "int | Strategy", b: "int | Strategy") -> str:
        """Why one strategy comes before another, in words.

        Args:
            a: a number in the table, or a strategy.
            b: the other one.

        Raises:
            NotUnderstood: the plan has no such strategy.
        """
        one, other = self._strategy("a", a), self._strategy("b", b)
        if one.rank == other.rank:
            return f"Both are number {one.rank}: {one}."
        sentences = [self._by_seconds(one, other), *_parts(one, other)]
        return " ".join([*sentences, self._by_memory(one, other)])

    def code(
        self, strategy: "int | Strategy" = 1, *, devices: int | None = None
    ) -> str:
        """The JAX lines of a strategy: a small model of the family, and one step.

        They run as they are on as many devices as the plan has: mesh, specs of every
        parameter, the policy of recomputation, the optimizer's state where `zero` puts
        it. The model has the shapes of the family, made small; put yours in its place.

        Experts have room for all rows, so that none is dropped, or as many as the plan
        was given by `capacity_factor`. A pipeline has no lines.

        Attention 'flash' is cuDNN's kernel on a GPU, where that has one: in bfloat16
        and float16, and with the sequence whole. On a CPU and a TPU the same lines
        write the scores; on a TPU put a kernel of Pallas there. 'plain' writes them
        everywhere, and 'ring' those of one block at a time. In float16 JAX has no
        attention for CPUs: a rehearsal there needs another `compute_dtype`.

        Args:
            strategy: a number in the table, or a strategy.
            devices: so many in place of the plan's, for a rehearsal: 8 runs on eight
                CPU devices. The lines say which axes that mesh leaves out.

        Returns:
            The lines, as text.

        Raises:
            NotUnderstood: there is no such strategy, no reference for this model, or
                an argument of the plan that the lines don't follow.
        """
        one = self._strategy("strategy", strategy)
        count = None if devices is None else as_integer(devices, 1)
        if devices is not None and count is None:
            raise NotUnderstood(
                f"devices={devices!r} is no number of devices; give one such as 8."
            )
        return code_of(one, self.what, self.training, count)

    def _strategy(self, name: str, given: "int | Strategy") -> Strategy:
        if isinstance(given, Strategy):
            if given not in self.strategies:
                raise NotUnderstood(
                    f"{name}={given} is not of this plan; give a number in its table."
                )
            return given
        number = as_integer(given, 1, len(self.strategies))
        if number is None:
            raise NotUnderstood(
                f"{name}={given!r} is no number in this plan; give one from 1 to "
                f"{len(self.strategies)}."
            )
        return self.strategies[number - 1]

    def _by_seconds(self, one: Strategy, other: Strategy) -> str:
        longer = other.total_s / one.total_s - 1
        times = (
            f"{one.rank} ({one}) takes {seconds_words(one.total_s)}, {other.rank} "
            f"({other}) {seconds_words(other.total_s)}"
        )
        if self.error is None:
            return f"{times} by the formula. {self.unchecked}"
        if abs(longer) <= self.error:
            return (
                f"{times}. This is a tie: they differ by {abs(longer):.1%}, and at "
                f"least nine of ten formula values were within {self.error:.0%} of "
                "step_time, which has an error of its own."
            )
        more = f"{longer:.0%} more" if longer > 0 else f"{-longer:.0%} less"
        return f"{times}, {more}."

    def _by_memory(self, one: Strategy, other: Strategy) -> str:
        needs = (
            f"Of {bytes_words(self.allowed_bytes)} that a chip gives, {one.rank} takes "
            f"{bytes_words(one.memory_bytes)} and {other.rank} "
            f"{bytes_words(other.memory_bytes)}"
        )
        missing = [
            f"{bytes_words(-each.left_bytes)} are missing for {each.rank}"
            for each in (one, other)
            if not each.fits
        ]
        return f"{needs}: {' and '.join(missing)}." if missing else f"{needs}."

    def _nearest(self) -> str:
        nearest = self.strategies[0]
        return (
            f"None of {count_words(len(self.strategies), 'strategy', 'strategies')} "
            f"for {self.what} fits: the nearest, {nearest}, takes "
            f"{bytes_words(nearest.memory_bytes)} of "
            f"{bytes_words(self.allowed_bytes)}, so that "
            f"{bytes_words(-nearest.left_bytes)} are missing."
        )

    def _table(self) -> Table:
        rows = [row(one) for one in self.strategies[:ROWS]]
        fitting, every = len(self.fitting), len(self.strategies)
        of = count_words(every, "strategy", "strategies")
        heading = f"Plan for {self.what}: {fitting} of {of} fit"
        notes = [] if fitting else [f"{self._nearest()} {self.remedy}".strip()]
        ties = len(self.ties)
        if self.unchecked:
            notes.append(self.unchecked)
        elif ties > 1:
            notes.append(
                f"The first {ties} are a tie: they differ by {self.error:.0%} or "
                "less, and at least nine of ten formula values were within "
                f"{self.error:.0%} of step_time, which has an error of its own."
            )
        if every > ROWS:
            notes.append(f"{every - ROWS} more are in `strategies`.")
        return Table(
            "plan", heading, HEAD, rows, [*notes, *self.notes], right=(0, 3, 4, 5, 6)
        )

    def __str__(self) -> str:
        return self.table

    def __repr__(self) -> str:
        return f"Plan({self.what}: {len(self.fitting)} of {len(self.strategies)} fit)"

    def _repr_html_(self) -> str:
        return self._table().html()


def row(one: Strategy) -> tuple[str, ...]:
    """A strategy as the table shows it, by the columns of HEAD."""
    memory = bytes_words(one.memory_bytes)
    first = [(name, share) for name, share in one.limits if share >= 0.05][:3]
    return (
        str(one.rank),
        one.mesh_words,
        one.recompute,
        memory if one.fits else f"{memory}, too much",
        seconds_words(one.total_s),
        f"{one.tokens_per_s:,.0f}",
        f"{one.mfu:.0%}",
        ", ".join(f"{name} {share:.0%}" for name, share in first),
    )


def _parts(one: Strategy, other: Strategy) -> list[str]:
    """The three parts in which they differ most, as sentences."""
    a, b = _seconds_by_part(one), _seconds_by_part(other)
    differ = {name: b.get(name, 0.0) - a.get(name, 0.0) for name in {**a, **b}}
    least = 0.01 * max(one.total_s, other.total_s)
    order = sorted(differ.items(), key=lambda pair: (-abs(pair[1]), pair[0]))
    return [
        f"{other.rank} takes {seconds_words(abs(more))} "
        f"{'more' if more > 0 else 'less'} for {name}."
        for name, more in order[:3]
        if abs(more) >= least
    ]


def _seconds_by_part(one: Strategy) -> dict[str, float]:
    return {name: share * one.total_s for name, share in one.limits}
