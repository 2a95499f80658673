"""Chapter 14: its checks, judged by right and wrong answers."""

from functools import partial

import jax
import pytest
from jax import lax

import spmd_helpers as spmd
from spmd_exercises._setting import abstract, make_mesh, on

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter14(AnswersAreJudged):
    pass


@pytest.mark.parametrize(
    ("ways", "bytes_of_a_layer"),
    [((8, 1), 3 * 2 * 7 / 8 * 256 * 1024 * 4), ((1, 8), 2 * 2 * 7 / 8 * 512 * 256 * 4)],
    ids=["fsdp", "tensor parallel"],
)
def test_what_exercise_5_counts_is_what_a_program_sends(ways, bytes_of_a_layer):
    """Weights three times, or two all-reduces of the activations."""
    mesh = make_mesh(**dict(zip(("data", "model"), ways, strict=True)))

    def layer(h, w):
        hidden = jax.nn.relu(h @ w["w1"])
        hidden = lax.with_sharding_constraint(hidden, on(mesh, "data", "model"))
        h = lax.with_sharding_constraint(h + hidden @ w["w2"], on(mesh, "data"))
        return h, None

    def loss(params, x):
        return (lax.scan(layer, x, params)[0] ** 2).mean()

    places = {
        "w1": on(mesh, None, "data", "model"),
        "w2": on(mesh, None, "model", "data"),
    }
    shapes = {"w1": (4, 256, 1024), "w2": (4, 1024, 256)}
    params = {name: abstract(shapes[name], places[name]) for name in shapes}
    x = abstract((512, 256), on(mesh, "data"))
    report = spmd.xray(jax.grad(loss), params, x, jit={"out_shardings": places})
    sent = sum(
        one.total_wire_bytes / (1 + (one.lowered_as == "all-reduce + dynamic-slice"))
        for one in report.collectives
    )
    assert sent / 4 == pytest.approx(bytes_of_a_layer, rel=0.01)


def given():
    """What the chapter's cells have made where its answers stand."""

    def product(B, D, F, each=2):
        return 2 * B * D * F, each * (B * D + D * F + B * F)

    def axis_bytes_per_s(chip):
        return (2 if chip.kind == "tpu" else 1) * chip.link_bytes_per_s

    return imports() | {
        "partial": partial,
        "MiB": 2**20,
        "product": product,
        "axis_bytes_per_s": axis_bytes_per_s,
        "mesh_parts": mesh_parts,
        "mesh_fits": mesh_fits,
    }


def mesh_parts(model, data, split, batch, seq):
    dimensions, v5p = {1: 1, 4: 1, 16: 2, 64: 3}, spmd.HARDWARE["v5p"]
    W = 2 * v5p.link_bytes_per_s
    flops = model.flops(batch, seq, recompute="nothing_saveable")
    weights = 2 * model.layers * model.layer_parameters / split
    stream = 2 * model.layers * model.d_model * batch * seq / data
    return {
        "compute": flops / 64 / v5p.bf16_flops_per_s,
        "weights": 3 * (data - 1) / data * weights / (W * dimensions[data]),
        "activations": 10 * (split - 1) / split * stream / (W * dimensions[split]),
    }


def mesh_fits(model, data, split, batch, seq):
    try:
        return spmd.training_memory(
            model,
            mesh={"data": data, "model": split},
            batch=batch,
            seq=seq,
            recompute="nothing_saveable",
            attention="flash",
        ).fits("v5p")
    except spmd.NotDivisible:
        return False


ROWS = "def fewest_rows(d, f, chip, each=2):\n"
RATIO = "    ratio = chip.bf16_flops_per_s / chip.memory_bytes_per_s\n"
STEP = "def step_seconds(seen, chip):\n"
PARTS = """    arrays = spmd.memory((seen.input_shardings, seen.output_shardings))
    sent = sum(c.total_wire_bytes / (1 + (c.lowered_as is not None))
               for c in seen.collectives)
    parts = {"compute": seen.flops_per_device / chip.bf16_flops_per_s,
             "memory": arrays.largest_device_bytes / chip.memory_bytes_per_s,
             "wires": sent / axis_bytes_per_s(chip)}
"""
BUSY = '    busy = [parts["compute"], parts["memory"], *axes.values()]\n'
BOTH = "    return max(busy), sum(busy)"
AXES = """    axes = {}
    for c in seen.collectives:
        size = c.total_wire_bytes
        if c.lowered_as == "all-reduce + dynamic-slice":
            size /= 2
        links = c.axes if chip.kind == "tpu" else "all"
        axes[links] = axes.get(links, 0) + size / axis_bytes_per_s(chip)
"""
CHOOSE = "def choose(plan, more):\n"

