"""As much of Equinox as an X-ray meets: modules, filter_jit, its partials and stages.

Written for these tests, so that they need no Equinox. A class says that it is
Equinox's, because that is how it is known.
"""

import dataclasses
import functools
import inspect
from typing import Any

import jax
import numpy as np


class Module:
    """A dataclass that is a tree, its functions leaves among the arrays."""

    def __init_subclass__(cls, **more):
        super().__init_subclass__(**more)
        dataclasses.dataclass(frozen=True, eq=False)(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        jax.tree_util.register_dataclass(cls, names, [])


class Jitted:
    """What filter_jit gives."""

    def __init__(self, fun, donate):
        functools.update_wrapper(self, fun)
        self.donate_first = donate == "all"
        self.donate_rest = donate in ("all", "all-except-first")
        self.filter_warning = donate != "none"

    def __get__(self, instance, owner):
        return self if instance is None else Partial(self, (instance,), {})

    def _split(self, args, kwargs):
        bound = inspect.signature(self.__wrapped__).bind(*args, **kwargs)
        leaves, tree = jax.tree.flatten((bound.args, bound.kwargs))
        arrays = [x if isinstance(x, (jax.Array, np.ndarray)) else None for x in leaves]
        static = [
            None if array is not None else x
            for x, array in zip(leaves, arrays, strict=True)
        ]
        return arrays, static, tree

    def lower(self, *args, **kwargs):
        arrays, static, tree = self._split(args, kwargs)

        def run(arrays):
            both = [s if a is None else a for a, s in zip(arrays, static, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, both)
            out = self.__wrapped__(*args, **kwargs)
            return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else None, out)

        run.__name__ = self.__wrapped__.__name__
        return Lowered(jax.jit(run).lower(arrays))

    def __call__(self, *args, **kwargs):
        raise AssertionError("an X-ray runs nothing")


@dataclasses.dataclass
class Partial:
    """A function, bound to an instance."""

    func: Any
    args: tuple[Any, ...]
    keywords: dict[str, Any]

    def __call__(self, *args, **kwargs):
        return self.func(*self.args, *args, **self.keywords, **kwargs)


@dataclasses.dataclass
class Compiled:
    """Holds JAX's stage, and has no other of its methods."""

    compiled: Any


@dataclasses.dataclass
class Lowered:
    """Holds JAX's stage."""

    lowered: Any

    def as_text(self):
        return self.lowered.as_text()

    def compile(self):
        return Compiled(self.lowered.compile())


def filter_jit(fun=None, *, donate="none"):
    """The decorator, with or without options."""
    if fun is None:
        return functools.partial(filter_jit, donate=donate)
    return Jitted(fun, donate)


for each in (Module, Jitted, Partial, Compiled, Lowered):
    each.__module__ = "equinox._stand_in"
