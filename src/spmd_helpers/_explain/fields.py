"""What is read from an error's message, made fit for a sentence or a line of code."""

import re
import string
from collections.abc import Mapping

from .._core.validate import did_you_mean
from .._core.words import (
    JAX_PMAP_AXIS,
    PMAP_AXIS,
    bytes_words,
    count_words,
    device_list,
    join_words,
)

_SHARDED = re.compile(r"@(?:\([^)]*\)|\w+)")
_QUOTED = re.compile(r"'([^']*)'")
_KNOWN = {
    "ARG_SHARDING": "in_shardings",
    "explicit output sharding": "out_shardings",
    "sharding_constraint inside jit": "a constraint inside",
    "shard_map inside jit": "the mesh of shard_map",
    "shardings": "with_sharding_constraint",
    "rolled": "roll",
    "reduced": "A cumulative sum",
    "slicing": "A slice",
    "padding": "pad",
    "tiling": "tile",
}
_LEAVES = {"in_specs": "P()", "out_specs": "P()", "in_axes": "0"}


def placeholders(template: str) -> list[str]:
    """The names in a template's braces.

    Example:
        >>> placeholders("P({axis!r}) cuts {size} {{'w': 1}}")
        ['axis', 'size']
    """
    parts = string.Formatter().parse(template)
    return [name for _, name, _, _ in parts if name]


def readable(groups: Mapping[str, str | None]) -> dict[str, str]:
    """What a pattern's groups hold, in a reader's words, and what follows from them.

    Example:
        >>> groups = {"shape": "(10, 3)", "dim": "0", "size": "10", "parts": "8"}
        >>> words = readable(groups)
        >>> words["more"], words["pads"]        # 16 is the next multiple of 8
        ('16', '((0, 6), (0, 0))')
        >>> readable({"axis": "modle", "axes": "('data', 'model')"})["near"]
        "Did you mean 'model'?"

    Args:
        groups: name of a group → the text it matched; None if it matched none.

    Returns:
        Name → words. Beside the groups' own names:
        `near`, `first` and `axes_code` from `axes` (and `axis`);
        `more` and `pads` from `parts`, `size`, `dim` and `shape`;
        `shorter` and `entries` from `spec` and `rank`; `ids_list` from `ids`;
        `type_spec` from `type`; `gained` and `lost`, the axes along which `type_out`
        varies and `type` does not, and the reverse; `one_leaf` from `argument`.
    """
    raw = {
        name: (text or "").replace(repr(JAX_PMAP_AXIS), PMAP_AXIS)
        for name, text in groups.items()
    }
    words = {name: _words(name, text) for name, text in raw.items()}
    if "axes" in raw:
        names = _names(raw["axes"])
        words["near"] = did_you_mean(raw.get("axis", ""), names).strip()
        words["first"] = names[0] if names else "x"
        words["axes_code"] = repr(names[0] if len(names) == 1 else tuple(names))
    if {"parts", "size"} <= raw.keys():
        words |= _padding(raw)
    if {"spec", "rank"} <= raw.keys():
        rank = int(raw["rank"])
        words["shorter"] = f"P({', '.join(_entries(raw['spec'])[:rank])})"
        words["entries"] = count_words(rank, "entry", "entries")
    for name in ("ids", "ids_other"):
        if name in raw:
            words[f"{name}_list"] = _shortened(_numbers(raw[name]))
    for name in ("type", "type_out"):
        if name in raw:
            words[f"{name}_spec"] = _spec_of_type(raw[name])
    if {"type", "type_out"} <= raw.keys():
        words["gained"] = _axes_code(_gained(raw))
        words["lost"] = _axes_code(_lost(raw))
    if "argument" in raw:
        leaf = _LEAVES.get(raw["argument"], "NamedSharding(mesh, P())")
        words["one_leaf"] = leaf
    return words


def same_devices(groups: Mapping[str, str | None]) -> bool:
    """Whether two lists of device numbers hold the same ones."""
    first, second = (_numbers(groups[name]) for name in ("ids", "ids_other"))
    return sorted(first) == sorted(second)


def gains_axes(groups: Mapping[str, str | None]) -> bool:
    """Whether what comes out varies along an axis along which the input does not."""
    return bool(_gained(groups))


def another_sharding(groups: Mapping[str, str | None]) -> bool:
    """Whether two types have the same shape and different shardings."""
    first, second = groups["type"] or "", groups["type_out"] or ""
    bare = [_SHARDED.sub("", one) for one in (first, second)]
    return bare[0] == bare[1] and first != second


def free_explicit_axes(groups: Mapping[str, str | None]) -> bool:
    """Whether a spec names Explicit axes only, of a mesh that has Manual ones too."""
    mesh = groups["mesh"] or ""
    types = re.findall(r"\w+", mesh.partition("axis_types=")[2])
    of_axis = dict(zip(re.findall(r"'([^']+)': \d+", mesh), types, strict=False))
    named = {of_axis.get(axis) for axis in _names(groups["spec"] or "")}
    return named == {"Explicit"} and "Manual" in types


def other_platforms(groups: Mapping[str, str | None]) -> bool:
    """Whether two things are on devices of two kinds, a GPU and the CPU."""
    return groups["platform"] != groups["platform_other"]


