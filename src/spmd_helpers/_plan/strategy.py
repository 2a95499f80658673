"""One way to train a model on some chips, with what it takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .exchanges import Exchange
from .seconds import Seconds
from .step import Step

# What is counted when it is first read: of many that do not fit never.
_LATER = ("seconds", "tokens_per_s", "mfu", "step")


@dataclass(frozen=True)
class Strategy:
    """One way to train the model on the chips, with what it takes.

    Attributes:
        rank: its place in the plan, from 1.
        mesh: axis → size, the outermost first, of axes with several devices; of one
            device {'data': 1}.
        zero: from which stage of ZeRO `data` shards the state; `fsdp` always shards
            all of it.
        recompute: the policy of `jax.checkpoint`, or 'everything_saveable'.
        attention: 'plain', 'flash' or 'ring'.
        memory_bytes: on each device at the peak, by `training_memory`.
        left_bytes: what stays free of the part of a chip that may be filled; negative
            is what is missing.
        seconds: of a step, with its parts.
        tokens_per_s: on all chips together (of an MLP: rows).
        mfu: FLOPs of `Transformer.flops`, masked scores included and nothing
            recomputed, over the chips' peak in bfloat16.
    """

    rank: int
    mesh: Mapping[str, int] = field(hash=False)  # equal ones have equal seconds
    zero: int
    recompute: str
    attention: str
    memory_bytes: int
    left_bytes: int
    seconds: Seconds
    tokens_per_s: float
    mfu: float
    step: Step = field(repr=False, compare=False)

    @staticmethod
    def _timed_later(
        timed: Callable[[], Mapping[str, object]], **known: object
    ) -> "Strategy":
        """A strategy whose seconds are counted when they are first read.

        Args:
            timed: gives the attributes of `_LATER`.
            known: the others.
        """
        one = object.__new__(Strategy)
        one.__dict__.update(known, _timed=timed)
        return one

    if not TYPE_CHECKING:  # or mypy takes every attribute for known

        def __getattr__(self, name: str) -> object:
            """Count what was left for later."""
            timed = self.__dict__.get("_timed")
            if name in _LATER and timed is not None:
                self.__dict__.update(timed())
                self.__dict__.pop("_timed", None)
            if name not in self.__dict__:
                raise AttributeError(f"a Strategy has no attribute {name!r}")
            return self.__dict__[name]

    def __getstate__(self) -> dict[str, object]:
        """All attributes, with the seconds counted, for `pickle` and `copy`."""
        return {"seconds": self.seconds, **self.__dict__}

    def _put_at(self, rank: int) -> None:
        """Give it its place, once a plan has all of its strategies."""
        self.__dict__["rank"] = rank

    @property
    def fits(self) -> bool:
        """Whether the peak stays within the part of a chip that may be filled."""
        return self.left_bytes >= 0

    @property
    def total_s(self) -> float:
        """Seconds of a step."""
        return self.seconds.total_s

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What the devices exchange in a step."""
        return self.seconds.exchanges

    @property
    def limits(self) -> tuple[tuple[str, float], ...]:
        """Where the time goes, and which part of it, the largest first."""
        seconds = self.seconds
        parts = {
            "compute": seconds.compute_s - seconds.recompute_s,
            "recomputation": seconds.recompute_s,
            "memory traffic": seconds.memory_s,
        }
        if seconds.bubble_s:
            parts["pipeline bubble"] = seconds.bubble_s
        for one in seconds.exchanges:
            parts[one.name] = parts.get(one.name, 0.0) + one.exposed_s
        shares = [(name, part / seconds.total_s) for name, part in parts.items()]
        return tuple(sorted(shares, key=lambda pair: (-pair[1], pair[0])))

    @property
    def mesh_words(self) -> str:
        """'data 2 × fsdp 4, ZeRO-1', 'stage 4 × data 2, 16 microbatches'."""
        words = [" × ".join(f"{axis} {size}" for axis, size in self.mesh.items())]
        if self.zero:
            words.append(f"ZeRO-{self.zero}")
        if "stage" in self.mesh:
            words.append(f"{self.microbatches} microbatches")
        if self.chunks > 1:
            words.append(f"{self.chunks} chunks each")
        return ", ".join(words)

    @property
    def microbatches(self) -> int:
        """In how many parts the batch goes through the stages; 1 without a pipeline."""
        return self.step.microbatches

    @property
    def chunks(self) -> int:
        """Of layers that each device of `stage` has: 1F1B with 1, interleaved above."""
        return self.step.chunks

    def __str__(self) -> str:
        return f"{self.mesh_words}, {self.recompute}"
