"""The constants of a compiled program: arrays that a function closes over."""

from .parser import Module

_LARGE = 1024  # bytes; smaller ones are the compiler's own numbers and tables


def constant_bytes(module: Module) -> int:
    """Bytes of the arrays that stand in a program itself, on each device.

        >>> from spmd_helpers._hlo.parser import parse
        >>> module = parse('''HloModule jit_f
        ...
        ... ENTRY main {
        ...   x = f32[64,64] parameter(0)
        ...   w = f32[64,64] constant({...})
        ...   ROOT y = f32[64,64] add(x, w)
        ... }''')
        >>> constant_bytes(module)  # 64 * 64 floats of 4 bytes
        16384

    The compiler prints one again where it clones what uses it: it counts once.
    """
    sizes = {
        (i.name.partition(".clone")[0], i.type): sum(s.nbytes for s in i.shapes)
        for computation in module.computations.values()
        for i in computation.instructions
        if i.opcode == "constant"
    }
    return sum(size for size in sizes.values() if size >= _LARGE)