CHECKS = {
    "same devices": same_devices,
    "other platforms": other_platforms,
    "gains axes": gains_axes,
    "another sharding": another_sharding,
    "free explicit axes": free_explicit_axes,
}


def _varying(type_: str | None) -> list[str]:
    """The axes after V: in float32[2]{V:(data,model)}; {data,model} in older JAX."""
    axes = re.search(r"\{(?:V:)?\(?([\w,]+)\)?\}", type_ or "")
    return axes[1].split(",") if axes else []


def _gained(groups: Mapping[str, str | None]) -> list[str]:
    before = _varying(groups["type"])
    return [axis for axis in _varying(groups["type_out"]) if axis not in before]


def _lost(groups: Mapping[str, str | None]) -> list[str]:
    after = _varying(groups["type_out"])
    return [axis for axis in _varying(groups["type"]) if axis not in after]


def _axes_code(axes: list[str]) -> str:
    return repr(axes[0] if len(axes) == 1 else tuple(axes))


def _spec_of_type(type_: str) -> str:
    """P('data', None) for float32[16@data,4]; P() where nothing is sharded."""
    shape = re.search(r"\[(.*?@.*?)\]", type_)
    if not shape:
        return "P()"
    sizes = re.findall(r"(?:[^,(]|\([^)]*\))+", shape[1])
    axes = [_names(size.partition("@")[2]) for size in sizes]
    return f"P({', '.join(_axes_code(one) if one else 'None' for one in axes)})"


def _words(name: str, text: str) -> str:
    kind = name.split("_")[0]
    if text.startswith("<class '"):
        kind_name = text[len("<class '") :].split("'")[0].rpartition(".")[2]
        return kind_name if name == "kind" else f"a {kind_name}"
    if kind == "spec":
        return ("P" if text.startswith("(") else "") + text.replace(",)", ")")
    if name in ("value", "types"):
        return _short(text)
    if kind == "mesh":
        return _mesh(text)
    if kind == "sharding":
        return _sharding(text)
    if kind == "ids":
        return _devices(_numbers(text))
    if kind == "axes":
        return join_words([f"'{one}'" for one in _names(text)])
    if kind in ("left", "right"):
        inner = text.strip()[1:-1].rstrip(",")
        return "unsharded" if inner == "None" else f"over {inner}"
    if name == "bytes" and text.isdigit():
        return bytes_words(int(text))
    if name == "there":
        return text.replace("'", "")
    if name == "kind":
        return text.rpartition(".")[2]
    if name == "shape" and text.startswith("["):
        return "(" + ", ".join(text.strip("[]").split(",")) + ")"
    if name == "type" and text.endswith("."):
        return text[:-1]
    return _KNOWN.get(text, text)


def _names(text: str) -> list[str]:
    """The axis names in ('data', 'model'), frozenset({'x'}), 'x' or data,model."""
    quoted = _QUOTED.findall(text)
    return quoted or [one.strip() for one in text.strip("()").split(",") if one.strip()]


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "")]


def _devices(ids: list[int]) -> str:
    one = "device " if len(ids) == 1 else "devices "
    return one + device_list(ids)


def _mesh(text: str) -> str:
    """'data=4 × model=2 (Auto)' for Mesh('data': 4, 'model': 2, axis_types=…)."""
    axes = re.findall(r"'([^']+)'[:,] (\d+)", text)
    types = re.search(r"axis_types=\(([^)]*)\)", text)
    kinds = dict.fromkeys(re.findall(r"\w+", types[1])) if types else {}
    words = " × ".join(f"{axis}={size}" for axis, size in axes)
    return words + (f" ({', '.join(kinds)})" if kinds else "")


def _sharding(text: str) -> str:
    spec = re.search(r"spec=(P\(.*\)), memory_kind", text)
    one = re.search(r"device=\w+\(id=(\d+)\)", text)
    if spec:
        return _words("spec", spec[1])
    return f"on device {one[1]}" if one else text


def _short(text: str) -> str:
    """A value's own words without those that say nothing here."""
    specs = re.findall(r"spec=(P\(.*?\))(?:, memory_kind=\w+)?\)", text)
    if specs:
        return " and ".join(_words("spec", spec) for spec in specs)
    plain = re.sub(r"\(\{.*?\}\)|, axis_types=\([^)]*\)", "", text)
    return plain.removesuffix(".")


def _shortened(numbers: list[int]) -> str:
    words = [str(number) for number in numbers]
    return f"[{', '.join(words if len(words) <= 8 else [*words[:4], '…'])}]"


def _padding(raw: Mapping[str, str]) -> dict[str, str]:
    """The next size that divides, and the pads of every dimension up to it."""
    size, parts = int(raw["size"]), int(raw["parts"])
    missing = -size % max(parts, 1)
    words = {"more": str(size + missing)}
    if {"shape", "dim"} <= raw.keys():
        rank, dim = len(_numbers(raw["shape"])), int(raw["dim"])
        pads = [f"(0, {missing if i == dim else 0})" for i in range(rank)]
        words["pads"] = f"({', '.join(pads)}{',' if rank == 1 else ''})"
    return words


def _entries(spec: str) -> list[str]:
    """The entries of P('data', ('model', 'x'), None), each as its text."""
    inner = spec.strip()[2:-1].rstrip(",")
    return [one.strip() for one in re.findall(r"(?:\([^)]*\)|[^,])+", inner)]
