"""The explorers, the calculator and the planner as widgets of a notebook."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._errors import (
    MeshMismatch,
    MissingLibrary,
    NotUnderstood,
    SpecError,
    UnknownTopology,
)
from .._hardware.chips import Chip
from .._matmul.matmul import Spec, matmul
from .._plan.plan_mesh import plan_mesh
from .._shardings.from_jax import sharding as read_sharding
from .._shardings.sharding import ShardingInfo, as_tuples, spec_words
from .._training.model import MLP, Transformer
from .._training.models import MODELS
from .._training.training_memory import training_memory
from .data import memory_state
from .plans import planner_state
from .source import module, style

if TYPE_CHECKING:
    from .._shardings.types import ArrayLike, DTypeLike, MeshLike, ShardingLike

try:
    import anywidget
    import traitlets
except ModuleNotFoundError as error:
    raise MissingLibrary(
        f"the widgets need {error.name}, which is not installed: run  %pip install"
        " anywidget  and restart the kernel."
    ) from None


# What a reader gives wrongly: the error shows its sentence, without lines from here.
_REFUSED = (MeshMismatch, NotUnderstood, SpecError, UnknownTopology)


class _Widget(anywidget.AnyWidget):
    """One of the widgets; `state` holds what its controls say, as typed."""

    state = traitlets.Dict(value_trait=traitlets.Unicode()).tag(sync=True)
    _esm = ""
    _css = style()


class ShardingExplorer(_Widget):
    """Try shapes, meshes and specs: which device has which shard, and the errors.

    Works in Jupyter, in Colab and, without Python, on the book's own page. All is
    computed in the browser.

    >>> from jax.sharding import PartitionSpec as P
    >>> explorer = ShardingExplorer((6, 12), P("data"), mesh={"data": 2, "model": 4})
    >>> explorer.state["spec"], explorer.state["mesh"]
    ("P('data', None)", 'data=2, model=4')

    Args:
        x: what to begin with: whatever `spmd.sharding` takes. Nothing: an array of
            8 × 16.
        sharding: as for `spmd.sharding`.
        mesh: as for `spmd.sharding`; at most three axes.
        dtype: as for `spmd.sharding`.

    Attributes:
        state: a dict of strings with the keys 'mesh', 'shape', 'spec', 'dtype' and
            'device', as the controls show them; what is not there has its default. Set
            it to set the controls.

    Raises:
        NotUnderstood: what is given is no array, or has no or more than 4 dimensions,
            or its mesh more than 3 axes.
        SpecError: the spec does not fit.
        MeshMismatch: `mesh` is not the mesh that `x` or `sharding` is on.
        MissingLibrary: anywidget is not there.

    Used from chapter 03 on, and on the book's front page.
    """

    _esm = module("sharding_explorer")

    def __init__(
        self,
        x: "ArrayLike | tuple[int, ...] | None" = None,
        sharding: "ShardingLike | None" = None,
        *,
        mesh: "MeshLike | None" = None,
        dtype: "DTypeLike" = "float32",
    ) -> None:
        try:
            info = (
                None
                if x is None
                else read_sharding(x, sharding, mesh=mesh, dtype=dtype)
            )
            super().__init__(state={} if info is None else _state(info))
        except _REFUSED as error:
            raise error.with_traceback(None) from None


class MatmulExplorer(_Widget):
    """Try two specs: what their product communicates and repeats, for one device.

    Works in Jupyter, in Colab and, without Python, on the book's own page. All is
    computed in the browser, by the rule of `matmul`.

    >>> from jax.sharding import PartitionSpec as P
    >>> mesh = {"data": 4, "model": 2}
    >>> shown = MatmulExplorer((48, 40, 24), P("data"), P(None, "model"), mesh=mesh)
    >>> shown.state["a"], shown.state["b"], shown.state["c"]
    ("P('data', None)", "P(None, 'model')", '')

    Args:
        sizes: what to begin with: (I, J, K) of A [I, J] and B [J, K]. Nothing: a
            product that needs a sum.
        a, b: their specs, as for `matmul`.
        mesh: axis names and sizes, at most three axes.
        out: the spec that the result shall have, or None.
        dtype: 'float32', 'bfloat16' or 'float16'.

    Attributes:
        state: a dict of strings with the keys 'mesh', 'i', 'j', 'k', 'a', 'b', 'c' and
            'dtype', as the controls show them, 'device', the one that is followed, and
            'step'; what is not there has its default. Set it to set the controls.

    Raises:
        NotUnderstood, SpecError: as `matmul` does.
        MissingLibrary: anywidget is not there.

    Used from chapter 04 on.
    """

    _esm = module("matmul_explorer")

    def __init__(
        self,
        sizes: Sequence[int] | None = None,
        a: Spec = (),
        b: Spec = (),
        *,
        mesh: "MeshLike | None" = None,
        out: "Spec | None" = None,
        dtype: str = "float32",
    ) -> None:
        try:
            state = {} if sizes is None else _product(sizes, a, b, mesh, out, dtype)
            super().__init__(state=state)
        except _REFUSED as error:
            raise error.with_traceback(None) from None


def _product(
    sizes: Sequence[int],
    a: Spec,
    b: Spec,
    mesh: "MeshLike | None",
    out: "Spec | None",
    dtype: str,
) -> dict[str, str]:
    product = matmul(
        sizes, a, b, mesh={} if mesh is None else mesh, out=out, dtype=dtype
    )
    rows, columns = product.a.shape[0], product.b.shape[1]
    wish = ""
    if out is not None:
        result = ShardingInfo(
            (rows, columns), mesh_shape=product.a.mesh_shape, entries=as_tuples(out)
        )
        wish = spec_words(result.entries)
    return {
        "mesh": ", ".join(f"{axis}={size}" for axis, size in product.a.axes),
        "i": str(rows),
        "j": str(product.a.shape[1]),
        "k": str(columns),
        "a": spec_words(product.a.entries),
        "b": spec_words(product.b.entries),
        "c": wish,
        "dtype": product.a.dtype,
    }


class MemoryCalculator(_Widget):
    """Try models, meshes and conventions: what a training step needs, does it fit.

    Works in Jupyter, in Colab and, without Python, on the book's own page. All is
    computed in the browser, by the arithmetic of `training_memory`.

    >>> import spmd_helpers as spmd
    >>> model = spmd.MODELS["gpt3-xl"]
    >>> small = MemoryCalculator(model, chip="h100", mesh={"data": 8}, batch=64)
    >>> small.state["model"], small.state["data"], small.state["zero"]
    ('gpt3-xl', '8', '3')

    Args:
        model: what to begin with: a Transformer, an MLP, or one of MODELS, also by its
            name. Nothing: a model that does not fit.
        chip: a name in HARDWARE, or a Chip; with `model`.
        mesh, batch: as for `training_memory`; with `model`.
        **how: what else `training_memory` takes, and `margin`, the part of the chip's
            memory that may be filled.

    Attributes:
        state: a dict of strings, as the controls show them; what is not there has its
            default. Set it to set the controls.

    Raises:
        NotUnderstood, UnknownAxis, NotDivisible: as `training_memory` does; or `chip`
            is not known.
        MissingLibrary: anywidget is not there.

    Used in chapter 09.
    """

    _esm = module("memory_calculator")

    def __init__(
        self,
        model: Transformer | MLP | str | None = None,
        *,
        chip: str | Chip = "h100",
        mesh: Mapping[str, int] | None = None,
        batch: int = 1,
        **how: Any,
    ) -> None:
        try:
            super().__init__(state=_memory(model, chip, mesh, batch, how))
        except _REFUSED as error:
            raise error.with_traceback(None) from None


def _memory(
    model: Transformer | MLP | str | None,
    chip: str | Chip,
    mesh: Mapping[str, int] | None,
    batch: int,
    how: dict[str, Any],
) -> dict[str, str]:
    if model is None:
        return {}
    mesh = {} if mesh is None else mesh
    model = MODELS[model] if isinstance(model, str) else model
    if getattr(model, "patch_size", None) is not None:
        raise NotUnderstood(
            f"model={model!r} reads images, which the memory calculator does not "
            "count; give it to training_memory."
        )
    margin = {"margin": how.pop("margin")} if "margin" in how else {}
    training_memory(model, mesh=mesh, batch=batch, **how).fits(chip, **margin)
    return memory_state(model, chip=chip, mesh=mesh, batch=batch, **how, **margin)


class MeshPlanner(_Widget):
    """Try models and chips: every mesh, the fastest that fits first, and its code.

    Works in Jupyter, in Colab and, without Python, on the book's own page. All is
    computed in the browser, by the arithmetic of `plan_mesh`.

    >>> planner = MeshPlanner("llama-3-8b", "h100:2x8", batch=32, seq=4096)
    >>> planner.state["chip"], planner.state["hosts"], planner.state["batch"]
    ('h100', '2', '32')

    Args:
        model: what to begin with: one of MODELS, also by its name. Nothing: Llama 3 8B
            on two hosts of eight H100s.
        topology: the chips, as `plan_mesh` takes them; with `model`. At most 1024
            devices; of a TPU one of the usual slices.
        batch: sequences a step, over all devices; with `model`.
        seq: tokens of a sequence; the model's own if not given.
        **how: of what else `plan_mesh` takes `axes`, `recompute` (one policy),
            `attention` ('flash' or 'plain'), `param_dtype` ('float32' or 'bfloat16')
            and `optimizer`.

    Attributes:
        state: a dict of strings, as the controls show them; what is not there has its
            default. Set it to set the controls.

    Raises:
        NotUnderstood, UnknownAxis, UnknownTopology, NotDivisible: as `plan_mesh` does;
            or the planner has no control for an argument.
        MissingLibrary: anywidget is not there.

    Used in the book's page of it; chapter 14 chooses a mesh with `plan_mesh`.
    """

    _esm = module("mesh_planner")

    def __init__(
        self,
        model: Transformer | str | None = None,
        topology: str = "h100:2x8",
        *,
        batch: int = 32,
        seq: int | None = None,
        **how: Any,
    ) -> None:
        try:
            state = {}
            if model is not None:
                plan_mesh(model, topology, batch=batch, seq=seq, **how)
                state = planner_state(model, topology, batch=batch, seq=seq, **how)
            super().__init__(state=state)
        except _REFUSED as error:
            raise error.with_traceback(None) from None


def _state(info: ShardingInfo) -> dict[str, str]:
    if not 1 <= len(info.shape) <= 4 or len(info.axes) > 3:
        raise NotUnderstood(
            f"x has shape {info.shape} on a mesh of {len(info.axes)} axes; the "
            "explorer shows arrays of 1 to 4 dimensions on meshes of at most 3 axes. "
            "spmd.draw(x) draws any."
        )
    return {
        "mesh": ", ".join(f"{axis}={size}" for axis, size in info.axes),
        "shape": ", ".join(map(str, info.shape)),
        "spec": spec_words(info.entries),
        "dtype": info.dtype,
        "device": "0",
    }
