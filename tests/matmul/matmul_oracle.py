"""What the matmul explorer must answer to a state, said by the Python package."""

import math
import random

from spmd_helpers._core.words import bytes_words
from spmd_helpers._errors import NotUnderstood, SpecError
from spmd_helpers._matmul.matmul import Matmul, matmul
from spmd_helpers._shardings.sharding import ShardingInfo, spec_words

from . import test_matmul

DEFAULTS = {
    "mesh": "data=4, model=2",
    "a": "P('data', 'model')",
    "b": "P('model', None)",
    "c": "",
    "i": "48",
    "j": "40",
    "k": "24",
    "dtype": "float32",
    "device": "5",
    "step": "0",
}
AT = {
    "I": "rows of C",
    "J": "J: partial sums",
    "K": "columns of C",
    "-": "nothing: all compute the same",
}
# Text for a key, and how the sentence about it begins.
BAD = [
    *(("mesh", text, "mesh") for text in ("x", "x=", "x=-2", "x=0", "2=x", "x=2, x=4")),
    ("mesh", "a=2, b=2, c=2, d=2", "mesh: 4 axes"),
    ("mesh", "x=1000000", "mesh: 1000000 devices"),
    ("mesh", "", "A: sharding="),
    *(("a", text, "A: “") for text in ("P(", "P('data'", "3", "P(0, )x", "P(-)")),
    *(("b", text, "B: “") for text in ("(((", "P('a' 'b')", "é")),
    *(("c", text, "C: “") for text in ("P(1)", "nothing at all")),
    *(
        ("ijk"[n % 3], text, f"{'IJK'[n % 3]}: “{text}” is not a size; give an ")
        for n, text in enumerate(
            ("", "0", "-8", "4.5", "1e3", "nan", "None", "1000001", "9" * 30, "x", "∞")
        )
    ),
    ("dtype", "int4", "dtype: “int4” is not known here"),
    ("dtype", "", "dtype: “” is not known here"),
]
MESHES = [(), (1,), (8,), (3,), (4, 2), (2, 4), (2, 2), (6, 4), (1, 4), (2, 2, 2)]
MESHES += [(4, 1, 2), (2, 4, 8), (16, 16)]
NAMES = ("data", "model", "x", "y", "pod_1", "_z")


