"""Parameters, gradients and optimizer state: bytes per device, exactly.

The axis `model` cuts the matrices of attention, of the feed-forward part and of the
vocabulary, and the biases of those whose columns it cuts. Norms, learned positions and
the biases that are added after a sum over `model` stay whole on each of its devices
(Shoeybi et al. 2019, arXiv:1909.08053, section 3). The axis `data` cuts each array as
a whole (Rajbhandari et al. 2019, arXiv:1910.02054, section 5: ZeRO).
"""

from dataclasses import dataclass

from .model import MLP
from .setup import OPTIMIZERS, Setup

MOMENTS = ("forward", "loss", "backward", "update")
ALWAYS = MOMENTS
_ZERO = "ZeRO, arXiv:1910.02054, section 5"


@dataclass(frozen=True)
class Line:
    """One thing that takes memory.

    Attributes:
      name: what it is.
      formula: how its bytes come about, with the numbers in it.
      bytes: bytes on each device.
      when: in which moments of a step it is there, of MOMENTS.
      source: where the formula comes from.
    """

    name: str
    formula: str
    bytes: int
    when: tuple[str, ...]
    source: str = ""


def state(made: Setup) -> tuple[Line, Line, Line]:
    """The lines of the parameters, the gradients and the optimizer."""
    return (
        Line(
            "parameters",
            *_held(made, made.param_bytes, cut=made.zero >= 3),
            ALWAYS,
            _ZERO,
        ),
        Line(
            "gradients",
            *_held(made, made.grad_bytes, cut=made.zero >= 2),
            ("backward", "update"),
            _ZERO,
        ),
        _optimizer(made),
    )


def _optimizer(made: Setup) -> Line:
    numbers, counts = OPTIMIZERS[made.optimizer]
    each = numbers * made.moment_bytes + (4 if made.master else 0)
    formula, size = _held(made, each, cut=made.zero >= 1)
    if counts and made.counting == "jax":  # optax keeps the number of steps as int32
        formula, size = f"{formula} + 4 B", size + 4
    name = f"optimizer ({made.optimizer}{', master copy' if made.master else ''})"
    return Line(name, formula, size, ALWAYS, f"{_ZERO}; optax's state")


def _held(made: Setup, each: int, cut: bool) -> tuple[str, int]:
    """The formula, and the bytes, of `each` bytes for every parameter."""
    split, whole = numbers(made)
    data = made.data if cut else 1
    size = -(-each * (split + whole * made.split) // (made.split * data))
    inside = f"{split}{_over('model', made.split)}"
    if whole:
        inside += f" + {whole}"
    if whole and (data > 1 or each != 1):
        inside = f"({inside})"
    return f"{each} B × {inside}{_over('data', data)}", size


def _over(axis: str, size: int) -> str:
    return f" / {axis} {size}" if size > 1 else ""


def numbers(made: Setup) -> tuple[int, int]:
    """How many parameters the axis model cuts, and how many it leaves whole.

    The published formulas let it cut all of them.
    """
    model = made.model
    if made.counting == "megatron":
        return model.parameters, 0
    if made.is_mlp:
        return model.parameters, 0
    matrices = (1 if model.tied else 2) * made.rows * model.d_model
    layer = layer_weights(model)
    whole = model.parts["positions"] + model.parts["norms"]
    if model.biases:
        layer += (model.heads + 2 * model.kv_heads) * model.head_dim
        layer += (2 if model.gated else 1) * model.d_ff
        whole += model.layers * 2 * model.d_model
    return matrices + model.layers * layer, whole


def layer_weights(model) -> int:
    """Numbers in the matrices of one layer: q, k, v and o, and those of its mlp."""
    mlp = (3 if getattr(model, "gated", False) else 2) * model.d_model * model.d_ff
    if isinstance(model, MLP):
        return mlp
    return mlp + 2 * (model.heads + model.kv_heads) * model.head_dim * model.d_model
