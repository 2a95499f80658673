"""A traced function, followed from its arguments to its results.

JAX writes what it traced as a jaxpr: equations, each a primitive with parameters,
some of which hold jaxprs of their own (a jitted function inside, a loop's body). Only
public attributes are read: eqns, invars, outvars, aval, primitive.name, params and
source_info.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

from .._core.source_lines import is_foreign

_TURNS = 10  # a value that a loop carries has settled long before

Value = TypeVar("Value")  # what is carried for a variable


class Aval(Protocol):
    """The type of an array; a key or a token may have no shape."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> object: ...


class Variable(Protocol):
    """What an equation takes or gives; a literal also has `val`."""

    @property
    def aval(self) -> Aval: ...


class Primitive(Protocol):
    """What an equation does."""

    @property
    def name(self) -> str: ...


class Equation(Protocol):
    """One step of a jaxpr; what `params` holds depends on its primitive."""

    @property
    def primitive(self) -> Primitive: ...

    @property
    def params(self) -> Mapping[str, Any]: ...

    @property
    def invars(self) -> Sequence[Variable]: ...

    @property
    def outvars(self) -> Sequence[Variable]: ...


class Jaxpr(Protocol):
    """Equations, from the variables that they start with to those that they end in."""

    @property
    def eqns(self) -> Sequence[Equation]: ...

    @property
    def invars(self) -> Sequence[Variable]: ...

    @property
    def outvars(self) -> Sequence[Variable]: ...

    @property
    def constvars(self) -> Sequence[Variable]: ...