def cases(seed: int, count: int) -> list[tuple[dict, dict]]:
    """States, as a person would type them, and the answers; about a fifth is bad."""
    draw, drawn = random.Random(seed), []
    while len(drawn) < count:
        sizes = draw.choice(MESHES)
        mesh = dict(zip(draw.sample(NAMES, len(sizes)), sizes, strict=True))
        devices = math.prod(sizes)
        times = (1, 2, 3, 5, 8, 12, 100, 10**6 // devices, 10**6 // devices - 1)
        state = {"mesh": ", ".join(f"{axis}={n}" for axis, n in mesh.items())}
        lengths = [devices * draw.choice(times) for _ in range(3)]
        if draw.random() < 0.05:
            lengths[draw.randrange(3)] += 1
        state |= dict(zip("ijk", map(str, lengths), strict=True))
        specs = [test_matmul.spec(draw, mesh, (2, 2, 1)) for _ in range(3)]
        wishes = [None, specs[2], ()]
        if draw.random() < 0.05 and mesh:
            specs[draw.randrange(2)] = draw.choice(
                [tuple([*mesh] * 2), (), (next(iter(mesh)), "mesh"), (None,) * 3]
            )
        try:
            natural = matmul(lengths, *specs[:2], mesh=mesh).c
            wishes += [natural.entries] if natural else []
        except SpecError:
            pass
        wish = draw.choice(wishes)
        typed = [typed_spec(draw, spec) for spec in specs[:2]]
        state |= dict(zip("ab", typed, strict=True))
        state["c"] = "" if wish is None else typed_spec(draw, wish)
        state["dtype"] = draw.choice(("float32", "bfloat16", "float16"))
        state["device"] = str(draw.randrange(devices))
        state["step"] = str(draw.randrange(5))
        given = (lengths, *specs[:2], mesh, wish)
        if draw.random() < 0.08:
            key, text, words = draw.choice(BAD)
            drawn.append((DEFAULTS | {key: text}, {"error": words}))
        elif max(lengths) <= 10**6:
            drawn.append((state, expected(*given, state)))
    return drawn


def typed_spec(draw: random.Random, entries) -> str:
    """A spec in one of the ways in which people type it."""
    full_entries = tuple(
        () if e is None else (e,) if isinstance(e, str) else e for e in entries
    )
    words = spec_words(full_entries)
    if draw.random() < 0.2:
        words = words.replace("'", '"')
    return words.replace("'", "") if draw.random() < 0.1 else words


def expected(sizes, a, b, mesh, wish, state: dict) -> dict:
    """The answer, without its code."""
    try:
        product = matmul(sizes, a, b, mesh=mesh, out=wish, dtype=state["dtype"])
    except (NotUnderstood, SpecError) as error:
        return {"error": str(error)}
    title, _, _ = product.sentence.partition(": ")
    worked = {"whyNot": product.why_not} if product.why_not else _worked(product, state)
    return {
        "title": title,
        "sentence": product.sentence,
        "mesh": [[axis, size] for axis, size in mesh.items()],
        "a": _side("A", product.a),
        "b": _side("B", product.b),
        "axes": [
            {
                "axis": axis,
                "size": mesh[axis],
                "cuts": product.kinds[axis],
                "case": product.cases[axis],
                "at": AT[product.cuts[axis]] if product.cuts else "",
            }
            for axis in product.kinds
        ],
        "steps": list(product.steps),
        "choice": product.choice,
        "pitfalls": list(product.pitfalls),
        "explicit": {
            "type": product.explicit.type or "",
            "error": product.explicit.error or "",
            "sentence": product.explicit.sentence,
        },
        **worked,
    }


def _worked(product: Matmul, state: dict) -> dict:
    stages = product.follow(int(state["device"]))
    return {
        "device": int(state["device"]),
        "step": min(int(state["step"]), len(stages) - 1),
        "stages": [_stage(stage) for stage in stages],
        "c": _side("C", product.c),
        "block": list(product.block),
        "flopsPerDevice": str(product.flops_per_device),
        "redundancy": product.redundancy,
        "idleAxes": list(product.idle_axes),
        "moves": [
            {
                **{"kind": move.kind, "of": move.of, "axes": list(move.axes)},
                **{"put": str(move.operand_bytes), "got": str(move.result_bytes)},
                "sent": str(move.wire_bytes),
                "formula": _formula(move, product.a.mesh_shape),
            }
            for move in product.moves
        ],
    }


def _stage(stage) -> dict:
    of = {name: getattr(stage, name) for name in "abc"}
    return {
        "heading": stage.heading,
        "sentence": stage.sentence,
        **{name: [list(part) for part in r or ()] for name, r in of.items()},
        "sums": stage.sums,
        "sources": list(stage.sources),
        "same": list(stage.same),
    }


def _formula(move, mesh) -> str:
    n = math.prod(mesh[axis] for axis in move.axes)
    put, got, sent = move.operand_bytes, move.result_bytes, move.wire_bytes
    return {
        "collective-permute": f"{sent} B",
        "all-gather": f"{n - 1}/{n} · {got} B = {sent} B",
        "all-reduce": f"2 · {n - 1}/{n} · {put} B = {sent} B",
    }.get(move.kind, f"{n - 1}/{n} · {put} B = {sent} B")


def _side(name: str, info: ShardingInfo) -> dict:
    owners = [{"block": list(b), "devices": list(d)} for b, d in info.owners.items()]
    size, shard = (
        ", ".join(map(str, info.shape)),
        " × ".join(map(str, info.shard_shape)),
    )
    return {
        "title": f"{name} [{size}]",
        "spec": spec_words(info.entries),
        "each": f"{shard} per device, {bytes_words(info.bytes_per_device)}",
        "shape": list(info.shape),
        "mesh": [[axis, n] for axis, n in info.axes],
        "entries": [list(entry) for entry in info.entries],
        "grid": list(info.grid),
        "shard": list(info.shard_shape),
        "devices": info.device_count,
        "replicas": info.replicas,
        "bytesPerDevice": str(info.bytes_per_device),
        "blocks": len(owners),
        "owners": owners[:64],
    }
