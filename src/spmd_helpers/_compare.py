"""How one array or number differs from what it must be, in words."""


def leaf_difference(got, want, rtol: float) -> str:
    """How one leaf differs, in words; empty if it does not."""
    import numpy as np

    if isinstance(want, str):
        return "" if type(got) is str and got == want else f"{got!r} is not right"
    try:
        have, must = np.asarray(got), np.asarray(want)
    except Exception:  # whatever a strange object's conversion raises
        return f"a {type(got).__name__} is not a number or an array"
    if have.dtype.kind in "OUSV" and have.dtype.name != "bfloat16":
        return f"{got!r} is not a number or an array"
    if have.shape != must.shape:
        return f"shape {have.shape}, and it must be {must.shape}"
    if (have.dtype.kind == "b") != (must.dtype.kind == "b"):
        return f"{have.dtype} values, and they must be {must.dtype}"
    if must.dtype.kind in "biu":
        equal = have == must
        if np.all(equal):
            return ""
        if must.ndim == 0:
            return f"{have} is not right"
        return f"{np.sum(~equal)} of {must.size} values are not right"
    have, must = have.astype(np.float64), must.astype(np.float64)
    return _float_difference(have, must, rtol)


def _float_difference(have, must, rtol: float) -> str:
    import numpy as np

    scale = np.max(np.abs(must), initial=0.0)
    off = np.max(np.abs(have - must), initial=0.0)
    if off <= rtol * scale:
        return ""
    if not np.all(np.isfinite(have)):
        return f"{np.sum(~np.isfinite(have))} of {have.size} values are not finite"
    name = f"{have}" if have.ndim == 0 else "every value"
    if scale > 0:
        factor = float(np.sum(have * must) / np.sum(must * must))
        off_factor = np.max(np.abs(have - factor * must))
        if f"{factor:.3g}" != "1" and off_factor <= 1e-4 * abs(factor) * scale:
            times = f"{factor:.4g} times" if factor else "zero, and not"
            return f"{name} is {times} what it must be"
    if have.ndim == 0:
        return f"{have} is not right (off by {off:.2g}, and {rtol * scale:.2g} may be)"
    return f"off by up to {off:.2g}, and {rtol * scale:.2g} may be"
