"""What differs from device to device inside a shard_map, and what is the same on all.

With check_vma JAX keeps such types itself, but one of them must be taken for less than
it is: after `pcast(x, to='varying')`, which JAX also writes by itself before each sum,
a value counts as varying though all devices hold the same. Here it stays the same.
"""

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from .requests import Key, is_backward
from .walk import (
    Around,
    Aval,
    ClosedJaxpr,
    Equation,
    Jaxpr,
    Tracing,
    Variable,
    equations,
    own_line,
)

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

_NONE: frozenset[str] = frozenset()

_SUMS = {"psum", "psum2", "psum_invariant"}
# After these, all devices along their axes hold the same.
_ALIKE = {"all_gather", "all_gather_invariant", "pmax", "pmin"}
# After these each device may hold something else; a ring of them may also end in the
# same on all, which can't be known here.
_APART = {
    "all_to_all", "pbroadcast", "pcollective_broadcast", "ppermute", "psum_scatter",
    "ragged_all_to_all", "reduce_scatter",
}  # fmt: skip
# Linear in each operand: of sums they make sums.
_LINEAR = {
    "add", "add_any", "broadcast_in_dim", "concatenate", "convert_element_type", "copy",
    "div", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "mul",
    "neg", "pad", "pvary", "reduce_sum", "reshape", "select_n", "slice", "squeeze",
    "sub", "transpose",
}  # fmt: skip
_SAME_NUMBER = {"broadcast_in_dim", "convert_element_type", "copy", "pvary", "reshape"}
_BY_ELEMENT = {"add", "add_any", "mul", "select_n", "sub", "and", "or", "xor"}
_DRAWS = {"random_bits", "rng_bit_generator"}


@dataclass(frozen=True)
class Alike:
    """What is known of one value inside a shard_map.

    Attributes:
        varies: the axes along which it differs from device to device.
        unsure: those of them along which it may yet be the same.
        summed: the axes over which the backward pass has summed it, without a division
            by their size since.
        data: it depends on an argument, and is no constant.
        drawn: it is computed from random numbers and constants only.
        number: what it is, of a constant.
    """

    varies: frozenset[str] = _NONE
    unsure: frozenset[str] = _NONE
    summed: frozenset[str] = _NONE
    data: bool = False
    drawn: bool = False
    number: float | None = None


@dataclass(frozen=True)
class Sum:
    """A psum or pmean of what is already the same on all devices of an axis.

    Attributes:
        axes, devices: along which it is the same, and how many devices that are.
        mean: it is divided by their number, as pmean does.
        gradient: the backward pass has summed it along these axes already.
    """

    axes: tuple[str, ...]
    devices: int
    mean: bool
    gradient: bool
    line: tuple[str, int] | None


@dataclass(frozen=True)
class Unchecked:
    """A result that differs along axes which its out_specs do not name."""

    number: int
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    line: tuple[str, int] | None


@dataclass(frozen=True)
class Drawn:
    """The same random numbers on all devices along axes where the data differ."""

    axes: tuple[str, ...]
    line: tuple[str, int] | None


