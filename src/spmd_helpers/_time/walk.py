"""A scheduled program, gone through in its order: who runs when, and who waits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._hlo.collectives import Collective
from .._hlo.dataflow import Place
from .._hlo.integers import trips
from .._hlo.opcodes import enters
from .._hlo.parser import Instruction, Module
from .kernels import FREE, Kernel, kernel
from .links import Price
from .rates import Rates

_BRANCHES = ("branch_computations", "true_computation", "false_computation")


@dataclass
class Event:
    """One instruction, once: when it runs, what it costs, how often all of it runs.

    Attributes:
        instruction: the instruction, where it stands in `place`.
        place: its computation, as it is reached.
        lane: 'kernels' or a link.
        start_s: when it starts, from the start of what was walked.
        seconds: how long its lane is busy.
        exposed_s: how long nothing else runs meanwhile.
        limit: what the seconds come from.
        count: how often it runs; None where trips are unknown.
        memory_s: how long the bytes of a kernel keep the memory busy.
        kernel: what it computes and moves; None of a collective.
        collective: what it exchanges; None of a kernel.
    """

    instruction: Instruction
    place: Place
    lane: str
    start_s: float
    seconds: float
    exposed_s: float
    limit: str
    count: int | None = 1
    memory_s: float = 0.0
    kernel: Kernel | None = None
    collective: Collective | None = None


@dataclass
class Loop:
    """A loop on the timeline: its trips, from its first start to its last end."""

    instruction: Instruction
    start_s: float
    end_s: float
    trips: int | None


@dataclass
class Walked:
    """The events of a computation, with the time that all of it takes.

    Attributes:
        total_s: from its start to its end; of a loop of unknown trips one is counted.
        kernel_s: of that, what kernels run.
        waiting_s: what kernels wait for collectives.
        slowed_s: what kernels lose to collectives that run beside them.
        charged_s: up to where kernels ran beside some collective.
        compute_s: what the FLOPs of all kernels need.
        memory_s: what the bytes of all kernels need.
        events: each instruction that takes time.
        loops: the loops, for the timeline.
        is_known: whether all trips and all kernels' FLOPs are known.
        branches: whether a conditional was taken to run its longest branch.
    """

    total_s: float = 0.0
    kernel_s: float = 0.0
    waiting_s: float = 0.0
    slowed_s: float = 0.0
    charged_s: float = 0.0
    compute_s: float = 0.0
    memory_s: float = 0.0
    events: list[Event] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    unknown_loops: list[Instruction] = field(default_factory=list)
    unknown_kernels: list[Instruction] = field(default_factory=list)
    branches: bool = False


@dataclass
class _Started:
    """What runs beside the kernels until something waits for it."""

    event: Event
    end_s: float = 0.0
    memory_s: float = 0.0  # its own traffic, and the clock of all traffic when it began
    began_s: float = 0.0
    clock_s: float = 0.0
    kernel_s: float = 0.0  # what kernels had run when it was started


@dataclass
class _Links:
    """The collectives of one computation that are under way.

    Attributes:
        free_s: link → when it is free.
        started: name → what runs until something waits for it.
        queued: collectives that have no processors yet, in order.
    """

    free_s: dict[str, float] = field(default_factory=dict)
    started: dict[str, _Started] = field(default_factory=dict)
    queued: list[_Started] = field(default_factory=list)


@dataclass
class Walk:
    """Goes through a module.

    Attributes:
        module: the program.
        rates: of the chip.
        collectives: name of an instruction → the collective that it starts or is.
        prices: name of an instruction → what one run of its collective costs.
    """

    module: Module
    rates: Rates
    collectives: Mapping[str, Collective]
    prices: Mapping[str, Price]

    def __post_init__(self) -> None:
        """Note where each collective that several fusions overlap ends."""
        self._last = {
            names[-1]: names[0]
            for c in self.collectives.values()
            if len(names := c.instructions) > 1
        }

    def all(self) -> Walked:
        """The whole program, once."""
        return self.through(Place(self.module.entry))

    def through(self, place: Place) -> Walked:
        """A computation in its order."""
        done = Walked()
        links = _Links()
        side_s = 0.0  # when the stream beside the kernels is free
        for i in place.computation.instructions:
            name = self._collective_in(i)
            if name is not None:
                self._start(done, links, place, i, name)
            elif i.opcode.endswith(("-done", "-update")):
                self._finish(done, links, self._origin(place, i))
            elif self._copies(i):
                side_s = self._beside(done, links, place, i, side_s)
            elif i.opcode == "while":
                self._loop(done, place, i)
            elif i.opcode == "conditional":
                parts = [
                    self.through(place.called(self.module, i, n))
                    for n in i.called(*_BRANCHES)
                    if n in self.module.computations
                ]
                done.branches |= len(parts) > 1
                self._add(done, max(parts, key=lambda p: p.total_s, default=Walked()))
            elif i.opcode in ("call", "async-start"):
                for n in i.called(*enters(i.opcode)):
                    if n in self.module.computations:
                        self._add(done, self.through(place.called(self.module, i, n)))
            elif i.opcode not in FREE:
                self._run(done, links, place, i)
            if name is None:
                self._end_of_chain(done, links, i)
        for left in links.started.values():
            self._wait(done, links, left)
        return done

    # --- Collectives ------------------------------------------------------------------

    def _collective_in(self, i: Instruction) -> str | None:
        """The name under which the collective is listed that `i` starts or is."""
        if i.name in self.collectives:
            return i.name
        if i.opcode in ("while", "conditional", "call"):
            return None
        for computation in i.called(*enters(i.opcode)):
            inside = self.module.computations.get(computation)
            for inner in inside.instructions if inside else ():
                if inner.name in self.collectives:
                    return inner.name
        return None

    def _start(
        self, done: Walked, links: _Links, place: Place, i: Instruction, name: str
    ) -> None:
        collective, cost = self.collectives[name], self.prices[name]
        event = Event(
            *(i, place, cost.lane, done.total_s, cost.seconds, 0.0, cost.limit),
            collective=collective,
        )
        done.events.append(event)
        one = _Started(event)
        links.queued.append(one)
        is_chain = len(collective.instructions) > 1
        runs_on = i.opcode.endswith("-start") or is_chain
        if not runs_on:
            self._wait(done, links, one)
            return
        if not self._is_gpu:
            self._send(done, links)
        links.started[name if is_chain else i.name] = one
        if i.opcode.startswith("fusion"):  # it computes beside what it starts
            self._run(done, links, place, i)

    def _send(self, done: Walked, links: _Links) -> None:
        """What is queued begins now, or when its link is free."""
        for one in links.queued:
            lane = self._queue(one.event.lane)
            one.event.start_s = max(done.total_s, links.free_s.get(lane, 0.0))
            one.end_s = one.event.start_s + one.event.seconds
            one.kernel_s = done.kernel_s
            links.free_s[lane] = one.end_s
        links.queued.clear()

    def _has_processors(self, done: Walked, links: _Links, what: Kernel) -> bool:
        """Whether a queued collective gets processors before a kernel that comes now.

        A product or an attention kernel takes all of a GPU's at once and gives them
        back at its end. Other kernels are many short blocks. A collective that
        follows another takes that one's processors.
        """
        busy = links.free_s.get("", 0.0) > done.total_s
        return busy or what.is_unknown or what.kind == "elementwise"

    @property
    def _is_gpu(self) -> bool:
        return self.rates.chip.kind == "gpu"

    def _queue(self, lane: str) -> str:
        """GPUs run the collectives of a program one after another, on any link."""
        return "" if self._is_gpu else lane

    def _origin(self, place: Place, i: Instruction) -> str:
        """The start that a done belongs to."""
        name = i.operands[0] if i.operands else ""
        before = place.computation.by_name.get(name)
        while before is not None and before.opcode.endswith("-update"):
            name = before.operands[0] if before.operands else ""
            before = place.computation.by_name.get(name)
        return name

    def _finish(self, done: Walked, links: _Links, name: str) -> None:
        one = links.started.pop(name, None)
        if one is not None:
            self._wait(done, links, one)

    def _end_of_chain(self, done: Walked, links: _Links, i: Instruction) -> None:
        """On TPU the last fusion that overlaps a collective waits for it."""
        for computation in i.called(*enters(i.opcode)) if self._last else ():
            inside = self.module.computations.get(computation)
            for inner in inside.instructions if inside else ():
                if inner.name in self._last:
                    self._finish(done, links, self._last[inner.name])

    def _wait(self, done: Walked, links: _Links, one: _Started) -> None:
        """Nothing runs until what was started has ended."""
        self._send(done, links)
        end = one.end_s
        if one.memory_s:  # beside kernels: they share the memory
            busy = done.memory_s - one.clock_s
            end = max(end, one.began_s + busy)
        if one.event.collective is not None:
            lost = self.rates.slowed * self._beside_kernels(done, one)
            done.total_s += lost
            done.slowed_s += lost
        waited = max(0.0, end - done.total_s)
        one.event.exposed_s += waited
        if one.event.collective is not None:
            done.waiting_s += waited
        else:
            done.kernel_s += waited
        done.total_s += waited

    def _beside_kernels(self, done: Walked, one: _Started) -> float:
        """How long kernels ran beside a collective; no kernel counts for two."""
        since = max(one.kernel_s, done.charged_s)
        beside = min(one.event.seconds, max(0.0, done.kernel_s - since))
        done.charged_s = since + beside
        return beside

    # --- Kernels ----------------------------------------------------------------------

    def _cost(self, done: Walked, place: Place, i: Instruction) -> Event:
        what = kernel(self.module, place.computation, i)
        rates = self.rates
        computing = sum(flops / self._speed(of) for of, flops in what.work)
        memory = rates.rows_bytes_per_s if what.by_rows else rates.memory_bytes_per_s
        reading = what.nbytes / memory
        start = rates.kernel_s + rates.attention_s * (what.kind == "attention")
        is_product = what.kind == "matmul" and bool(what.work)
        multiplying = computing + rates.product_s * is_product
        longest = max(multiplying, reading)
        seconds = longest + start
        limit = "FLOPs" if multiplying > reading else "memory"
        if start > longest:
            limit = "launch"
        done.compute_s += computing
        done.memory_s += reading
        if what.is_unknown:
            done.unknown_kernels.append(i)
        return Event(
            *(i, place, "kernels", done.total_s, seconds, seconds, limit),
            memory_s=reading,
            kernel=what,
        )

    def _speed(self, of: str) -> float:
        first, _, rest = of.partition(" ")
        if first == "attention":
            return self.rates.attention_per_s[rest]
        return self.rates.flops_per_s[of]

    def _run(self, done: Walked, links: _Links, place: Place, i: Instruction) -> None:
        event = self._cost(done, place, i)
        done.events.append(event)
        if event.kernel and self._has_processors(done, links, event.kernel):
            self._send(done, links)
        done.total_s += event.seconds
        done.kernel_s += event.seconds
        self._send(done, links)

    def _copies(self, i: Instruction) -> bool:
        """A copy by hardware of its own. A GPU's second stream shares the card."""
        own = not self._is_gpu
        return own and i.opcode in ("copy-start", "slice-start", "dynamic-slice-start")

    def _beside(
        self,
        done: Walked,
        links: _Links,
        place: Place,
        i: Instruction,
        free_s: float,
    ) -> float:
        """A kernel, or a copy, that runs beside the others until something waits."""
        clock = done.memory_s
        event = self._cost(done, place, i)
        event.exposed_s = 0.0
        event.start_s = max(done.total_s, free_s)
        done.events.append(event)
        end = event.start_s + event.seconds
        memory = done.memory_s - clock
        links.started[i.name] = _Started(event, end, memory, done.total_s, clock)
        return end

    # --- What is inside ---------------------------------------------------------------

    def _loop(self, done: Walked, place: Place, loop: Instruction) -> None:
        times = trips(self.module, place, loop)
        (name,) = loop.called("body")
        body = self.through(place.called(self.module, loop, name))
        start = done.total_s
        if times is None:
            done.unknown_loops.append(loop)
        self._add(done, body, 1 if times is None else times, times is None)
        done.loops.append(Loop(loop, start, done.total_s, times))

    def _add(
        self, done: Walked, part: Walked, times: int = 1, is_unknown: bool = False
    ) -> None:
        """What runs inside, so many times, from now on."""
        for event in part.events:
            event.start_s += done.total_s
            known = event.count is not None and not is_unknown
            event.count = (event.count or 0) * times if known else None
        for loop in part.loops:
            loop.start_s += done.total_s
            loop.end_s += done.total_s
        done.events += part.events
        done.loops += part.loops
        sums = ("total_s", "kernel_s", "waiting_s", "slowed_s", "compute_s", "memory_s")
        for name in sums:
            setattr(done, name, getattr(done, name) + times * getattr(part, name))
        done.unknown_loops += part.unknown_loops
        done.unknown_kernels += part.unknown_kernels
        done.branches |= part.branches


def runs(event: Event) -> int:
    """How often an event runs; once of those whose trips are unknown."""
    return 1 if event.count is None else event.count


def summed(events: list[Event], name: str) -> Any:
    """A figure of all events, each as often as it runs."""
    return sum(runs(event) * getattr(event, name) for event in events)
