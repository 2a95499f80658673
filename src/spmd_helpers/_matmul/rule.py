"""What the compiler moves for a product of two sharded matrices: the rule, in numbers.

Of A [I, J] and B [J, K] each mesh axis cuts nothing, I or J of A, and nothing, J or K
of B. Two letters say which: "JJ" cuts the contraction of both, "I-" the rows of A only.
The rule was read off compiled programs, and the tests compare it with them. Where
axes meet in ways that it does not cover, it says so and guesses nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .._hlo.ring import sent

Entries = tuple[tuple[str, ...], ...]
CROSSED = ("IK", "IJ", "JK")  # the axis has two places, and one has to be given up
ONE_SIDED = ("J-", "-J")
_RESULT = {"I-": "I", "IJ": "I", "-K": "K", "JK": "K"}
# With a wish for C, beside an axis that stays: what the other one may do.
_BESIDE_ROWS = {"JJ": "K", "-K": "-", "--": "K", "JK": "-"}
_BESIDE_COLUMNS = {"JJ": "I", "I-": "-", "--": "I", "IJ": "-"}


@dataclass(frozen=True)
class Move:
    """One exchange between the devices.

    Attributes:
        kind: 'all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all' or
            'collective-permute'.
        of: 'A' or 'B', which moves before the product, or 'C', after it.
        axes: the mesh axes along which devices exchange, in mesh order.
        operand_bytes: what one device puts in.
        result_bytes: what one device gets out.
        wire_bytes: what one device sends, by the formulas of `Collective`.
    """

    kind: str
    of: str
    axes: tuple[str, ...]
    operand_bytes: int
    result_bytes: int
    wire_bytes: int


@dataclass(frozen=True)
class Stage:
    """How A, B and C are sharded at one point of the product.

    Attributes:
        at: 'before'; 'A', 'B' or 'C' after a move of it; 'slice', after each device
            took slices of what it had; or 'multiply'.
        move: the number of the move in `moves`, or None.
        a: the mesh axes over which each dimension of A is sharded.
        b: those of B.
        c: those of C; None before the multiply.
        summed: the axes along which C is a partial sum.
    """

    at: str
    move: int | None
    a: Entries
    b: Entries
    c: Entries | None = None
    summed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Where the product is cut, and what moves; of axes with more than one device.

    Attributes:
        kinds: axis → two letters.
        natural: what C is cut by without a wish; None if that is not covered.
        cuts: axis → 'I', 'J', 'K', or '-' where all its devices compute the same; {}
            if the rule does not cover this.
        moves: in order.
        block: the (I, J, K) that one device multiplies.
        swapped: (axis, idle axis) where blocks were brought to an idle axis first.
        stages: how A, B and C are sharded from before to the end.
        why_not: why the rule does not cover this, as a clause; then there are no moves.
    """

    kinds: Mapping[str, str]
    natural: Entries | None = None
    cuts: Mapping[str, str] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    block: tuple[int, int, int] | None = None
    swapped: tuple[str, str] | None = None
    stages: tuple[Stage, ...] = ()
    why_not: str | None = None


class _Outside(Exception):
    """The rule does not cover this; the text says why."""