@dataclass
class Mapped(Tracing[Alike]):
    """What a jaxpr's shard_maps do to what is the same on their devices."""

    sums: dict[Key, Sum] = field(default_factory=dict)
    unchecked: dict[Key, Unchecked] = field(default_factory=dict)
    drawn: dict[Key, Drawn] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    averaged: frozenset[str] = _NONE

    def nothing(self, aval: Aval, value: Any = None) -> Alike:
        number = None
        if value is not None and getattr(aval, "shape", None) == ():
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = None
        return Alike(number=number)

    def join(self, one: Alike, other: Alike) -> Alike:
        return Alike(
            varies=one.varies | other.varies,
            unsure=one.unsure | other.unsure,
            summed=one.summed | other.summed,
            data=one.data or other.data,
            drawn=one.drawn and other.drawn,
            number=one.number if one.number == other.number else None,
        )

    def under(self, test: Alike, value: Alike) -> Alike:
        return replace(
            value,
            varies=value.varies | test.varies,
            unsure=value.unsure | test.unsure,
            number=None,
        )

    def mapped(self, eqn: Equation, ins: list[Alike], inside: Around) -> list[Alike]:
        params = eqn.params
        sizes, averaged = self.sizes, self.averaged
        self.sizes = {str(a): n for a, n in params["mesh"].shape.items() if n > 1}
        self.averaged = averaged | _averaged(params["jaxpr"])
        given = [
            Alike(
                varies=x.varies | (_named(spec) & set(self.sizes)),
                unsure=x.unsure,
                data=True,
            )
            for x, spec in zip(ins, params["in_specs"], strict=True)
        ]
        outs = self.through(params["jaxpr"], given, inside)
        manual = frozenset(map(str, params.get("newly_manual_axes", self.sizes)))
        for n, (out, spec) in enumerate(zip(outs, params["out_specs"], strict=True)):
            shown = _named(spec)
            lost = (out.varies & manual) - out.unsure - shown
            if not params["check_vma"] and lost:
                self.unchecked[(*inside.path, n)] = Unchecked(
                    n, self._order(lost), *_array(eqn.outvars[n]), own_line(eqn)
                )
            same = (shown & manual & set(self.sizes)) - out.varies
            if out.drawn and same:
                self.drawn[(*inside.path, n)] = Drawn(self._order(same), own_line(eqn))
        self.sizes, self.averaged = sizes, averaged
        return [Alike(data=True) for _ in outs]

    def plain(self, eqn: Equation, ins: list[Alike], around: Around) -> list[Alike]:
        name = eqn.primitive.name
        axes = self._axes(eqn)
        all_devices = eqn.params.get("axis_index_groups") is None
        if name in _SUMS and axes and all_devices:
            return self._sum(eqn, ins, around)
        both = Alike(
            varies=frozenset().union(*(x.varies for x in ins)),
            unsure=frozenset().union(*(x.unsure for x in ins)),
            data=any(x.data for x in ins),
        )
        if name == "axis_index":
            both = Alike(varies=axes, data=True)
        elif name in _ALIKE and axes and all_devices:
            both = replace(both, varies=both.varies - axes, unsure=both.unsure - axes)
        elif name in _APART or not all_devices:
            both = replace(both, varies=both.varies | axes, unsure=both.unsure | axes)
        if name in _LINEAR:
            both = replace(both, summed=self._still_summed(name, ins))
        if name in _SAME_NUMBER and ins:
            both = replace(both, number=ins[0].number)
        both = replace(both, drawn=self._draws(eqn, ins, both, around))
        return [both for _ in eqn.outvars]

    # Sums.

    def _sum(self, eqn: Equation, ins: list[Alike], around: Around) -> list[Alike]:
        axes, outs = self._axes(eqn), []
        backward = is_backward(around.stack(eqn))
        for n, x in enumerate(ins):
            if x.data and not backward and axes - x.varies:
                self._judge(eqn, n, x, around)
            summed = x.summed | (axes & x.varies if backward else _NONE)
            outs.append(Alike(x.varies - axes, x.unsure - axes, summed, x.data))
        return outs

    def _judge(self, eqn: Equation, n: int, x: Alike, around: Around) -> None:
        """Whether a sum of what is alike along an axis is a mistake."""
        axes = self._axes(eqn)
        same = axes - x.varies
        gradient = same & x.summed
        mean = self._divided(eqn.outvars[n], axes, around)
        if mean and (not gradient or gradient & self.averaged):
            return  # the mean of equal values is that value
        if not mean and self._cancels(eqn.outvars[n], around):
            return
        redundant = gradient if mean else same
        self.sums[(*around.key(eqn), n)] = Sum(
            axes=self._order(redundant),
            devices=prod(self.sizes[axis] for axis in redundant),
            mean=mean,
            gradient=bool(gradient),
            line=own_line(eqn),
        )

    def _divided(
        self, variable: Variable, axes: frozenset[str], around: Around
    ) -> bool:
        """Whether all that is done with a sum is to divide it by the devices."""
        devices = prod(self.sizes[axis] for axis in axes)
        users = around.users_of(variable) or ()
        for user in users:
            if user.primitive.name == "convert_element_type":
                if not self._divided(user.outvars[0], axes, around):
                    return False
                continue
            by = {"div": devices, "mul": 1 / devices}.get(user.primitive.name)
            values = [float(v.val) for v in user.invars if hasattr(v, "val")]
            if by is None or not any(abs(value / by - 1) < 1e-6 for value in values):
                return False
        return bool(users)

    def _cancels(self, variable: Variable, around: Around) -> bool:
        """Whether a sum is only divided by, or divides, one that is as much too large.

        As in psum(x, ('data', 'model')) / psum(n, ('data', 'model')).
        """
        users = around.users_of(variable) or []
        return bool(users) and all(
            user.primitive.name == "div"
            and all(self._is_sum(v, around) for v in user.invars)
            for user in users
        )

    def _is_sum(self, variable: Variable, around: Around) -> bool:
        maker = around.maker_of(variable)
        while maker is not None and maker.primitive.name in _SAME_NUMBER:
            maker = around.maker_of(maker.invars[0])
        return maker is not None and maker.primitive.name in _SUMS

    def _still_summed(self, name: str, ins: list[Alike]) -> frozenset[str]:
        """The axes over which the result is a sum that was not averaged yet."""
        summed = frozenset().union(*(x.summed for x in ins))
        numbers = [x.number for x in ins if x.number]
        if not summed or name not in ("div", "mul") or not numbers:
            return summed
        by = numbers[0] if name == "div" else 1 / numbers[0]
        for axes in (summed, *(frozenset({axis}) for axis in sorted(summed))):
            devices = prod(self.sizes.get(axis, 1) for axis in axes)
            if abs(by - devices) < 1e-6 * devices:
                return summed - axes
        return summed

    # Random numbers.

    def _draws(
        self, eqn: Equation, ins: list[Alike], both: Alike, around: Around
    ) -> bool:
        """Whether this is computed from random numbers; notes where they meet data."""
        name = eqn.primitive.name
        if name in _DRAWS:
            return True
        drawn = [x for x in ins if x.drawn]
        if not drawn or len(eqn.outvars) != 1:
            return False
        shape = eqn.outvars[0].aval.shape
        if name == "broadcast_in_dim" and shape != eqn.invars[0].aval.shape:
            return False  # a noise that is shared on purpose
        data = [
            x
            for x, v in zip(ins, eqn.invars, strict=True)
            if x.data and not x.drawn and getattr(v.aval, "shape", ()) == shape
        ]
        if not any(x.data and not x.drawn for x in ins):
            return True
        if name in _BY_ELEMENT and shape:
            met = frozenset().union(*(x.varies - x.unsure for x in data))
            same = met - frozenset().union(*(x.varies for x in drawn))
            if same:
                self.drawn[around.key(eqn)] = Drawn(self._order(same), own_line(eqn))
        return False

    # Axes.

    def _axes(self, eqn: Equation) -> frozenset[str]:
        """The mesh axes that a collective names, without those of size 1."""
        named = eqn.params.get("axes", eqn.params.get("axis_name", ()))
        named = named if isinstance(named, (tuple, list, frozenset)) else (named,)
        return frozenset(axis for axis in map(str, named) if axis in self.sizes)

    def _order(self, axes: frozenset[str]) -> tuple[str, ...]:
        return tuple(axis for axis in self.sizes if axis in axes)


