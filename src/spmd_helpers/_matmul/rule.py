"""What the compiler moves for a product of two cut matrices: the rule, in numbers.

Of A [I, J] and B [J, K] each mesh axis cuts nothing, I or J of A, and nothing, J or K
of B. Two letters say which: "JJ" cuts the contraction of both, "I-" the rows of A only.
The rule was read off compiled programs, and the tests compare it with them. Where
axes meet in ways that it does not cover, it says so and guesses nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

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
        why_not: why the rule does not cover this, as a clause; then there are no moves.
    """

    kinds: Mapping[str, str]
    natural: Entries | None = None
    cuts: Mapping[str, str] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    block: tuple[int, int, int] | None = None
    swapped: tuple[str, str] | None = None
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
    return Plan(kinds, natural, work.cuts, moves, (i, j, k), work.swapped)


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
        one_sided, crossed = self.axes(*ONE_SIDED), self.axes(*CROSSED)
        if len(self.mesh) > 2:
            moved = [x for x in self.mesh if self.kinds[x] not in ("I-", "-K")]
            if len(moved) > 1 or self.axes("--", "IK", *ONE_SIDED):
                raise _Outside(
                    "of three axes or more it knows those that cut rows of A or "
                    "columns of B, and beside them one that cuts J of both, or two "
                    "places of which one is J"
                )
        if self.axes("J-") and self.axes("-J"):
            raise _Outside("one axis cuts J of A only, and another one J of B only")
        for axis in one_sided:
            clash = ("IK", "IJ") if self.kinds[axis] == "J-" else ("IK", "JK")
            if self.axes(*clash):
                raise _Outside(
                    f"{axis} cuts J of one operand only, and {self.axes(*clash)[0]} "
                    "has two places"
                )
        if (idle := self.axes("--")) and crossed and not self.lost:
            small, large = self.mesh[crossed[0]], self.mesh[idle[0]]
            kind = self.kinds[crossed[0]]
            dim = "J" if "J" in kind else "K" if target[crossed[0]] == "I" else "I"
            if large > small and (large % small or self.sizes[dim] % large):
                raise _Outside(
                    f"blocks along {crossed[0]} ({small}) would go to the idle axis "
                    f"{idle[0]} ({large}), and don't fit there"
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
            "of wishes for C, where more than one axis is in use, it knows a few: C is "
            "whole, or one axis stays, and along the other one C is added up into "
            "parts, or is gathered, or is cut along its other dimension"
        )

    def run(self, target: Mapping[str, str]) -> None:
        self._place(target)
        self._use_idle_axis(target)
        self._same_order()
        for of, entries, dims in (("A", self.a, "IJ"), ("B", self.b, "JK")):
            if not (self.swapped and self.moves and self.moves[0].of == of):
                self._bring(of, entries, dims)
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
        if self.axes("--", "JJ", "IJ", "JK"):
            return True
        dims = "IJ" if self.kinds[axis] == "J-" else "JK"
        return self.local(dims) <= self.local("IK")

    def _use_idle_axis(self, target: Mapping[str, str]) -> None:
        """An idle axis that is no smaller takes the blocks of one that must move."""
        idle, crossed = self.axes("--"), self.axes(*CROSSED)
        if self.has_wish or self.lost or len(idle) != 1 or len(crossed) != 1:
            return
        small, large = crossed[0], idle[0]
        if self.mesh[large] < self.mesh[small]:
            return
        of, dims = ("B", "JK") if target[small] == "I" else ("A", "IJ")
        full = math.prod(self.sizes[dim] for dim in dims)
        part = full // self.mesh[large]
        self.swapped = (small, large)
        self._move("collective-permute", of, [small, large], part, part)
        if self.kinds[small] == "IK" or full <= self.local("IK"):
            self._move("all-gather", of, [large], part, full)
        else:
            self.cuts[large] = "J"

    def _same_order(self) -> None:
        """Slices of J that are multiplied must be the same ones in A and in B."""
        left = [axis for axis in self.a[1] if self.cuts[axis] == "J"]
        right = [axis for axis in self.b[0] if self.cuts[axis] == "J"]
        if left != right and set(left) == set(right):
            of, dims = min(("B", "JK"), ("A", "IJ"), key=lambda o: self.local(o[1]))
            part = self.local(dims)
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
            if place[axis] == "-" and wanted[axis] != "-":
                block[wanted[axis]] //= size
            elif "-" not in (place[axis], wanted[axis]) and place[axis] != wanted[axis]:
                if gathered_first:
                    continue
                part = math.prod(block.values())
                self._move("all-to-all", of, [axis], part, part)
                block[place[axis]] *= size
                block[wanted[axis]] //= size
        for dim, entry in reversed(list(zip(dims, entries, strict=True))):
            gone = [x for x in entry if place[x] == dim and wanted[x] != dim]
            gone = [x for x in gone if wanted[x] == "-" or x in self.lost]
            if not gone:
                continue
            part, times = math.prod(block.values()), self._devices(gone)
            if [x for x in entry if x not in gone] != list(entry[: -len(gone)]):
                self._move("collective-permute", of, entry, part, part)
            self._move("all-gather", of, gone, part, part * times)
            block[dim] *= times

    def _finish(self, target: Mapping[str, str]) -> None:
        """What happens to C: sums are added up, what is wanted uncut is gathered."""
        block = {dim: self.sizes[dim] // self.parts(dim) for dim in "IK"}
        summed = [axis for axis, dim in self.cuts.items() if dim == "J"]
        for axis in summed:
            if target[axis] != "-":
                part = math.prod(block.values())
                self._move("reduce-scatter", "C", [axis], part, part // self.mesh[axis])
                block[target[axis]] //= self.mesh[axis]
        added = [axis for axis in summed if target[axis] == "-"]
        if added:
            part = math.prod(block.values())
            self._move("all-reduce", "C", added, part, part)
        for dim in "KI":
            gone = [x for x, d in self.cuts.items() if d == dim and target[x] == "-"]
            if gone:
                part, times = math.prod(block.values()), self._devices(gone)
                self._move("all-gather", "C", gone, part, part * times)
                block[dim] *= times

    def _devices(self, axes: Iterable[str]) -> int:
        return math.prod(self.mesh[axis] for axis in axes)

    def _move(
        self, kind: str, of: str, axes: Sequence[str], put: int, got: int
    ) -> None:
        put, got, n = put * self.itemsize, got * self.itemsize, self._devices(axes)
        sent = {
            "all-gather": Fraction(got * (n - 1), n),
            "all-reduce": Fraction(2 * put * (n - 1), n),
            "collective-permute": Fraction(put),
        }.get(kind, Fraction(put * (n - 1), n))
        ordered = tuple(axis for axis in self.mesh if axis in axes)
        self.moves.append(Move(kind, of, ordered, put, got, round(sent)))
