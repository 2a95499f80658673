"""The matrix products of a compiled program, and the FLOPs of each.

Only matrix products and convolutions are counted, 2 FLOPs for each multiply-add:
the "model FLOPs" of utilization figures (Chowdhery et al., "PaLM", 2022, appendix
B). What is done element by element, sums, sorts, Fourier transforms and triangular
solves count nothing. Sizes are those that the program computes with, padding
included.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, isqrt, prod

from .opcodes import AS_NUMBERS, does
from .parser import Computation, Instruction, Module

_DIM_LABELS = re.compile(r"\bdim_labels=([\w?]+)_([\w?]+)->([\w?]+)")
_WINDOW = re.compile(r"\b(\w+)=([\d_x\-]+)")
_GEMM = re.compile(r"__cublas\$(gemm|lt\$\w*[mM]atmul)")
# Kernels of somebody's own; only those that state their cost can be counted.
_KERNELS = re.compile(
    r"tpu_custom_call|mosaic_gpu|triton_kernel_call|__gpu\$xla\.gpu\.triton"
)


@dataclass(frozen=True)
class Product:
    """What one instruction multiplies.

    Attributes:
        flops: for one execution on one device, None if the text doesn't tell.
        operands: the names of the values that are multiplied.
    """

    flops: int | None
    operands: tuple[str, ...]


def product(module: Module, computation: Computation, i: Instruction) -> Product | None:
    """The matrix product that an instruction is, None if it is none.

        >>> from spmd_helpers._hlo.parser import parse
        >>> module = parse('''HloModule jit_f
        ...
        ... ENTRY main {
        ...   x = f32[6,10] parameter(0)
        ...   w = f32[10,4] parameter(1)
        ...   ROOT y = f32[6,4] dot(x, w), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
        ... }''')
        >>> product(module, module.entry, module.entry.root).flops  # 2 · 6 · 10 · 4
        480

    Known are `dot` and `convolution` (as which TPU writes every product), the
    library calls of GPU and CPU (cuBLAS, cuDNN convolution and attention, oneDNN),
    kernels that state their cost, and a product that XLA has rewritten into
    multiplications and a sum, by its label. A fusion is none: it calls one.

    Args:
        module: the program.
        computation: where the instruction stands.
        i: the instruction.
    """
    if i.opcode in ("dot", "scaled-dot"):
        return _dot(computation, i)
    if i.opcode == "convolution":
        given, kernel = (_dims(computation, name) for name in i.operands[:2])
        flops = _convolution(i, given, kernel, i.shapes[0].dims)
        return Product(flops, tuple(i.operands[:2]))
    if i.opcode == "ragged-dot":
        return _ragged(computation, i)
    if i.opcode == "custom-call":
        return _custom_call(computation, i)
    if i.opcode == "reduce":
        return _summed(module, computation, i)
    return None


def contracted(i: Instruction, number: int) -> set[int] | None:
    """The dimensions of a product's operand 0 or 1 that it sums over, if it tells."""
    side = ("lhs", "rhs")[number]
    if i.opcode == "dot":
        return {*_listed(i, f"{side}_contracting_dims")}
    dimensions = _printed(i, rf'"{side}_contracting_dimensions":\[([^\]]*)\]')
    return None if dimensions is None else {*dimensions}


def _printed(i: Instruction, pattern: str) -> list[int] | None:
    """The numbers of a list in the attributes; None where it is not printed."""
    match = re.search(pattern, i.rest)
    return [int(n) for n in re.findall(r"\d+", match.group(1))] if match else None


def _dims(computation: Computation, name: str) -> tuple[int, ...]:
    return computation.by_name[name].shapes[0].dims


def _listed(i: Instruction, key: str) -> list[int]:
    value = i.attribute(key) or "{}"
    return [int(n) for n in re.findall(r"\d+", value[: value.index("}")])]


def _dot(computation: Computation, i: Instruction) -> Product:
    left = _dims(computation, i.operands[0])
    contracted = prod(left[d] for d in _listed(i, "lhs_contracting_dims"))
    # A scaled dot has its operands' scales after them.
    return Product(2 * i.shapes[0].elements * contracted, tuple(i.operands))


def _ragged(computation: Computation, i: Instruction) -> Product:
    """Each row of the left meets one group of the right, whatever dimension is cut."""
    left, right = (_dims(computation, name) for name in i.operands[:2])
    met = {
        *_listed(i, "rhs_contracting_dims"),
        *_listed(i, "rhs_batch_dims"),
        *_listed(i, "rhs_group_dims"),
    }
    free = prod(size for d, size in enumerate(right) if d not in met)
    return Product(2 * prod(left) * free, tuple(i.operands))


def _convolution(
    i: Instruction,
    given: Sequence[int],
    kernel: Sequence[int],
    result: Sequence[int],
) -> int | None:
    """FLOPs of a convolution whose input, kernel and output have these sizes.

    A position where the kernel hangs over the padding, or on a hole that dilation
    made, multiplies nothing. So it is with batch dimensions, which TPU writes as
    spatial ones: of the n² pairs only n are multiplied.
    """
    labels = _DIM_LABELS.search(i.rest)
    if labels is None:
        return None
    window = _window(i)
    inputs, kernels, outputs = labels.groups()
    pairs = 1
    for d in sorted(c for c in kernels if c.isdigit()):
        low = window.get("pad", [])
        pairs *= _pairs(
            kernel=kernel[kernels.index(d)],
            given=given[inputs.index(d)],
            result=result[outputs.index(d)],
            stride=_at(window, "stride", d),
            pad=int(low[int(d)].rpartition("_")[0]) if low else 0,
            spread=_at(window, "lhs_dilate", d),
            dilation=_at(window, "rhs_dilate", d),
        )
    batch = given[inputs.index("b")] // (i.number(r"\bbatch_group_count=(\d+)") or 1)
    features = given[inputs.index("f")]
    features //= i.number(r"\bfeature_group_count=(\d+)") or 1
    return 2 * batch * features * result[outputs.index("f")] * pairs


