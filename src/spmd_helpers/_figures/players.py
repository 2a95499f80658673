"""The figures that play: each in a notebook as HTML, under `print` as text."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from .._core.notebook import InNotebook
from .._core.words import wrapped
from .._errors import MeshMismatch, NotUnderstood, SpecError
from .._player.page import Page, html
from .._xray.xray import XRay
from . import reshapes, rings, trees
from .reshape_svg import ReshapePicture
from .ring_svg import RingPicture
from .tree_svg import TreePicture


class _Shown(Protocol):
    @property
    def title(self) -> str: ...

    @property
    def facts(self) -> str: ...

    @property
    def notes(self) -> str: ...

    def page(self, name: str) -> Page: ...


class _Player(InNotebook):
    """A picture with frames; `_frames` gives heading, sentence and table of each."""

    _shown: _Shown

    def _frames(self) -> list[tuple[str, str, str]]:
        raise NotImplementedError

    def __str__(self) -> str:
        parts = [f"{self._shown.title}\n{self._shown.facts}"]
        for heading, sentence, numbers in self._frames():
            parts.append(f"{wrapped(f'{heading}. {sentence}')}\n{numbers}")
        return "\n\n".join([*parts, wrapped(self._shown.notes)])

    __repr__ = __str__

    def _html(self) -> str:
        return html(self._shown.page)


class TreePlayer(_Player):
    """Plays stages of sharding: which shards of each tree a device has at each stage.

    A notebook shows it when a cell ends with it. `print` gives the same as tables.

    >>> import jax
    >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P
    >>> mesh = AbstractMesh((4,), ("data",))
    >>> def tree(spec):
    ...     place = NamedSharding(mesh, spec)
    ...     return {"w": jax.ShapeDtypeStruct((8, 6), "float32", sharding=place)}
    >>> TreePlayer(
    ...     {
    ...         "ZeRO-0": {"parameters": tree(P()), "moments": tree(P())},
    ...         "ZeRO-1": {"parameters": tree(P()), "moments": tree(P("data"))},
    ...     }
    ... )
    2 trees on 4 devices
    parameters 192 B · moments 192 B
    <BLANKLINE>
    ZeRO-0. Each device has all of parameters (192 B), all of moments (192 B): 384
    B.
                device 0  device 1  device 2  device 3
    parameters  all       all       all       all
    moments     all       all       all       all
    <BLANKLINE>
    ZeRO-1. Each device has all of parameters (192 B), 1 of 4 shards of moments (48
    B): 240 B.
                device 0  device 1  device 2  device 3
    parameters  all       all       all       all
    moments     0         1         2         3
    <BLANKLINE>
    A color is a shard: equal colors in a row are equal values on several devices.
    Dashed outlines are shards that the device does not have. Heights are in
    proportion to bytes.

    Args:
        stages: a dict from the name of a stage to a dict from the name of a tree to
            the tree: arrays, or ShapeDtypeStructs with a sharding. Every stage has the
            same trees, with its own shardings, on one mesh of eight devices at most.

    Raises:
        NotUnderstood: the stages are no such dicts, or a leaf is not the same array at
            each stage, or more than eight devices or shards would have to be drawn.
        MeshMismatch: the leaves are on several meshes.

    Used in chapter 10.
    """

    def __init__(self, stages: Mapping[str, Mapping[str, Any]]) -> None:
        try:
            self._shown: TreePicture = TreePicture(trees.read(stages))
        except (NotUnderstood, MeshMismatch, SpecError) as error:
            raise error.with_traceback(None) from None

    def _frames(self) -> list[tuple[str, str, str]]:
        shown = self._shown
        return [
            (shown.heading(n), shown.sentence(n), shown.state(n))
            for n in range(len(shown.trees.names))
        ]


class ReshapePlayer(_Player):
    """Plays the reshape of a sharded dimension into heads, for several numbers of them.

    Each reshape is compiled. The figure shows which boundaries between shards are
    inside a head, what is sent, and which features each device has after it.

    Args:
        x: an array, or a ShapeDtypeStruct, whose last dimension is sharded over eight
            devices at most.
        heads: numbers of heads, which divide that dimension.

    Raises:
        NotUnderstood: x has no devices, or its last dimension is not sharded, or can't
            be divided into so many heads.

    Used in chapter 12.
    """

    def __init__(self, x: Any, heads: Iterable[int]) -> None:
        try:
            info, all_reshapes = reshapes.read(x, tuple(heads))
        except (NotUnderstood, MeshMismatch, SpecError) as error:
            raise error.with_traceback(None) from None
        self._shown: ReshapePicture = ReshapePicture(info, all_reshapes)

    def _frames(self) -> list[tuple[str, str, str]]:
        shown = self._shown
        return [
            (shown.heading(one), shown.sentence(one), shown.state(one))
            for one in shown.reshapes
        ]


class RingPlayer(_Player):
    """Plays attention on a ring: where each block of keys is, and what is computed.

    For a program in which each device computes in each iteration with the block of keys
    and values that it has, and sends it on by `lax.ppermute`. The pairs, the number of
    iterations and the bytes are those of the compiled program.

    Args:
        report: what `spmd.xray` returns for the program.
        causal: whether a query sees its own position and those before it only, which
            discards the scores of some blocks.

    Raises:
        NotUnderstood: `report` is no X-ray, or its collective-permutes are not one ring
            of eight devices at most, or run an unknown number of times.

    Used in chapter 12.
    """

    def __init__(self, report: XRay, *, causal: bool = False) -> None:
        try:
            self._shown: RingPicture = RingPicture(rings.read(report, causal))
        except NotUnderstood as error:
            raise error.with_traceback(None) from None

    def _frames(self) -> list[tuple[str, str, str]]:
        shown = self._shown
        numbers = range(shown.ring.iterations + 1)
        return [(shown.heading(n), shown.sentence(n), shown.state(n)) for n in numbers]
