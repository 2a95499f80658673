"""Programs that raise errors about something else: `explain` knows none of them."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax

from .cases import EXPLICIT, blocks, raised_by, zeros

P_NONE = jax.P()


@functools.cache
def strangers() -> dict[str, BaseException]:
    """Every program's exception, each raised once."""
    errors = {name: raised_by(program) for name, program in UNRELATED.items()}
    assert [name for name, error in errors.items() if error is None] == []
    return errors


def _raise(error):
    raise error


def _explicit_contraction_of_other_shapes():
    zeros(4, 6, at=EXPLICIT) @ zeros(4, 6, at=EXPLICIT)


def _assert_in_shard_map():
    blocks(lambda v: _assert_equal(lax.psum(v, "x"), v), out_specs=P_NONE)(jnp.zeros(8))


def _assert_equal(a, b):
    assert a is b
    return a


def _own_assert_on_the_line_of_a_collective():
    f = blocks(lambda v: _asserted(v), out_specs=P_NONE)
    f(jnp.zeros(8))


def _asserted(v):
    assert lax.psum(v, "x") is v


def _squeeze_inside_pmap():
    jax.pmap(lambda v: jnp.squeeze(v, 0))(jnp.zeros((8, 2)))


def _reshape_of_data():
    devices = jax.devices()
    batch_for(devices)


def batch_for(_):
    np.zeros(8).reshape(4, 4)


def _list_index_beside_ppermute():
    blocks(lambda v: lax.ppermute(v, "x", [(0, 1)]) + [0, 1][int("2")])(jnp.zeros(8))


def _scan_of_other_types():
    lax.scan(lambda c, a: (c.astype(jnp.int32), None), 0.0, jnp.ones(3))


def _cond_of_other_types():
    lax.cond(True, lambda: 1.0, lambda: jnp.ones(3))


UNRELATED = {
    "index of a list": lambda: [][0],
    "index of a tuple": lambda: ()[1],
    "index of a device": lambda: jax.devices()[8],
    "key": lambda: {}["w"],
    "file": lambda: Path("/nowhere/weights.npz").read_bytes(),
    "type of an argument": lambda: len(5),
    "missing argument": lambda: (lambda a: a)(),
    "too many arguments": lambda: (lambda: 1)(2),
    "unknown keyword": lambda: sorted([1], order=1),
    "assertion without words": lambda: _assert_equal(1, 2),
    "division": lambda: 1 // 0,
    "name": lambda: psum(3),  # noqa: F821
    "attribute of a module": lambda: jnp.no_such_function,
    "attribute of jax": lambda: jax.no_such_function,
    "attribute of a number": lambda: (3).sharded,
    "attribute of an array": lambda: jnp.zeros(3).no_such_attribute,
    "sharding of a list": lambda: [1].sharding,
    "module": lambda: __import__("no_such_module"),
    "import": lambda: exec("from jax.sharding import NoSuchThing"),
    "number": lambda: int("eight"),
    "int not iterable": lambda: list(5),
    "recursion": lambda: (f := lambda: f())(),
    "json": lambda: json.loads("{"),
    "unicode": lambda: b"\xff".decode(),
    "stop": lambda: next(iter([])),
    "overflow": lambda: 10.0**400,
    "not implemented": lambda: _raise(NotImplementedError()),
    "timeout": lambda: _raise(TimeoutError("waited 60 s")),
    "out of memory on the host": lambda: _raise(MemoryError()),
    "disk quota": lambda: _raise(RuntimeError("RESOURCE_EXHAUSTED: quota of requests")),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "exit": lambda: _raise(SystemExit(1)),
    "warning": lambda: _raise(DeprecationWarning("old_function is deprecated")),
    "config option": lambda: jax.config.update("jax_no_such_option", 1),
    "shapes of a sum in NumPy": lambda: np.zeros(3) + np.zeros(4),
    "shapes of a product in NumPy": lambda: np.zeros((2, 3)) @ np.zeros((2, 3)),
    "shapes of a sum": lambda: jnp.zeros(3) + jnp.zeros(4),
    "shapes of a product": lambda: jnp.dot(jnp.zeros((2, 3)), jnp.zeros((2, 3))),
    "shapes of a product of sharded arrays": _explicit_contraction_of_other_shapes,
    "reshape": lambda: jnp.zeros(10).reshape(3, 4),
    "reshape in NumPy": _reshape_of_data,
    "squeeze": lambda: jnp.squeeze(jnp.zeros((2, 3)), 0),
    "squeeze inside pmap": _squeeze_inside_pmap,
    "concatenate": lambda: jnp.concatenate([jnp.zeros((2, 3)), jnp.zeros((2, 4))]),
    "axis": lambda: jnp.sum(jnp.zeros(3), axis=1),
    "tracer as bool": lambda: jax.jit(lambda v: 1 if v else 2)(1.0),
    "tracer as array": lambda: jax.jit(lambda v: np.asarray(v))(1.0),
    "tracer as shape": lambda: jax.jit(jnp.zeros)(3),
    "gradient of a vector": lambda: jax.grad(lambda v: v)(jnp.zeros(3)),
    "gradient of an int": lambda: jax.grad(lambda v: v * 1.0)(3),
    "vmap of other sizes": lambda: jax.vmap(jnp.add)(jnp.zeros(3), jnp.zeros(4)),
    "scan of other types": _scan_of_other_types,
    "cond of other types": _cond_of_other_types,
    "static list": lambda: jax.jit(lambda v: v, static_argnums=0)([1]),
    "text into jit": lambda: jax.jit(lambda v: v)("x"),
    "text in a tree into jit": lambda: jax.jit(lambda p: p["w"])({"w": 1.0, "n": "x"}),
    "trees": lambda: jax.tree.map(jnp.add, {"a": 1}, {"b": 1}),
    "trees with a None": lambda: jax.tree.map(jnp.add, (None,), ((1, 2),)),
    "tuple for a key": lambda: tuple([{"w": 1}])["w"],
    "shapes in Flax": lambda: nnx.Linear(4, 4, rngs=nnx.Rngs(0))(jnp.zeros(3)),
    "rows that do not divide": lambda: jnp.zeros((10, 3)).reshape(8, -1, 3),
    "a tree that is no prefix": lambda: jax.tree.broadcast((0, 0), 1.0),
    "partitions of a tuple": lambda: (1, 2).partitions,
    "size of another P": lambda: type("P", (), {})().size,
    "out_sharding of another": lambda: _raise(
        TypeError("Missing required keyword argument: 'out_sharding'")
    ),
    "trees in Optax": lambda: optax.apply_updates({"a": 1.0}, {"b": 1.0}),
    "assertion in shard_map": _assert_in_shard_map,
    "assertion about a collective": _own_assert_on_the_line_of_a_collective,
    "index on the line of a ppermute": _list_index_beside_ppermute,
    "axis of a scalar": lambda: jnp.squeeze(jnp.float32(1), 0),
    "type of an object": lambda: blocks(lambda v: v)(object()),
    "file that exists": lambda: _raise(ValueError("Destination a already exists.")),
    "sizes of a compiled program": lambda: (
        jax.jit(lambda v: v).lower(jnp.zeros(3)).compile()(jnp.zeros(4))
    ),
}
