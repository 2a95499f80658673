"""What one kernel computes and what it reads and writes."""

import re
from dataclasses import dataclass

from .._hlo.flops import product
from .._hlo.parser import Computation, Instruction, Module, Shape, shapes

# Instructions that take no time of their own.
FREE = frozenset(
    (
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "domain"),
        *("after-all", "partition-id", "replica-id", "opt-barrier", "add-dependency"),
        "iota",
    )
)
_SAME = frozenset(("bitcast", "reshape", "copy", "convert"))
_SLICES = frozenset(("dynamic-slice", "slice", "gather"))
# An array on TPU in the fast memory beside the units, not in HBM.
_FAST = re.compile(r"[a-z][a-z0-9]*\[[\d,<=\s]*\]\{[^}]*S\([1-9]\d*\)[^}]*\}")


@dataclass(frozen=True)
class Kernel:
    """One kernel, for one run.

    Attributes:
        kind: 'matmul', 'attention', 'convolution' or 'elementwise'.
        work: type of the products' operands, or 'attention forward' or 'attention
            backward' → FLOPs that take time, masked scores not counted.
        flops: of its products, as `XRay.flops_per_device` counts them.
        nbytes: read and written in the device's memory.
        by_rows: whether it is a kernel of Triton's that reduces rows.
        is_unknown: whether a kernel in it doesn't state its FLOPs.
    """

    kind: str
    work: tuple[tuple[str, float], ...]
    flops: int
    nbytes: int
    by_rows: bool = False
    is_unknown: bool = False


def kernel(module: Module, computation: Computation, i: Instruction) -> Kernel:
    """What an instruction, or a fusion with all in it, computes and moves."""
    inside = _fused(module, i)
    if inside is None:
        parts, moved = [(computation, i)], _moved(computation, i)
    else:
        parts = [(inside, each) for each in inside.instructions]
        moved = _fused_bytes(i, inside)
    kinds, work, flops, is_unknown = [], [], 0, False
    for where, each in parts:
        multiplied = product(module, where, each)
        if multiplied is None:
            continue
        kinds.append(_kind(each))
        if multiplied.flops is None:
            is_unknown = True
            continue
        flops += multiplied.flops
        work.append(_work(where, each, multiplied.flops, multiplied.operands))
    kind = kinds[0] if kinds else "elementwise"
    by_rows = not kinds and inside is not None and _by_rows(i, inside)
    return Kernel(kind, tuple(work), flops, moved, by_rows, is_unknown)


def _by_rows(i: Instruction, inside: Computation) -> bool:
    if '"kind":"__triton"' not in i.rest.replace(" ", ""):
        return False
    return any(each.opcode == "reduce" for each in inside.instructions)


def _fused(module: Module, i: Instruction) -> Computation | None:
    if not i.opcode.startswith("fusion"):
        return None
    return module.computations.get(i.called("calls")[0])


def _kind(i: Instruction) -> str:
    target = i.quoted("custom_call_target") or ""
    if "fmha" in target:
        return "attention"
    if "conv" in target:
        return "convolution"
    return "matmul"


def _work(
    computation: Computation, i: Instruction, flops: int, operands: tuple[str, ...]
) -> tuple[str, float]:
    target = i.quoted("custom_call_target") or ""
    if "fmha" in target:
        which = "backward" if "Backward" in target else "forward"
        causal = '"mask_type":"CAUSAL"' in i.rest
        return f"attention {which}", flops / (2 if causal else 1)
    types = {
        shape.dtype
        for name in operands[:2]
        if name in computation.by_name
        for shape in computation.by_name[name].shapes[:1]
    }
    return _type_of(types, i), float(flops)


def _type_of(types: set[str], i: Instruction) -> str:
    if any(kind in types for kind in ("f32", "f64", "c64", "c128")):
        text = i.rest.lower()
        is_highest = "highest" in text and "operand_precision" in text
        return "f32 highest" if is_highest else "f32"
    if types and all(kind.startswith("f8") for kind in types):
        return "f8"
    if types and types <= {"s8", "u8"}:
        return "s8"
    return "bf16"


# --- Bytes ----------------------------------------------------------------------------


def _size(i: Instruction) -> int:
    """Bytes of a value in the device's memory."""
    text = _FAST.sub("", i.type) if "S(" in i.type else i.type
    every = i.shapes if text is i.type else shapes(text)
    return sum(shape.nbytes for shape in every)


def _operand(computation: Computation, name: str) -> int:
    given = computation.by_name.get(name)
    return _size(given) if given is not None else 0


def _moved(computation: Computation, i: Instruction) -> int:
    if i.opcode in _SLICES:
        return 2 * _size(i)
    if i.opcode == "dynamic-update-slice":
        return 2 * _operand(computation, i.operands[1])
    if i.opcode.endswith("-start"):
        return _copied(i)
    read = sum(_operand(computation, name) for name in i.operands)
    return read + sum(s.nbytes for s in _results(i))


def _copied(i: Instruction) -> int:
    """What a copy by hardware of its own moves, of a slice only that.

    Its value has both ends, of which one can be in the fast memory.
    """
    arrays = [s.nbytes for s in shapes(i.type) if s.dims]
    slow = [s for s in shapes(_FAST.sub("", i.type)) if s.dims]
    return min(len(slow), 2) * min(arrays, default=0)


def _results(i: Instruction) -> list[Shape]:
    """What it writes: not the workspace of a library's kernel."""
    text = _FAST.sub("", i.type) if "S(" in i.type else i.type
    every = shapes(text)
    if i.opcode == "custom-call" and len(every) > 1:
        return [s for s in every if s.dtype not in ("s8", "u8") or len(s.dims) > 1]
    return every


def _fused_bytes(i: Instruction, inside: Computation) -> int:
    """Of a stack of which one slice is taken or put, only that slice."""
    read = sum(
        _read(inside, parameter)
        for number, parameter in inside.parameters.items()
        if number < max(len(i.operands), 1)
    )
    return read + _written(inside, inside.root)


def _read(inside: Computation, value: Instruction) -> int:
    total, size = 0, _size(value)
    for user in inside.users.get(value.name, []):
        first = bool(user.operands) and user.operands[0] == value.name
        if user.opcode in _SLICES and first:
            total += _size(user)
        elif user.opcode == "dynamic-update-slice" and first:
            continue
        elif user.opcode in ("bitcast", "reshape"):
            total += _read(inside, user)
        else:
            return size
    return min(total, size)


def _written(inside: Computation, root: Instruction) -> int:
    if root.opcode == "tuple":
        return sum(_written(inside, inside.by_name[name]) for name in root.operands)
    if root.opcode == "dynamic-update-slice":
        return _operand(inside, root.operands[1])
    if root.opcode in _SAME and root.operands:
        below = inside.by_name.get(root.operands[0])
        if below is not None and below.opcode == "dynamic-update-slice":
            return _written(inside, below)
    return sum(shape.nbytes for shape in _results(root))
