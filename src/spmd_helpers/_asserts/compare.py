"""How one array or number differs from what it must be, in words."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def leaf_difference(got: object, want: object, rtol: float) -> str:
    """How one leaf differs, in words; empty if it does not.

    Integers, booleans and texts must be equal; floats and complex numbers are
    within `rtol` of the largest finite magnitude in `want`. Infinite values and NaN
    must stand where they stand in `want`.
    """
    import numpy as np

    if isinstance(want, str):
        return "" if type(got) is str and got == want else f"{got!r} is not right"
    kinds: set[str | None]
    try:
        have, must = np.asarray(got), np.asarray(want)
        kinds = {_kind(have), _kind(must)}
    except Exception:  # whatever a strange object's conversion raises
        kinds = {None}
    if None in kinds:
        if axes := _not_added_over(got):
            return (
                "each device has only a partial sum: it is not added up over"
                f" {axes} yet"
            )
        return f"{_short(got)} is not a number or an array"
    if have.shape != must.shape:
        return f"shape {have.shape}, but it must be {must.shape}"
    if "b" in kinds and len(kinds) > 1:
        return f"{have.dtype} values, but they must be {must.dtype}"
    if "c" in kinds:
        return _float_difference(have.astype(complex), must.astype(complex), rtol)
    if _kind(must) == "f":
        return _float_difference(have.astype(float), must.astype(float), rtol)
    equal = have == must
    if np.all(equal):
        return ""
    if must.ndim == 0:
        return f"{have} is not right"
    return f"{np.sum(~equal)} of {must.size} values are not right"


def _not_added_over(value: object) -> str:
    """The mesh axes over which an array is not added up; it has no values then."""
    spec = getattr(getattr(value, "sharding", None), "spec", None)
    return " and ".join(sorted(map(str, getattr(spec, "unreduced", None) or ())))


def _kind(array: "NDArray[Any]") -> str | None:
    """'b' for booleans, 'i' integer, 'f' float, 'c' complex; None for anything else."""
    kind, name = array.dtype.kind, array.dtype.name
    if kind in "iu" or (kind == "V" and name.startswith(("int", "uint"))):
        return "i"
    if kind == "V" and "float" in name:  # bfloat16 and smaller: types NumPy lacks
        return "f"
    return kind if kind in "bfc" else None


def _short(value: object) -> str:
    words = repr(value)
    return words if len(words) < 40 else f"a value of type {type(value).__name__}"


def _float_difference(have: "NDArray[Any]", must: "NDArray[Any]", rtol: float) -> str:
    import numpy as np

    finite = np.isfinite(must)
    lost = finite & ~np.isfinite(have)
    if np.any(lost):
        return f"{np.sum(lost)} of {have.size} values are not finite"
    odd = ~finite & ~((have == must) | (np.isnan(have) & np.isnan(must)))
    if np.any(odd):
        return (
            f"{np.sum(odd)} of {have.size} values are not infinite or NaN as expected"
        )
    have, must = np.where(finite, have, 0), np.where(finite, must, 0)
    scale = np.max(np.abs(must), initial=0.0)
    off = np.max(np.abs(have - must), initial=0.0)
    if off <= rtol * scale:
        return ""
    if scale > 0 and not np.iscomplexobj(must):
        factor = float(np.sum(have * must) / np.sum(must * must))
        apart = np.max(np.abs(have - factor * must))
        if f"{factor:.3g}" != "1" and apart <= 1e-4 * abs(factor) * scale:
            name = f"{have}" if have.ndim == 0 else "every value"
            times = f"{factor:.4g} times" if factor else "zero, not"
            return f"{name} is {times} the expected value"
    if have.ndim == 0:
        return f"{have} is not right: off by {off:.2g}, tolerance {rtol * scale:.2g}"
    return f"off by up to {off:.2g}, tolerance {rtol * scale:.2g}"