ANSWERS = {
    "14.1": Answers(
        right=[
            "def intensity(*sizes):\n"
            "    flops, moved = product(*sizes)\n"
            "    return flops / moved\n"
            "a = intensity(64, 2048, 6144)\n"
            "b = intensity(8192, 2048, 6144)\n"
            "c = (512 * 4096) / (3 * 2 * 512 * 4096)\n"
            'bound = "b"',
            'a, b, c, bound = 61.44, 1293.5, 0.1667, ["b"]',
            "a, b, c = np.float32(61.4), jnp.float32(1293), np.float64(1 / 6)\n"
            'bound = "b"',
            "a, b, c, bound = 61.44, 1293.5, 1 / 6, ' B '",
            "a, b, c, bound = 61.44, np.array(1293.5), 1 / 6, {'b'}",
            ("a, b, c, bound = 61, 1293, 0.17, 'b'"),
        ],
        wrong=[
            (
                'a, b, c, bound = 64, 8192, 1 / 6, "b"',
                "look again at a, which is 64, b, which is 8192.",
            ),
            (  # the result's bytes are forgotten
                "a = 64 * 2048 * 6144 / (64 * 2048 + 2048 * 6144)\n"
                "b = 8192 * 2048 * 6144 / (8192 * 2048 + 2048 * 6144)\n"
                "c = 1 / 4\n"
                'bound = "b"',
                "look again at a, which is 63.34, b, which is 3511, c, which is 0.25.",
            ),
            (  # FLOPs counted once for each multiply and add
                "a = 64 * 2048 * 6144 / (64 * 2048 + 2048 * 6144 + 64 * 6144) / 2\n"
                "b = 1293.47\n"
                'c, bound = 1 / 6, "b"',
                "look again at a, which is 30.72.",
            ),
            ('a, b, c, bound = 61.44, 1293.5, 1 / 6, "abc"', "bound is 'abc'. An H100"),
            ('a, b, c, bound = 61.44, 1293.5, 1 / 6, "ab"', "bound is 'ab'. An H100"),
            ('a, b, c, bound = 61.44, 1293.5, 1 / 6, ""', "bound is ''. An H100"),
            ('a, b, c, bound = 61.44, 1293.5, 1 / 6, "only b"', "has to be letters"),
            ("a, b, c, bound = 61.44, 1293.5, 1 / 6, None", "bound is None, but has"),
            ("a, b, c, bound = 61.44, 1293.5, 1 / 6, [2]", "bound is [2], but has"),
            (YES + "a = b = c = bound = Yes()", "is not a number"),
            (  # bytes of float32
                'a, b, c, bound = 30.72, 646.7, 1 / 12, "b"',
                "how many bytes is a bfloat16?",
            ),
            ('a = b = c = float("nan")\nbound = "b"', "look again at a, which is nan"),
            ('a, b, c, bound = 61.44, 1293.5, "1/6", "b"', "c: '1/6' is not a number"),
        ],
    ),
    "14.2": Answers(
        right=[
            "from fractions import Fraction\n"
            "from functools import cache\n"
            "@cache\n" + ROWS + "    ratio = Fraction(chip.bf16_flops_per_s)\n"
            "    ratio /= Fraction(chip.memory_bytes_per_s)\n"
            "    a_row = 2 * d * f - ratio * each * (d + f)\n"
            "    if a_row > 0:\n"
            "        return -(-ratio * each * d * f // a_row)",
            ROWS + "    def enough(B):\n"
            "        flops, moved = product(B, d, f, each)\n"
            "        return (flops / chip.bf16_flops_per_s\n"
            "                >= moved / chip.memory_bytes_per_s)\n"
            "    if not enough(2**50):\n"
            "        return None\n"
            "    low, high = 0, 2**50\n"
            "    while high - low > 1:\n"
            "        middle = (low + high) // 2\n"
            "        low, high = (low, middle) if enough(middle) else (middle, high)\n"
            "    return high",
            ROWS
            + RATIO
            + "    per_row = 2 / each / ratio - 1 / d - 1 / f\n"
            + "    return None if per_row <= 0 else -int(-1 / per_row // 1)",
            ROWS
            + RATIO
            + "    left = 2 * d * f - ratio * each * (d + f)\n"
            + "    return np.ceil(ratio * each * d * f / left) if left > 0 else None",
        ],
        wrong=[
            (  # a table of the tried cases
                ROWS
                + "    tried = {(8192, 8192): 319, (4096, 1536): 653,\n"
                + "             (512, 384): 682, (512, 300): None, (2048, 640): None,\n"
                + "             (5120, 13824): 147}\n"
                + "    return tried.get((d, f), 319)",
                "which is too few|which is too many|but no number is enough",
            ),
            (ROWS + '    return "300"', "is not a number"),
            (
                ROWS + RATIO + "    return int(np.ceil(ratio))",
                "which is too few: with that many rows",
            ),
            (ROWS + "    return 300", "300, which is too few"),
            (ROWS + "    pass", "is None, but there is such a number"),
            (ROWS + "    return 319.5", "is 319.5, but has to be 1, 2, 3"),
            (ROWS + "    return float('nan')", "is nan, but has to be 1, 2, 3"),
            ("fewest_rows = 319", "has to be a function"),
            (YES + ROWS + "    return Yes()", "is not a number"),
            (  # a search that gives up after a million
                ROWS + "    def enough(B):\n"
                "        flops, moved = product(B, d, f, each)\n"
                "        return (flops / chip.bf16_flops_per_s\n"
                "                >= moved / chip.memory_bytes_per_s)\n"
                "    low, high = 0, 10**6\n"
                "    while high - low > 1:\n"
                "        middle = (low + high) // 2\n"
                "        if enough(middle):\n"
                "            high = middle\n"
                "        else:\n"
                "            low = middle\n"
                "    return high if enough(high) else None",
                "FLOPs per byte, 2) is None, but there is such a number",
            ),
            (  # by the data sheet of the name, not the chip that came
                ROWS
                + "    chip = next(one for one in spmd.HARDWARE.values()\n"
                + "                if one.device_kind == chip.device_kind)\n"
                + RATIO
                + "    left = 2 * d * f - ratio * each * (d + f)\n"
                + "    if left <= 0:\n        return None\n"
                + "    return int(np.ceil(ratio * each * d * f / left))",
                "which is too few",
            ),
            (  # one row more, in the case of equal times
                ROWS
                + RATIO
                + "    left = 2 * d * f - ratio * each * (d + f)\n"
                + "    if left <= 0:\n        return None\n"
                + "    return int(ratio * each * d * f / left) + 2",
                "which is too many: with one row fewer compute takes",
            ),
            (ROWS + '    return float("inf")', "is inf, but has to be 1, 2, 3"),
            (ROWS + "    return None", "but there is such a number"),
            (  # what if D and F are small
                ROWS
                + RATIO
                + "    left = 2 * d * f - ratio * each * (d + f)\n"
                + "    return int(np.ceil(ratio * each * d * f / left))",
                "but has to be 1, 2, 3|but no number is enough",
            ),
            (  # always two bytes
                ROWS
                + RATIO
                + "    left = d * f - ratio * (d + f)\n"
                + "    if left <= 0:\n        return None\n"
                + "    return int(np.ceil(ratio * d * f / left))",
                "is too few",
            ),
            (  # rounded down
                ROWS
                + RATIO
                + "    left = 2 * d * f - ratio * each * (d + f)\n"
                + "    if left <= 0:\n        return None\n"
                + "    return int(ratio * each * d * f / left)",
                "is too few",
            ),
            (  # safe, but not the fewest
                ROWS
                + RATIO
                + "    left = 2 * d * f - ratio * each * (d + f)\n"
                + "    if left <= 0:\n        return None\n"
                + "    return 2 * int(ratio * each * d * f / left)",
                "which is too many: with one row fewer",
            ),
            (  # a search that gives up
                ROWS + "    for B in range(1, 1000):\n"
                "        flops, moved = product(B, d, f, each)\n"
                "        if (flops / chip.bf16_flops_per_s\n"
                "                >= moved / chip.memory_bytes_per_s):\n"
                "            return B",
                "fewest_rows(512, 248, v5p, 2) is None, but there is such a number",
            ),
            (  # longer, not as long
                ROWS
                + RATIO
                + (
                    "    left = 2 * d * f - ratio * each * (d + f)\n"
                    "    return int(ratio * each * d * f / left // 1) + 1 if"
                    " left > 0 else None"
                ),
                "which is too many",
            ),
        ],
    ),
    "14.3": Answers(
        right=[
            'W = axis_bytes_per_s(spmd.HARDWARE["v5p"]) / 1e3\n'
            "blocks = 512 * MiB / 8\n"
            "gather = 7 * blocks / W\n"
            "reduce = 14 * blocks / W\n"
            "exchange = 16 * 512 * MiB / 8**2 / W\n"
            "half = 7 * (256 * MiB / 8) / W",
            "gather, reduce, exchange, half = 2.61, 5.22, 0.746, 1.305",
            "gather = np.float32(2.6098)\n"
            "reduce, exchange, half = 2 * gather, jnp.float32(0.7457), gather / 2",
        ],
        wrong=[
            (  # one link
                "gather = 7 / 8 * 512 * MiB / 9e10 * 1e3\n"
                "reduce, half = 2 * gather, gather / 2\n"
                "exchange = 512 * MiB / (4 * 9e10) * 1e3",
                "look again at gather, reduce, exchange, half",
            ),
            (  # an all-reduce as one gather, and the switch's all-to-all
                "gather = 7 / 8 * 512 * MiB / 1.8e11 * 1e3\n"
                "reduce, half = gather, gather / 2\n"
                "exchange = gather / 8",
                "look again at reduce, exchange",
            ),
            (  # seconds
                "gather = 7 / 8 * 512 * MiB / 1.8e11\n"
                "reduce, half = 2 * gather, gather / 2\n"
                "exchange = 512 * MiB / (4 * 1.8e11)",
                "look again at gather, reduce, exchange, half",
            ),
            (  # the other axis is overlooked
                "gather = half = 7 / 8 * 512 * MiB / 1.8e11 * 1e3\n"
                "reduce = 2 * gather\n"
                "exchange = 512 * MiB / (4 * 1.8e11) * 1e3",
                "half is 2.61. How large is the array that one ring gathers?",
            ),
            (  # megabytes
                "gather = 7 / 8 * 512e6 / 1.8e11 * 1e3\n"
                "reduce, exchange, half = 2 * gather, 512e6 / 7.2e8, gather / 2",
                "an MiB is 2**20 bytes",
            ),
            ("gather = reduce = exchange = half = np.nan", "gather is nan."),
            (
                "gather = reduce = exchange = half = '2.6'",
                "gather: '2.6' is not a number",
            ),
            (YES + "gather = reduce = exchange = half = Yes()", "is not a number"),
        ],
    ),
    "14.4": Answers(
        right=[
            STEP
            + PARTS
            + "    def along(axis):\n"
            + "        each = [c.total_wire_bytes\n"
            + '                / (2 if (c.lowered_as or "").endswith("slice") else 1)\n'
            + "                for c in seen.collectives if c.axes == (axis,)]\n"
            + "        return sum(each) / axis_bytes_per_s(chip)\n"
            + '    wires = [along("data"), along("model")]\n'
            + '    if chip.kind == "gpu":\n'
            + "        wires = [sum(wires)]\n"
            + '    busy = [parts["compute"], parts["memory"]] + wires\n'
            + BOTH,
            STEP
            + PARTS
            + "    total = least = parts['wires']\n"
            + "    if chip.kind == 'tpu':\n"
            + "        model = sum(c.total_wire_bytes for c in seen.collectives\n"
            + "                    if 'model' in c.axes) / axis_bytes_per_s(chip)\n"
            + "        least = max(model, total - model)\n"
            + "    busy = parts['compute'], parts['memory']\n"
            + "    return max(*busy, least), sum(busy) + total",
            STEP
            + AXES
            + PARTS
            + BUSY
            + "    return [jnp.float32(max(busy)), sum(busy)]",
            STEP + AXES + PARTS + BUSY + "    return np.array([max(busy), sum(busy)])",
            STEP
            + AXES.replace("c.total_wire_bytes", "c.count * c.wire_bytes").replace(
                'chip.kind == "tpu"', 'chip.device_kind.startswith("TPU")'
            )
            + PARTS
            + BUSY
            + BOTH,
        ],
        wrong=[
            (  # both axes on the same links
                STEP + PARTS + "    return max(parts.values()), sum(parts.values())",
                "on a TPU (v5p with other speeds): least is",
            ),
            (  # every reduce-scatter is halved, also one that is compiled as one
                STEP
                + AXES.replace(
                    'c.lowered_as == "all-reduce + dynamic-slice"',
                    'c.kind == "reduce-scatter"',
                )
                + PARTS
                + BUSY
                + BOTH,
                "a reduce-scatter along `data` by hand, with",
            ),
            (  # every collective that is not written as itself
                STEP
                + AXES.replace('c.lowered_as == "all-reduce + dynamic-slice"', "True")
                + PARTS
                + BUSY
                + BOTH,
                "a loop of 9 all-reduces",
            ),
            (STEP + "    return None", "is None, but has to be a pair (least, most)"),
            (STEP + '    return "1", "2"', "'1' is not a number"),
            (YES + STEP + "    return Yes(), Yes()", "is not a number"),
            ("step_seconds = 1, 2", "has to be a function"),
            (  # loops are not counted
                STEP
                + AXES.replace("total_wire_bytes", "wire_bytes")
                + PARTS
                + BUSY
                + BOTH,
                "Does each iteration count",
            ),
            (  # the reduce-scatter is not corrected
                STEP + AXES.replace("size /= 2", "pass") + PARTS + BUSY + BOTH,
                "of an FSDP gradient, on a TPU (v5p with",
            ),
            (  # a GPU's axes have links of their own
                STEP
                + AXES.replace('c.axes if chip.kind == "tpu" else "all"', "c.axes")
                + PARTS
                + BUSY
                + BOTH,
                "on a GPU (h100 with other speeds): least is",
            ),
            (  # the speeds of the data sheet, by the chip's name
                STEP
                + AXES.replace(
                    "axis_bytes_per_s(chip)",
                    "{'NVIDIA H100 80GB HBM3': 450e9}.get(chip.device_kind, 180e9)",
                )
                + PARTS
                + BUSY
                + BOTH,
                "step_seconds of a loop",
            ),
            (STEP + '    return float("nan"), float("nan")', "least is nan s"),
            (
                STEP + AXES + PARTS + BUSY + "    return (max(busy),)",
                "has to be a pair",
            ),
            (STEP + AXES + PARTS + BUSY + "    return max(busy)", "has to be a pair"),
            (  # one link
                STEP
                + AXES.replace("axis_bytes_per_s(chip)", "chip.link_bytes_per_s")
                + PARTS
                + BUSY
                + BOTH,
                "on a TPU (v5p with other speeds)",
            ),
            (  # memory is forgotten
                STEP
                + AXES
                + PARTS
                + '    busy = [parts["compute"], *axes.values()]\n'
                + BOTH,
                "most",
            ),
            (
                STEP + AXES + PARTS + BUSY + "    return sum(busy), max(busy)",
                "which is too long",
            ),
        ],
    ),
    "14.5": Answers(
        right=[
            'winner, times, same_at = "tensor parallel", 3.0, 24576',
            'winner, times, same_at = "Tensor parallel", np.int64(3), jnp.int32(24576)',
            "weights, rows = 3 * 2 * 4096 * 16384 * 2, 4 * 8192 * 4096 * 2\n"
            "times = weights / rows\n"
            'winner = "tensor parallel" if times > 1 else "fsdp"\n'
            "same_at = 8192 * times",
            "winner, times, same_at = 'tensor-parallel', 3, 24576",
        ],
        wrong=[
            ('winner, times, same_at = "fsdp", 3, 24576', "winner is 'fsdp'. Both"),
            ("winner, times, same_at = None, 3, 24576", "which is not one of"),
            ('winner, times, same_at = ["fsdp"], 3, 24576', "which is not one of"),
            (YES + "winner = times = same_at = Yes()", "which is not one of"),
            (
                'winner, times, same_at = "tensor parallel", np.nan, 24576',
                "times is nan",
            ),
            (  # the ratio of the other to the loser
                'winner, times, same_at = "tensor parallel", 1 / 3, 24576',
                "times is 0.333",
            ),
            (  # the gradient's reduce-scatter is forgotten
                'winner, times, same_at = "tensor parallel", 2, 16384',
                "times is 2. How often does FSDP communicate each weight",
            ),
            (  # rows of one device
                'winner, times, same_at = "tensor parallel", 3, 24576 / 8',
                "the rows of all devices together?",
            ),
            (
                'winner, times, same_at = "tensor parallel", "3 times", 24576',
                "'3 times' is not a number",
            ),
            (  # the all-reduces counted once, not twice
                'winner, times, same_at = "tensor parallel", 6, 49152',
                "how often does one of them send its array?",
            ),
        ],
    ),
    "14.6": Answers(
        right=[
            CHOOSE + "    if not plan.fitting:\n"
            "        return None\n"
            "    most = plan.best.total_s * (1 + more)\n"
            "    some = [one for one in plan.fitting if one.total_s <= most]\n"
            "    return sorted(some, key=lambda one: one.memory_bytes)[0]",
            CHOOSE + "    best = None\n"
            "    for one in plan.strategies:\n"
            "        if not one.fits:\n"
            "            continue\n"
            "        if one.total_s > (1 + more) * plan.best.total_s:\n"
            "            break\n"
            "        if best is None or one.left_bytes > best.left_bytes:\n"
            "            best = one\n"
            "    return best",
            CHOOSE + "    times = [(one.total_s, one.memory_bytes, n)\n"
            "             for n, one in enumerate(plan.strategies) if one.fits]\n"
            "    if not times:\n"
            "        return None\n"
            "    most = (1 + more) * min(times)[0]\n"
            "    memory, n = min((m, n) for s, m, n in times if s <= most)\n"
            "    return plan.strategies[n]",
        ],
        wrong=[
            (  # the fastest, whatever may be given up
                CHOOSE + "    return plan.best if plan.fitting else None",
                "times the memory of another that is fast enough",
            ),
            (  # the smallest, however slow
                CHOOSE + "    return min(plan.fitting, default=None,\n"
                "               key=lambda one: one.memory_bytes)",
                "as long as the fastest that fits. It may take 1 times",
            ),
            (  # the ties, whatever `more` is
                CHOOSE + "    return min(plan.ties, default=None,\n"
                "               key=lambda one: one.memory_bytes)",
                "as long as the fastest that fits",
            ),
            (  # whether it fits is not asked
                CHOOSE + "    most = (1 + more) * min(\n"
                "        one.total_s for one in plan.strategies)\n"
                "    return min((one for one in plan.strategies\n"
                "                if one.total_s <= most),\n"
                "               key=lambda one: one.memory_bytes)",
                "does not fit|none of these strategies fits",
            ),
            (  # the slowest that is allowed
                CHOOSE + "    if not plan.fitting:\n"
                "        return None\n"
                "    most = (1 + more) * plan.best.total_s\n"
                "    return [one for one in plan.fitting\n"
                "            if one.total_s <= most][-1]",
                "times the memory of another",
            ),
            (  # the nearest, where nothing fits
                CHOOSE + "    some = plan.fitting or plan.strategies\n"
                "    most = (1 + more) * some[0].total_s\n"
                "    return min((one for one in some if one.total_s <= most),\n"
                "               key=lambda one: one.memory_bytes)",
                "none of these strategies fits",
            ),
            (  # more as a factor
                CHOOSE + "    if not plan.fitting:\n"
                "        return None\n"
                "    most = max(1, more) * plan.best.total_s\n"
                "    return min((one for one in plan.fitting\n"
                "                if one.total_s <= most),\n"
                "               key=lambda one: one.memory_bytes)",
                "times the memory of another",
            ),
            (CHOOSE + "    return None", "is None, but has to be a strategy"),
            (CHOOSE + "    return 1", "is 1, but has to be a strategy of the plan"),
            (
                CHOOSE + "    return plan.strategies[0].mesh",
                "but has to be a strategy of the plan",
            ),
            (YES + CHOOSE + "    return Yes()", "has to be a strategy of the plan"),
        ],
    ),
}