def _window(i: Instruction) -> dict[str, list[str]]:
    text = i.attribute("window") or "{}"
    fields = _WINDOW.findall(text[: text.index("}")])
    return {key: value.split("x") for key, value in fields}


def _at(window: dict[str, list[str]], key: str, dimension: str) -> int:
    return int(window[key][int(dimension)]) if key in window else 1


@lru_cache(maxsize=1024)
def _pairs(
    kernel: int,
    given: int,
    result: int,
    stride: int,
    pad: int,
    spread: int,
    dilation: int,
) -> int:
    """How many pairs (place in the kernel, place in the output) meet an input.

    The place k of the kernel and o of the output meet at o·stride + k·dilation - pad
    of an input whose elements stand `spread` apart.
    """
    last, common = (given - 1) * spread, gcd(stride, spread)
    period, count = spread // common, 0
    for k in range(kernel):
        start = k * dilation - pad
        first = max(0, -(start // stride))  # -(a // b) is the ceiling of -a / b
        end = min(result - 1, (last - start) // stride)
        if start % common or given == 0:
            continue
        # The o at which o·stride + start is a multiple of `spread`.
        hit = -(start // common) * pow(stride // common, -1, period) % period
        first += (hit - first) % period
        if first <= end:
            count += (end - first) // period + 1
    return count


def _custom_call(computation: Computation, i: Instruction) -> Product | None:
    target = i.quoted("custom_call_target") or ""
    if target.startswith("__cudnn$conv"):
        return _cudnn_convolution(computation, i, target)
    if target.startswith("__cudnn$fmha"):
        return _attention(computation, i, target)
    if _GEMM.match(target):
        dims = _dims(computation, i.operands[0])
        dimensions = contracted(i, 0)
        if dimensions is None:
            return Product(None, tuple(i.operands[:2]))
        summed = prod(dims[d] for d in dimensions)
        flops = 2 * i.shapes[0].elements * summed
        return Product(flops, tuple(i.operands[:2]))
    if target == "__onednn$matmul":
        left, right = (_dims(computation, name) for name in i.operands[:2])
        # [b, m, k] · [b, k, n] → [b, m, n]: their sizes' product is (b·m·k·n)² · b.
        result, batch = i.shapes[0].elements, prod(right[:-2])
        flops = 2 * isqrt(prod(left) * prod(right) * result // batch)
        return Product(flops, tuple(i.operands[:2]))
    if _KERNELS.match(target) and not _counts_only(computation, i):
        stated = i.number(r'"cost_estimate":\{[^{}]*"flops":"?(\d+)')
        return Product(stated, tuple(i.operands))
    return None


def _counts_only(computation: Computation, i: Instruction) -> bool:
    """Whether a kernel has to do with indices alone, such as one that plans another."""
    shapes = [s for name in i.operands for s in computation.by_name[name].shapes]
    return {s.dtype for s in (*shapes, *i.shapes)} <= {"s32", "u32", "pred"}


def _cudnn_convolution(
    computation: Computation, i: Instruction, target: str
) -> Product:
    """Forward or backward: the labels and the window are always the forward ones.

    Each multiply-add of the forward convolution has one in each backward one.
    """
    first, second = (_dims(computation, name) for name in i.operands[:2])
    third = i.shapes[0].dims
    given, kernel, result = first, second, third
    if "BackwardInput" in target:
        given, result = third, first
    elif "BackwardFilter" in target:
        kernel, result = third, second
    flops = _convolution(i, given, kernel, result)
    return Product(flops, tuple(i.operands[:2]))


def _attention(computation: Computation, i: Instruction, target: str) -> Product:
    """Attention in one kernel: of all scores, those that a mask hides included.

    Forward are two products of scores × head size, backward five, as the scores
    are computed again: Dao, "FlashAttention-2" (2023), section 4.1.
    """
    sizes = _printed(i, r'"intermediate_tensor_shape":\{.*?"dimensions":\[([^\]]*)')
    if sizes is None:
        return Product(None, tuple(i.operands))
    scores = prod(sizes)
    key, value = (_dims(computation, i.operands[n])[-1] for n in (0, 2))
    each = 3 * key + 2 * value if "Backward" in target else key + value
    return Product(2 * scores * each, tuple(i.operands))


def _summed(module: Module, computation: Computation, i: Instruction) -> Product | None:
    """A product that XLA rewrote as multiplications and a sum: matrix × vector.

    Its label still says dot_general; a plain sum of products has another.
    """
    if not (i.quoted("op_name") or "").endswith("dot_general"):
        return None
    added = module.computations.get(i.called("to_apply")[0])
    factor = computation.by_name.get(i.operands[0])
    while factor is not None and does(factor.opcode) in AS_NUMBERS:
        factor = computation.by_name.get(factor.operands[0])
    if factor is None or factor.opcode != "multiply" or added is None:
        return None
    if added.root.opcode != "add":
        return None
    return Product(2 * factor.shapes[0].elements, (factor.name,))
