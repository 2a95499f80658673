"""Chapter 14: right and wrong answers."""

from . import Answers

ROWS = "def fewest_rows(d, f, chip, each=2):\n"
RATIO = "    ratio = chip.bf16_flops_per_s / chip.memory_bytes_per_s\n"
STEP = "def step_seconds(seen, chip):\n"
PARTS = "    parts = predict(seen, chip)\n"
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
CHOOSE = "def choose(model, batch, seq):\n"

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
            "a, b, c, bound = 61.44, 1293.5, 1 / 6, ' b '",
        ],
        wrong=[
            ('a, b, c, bound = 64, 8192, 1 / 6, "b"', "look again at a, b"),
            (  # the result's bytes are forgotten
                "a = 64 * 2048 * 6144 / (64 * 2048 + 2048 * 6144)\n"
                "b = 8192 * 2048 * 6144 / (8192 * 2048 + 2048 * 6144)\n"
                "c = 1 / 4\n"
                'bound = "b"',
                "look again at a, b, c",
            ),
            (  # FLOPs counted once for each multiply and add
                "a = 64 * 2048 * 6144 / (64 * 2048 + 2048 * 6144 + 64 * 6144) / 2\n"
                "b = 1293.47\n"
                'c, bound = 1 / 6, "b"',
                "look again at a:",
            ),
            ('a, b, c, bound = 61.44, 1293.5, 1 / 6, "abc"', "bound = 'abc'"),
            ('a, b, c, bound = 61.44, 1293.5, 1 / 6, "ab"', "bound = 'ab'"),
            ('a, b, c, bound = 61.44, 1293.5, 1 / 6, ""', "bound = ''"),
            ('a = b = c = float("nan")\nbound = "b"', "look again at a, b, c"),
            ('a, b, c, bound = 61.44, 1293.5, "1/6", "b"', "c: '1/6' is no number"),
        ],
    ),
    "14.2": Answers(
        right=[
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
                "is too few|fewer do as well|no number is enough",
            ),
            (ROWS + '    return "300"', "'300' is no row count"),
            (ROWS + RATIO + "    return int(np.ceil(ratio))", "is too few: to read"),
            (ROWS + "    return 300", "is too few"),
            (ROWS + '    return float("inf")', "inf is no row count"),
            (ROWS + "    return None", "there is one"),
            (  # what if D and F are small
                ROWS
                + RATIO
                + "    left = 2 * d * f - ratio * each * (d + f)\n"
                + "    return int(np.ceil(ratio * each * d * f / left))",
                "no number is enough",
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
                "fewer do as well",
            ),
            (  # a search that gives up
                ROWS + "    for B in range(1, 1000):\n"
                "        flops, moved = product(B, d, f, each)\n"
                "        if (flops / chip.bf16_flops_per_s\n"
                "                >= moved / chip.memory_bytes_per_s):\n"
                "            return B",
                "512 × 248 on v5p, 2 bytes each: None, and there is one",
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
                "half: bytes that one device sends (or passes on) of what",
            ),
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
        ],
        wrong=[
            (  # both axes on the same links
                STEP + PARTS + "    return max(parts.values()), sum(parts.values())",
                "a loop on v5p: least",
            ),
            (  # loops are not counted
                STEP
                + AXES.replace("total_wire_bytes", "wire_bytes")
                + PARTS
                + BUSY
                + BOTH,
                "a loop on v5p: least",
            ),
            (  # the reduce-scatter is not corrected
                STEP + AXES.replace("size /= 2", "pass") + PARTS + BUSY + BOTH,
                "an FSDP gradient on v5p",
            ),
            (  # a GPU's axes have links of their own
                STEP
                + AXES.replace('c.axes if chip.kind == "tpu" else "all"', "c.axes")
                + PARTS
                + BUSY
                + BOTH,
                "a loop on h100: least",
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
                "a loop on",
            ),
            (STEP + '    return float("nan"), float("nan")', "least nan s"),
            (STEP + AXES + PARTS + BUSY + "    return (max(busy),)", "is not a pair"),
            (STEP + AXES + PARTS + BUSY + "    return max(busy)", "is not a pair"),
            (  # one link
                STEP
                + AXES.replace("axis_bytes_per_s(chip)", "chip.link_bytes_per_s")
                + PARTS
                + BUSY
                + BOTH,
                "on v5p",
            ),
            (  # memory is forgotten
                STEP
                + AXES
                + PARTS
                + '    busy = [parts["compute"], *axes.values()]\n'
                + BOTH,
                "most",
            ),
            (STEP + AXES + PARTS + BUSY + "    return sum(busy), max(busy)", "least"),
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
            ('winner, times, same_at = "fsdp", 3, 24576', "'fsdp': one sends"),
            (  # the gradient's reduce-scatter is forgotten
                'winner, times, same_at = "tensor parallel", 2, 16384',
                "2 times",
            ),
            (  # rows of one device
                'winner, times, same_at = "tensor parallel", 3, 24576 / 8',
                "how many rows, of all devices together",
            ),
            (
                'winner, times, same_at = "tensor parallel", "3 times", 24576',
                "'3 times' is no number",
            ),
            (  # the all-reduces counted once, not twice
                'winner, times, same_at = "tensor parallel", 6, 49152',
                "6 times",
            ),
        ],
    ),
    "14.6": Answers(
        right=[
            CHOOSE + "    best, least = None, float('inf')\n"
            "    for split in (1, 4, 16, 64):\n"
            "        mesh = 64 // split, split\n"
            "        if not mesh_fits(model, *mesh, batch, seq):\n"
            "            continue\n"
            "        took = sum(mesh_parts(model, *mesh, batch, seq).values())\n"
            "        if took < least:\n"
            "            best, least = mesh, took\n"
            "    return best",
            CHOOSE + "    def fits(split):\n"
            "        try:\n"
            "            return spmd.training_memory(\n"
            "                model, mesh={'data': 64 // split, 'model': split},\n"
            "                batch=batch, seq=seq, recompute='nothing_saveable',\n"
            "                attention='flash').fits('v5p')\n"
            "        except spmd.NotDivisible:\n"
            "            return False\n"
            "    times = sorted(\n"
            "        (sum(mesh_parts(model, 64 // n, n, batch, seq).values()), n)\n"
            "        for n in (1, 4, 16, 64) if fits(n))\n"
            "    return (64 // times[0][1], times[0][1]) if times else None",
            CHOOSE + "    times = {}\n"
            "    for n in (1, 4, 16, 64):\n"
            "        if mesh_fits(model, 64 // n, n, batch, seq):\n"
            "            parts = mesh_parts(model, 64 // n, n, batch, seq)\n"
            "            times[64 // n, n] = sum(parts.values())\n"
            "    return jnp.array(min(times, key=times.get)) if times else None",
        ],
        wrong=[
            (  # a table of the tried cases, else the most usual
                CHOOSE
                + "    tried = {(80, 32, 8192): (16, 4), (80, 64, 8192): (64, 1),\n"
                "             (96, 64, 2048): (16, 4), (96, 128, 2048): (64, 1),\n"
                "             (96, 16, 2048): (4, 16), (126, 64, 8192): None,\n"
                "             (32, 4, 2048): (4, 16), (80, 8, 4096): None}\n"
                "    return tried.get((model.layers, batch, seq), (16, 4))",
                "times as long|does not fit",
            ),
            (CHOOSE + "    return 16, 4", "times as long|does not fit"),
            (  # whether it fits is not asked
                CHOOSE + "    return min(((64, 1), (16, 4), (4, 16), (1, 64)),\n"
                "        key=lambda m: sum(\n"
                "            mesh_parts(model, *m, batch, seq).values()))",
                "does not fit",
            ),
            (  # the least model parallelism that fits, as in chapter 9
                CHOOSE + "    for n in (1, 4, 16, 64):\n"
                "        if mesh_fits(model, 64 // n, n, batch, seq):\n"
                "            return 64 // n, n",
                "times as long",
            ),
            (CHOOSE + "    return ()", "() is no (data, model)"),
            (CHOOSE + "    return 16", "16 is no (data, model)"),
            (  # off the wires
                CHOOSE + "    return 32, 2",
                "is not on the wires",
            ),
            (  # a part of the machine
                CHOOSE + "    return 16, 1",
                "(16, 1) is for 16 chips, not for 64",
            ),
            (  # as if everything overlapped: the first of equals
                CHOOSE + "    fit = [m for m in ((1, 64), (4, 16), (64, 1), (16, 4))\n"
                "           if mesh_fits(model, *m, batch, seq)]\n"
                "    return min(fit, default=None, key=lambda m: max(\n"
                "        mesh_parts(model, *m, batch, seq).values()))",
                "times as long",
            ),
            (CHOOSE + "    return None", "None, and 1 of 4 fit"),
            (CHOOSE + "    return '16', '4'", "('16', '4') is no (data, model)"),
        ],
    ),
}