def mapped_by(jaxpr: ClosedJaxpr) -> Mapped:
    """Read the shard_maps of a closed jaxpr."""
    mapped = Mapped()
    if all(eqn.primitive.name != "shard_map" for eqn in equations(jaxpr)):
        return mapped
    mapped.through(jaxpr, [Alike(data=True) for _ in jaxpr.jaxpr.invars])
    return mapped


def _averaged(jaxpr: Jaxpr | ClosedJaxpr) -> frozenset[str]:
    """The axes over which a function that is differentiated sums by itself.

    Its gradients may then be right as they are.
    """
    axes: set[str] = set()
    for eqn in equations(jaxpr):
        stack = str(getattr(getattr(eqn, "source_info", None), "name_stack", ""))
        forward = "jvp(" in stack and not is_backward(stack)
        if eqn.primitive.name in _SUMS and forward:
            axes.update(map(str, eqn.params.get("axes", ())))
    return frozenset(axes)


def _named(spec: "PartitionSpec") -> frozenset[str]:
    """The axes that a PartitionSpec names."""
    parts = tuple(getattr(spec, "partitions", spec))
    names = [part if isinstance(part, tuple) else (part,) for part in parts]
    return frozenset(n for part in names for n in part if isinstance(n, str))


def _array(variable: Variable) -> tuple[tuple[int, ...], str]:
    return tuple(variable.aval.shape), str(variable.aval.dtype)
