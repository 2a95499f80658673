"""What each device of a compiled program computes, as far as it is the same.

A walk over the program that follows every value, also through fusions and loops, with
the classes of devices that hold the same (see device_classes), and integers made of the
device's own number with their values: which part of an array each device takes. On
the way it counts the FLOPs of matrix products, by the classes of what is multiplied.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

from . import device_classes as classes
from .dataflow import Place, late, passes_on
from .device_classes import Classes, Tree, Value, flat
from .flops import contracted, product
from .integers import compute, constant, trips
from .opcodes import Does, base, does, enters
from .parser import Computation, Instruction, Module
from .replica_groups import Groups, parse_groups, parse_pairs

Answer = TypeVar("Answer")


@dataclass
class Tally:
    """FLOPs of one device.

    Attributes:
        flops: by the classes of what was multiplied and the loops around it whose
            trips are unknown, which are counted as one trip.
        upper_bound: whether a branch was counted that may not be taken.
        partial: whether there are products of which the text tells no size.
        products: the same FLOPs by the classes and the id of the instruction.
    """

    flops: Counter[tuple[Classes, tuple[str, ...]]] = field(default_factory=Counter)
    upper_bound: bool = False
    partial: bool = False
    products: Counter[tuple[Classes, int]] = field(default_factory=Counter)

    def add(self, other: "Tally", times: int | None = 1, loop: str = "") -> None:
        for (of_devices, loops), flops in other.flops.items():
            inside = (loop, *loops) if times is None else loops
            self.flops[of_devices, inside] += flops * (1 if times is None else times)
        known = 1 if times is None else times
        for key, each in other.products.items():
            self.products[key] += known * each
        if times != 0:
            self.upper_bound |= other.upper_bound
            self.partial |= other.partial


class Walk:
    """A walk from the entry computation, given what each argument's devices share.

    Attributes:
        result: what comes out.
        tally: the FLOPs of one device.
        multiplied: id of an instruction → the product, and where it was met first.
        exchanged: id of a collective → what devices put in, wherever it was met.
    """

    def __init__(
        self, module: Module, devices: int, arguments: Mapping[int, Classes]
    ) -> None:
        self.module, self.devices = module, devices
        self.pool = classes.Values(devices)
        self._entered: dict[
            tuple[str, tuple[Tree, ...], Value], tuple[Tree, Tally]
        ] = {}
        self._read: dict[tuple[int, Hashable], Any] = {}
        self.multiplied: dict[int, tuple[Place, Instruction]] = {}
        self.exchanged: dict[int, Value] = {}
        self.alike, self.apart = self.pool.alike, self.pool.apart
        count = 1 + max(module.entry.parameters, default=-1)
        given = tuple(
            self.pool.of(arguments[n]) if n in arguments else self._argument(n)
            for n in range(count)
        )
        self.result, self.tally = self._enter(Place(module.entry), given, self.alike)

    def _argument(self, number: int) -> Value:
        i = self.module.entry.parameters.get(number)
        text = i.attribute("sharding") if i else None
        printed = classes.of_sharding(text, self.devices) if text else None
        return self.pool.of(printed) if printed else self.apart

    def _enter(
        self, place: Place, arguments: tuple[Tree, ...], within: Value
    ) -> tuple[Tree, Tally]:
        """A computation's result and FLOPs; `within`: who takes part in it."""
        key = place.computation.name, arguments, within
        if key not in self._entered:
            self._entered[key] = self._through(place, arguments, within)
        return self._entered[key]

    def _through(
        self, place: Place, arguments: tuple[Tree, ...], within: Value
    ) -> tuple[Tree, Tally]:
        values: dict[str, Tree] = {}
        tally = Tally()
        for i in place.computation.instructions:
            if i.opcode == "parameter":
                values[i.name] = arguments[int(i.inside)]
                continue
            operands = [values.get(name, self.apart) for name in i.operands]
            self._count(place, i, values, within, tally)
            values[i.name] = self._result(place, i, operands, within, tally)
        return values[place.computation.root.name], tally

    def _count(
        self,
        place: Place,
        i: Instruction,
        values: dict[str, Tree],
        within: Value,
        tally: Tally,
    ) -> None:
        done = self._once(
            i, "product", lambda: product(self.module, place.computation, i)
        )
        if done is None:
            return
        self.multiplied.setdefault(id(i), (place, i))
        if done.flops is None:
            tally.partial = True
            return
        factors = [values.get(name, self.apart) for name in done.operands]
        for share, each in self._apart_in_parts(i, factors):
            of_devices = self.pool.mix(within, *each).classes
            tally.flops[of_devices, ()] += round(done.flops * share)
            tally.products[of_devices, id(i)] += round(done.flops * share)

    def _apart_in_parts(
        self, i: Instruction, factors: list[Tree]
    ) -> list[tuple[float, list[Tree]]]:
        """Shares of a product, and their factors: those that GPU's compiler merged.

        It writes x·wq, x·wk and x·wv as one product, with the weights side by side.
        """
        for number, factor in enumerate(factors[:2]):
            if not isinstance(factor, Value) or factor.parts is None:
                continue
            dimension, parts = factor.parts
            summed = contracted(i, number) if parts else None
            if summed is None or dimension in summed:
                continue
            total = sum(size for size, _ in parts)
            others = factors[:number], factors[number + 1 :]
            return [
                (size / total, [*others[0], self.pool.of(part), *others[1]])
                for size, part in parts
            ]
        return [(1.0, factors)]

    def _once(
        self, i: Instruction, what: Hashable, read: Callable[[], Answer]
    ) -> Answer:
        key = id(i), what
        if key not in self._read:
            self._read[key] = read()
        answer: Answer = self._read[key]
        return answer

    def _result(
        self,
        place: Place,
        i: Instruction,
        operands: list[Tree],
        within: Value,
        tally: Tally,
    ) -> Tree:
        if late(i):
            i, operands = place.computation.by_name[i.operands[0]], operands[1:]
        opcode, what = i.opcode, does(i.opcode)
        if what is Does.PACKED:
            return tuple(operands)
        if what is Does.PICKED:
            return self._element(i, operands[0])
        if opcode == "constant":
            return self._once(i, "constant", lambda: self._constant(i))
        if opcode in ("partition-id", "replica-id"):
            return self._number(opcode)
        if what is Does.EXCHANGED:
            before = self.exchanged.get(id(i), self.alike)
            self.exchanged[id(i)] = self.pool.mix(before, *operands)
            return self._exchanged(i, base(opcode), operands)
        if what is Does.SAME:
            return operands[0] if operands else self.apart
        if what is Does.LOOPS:
            return self._loop(place, i, operands[0], within, tally)
        if what is Does.BRANCHES:
            return self._branches(place, i, operands, within, tally)
        if what is Does.CALLS:
            inner = self._called(place, i, *enters(opcode))
            if inner and len(operands) == len(inner[0].computation.parameters):
                result, inside = self._enter(inner[0], tuple(operands), within)
                tally.add(inside)
                return result
        if what is Does.ELSEWHERE:
            return self.apart
        if opcode == "custom-call":
            if "side_effect=true" in i.rest:
                return self.apart
            if "AsyncCollectiveDone" in i.rest:
                operands = self._collected(place.computation, i, operands)
        values = [o for o in operands if isinstance(o, Value)]
        numbers = [value.known for value in values if value.known is not None]
        if operands and len(numbers) == len(operands):
            known = compute(i, numbers)
            if known:
                return self.pool.known(known)
        if what is Does.ROUNDED and getattr(operands[0], "parts", None):
            return operands[0]
        if opcode == "concatenate":
            return self._side_by_side(place.computation, i, operands)
        return self.pool.mix(*operands)

    def _side_by_side(
        self, computation: Computation, i: Instruction, operands: list[Tree]
    ) -> Value:
        dimension = self._once(i, "dimension", lambda: i.number(r"dimensions=\{(\d+)"))
        if dimension is None:
            return self.pool.mix(*operands)
        values = [o for o in operands if isinstance(o, Value)]
        sizes = (computation.by_name[n].shapes[0].dims[dimension] for n in i.operands)
        return self.pool.joined(dimension, zip(sizes, values, strict=True))

    def _called(self, place: Place, i: Instruction, *keys: str) -> list[Place]:
        names = self._once(i, keys[0], lambda: i.called(*keys))
        known = self.module.computations
        return [place.called(self.module, i, name) for name in names if name in known]

    def _element(self, i: Instruction, elements: Tree) -> Tree:
        if not isinstance(elements, tuple):
            return elements
        known = i.index < len(elements)
        return elements[i.index] if known else self.pool.mix(elements)

    def _constant(self, i: Instruction) -> Value:
        known = constant(i)
        return self.alike if known is None else self.pool.known([known] * self.devices)

    def _number(self, opcode: str) -> Value:
        """Device d is partition d % partitions of replica d // partitions."""
        replicas = re.search(r"\breplica_count=(\d+)", self.module.header)
        count = int(replicas.group(1)) if replicas else 1
        partitions = self.devices // count
        if opcode == "partition-id":
            return self.pool.known(d % partitions for d in range(self.devices))
        return self.pool.known(d // partitions for d in range(self.devices))

    def _exchanged(self, i: Instruction, kind: str, operands: list[Tree]) -> Tree:
        groups = self._once(i, "groups", lambda: _groups(i, self.devices))
        if kind in ("all-to-all", "ragged-all-to-all"):
            # Each part may come from any of them.
            operands = [self.pool.mix(*operands)]
        results = tuple(
            self.pool.of(classes.exchanged(kind, o.classes, groups))
            for operand in operands
            for o in flat(operand)
        )
        return results[0] if len(results) == 1 else results

    def _collected(
        self, computation: Computation, i: Instruction, operands: list[Tree]
    ) -> list[Tree]:
        """Where a TPU's asynchronous collective ends: its results, not its operands."""
        did = [does(computation.by_name[name].opcode) for name in i.operands]
        ends = [o for o, d in zip(operands, did, strict=True) if d is Does.EXCHANGED]
        return ends or operands

    def _loop(
        self, place: Place, loop: Instruction, state: Tree, within: Value, tally: Tally
    ) -> Tree:
        (test,) = self._called(place, loop, "condition")
        (body,) = self._called(place, loop, "body")
        start = state
        while True:
            goes_on, tested = self._enter(test, (state,), within)
            taking_part = self.pool.mix(within, goes_on)
            result, done = self._enter(body, (state,), taking_part)
            if self.pool.mix(goes_on).classes is not self.alike.classes:
                result = self._left_early(loop, result, goes_on)
            after = self.pool.either(state, result)
            if after == state:
                break
            state = after
        times = self._trips(place, loop, start)
        tally.add(done, times, loop.name)
        tally.add(tested, None if times is None else times + 1, loop.name)
        return result if times else state  # what was there before is gone

    def _left_early(self, loop: Instruction, result: Tree, goes_on: Tree) -> Tree:
        """What devices have that leave a loop at different times."""
        if not isinstance(result, tuple):
            return self.pool.mix(result, goes_on)
        return tuple(
            part if passes_on(self.module, loop, n) else self.pool.mix(part, goes_on)
            for n, part in enumerate(result)
        )

    def _trips(self, place: Place, loop: Instruction, start: Tree) -> int | None:
        what = "trips", start
        return self._once(loop, what, lambda: trips(self.module, place, loop))

    def _branches(
        self,
        place: Place,
        i: Instruction,
        operands: list[Tree],
        within: Value,
        tally: Tally,
    ) -> Tree:
        which, *given = operands
        results: list[Tree] = []
        tallies: list[Tally] = []
        branches = self._called(place, i, *enters(i.opcode))
        taken = self._taken(i, which, len(branches))
        for number, (inner, argument) in enumerate(zip(branches, given, strict=True)):
            here = self.pool.mix(within, which if taken is None else taken[number])
            result, inside = self._enter(inner, (argument,), here)
            results.append(result)
            tallies.append(inside)
        most = max(tallies, key=lambda t: t.flops.total())
        tally.add(most)
        tally.upper_bound |= any(t.flops != most.flops for t in tallies)
        tally.partial |= any(t.partial for t in tallies)
        return self._spread(reduce(self.pool.either, results), which)

    def _taken(self, i: Instruction, which: Tree, count: int) -> list[Value] | None:
        """Who takes part in each branch, if that is known: others are like nobody."""
        known = which.known if isinstance(which, Value) else None
        chosen = [number for number in known or () if isinstance(number, int)]
        if len(chosen) < self.devices:
            return None
        if "true_computation=" in i.rest:
            chosen = [1 - truth for truth in chosen]
        # An index out of range is the last.
        chosen = [k if 0 <= k < count else count - 1 for k in chosen]
        return [
            self.pool.of(classes.numbered(k == n or (d,) for d, k in enumerate(chosen)))
            for n in range(count)
        ]

    def _spread(self, tree: Tree, which: Tree) -> Tree:
        if isinstance(tree, tuple):
            return tuple(self._spread(part, which) for part in tree)
        alike = self.pool.mix(which).classes is self.alike.classes
        return tree if alike else self.pool.mix(tree, which)


def _groups(i: Instruction, devices: int) -> Groups:
    pairs = i.attribute("source_target_pairs")
    if pairs is not None:
        return parse_pairs(pairs)
    return parse_groups(i.attribute("replica_groups") or "{}", devices)
