"""Parameters, gradients and optimizer state: bytes per device, exactly.

The axis `model` cuts the matrices of attention, of the feed-forward part and of the
vocabulary, and the biases of those whose columns it cuts. Norms, learned positions and
the biases that are added after a sum over `model` are replicated on its devices
(Shoeybi et al. 2019, arXiv:1909.08053, section 3). The axis `data` shards the
elements of each array, whatever its dimensions (Rajbhandari et al. 2019,
arXiv:1910.02054, section 5: ZeRO).
"""

from dataclasses import dataclass

from .model import MLP, Transformer
from .setup import OPTIMIZERS, Setup

PHASES = ("forward", "loss", "backward", "update")
ALWAYS = PHASES
_ZERO = "ZeRO, arXiv:1910.02054, section 5"


@dataclass(frozen=True)
class Line:
    """One thing that takes memory.

    Attributes:
        name: what it is.
        formula: how its bytes come about, with the numbers in it.
        bytes: bytes on each device.
        when: in which phases of a step it is there, of PHASES.
        source: where the formula comes from.
    """

    name: str
    formula: str
    bytes: int
    when: tuple[str, ...]
    source: str = ""


def state(setup: Setup) -> tuple[Line, Line, Line]:
    """The lines of the parameters, the gradients and the optimizer."""
    return (
        Line(
            "parameters",
            *_sharded(setup, setup.param_bytes, cut=setup.zero >= 3),
            ALWAYS,
            _ZERO,
        ),
        Line(
            "gradients",
            *_sharded(setup, setup.grad_bytes, cut=setup.zero >= 2),
            ("backward", "update"),
            _ZERO,
        ),
        _optimizer(setup),
    )


def _optimizer(setup: Setup) -> Line:
    numbers, counts = OPTIMIZERS[setup.optimizer]
    each = setup.mu_bytes + (numbers - 1) * setup.moment_bytes if numbers else 0
    each += 4 if setup.master_weights else 0
    formula, size = _sharded(setup, each, cut=setup.zero >= 1)
    if counts and setup.counting == "jax":  # optax keeps the number of steps as int32
        formula, size = f"{formula} + 4 B", size + 4
    kinds = [setup.optimizer]
    if setup.mu_dtype is not None:
        kinds.append(f"mu in {setup.mu_dtype}")
    if setup.master_weights:
        kinds.append("master copy")
    name = f"optimizer ({', '.join(kinds)})"
    return Line(name, formula, size, ALWAYS, f"{_ZERO}; optax's state")


def _sharded(setup: Setup, each: int, cut: bool) -> tuple[str, int]:
    """The formula, and the bytes, of `each` bytes for every parameter."""
    split, replicated = numbers(setup)
    data = setup.data if cut else 1
    size = -(-each * (split + replicated * setup.split) // (setup.split * data))
    inside = f"{split}{over('model', setup.split)}"
    if replicated:
        inside += f" + {replicated}"
    if replicated and (data > 1 or each != 1):
        inside = f"({inside})"
    return f"{each} B × {inside}{over('data', data)}", size


def over(axis: str, size: int) -> str:
    """What a formula says of an axis that divides; nothing where it does not."""
    return f" / {axis} {size}" if size > 1 else ""


def numbers(setup: Setup) -> tuple[int, int]:
    """How many parameters the axis model cuts, and how many it replicates.

    The published formulas let it cut all of them.
    """
    model = setup.model
    if setup.counting == "megatron" or isinstance(model, MLP):
        return model.parameters, 0
    matrices = (1 if model.tied else 2) * setup.rows * model.d_model
    layer = layer_weights(model)
    replicated = model.parts["positions"] + model.parts["norms"]
    if model.biases or model.qkv_biases:
        layer += (model.heads + 2 * model.kv_heads) * model.head_dim
    if model.biases:
        layer += (2 if model.gated else 1) * model.d_ff
        replicated += model.layers * 2 * model.d_model
    return matrices + model.layers * layer, replicated


def layer_weights(model: Transformer | MLP) -> int:
    """Numbers in the matrices of one layer: q, k, v and o, and those of its mlp."""
    inside = model.d_model * model.d_ff
    if isinstance(model, MLP):
        return 2 * inside
    mlp = (3 if model.gated else 2) * inside
    return mlp + 2 * (model.heads + model.kv_heads) * model.head_dim * model.d_model