def plan(
    mesh: Mapping[str, int],
    a: Entries,
    b: Entries,
    sizes: tuple[int, int, int],
    itemsize: int,
    wish: Entries | None = None,
) -> Plan:
    """The plan for A [I, J] · B [J, K]; entries are complete and fit their arrays."""
    mesh = {axis: size for axis, size in mesh.items() if size > 1}
    a, b = _in_use(mesh, a), _in_use(mesh, b)
    kinds = {axis: _letter(axis, a, "IJ") + _letter(axis, b, "JK") for axis in mesh}
    work = _Work(mesh, a, b, sizes, itemsize, kinds)
    natural: Entries | None = None
    try:
        target = work.natural()
        try:
            work.check_natural(target)
            rows, columns = (
                tuple(axis for axis in entry if target[axis] == dim)
                for dim, entry in (("I", a[0]), ("K", b[1]))
            )
            natural = rows, columns
        except _Outside:
            if wish is None:
                raise
        if wish is not None and _in_use(mesh, wish) != natural:
            target = {axis: _letter(axis, wish, "IK") for axis in mesh}
            work.check_wish(target, natural is not None)
            work.has_wish = True
        work.run(target)
    except _Outside as reason:
        return Plan(kinds, natural, why_not=str(reason))
    i, j, k = (n // work.parts(dim) for n, dim in zip(sizes, "IJK", strict=True))
    moves = tuple(work.moves)
    stages = tuple(work.stages)
    return Plan(kinds, natural, work.cuts, moves, (i, j, k), work.swapped, stages)


def gathers_a(sizes: Sequence[int]) -> bool:
    """In case 4 the smaller operand is gathered; if they are equal, B."""
    return sizes[0] * sizes[1] < sizes[1] * sizes[2]


def _in_use(mesh: Mapping[str, int], entries: Entries) -> Entries:
    return tuple(tuple(axis for axis in entry if axis in mesh) for entry in entries)


def _letter(axis: str, entries: Entries, dims: str) -> str:
    return next((d for d, e in zip(dims, entries, strict=True) if axis in e), "-")


class _Work:
    """The steps of one plan."""

    def __init__(
        self,
        mesh: Mapping[str, int],
        a: Entries,
        b: Entries,
        sizes: tuple[int, int, int],
        itemsize: int,
        kinds: Mapping[str, str],
    ) -> None:
        self.mesh, self.a, self.b, self.kinds = mesh, a, b, kinds
        self.sizes, self.itemsize = dict(zip("IJK", sizes, strict=True)), itemsize
        self.has_wish = False
        self.cuts: dict[str, str] = {}
        self.moves: list[Move] = []
        self.swapped: tuple[str, str] | None = None
        self.lost: set[str] = set()  # axes that the result could not keep
        self.now = {
            "A": [list(entry) for entry in a],
            "B": [list(entry) for entry in b],
        }
        self.summed: list[str] = []
        self.stages = [Stage("before", None, a, b)]

    def axes(self, *kinds: str) -> list[str]:
        return [axis for axis in self.mesh if self.kinds[axis] in kinds]

    def parts(self, dim: str) -> int:
        return math.prod(n for x, n in self.mesh.items() if self.cuts.get(x) == dim)

    def local(self, dims: str) -> int:
        """Elements of the block that one device multiplies, or gets."""
        return math.prod(self.sizes[dim] // self.parts(dim) for dim in dims)

    def natural(self) -> dict[str, str]:
        """Axis → where C is cut without a wish. An entry keeps its first axes."""
        rows = not gathers_a(tuple(self.sizes.values()))
        crossed = {"IK": "I" if rows else "K"}
        target = {x: (_RESULT | crossed).get(k, "-") for x, k in self.kinds.items()}
        for dim, entry in (("I", self.a[0]), ("K", self.b[1])):
            gone = False
            for axis in entry:
                gone = gone or target[axis] != dim
                if gone and target[axis] == dim:
                    target[axis] = "-"
                    self.lost.add(axis)
        return target

    def check_natural(self, target: Mapping[str, str]) -> None:
        if len(self.mesh) > 2:
            moved = [x for x in self.mesh if self.kinds[x] not in ("I-", "-K")]
            if len(moved) > 1 or self.axes("--", "IK", *ONE_SIDED):
                raise _Outside(
                    "of three axes or more it knows those that shard rows of A or "
                    "columns of B, and beside them one that shards J of both, or two "
                    "dimensions of which one is J"
                )
        small, large = self._taken_over(target)
        if small and self._divides(small, large):
            dim = self._gathered_dim(small, target)
            if self.sizes[dim] % self.mesh[large]:
                raise _Outside(
                    f"shards along {small} ({self.mesh[small]}) would be sent to the "
                    f"axis {large} ({self.mesh[large]}), and would be padded there"
                )

    def check_wish(self, target: Mapping[str, str], natural_is_known: bool) -> None:
        if len(self.mesh) < 2:
            return
        c_is_full = set(target.values()) == {"-"} and natural_is_known
        idle_beside = self.axes("--") and self.axes(*CROSSED)
        if (
            len(self.mesh) == 2
            and c_is_full
            and not idle_beside
            and not self.axes("IK")
            and not (self.axes("J-") and self.axes("IJ"))
            and not (self.axes("-J") and self.axes("JK"))
        ):
            return
        if len(self.mesh) == 2:
            for x, y in (list(self.mesh), list(self.mesh)[::-1]):
                beside = {"I": _BESIDE_ROWS, "K": _BESIDE_COLUMNS}.get(target[x], {})
                stays = self.kinds[x] == ("I-" if target[x] == "I" else "-K")
                kept = _RESULT.get(self.kinds[x]) == target[x]
                fits = stays or (kept and self.kinds[y] in ("I-", "-K"))
                if fits and beside.get(self.kinds[y]) == target[y]:
                    return
        raise _Outside(
            "of shardings requested for C, where more than one axis is in use, it "
            "knows a few: C is replicated, or one axis stays, and along the other one "
            "C is reduce-scattered, or gathered, or sharded along its other dimension"
        )

    def run(self, target: Mapping[str, str]) -> None:
        self._place(target)
        self._use_idle_axis(target)
        self._use_other_axis()
        self._same_order()
        for of, entries, dims in (("A", self.a, "IJ"), ("B", self.b, "JK")):
            if not (self.swapped and self.moves and self.moves[0].of == of):
                self._bring(of, entries, dims)
        self._multiply()
        self._finish(target)

    def _place(self, target: Mapping[str, str]) -> None:
        """Where each axis cuts the product."""
        for axis, kind in self.kinds.items():
            if kind == "JJ":
                self.cuts[axis] = "J"
            elif axis in self.lost and not self.has_wish:
                self.cuts[axis] = "J" if "J" in kind else "-"
            elif target[axis] != "-":
                self.cuts[axis] = target[axis]
            elif kind == "IK":
                self.cuts[axis] = "K" if gathers_a(tuple(self.sizes.values())) else "I"
            else:
                self.cuts[axis] = _RESULT.get(kind, "-")
        undecided = [x for x in self.axes(*ONE_SIDED) if self.cuts[x] == "-"]
        if undecided and not self._gathers_one_sided(undecided[0]):
            self.cuts |= dict.fromkeys(undecided, "J")
        elif undecided:
            self.cuts |= dict.fromkeys(self.axes("JJ"), "-")

    def _gathers_one_sided(self, axis: str) -> bool:
        """Gather what is cut, or take slices of the other and add up: the smaller."""
        opposite = ("-J", "JK") if self.kinds[axis] == "J-" else ("J-", "IJ")
        if self.axes("--", "JJ", *opposite):
            return True
        dims = "IJ" if self.kinds[axis] == "J-" else "JK"
        return self.local(dims) <= self.local("IK")

    def _gathered_dim(self, small: str, target: Mapping[str, str]) -> str:
        """The dimension along which the operand is cut that has to move."""
        if "J" in self.kinds[small]:
            return "J"
        return "K" if target[small] == "I" else "I"

    def _taken_over(self, target: Mapping[str, str]) -> tuple[str, str]:
        """An axis with two places, and one that doesn't cut the operand that moves."""
        crossed = self.axes(*CROSSED)
        if self.has_wish or self.lost or len(crossed) != 1:
            return "", ""
        beside = "J-" if target[crossed[0]] == "I" else "-J"
        free = self.axes("--", beside)
        return (crossed[0], free[0]) if len(free) == 1 else ("", "")

    def _divides(self, small: str, large: str) -> bool:
        return self.mesh[large] % self.mesh[small] == 0

    def _use_idle_axis(self, target: Mapping[str, str]) -> None:
        """An axis that is a multiple takes the blocks of one that must move."""
        small, large = self._taken_over(target)
        if not small or not self._divides(small, large):
            return
        of, dims = ("B", "JK") if target[small] == "I" else ("A", "IJ")
        full = math.prod(self.sizes[dim] for dim in dims)
        part = full // self.mesh[large]
        self.swapped = (small, large)
        self._replace(of, small, large)
        self._move("collective-permute", of, [small, large], part, part)
        is_idle = self.kinds[large] == "--"
        self.cuts[large] = "-"
        if self.kinds[small] == "IK" or (is_idle and full <= self.local("IK")):
            self._drop(of, [large])
            self._move("all-gather", of, [large], part, full)
        else:
            self.cuts[large] = "J"

    def _use_other_axis(self) -> None:
        """J of A over one axis, J of B over an equal one: the smaller operand moves."""
        left, right = self.axes("J-"), self.axes("-J")
        if not (left and right) or self.mesh[left[0]] != self.mesh[right[0]]:
            return
        (of, dims), old, new = ("A", "IJ"), left[0], right[0]
        if self.local("JK") < self.local("IJ"):
            (of, dims), old, new = ("B", "JK"), right[0], left[0]
        self.swapped = (old, new)
        self.cuts[new] = "J"
        part = self.local(dims)
        self._replace(of, old, new)
        self._move("collective-permute", of, [old, new], part, part)

    def _same_order(self) -> None:
        """Slices of J that are multiplied must be the same ones in A and in B."""
        left = [axis for axis in self.a[1] if self.cuts[axis] == "J"]
        right = [axis for axis in self.b[0] if self.cuts[axis] == "J"]
        if left != right and set(left) == set(right):
            of, dims = min(("B", "JK"), ("A", "IJ"), key=lambda o: self.local(o[1]))
            part = self.local(dims)
            self.now[of][dims.index("J")] = left if of == "B" else right
            self._move("collective-permute", of, left, part, part)

    def _bring(self, of: str, entries: Entries, dims: str) -> None:
        """What one operand has to move, so that it is cut as the product is."""
        place = {axis: _letter(axis, entries, dims) for axis in self.mesh}
        wanted = {x: self.cuts[x] if self.cuts[x] in dims else "-" for x in self.mesh}
        block = {
            dim: self.sizes[dim] // math.prod(self.mesh[axis] for axis in entry)
            for dim, entry in zip(dims, entries, strict=True)
        }
        for axis, size in self.mesh.items():
            gathered_first = axis in self.lost and not self.has_wish
            sliced_last = self.kinds[axis] in ONE_SIDED and self.axes(*CROSSED)
            if place[axis] == "-" and wanted[axis] != "-" and not sliced_last:
                block[wanted[axis]] //= size
                self._slice(of, dims.index(wanted[axis]), axis)
            elif "-" not in (place[axis], wanted[axis]) and place[axis] != wanted[axis]:
                if gathered_first:
                    continue
                part = math.prod(block.values())
                self._drop(of, [axis])
                self.now[of][dims.index(wanted[axis])].append(axis)
                self._move("all-to-all", of, [axis], part, part)
                block[place[axis]] *= size
                block[wanted[axis]] //= size
        order = list(zip(dims, entries, strict=True))
        if not (
            self.axes(*ONE_SIDED) and any(self.kinds[x] == "IK" for x in entries[0])
        ):
            order.reverse()
        for dim, entry in order:
            gone = [x for x in entry if place[x] == dim and wanted[x] != dim]
            gone = [x for x in gone if wanted[x] == "-" or x in self.lost]
            if not gone:
                continue
            part, times = math.prod(block.values()), self._devices(gone)
            kept = [x for x in entry if x not in gone]
            if kept != list(entry[: -len(gone)]):
                self.now[of][dims.index(dim)] = [*kept, *gone]
                self._move("collective-permute", of, entry, part, part)
            self._drop(of, gone)
            self._move("all-gather", of, gone, part, part * times)
            block[dim] *= times

    def _multiply(self) -> None:
        """Each operand is sharded as the product is; each device computes its part."""
        left, right = self.now["A"], self.now["B"]
        before = self._entries("A"), self._entries("B")
        entries = {"I": left[:1], "J": [left[1], right[0]], "K": right[1:]}
        for dim, places in entries.items():
            axes = [axis for axis in self.mesh if self.cuts[axis] == dim]
            order = max(places, key=len)
            for place in places:
                place[:] = order + [axis for axis in axes if axis not in order]
        if before != (self._entries("A"), self._entries("B")):
            self._note("slice")
        self.now["C"] = [list(left[0]), list(right[1])]
        self.summed = list(left[1])
        self._note("multiply")

    def _finish(self, target: Mapping[str, str]) -> None:
        """What happens to C: sums are added up, what is wanted uncut is gathered."""
        block = {dim: self.sizes[dim] // self.parts(dim) for dim in "IK"}
        summed = [axis for axis, dim in self.cuts.items() if dim == "J"]
        for axis in summed:
            if target[axis] != "-":
                part = math.prod(block.values())
                self.now["C"]["IK".index(target[axis])].append(axis)
                self.summed.remove(axis)
                self._move("reduce-scatter", "C", [axis], part, part // self.mesh[axis])
                block[target[axis]] //= self.mesh[axis]
        added = [axis for axis in summed if target[axis] == "-"]
        if added:
            part = math.prod(block.values())
            self.summed = []
            self._move("all-reduce", "C", added, part, part)
        for dim in "KI":
            gone = [x for x, d in self.cuts.items() if d == dim and target[x] == "-"]
            if gone:
                part, times = math.prod(block.values()), self._devices(gone)
                self._drop("C", gone)
                self._move("all-gather", "C", gone, part, part * times)
                block[dim] *= times

    def _slice(self, of: str, dim: int, axis: str) -> None:
        """Devices take slices over one more axis, of J in the other operand's order."""
        entry = self.now[of][dim]
        entry.append(axis)
        other = {("A", 1): self.now["B"][0], ("B", 0): self.now["A"][1]}.get((of, dim))
        if other and set(entry) <= set(other):
            entry.sort(key=other.index)
        if self.stages[-1].at == "slice":
            self.stages.pop()
        self._note("slice")

    def _replace(self, of: str, old: str, new: str) -> None:
        """An operand is sharded over `new` where it was over `old`."""
        self.now[of] = [[new if x == old else x for x in e] for e in self.now[of]]

    def _drop(self, of: str, axes: Sequence[str]) -> None:
        """An operand is no longer sharded over these axes."""
        self.now[of] = [[x for x in entry if x not in axes] for entry in self.now[of]]

    def _entries(self, of: str) -> Entries:
        return tuple(map(tuple, self.now[of]))

    def _note(self, at: str, move: int | None = None) -> None:
        c = self._entries("C") if "C" in self.now else None
        summed = tuple(self.summed)
        a, b = self._entries("A"), self._entries("B")
        self.stages.append(Stage(at, move, a, b, c, summed))

    def _devices(self, axes: Iterable[str]) -> int:
        return math.prod(self.mesh[axis] for axis in axes)

    def _move(
        self, kind: str, of: str, axes: Sequence[str], put: int, got: int
    ) -> None:
        put, got, n = put * self.itemsize, got * self.itemsize, self._devices(axes)
        ordered = tuple(axis for axis in self.mesh if axis in axes)
        self.moves.append(Move(kind, of, ordered, put, got, sent(kind, put, got, n)))
        self._note(of, len(self.moves) - 1)