class ClosedJaxpr(Protocol):
    """A jaxpr together with its constants."""

    @property
    def jaxpr(self) -> Jaxpr: ...

    @property
    def consts(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class Around:
    """What stands around an equation.

    Attributes:
        path: the numbers of the equations that hold it, outermost first.
        names: what JAX calls these places, such as 'transpose(jvp(mlp))/while'.
        users: variable → the equations of the same jaxpr that take it.
        makers: variable → the equation of the same jaxpr that gives it.
        results: the variables that this jaxpr gives back.
    """

    path: tuple[int, ...] = ()
    names: str = ""
    users: Mapping[int, list[Equation]] = field(default_factory=dict)
    makers: Mapping[int, Equation] = field(default_factory=dict)
    results: frozenset[int] = frozenset()

    def key(self, eqn: Equation) -> tuple[int, ...]:
        """What tells this equation from all others, however often it is reached."""
        return (*self.path, id(eqn))

    def stack(self, eqn: Equation) -> str:
        """The names of all places around an equation, and of its own."""
        own = getattr(getattr(eqn, "source_info", None), "name_stack", "")
        return f"{self.names}/{own}" if self.names else str(own)

    def within(self, eqn: Equation) -> "Around":
        return Around(self.key(eqn), self.stack(eqn))

    def users_of(self, variable: Variable) -> list[Equation] | None:
        """The equations that take a variable; None if the jaxpr gives it back too."""
        if id(variable) in self.results:
            return None
        return self.users.get(id(variable), [])

    def maker_of(self, variable: Variable) -> Equation | None:
        """The equation that gives a variable, None for an argument or a constant."""
        return self.makers.get(id(variable))


class Tracing(Generic[Value]):
    """Carries something for each variable of a jaxpr through all its equations.

    What is carried is for the subclasses to say: they define `plain`
    (an equation without a jaxpr inside), `join` (one of two, not known which) and
    `nothing` (a constant), and may say more of loops, calls and shard_map.
    """

    # What a subclass defines.

    def nothing(self, aval: Aval, value: object = None) -> Value:
        raise NotImplementedError

    def join(self, one: Value, other: Value) -> Value:
        raise NotImplementedError

    def plain(self, eqn: Equation, ins: list[Value], around: Around) -> list[Value]:
        raise NotImplementedError

    def mapped(self, eqn: Equation, ins: list[Value], inside: Around) -> list[Value]:
        """A shard_map."""
        return self.through(eqn.params["jaxpr"], ins, inside)

    def call(
        self, eqn: Equation, inner: Jaxpr, ins: list[Value], inside: Around
    ) -> list[Value]:
        """A jitted function, a checkpoint, a function with a derivative of its own."""
        return self.through(inner, ins, inside)

    def element(self, value: Value) -> Value:
        """What one turn of a loop takes of a stack."""
        return value

    def stacked(self, value: Value) -> Value:
        """A stack of what each turn of a loop gives."""
        return value

    def under(self, test: Value, value: Value) -> Value:
        """What was chosen, or how often it was changed, by a test."""
        return value

    # The way through.

    def through(
        self,
        jaxpr: Jaxpr | ClosedJaxpr,
        ins: Iterable[Value],
        around: Around = Around(),
    ) -> list[Value]:
        jaxpr = opened(jaxpr)
        users: dict[int, list[Equation]] = {}
        for eqn in jaxpr.eqns:
            for variable in eqn.invars:
                users.setdefault(id(variable), []).append(eqn)
        results = frozenset(map(id, jaxpr.outvars))
        makers = {id(v): eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        around = Around(around.path, around.names, users, makers, results)
        values = {id(v): self.nothing(v.aval) for v in jaxpr.constvars}
        values.update(zip(map(id, jaxpr.invars), ins, strict=True))

        def of(variable: Variable) -> Value:
            if hasattr(variable, "val"):
                return self.nothing(variable.aval, variable.val)
            return values[id(variable)]

        for eqn in jaxpr.eqns:
            outs = self._equation(eqn, [of(v) for v in eqn.invars], around)
            values.update(zip(map(id, eqn.outvars), outs, strict=True))
        return [of(v) for v in jaxpr.outvars]

    def _equation(self, eqn: Equation, ins: list[Value], around: Around) -> list[Value]:
        name, inside = eqn.primitive.name, around.within(eqn)
        if name == "shard_map":
            return self.mapped(eqn, ins, inside)
        if name == "scan":
            return self._scan(eqn, ins, inside)
        if name == "while":
            return self._while(eqn, ins, inside)
        if name == "cond":
            branches = [
                self.through(branch, ins[1:], inside)
                for branch in eqn.params["branches"]
            ]
            outs = branches[0]
            for other in branches[1:]:
                outs = list(map(self.join, outs, other))
            return [self.under(ins[0], out) for out in outs]
        inner = called(eqn)
        if inner is not None:
            return self.call(eqn, inner, ins, inside)
        return self.plain(eqn, ins, around)

    def _scan(self, eqn: Equation, ins: list[Value], inside: Around) -> list[Value]:
        body = opened(eqn.params["jaxpr"])
        # A stack has one dimension more than what a turn takes of it, or gives.
        kept = len(_alike(body.outvars, eqn.outvars))
        before = len(_alike(body.invars, eqn.invars)) - kept
        fixed, carry = ins[:before], ins[before : before + kept]
        items = [self.element(x) for x in ins[before + kept :]]
        outs: list[Value] = []
        for _ in range(_TURNS):
            outs = self.through(body, [*fixed, *carry, *items], inside)
            after = list(map(self.join, carry, outs[:kept]))
            if after == carry:
                break
            carry = after
        return [*carry, *(self.stacked(y) for y in outs[kept:])]

    def _while(self, eqn: Equation, ins: list[Value], inside: Around) -> list[Value]:
        n, m = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        tested, fixed, carry = ins[:n], ins[n : n + m], ins[n + m :]
        for _ in range(_TURNS):
            (test,) = self.through(eqn.params["cond_jaxpr"], [*tested, *carry], inside)
            outs = self.through(eqn.params["body_jaxpr"], [*fixed, *carry], inside)
            after = list(map(self.join, carry, outs))
            after = [self.under(test, value) for value in after]
            if after == carry:
                break
            carry = after
        return carry


def opened(jaxpr: Jaxpr | ClosedJaxpr) -> Jaxpr:
    """The jaxpr itself, of one that is closed over its constants."""
    return cast(Jaxpr, getattr(jaxpr, "jaxpr", jaxpr))


def called(eqn: Equation) -> Jaxpr | None:
    """The one jaxpr of an equation that takes and gives what the equation does."""
    inner = [opened(j) for j in inner_jaxprs(eqn)]
    fitting = [
        j
        for j in inner
        if len(j.invars) == len(eqn.invars) and len(j.outvars) == len(eqn.outvars)
    ]
    return fitting[0] if len(inner) == len(fitting) == 1 else None


def inner_jaxprs(eqn: Equation) -> Iterator[Jaxpr | ClosedJaxpr]:
    """The jaxprs among an equation's parameters."""
    for value in eqn.params.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(opened(one), "eqns"):
                yield one


def equations(jaxpr: Jaxpr | ClosedJaxpr) -> Iterator[Equation]:
    """All equations of a jaxpr, those of inner jaxprs too."""
    for eqn in opened(jaxpr).eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from equations(inner)


def own_line(eqn: Equation) -> tuple[str, int] | None:
    """The (file, line) of the reader's own code that an equation comes from."""
    traceback = getattr(getattr(eqn, "source_info", None), "traceback", None)
    for frame in getattr(traceback, "frames", ()):
        if not is_foreign(frame.file_name):
            return frame.file_name, frame.line_num
    return None


def _alike(inner: Iterable[Variable], outer: Iterable[Variable]) -> list[Variable]:
    """The variables of a loop's body that have the rank they have around it."""
    return [
        a
        for a, b in zip(inner, outer, strict=True)
        if len(a.aval.shape) == len(b.aval.shape)
    ]
