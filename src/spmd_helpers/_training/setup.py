"""One way to train a model on a mesh: the arguments, checked, and sizes per device.

The mesh has two axes. `data` cuts the batch, and from `zero` 1 to 3 also the
optimizer's state, the gradients and the parameters. `model` cuts the heads, the inside
of the feed-forward part and the vocabulary (tensor parallelism).
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from .._core.words import join_words
from .._errors import NotDivisible, NotUnderstood, UnknownAxis
from .._shardings.sharding import MeshFacts, itemsize, mesh_words
from .model import MLP, RECOMPUTE, Transformer

AXES = ("data", "model")
ATTENTION = ("plain", "flash")
COUNTING = ("jax", "megatron")
# Numbers that an optimizer keeps for each parameter, and whether it counts its steps.
OPTIMIZERS = {
    "adam": (2, True),
    "adamw": (2, True),
    "lion": (1, True),
    "momentum": (1, False),
    "sgd": (0, False),
}


@dataclass(frozen=True)
class Setup:
    """Checked arguments of `training_memory`, as numbers that one device sees."""

    model: Transformer | MLP
    data: int
    split: int  # the size of the axis model
    zero: int
    batch: int  # sequences of one device, or rows of an MLP
    seq: int
    param_bytes: int  # each of these: bytes of one number
    compute_bytes: int
    grad_bytes: int
    moment_bytes: int
    optimizer: str
    master: bool
    recompute: str
    attention: str
    sequence_parallel: bool
    counting: str

    @property
    def tokens(self) -> int:
        """Tokens of one device (rows, of an MLP)."""
        return self.batch * self.seq

    @property
    def stream(self) -> int:
        """How many devices cut what flows between the layers, beside the batch."""
        return self.split if self.sequence_parallel else 1

    @property
    def rows(self) -> int:
        """Rows of the embedding: the vocabulary, rounded up to divide over model."""
        return -(-self.model.vocab // self.split) * self.split

    @property
    def is_mlp(self) -> bool:
        """Whether the model is the stack without attention."""
        return isinstance(self.model, MLP)

    @property
    def scores(self) -> bool:
        """Whether the scores of attention are written to memory."""
        return not self.is_mlp and self.attention == "plain"


def setup(model, mesh, *, zero, batch, seq, params, compute, grads, moments, **words):
    """Check every argument and put them in one record.

    Raises:
      NotUnderstood: an argument is not of its kind; the message gives the choices.
      UnknownAxis: the mesh has another axis than data and model.
      NotDivisible: the mesh does not divide the model or the batch.
    """
    if not isinstance(model, Transformer | MLP):
        raise NotUnderstood(
            f"model={model!r} is not a model; give a Transformer, an MLP, or one of "
            "MODELS, such as MODELS['gpt3-small']."
        )
    axes = _checked_mesh(mesh)
    words = _checked_words(model, words)
    zero = _checked_zero(zero)
    batch, seq = _checked_batch(model, batch, seq, axes)
    if grads == () or grads == []:
        raise NotUnderstood(
            f"grads={grads!r} holds no type; give one, such as 'float32', or two that "
            "are kept beside each other."
        )
    if not isinstance(grads, tuple | list):
        grads = (params if grads is None else grads,)
    if moments is None:
        moments = "float32" if words["master"] else params
    made = Setup(
        model=model,
        data=axes["data"],
        split=axes["model"],
        zero=zero,
        batch=batch,
        seq=seq,
        param_bytes=_itemsize("params", params),
        compute_bytes=_itemsize("compute", compute),
        grad_bytes=sum(_itemsize("grads", name) for name in grads),
        moment_bytes=_itemsize("moments", moments),
        **words,
    )
    if made.counting == "jax":
        _check_division(made, axes)
    return made


def choice(key: str, value, choices) -> str:
    """`value`, if it is one of the choices.

    >>> choice("recompute", "ful", ("none", "selective", "full"))
    Traceback (most recent call last):
    ...
    spmd_helpers._errors.NotUnderstood: recompute='ful' is not known. Did you mean \
