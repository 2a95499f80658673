"""Traced functions, followed from their arguments to their results."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from spmd_helpers._jaxprs.walk import Tracing, equations, inner_jaxprs, opened, own_line


class Depends(Tracing):
    """The arguments that each result is made of, and the tests it stands under."""

    def nothing(self, aval, value=None):
        return frozenset()

    def join(self, one, other):
        return one | other

    def plain(self, eqn, ins, around):
        self.equations.append((eqn.primitive.name, around.stack(eqn), around.key(eqn)))
        return [frozenset().union(*ins)] * len(eqn.outvars)

    def under(self, test, value):
        return value | test


def depends(f, *args):
    jaxpr = jax.jit(f).trace(*args).jaxpr
    walker = Depends()
    walker.equations = []
    outs = walker.through(jaxpr, [frozenset({n}) for n in range(len(args))])
    return ["".join(map(str, sorted(out))) for out in outs], walker.equations


def shifted(a, b, c, x):
    """What goes in as x comes out as a after three turns."""
    return lax.scan(lambda s, x: ((s[1], s[2], x), s[0]), (a, b, c), jnp.stack([x] * 9))


def counted(a, b, n):
    return lax.while_loop(lambda s: s[1] < n, lambda s: (s[0] * b, s[1] + 1), (a, 0))


def chosen(a, b, c):
    return lax.cond(a > 0, lambda b, c: (b, c), lambda b, c: (-b, b), b, c)


@jax.custom_vjp
def own_backward(a, b):
    return a * 2, b


own_backward.defvjp(lambda a, b: (own_backward(a, b), None), lambda r, g: g)


@jax.custom_jvp
def own_forward(a):
    return a * 2


own_forward.defjvp(lambda p, t: (own_forward(*p), t[0]))


def nested(a, b):
    def turn(h, x):
        return lax.fori_loop(0, 3, lambda i, h: h + jax.jit(jnp.sin)(x), h), h

    return lax.scan(turn, a, jnp.stack([b, b]))


@pytest.mark.parametrize(
    ("f", "count", "expected"),
    [
        (lambda a, b: (a + 1, b * a, 2.0), 2, ["0", "01", ""]),
        (jax.jit(lambda a, b: (b, a)), 2, ["1", "0"]),
        (jax.checkpoint(lambda a, b: (jnp.sin(b), a)), 2, ["1", "0"]),
        (own_backward, 2, ["0", "1"]),
        (lambda a, b: own_forward(a), 2, ["0"]),
        (shifted, 4, ["0123", "123", "23", "0123"]),
        (counted, 3, ["012", "2"]),
        (chosen, 3, ["01", "012"]),
        (nested, 2, ["01", "01"]),
        (lambda a, b: lax.map(jnp.sin, jnp.stack([a, a])), 2, ["0"]),
        (lambda a, b: jax.pure_callback(lambda x: x, a, a), 2, ["0"]),
    ],
)
def test_what_a_result_is_made_of(f, count, expected):
    assert depends(f, *[jnp.float32(n + 1) for n in range(count)])[0] == expected


def test_an_equation_is_known_by_where_it_stands():
    """JAX keeps one jaxpr of a function that is called twice."""
    inner = jax.jit(lambda x: jnp.sin(x))
    _, equations = depends(lambda a, b: inner(a) + inner(b), 1.0, 2.0)
    keys = [key for name, _, key in equations if name == "sin"]
    assert len(keys) == len(set(keys)) == 2


def test_names_of_the_places_around():
    def f(a, b):
        def loss(a):
            with jax.named_scope("layer"):
                return lax.fori_loop(0, 3, lambda i, h: jnp.sin(h) * b, a)

        return jax.grad(loss)(a)

    names = {name: stack for name, stack, _ in depends(f, 1.0, 2.0)[1]}
    assert "jvp(layer)" in names["sin"]
    stacks = [stack for _, stack, _ in depends(f, 1.0, 2.0)[1]]
    assert any("transpose(jvp(layer))" in stack for stack in stacks)


def test_every_equation_inside():
    jaxpr = jax.jit(nested).trace(1.0, 2.0).jaxpr
    names = [eqn.primitive.name for eqn in equations(jaxpr)]
    assert names.count("scan") == 2
    assert "sin" in names
    (scan,) = (e for e in opened(jaxpr).eqns if e.primitive.name == "scan")
    assert len(list(inner_jaxprs(scan))) == 1


def test_the_line_of_the_readers_own_code():
    def f(a):
        b = jnp.flip(a)
        return jnp.var(b)

    start = f.__code__.co_firstlineno
    jaxpr = jax.jit(f).trace(jnp.ones(3)).jaxpr
    lines = [own_line(eqn) for eqn in opened(jaxpr).eqns]
    assert set(lines) == {(__file__, start + 1), (__file__, start + 2)}
    assert own_line(object()) is None