'full'? Give 'none', 'selective' or 'full'.
    """
    if isinstance(value, str) and value in choices:
        return value
    word = value.lower() if isinstance(value, str) else ""
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    *most, last = map(repr, choices)
    words = f"{', '.join(most)} or {last}"
    raise NotUnderstood(f"{key}={value!r} is not known.{guess} Give {words}.")


def _checked_mesh(mesh) -> dict[str, int]:
    if not isinstance(mesh, Mapping):
        raise NotUnderstood(
            f"mesh={mesh!r} is not a dict of axis sizes; give one such as "
            "{'data': 8, 'model': 4}."
        )
    shape = MeshFacts(mesh).shape
    for axis, size in shape.items():
        if axis not in AXES:
            others = {a: n for a, n in shape.items() if a != axis}
            fixed = {"model" if "data" in others else "data": size}
            raise UnknownAxis(
                f"mesh={dict(shape)} has an axis {axis!r}; here a mesh has 'data' "
                "(cuts the batch, and the state by zero) and 'model' (cuts heads, "
                f"d_ff and vocabulary): give {others | fixed}."
            )
    return {axis: shape.get(axis, 1) for axis in AXES}


def _checked_words(model, words) -> dict:
    choice("optimizer", words["optimizer"], tuple(OPTIMIZERS))
    choice("recompute", words["recompute"], RECOMPUTE)
    choice("attention", words["attention"], ATTENTION)
    choice("counting", words["counting"], COUNTING)
    for key in ("master", "sequence_parallel"):
        if not isinstance(words[key], bool):
            raise NotUnderstood(f"{key}={words[key]!r} is neither True nor False.")
    if isinstance(model, MLP):
        for key, plain in (("attention", "plain"), ("sequence_parallel", False)):
            if words[key] != plain:
                raise NotUnderstood(
                    f"{key}={words[key]!r}: an MLP has neither attention nor "
                    f"sequences; leave {key} out."
                )
    return words


def _checked_zero(zero) -> int:
    if isinstance(zero, bool) or zero not in (0, 1, 2, 3):
        raise NotUnderstood(
            f"zero={zero!r} is not a stage of ZeRO; give 0 (the state is whole on "
            "every device of data), 1 (the optimizer's is cut), 2 (gradients too) or "
            "3 (parameters too: FSDP)."
        )
    return zero


def _checked_batch(model, batch, seq, axes) -> tuple[int, int]:
    """Sequences of one device, tokens of a sequence."""
    if isinstance(model, MLP):
        if seq is not None:
            raise NotUnderstood(f"seq={seq!r}: an MLP has no sequences; leave it out.")
        seq = 1
    else:
        seq = _whole("seq", model.seq if seq is None else seq)
        if model.positions == "learned" and seq > model.seq:
            raise NotUnderstood(
                f"seq={seq} is more than the {model.seq} positions that the model has "
                f"learned; give {model.seq} or less, or a model that has learned {seq}."
            )
    batch = _whole("batch", batch)
    if batch % axes["data"]:
        less = batch // axes["data"] * axes["data"]
        more = less + axes["data"]
        sizes = f"{less} or {more}" if less else f"{more}"
        raise NotDivisible(
            f"batch={batch} does not divide over the {axes['data']} devices of data; "
            f"it counts the sequences of all devices together: make it {sizes}."
        )
    return batch // axes["data"], seq


def _check_division(made: Setup, axes):
    """Every dimension that an axis cuts has to divide, as JAX asks at its border."""
    model, split = made.model, made.split
    wide = {"d_ff": model.d_ff}
    if not made.is_mlp:
        wide |= {"heads": model.heads, "kv_heads": model.kv_heads}
    for name, size in wide.items():
        if size % split:
            raise NotDivisible(
                f"mesh={{{_axes(axes)}}}: {name}={size} does not divide over the "
                f"{split} devices of model; make model one of "
                f"{_divisors(math.gcd(*wide.values()))}."
            )
    if made.sequence_parallel and made.seq % split:
        raise NotDivisible(
            f"sequence_parallel=True: seq={made.seq} does not divide over the {split} "
            "devices of model; give another seq."
        )
    if not made.zero:
        return
    cut = {"d_model": (model.d_model, made.data)}
    if not made.is_mlp and model.biases:  # the longer biases are cut by both axes
        both = made.data * split
        cut |= {
            "heads * head_dim": (model.heads * model.head_dim, both),
            "kv_heads * head_dim": (model.kv_heads * model.head_dim, both),
            "d_ff": (model.d_ff, both),
        }
    for name, (size, devices) in cut.items():
        if size % devices:
            raise NotDivisible(
                f"zero={made.zero} cuts {name}={size} over {devices} devices "
                f"({mesh_words(axes)}), which does not divide; make data smaller, or "
                "count with zero=0."
            )


def _axes(axes) -> str:
    return ", ".join(f"{axis!r}: {size}" for axis, size in axes.items())


def _itemsize(key, name) -> int:
    try:
        return itemsize(name)
    except (NotUnderstood, TypeError):
        raise NotUnderstood(
            f"{key}={name!r} is not the name of an element type; give one such as "
            "'float32' or 'bfloat16'."
        ) from None


def _whole(key, value) -> int:
    fits = hasattr(value, "__index__") and not isinstance(value, bool)
    if not fits or value.__index__() < 1:
        raise NotUnderstood(
            f"{key}={value!r} is not a size; give a whole number, 1 or more."
        )
    return value.__index__()


def _divisors(n: int) -> str:
    found = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return join_words(list(map(str, sorted({*found, *(n // d for d in found)}))))
