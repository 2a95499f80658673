"""Chapter 15: its checks, judged by right and wrong answers."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from tests.book.chapters import run
from tools.measure.gathered import apply, gather, serial

from .judging import YES, Answers, AnswersAreJudged, cells, imports


class TestChapter15(AnswersAreJudged):
    pass


def given():
    """What the chapter's cells have made where its answers stand."""
    traced = {row["name"]: row for row in spmd.load_measured("gpu-traced")}

    def read(name):
        row = traced[name]
        return spmd.read_trace(row["path"], row["hlo"], "h200")

    return imports() | {
        "partial": partial,
        "log": {row["name"]: row for row in spmd.load_measured("gpu-log")},
        "traced": traced,
        "read": read,
        "gather": gather,
        "apply": apply,
        "serial": serial,
    }


VERDICT = "def verdict(old, new):\n"
EXPOSED = "def exposed(kernels, collectives):\n"
AHEAD = "def ahead(h, stack, unroll=1):\n"
CANDIDATES = "def candidates(rows, limit_bytes, error):\n"
PER_FLOP = """    def per_flop(row, end):
        return row[end] / row["model_flops"]
"""
FIT = """    fit = [r for r in rows if r["peak_bytes"] <= limit_bytes]
    least = min([r["predicted_s"] for r in fit], default=0)
"""

# Answers to 15.5 whose collectives the GPU's own schedule hides, and does not hide.
HIDDEN = {
    "scan": AHEAD
    + "    def layer(carry, shard):\n"
    + "        h, w = carry\n"
    + "        return (apply(h, w), gather(shard)), None\n"
    + "    (h, w), _ = lax.scan(\n"
    + "        layer, (h, gather(stack[0])), stack[1:], unroll=unroll)\n"
    + "    return apply(h, w)",
    "jitted": "@partial(jax.jit, static_argnames='unroll')\n"
    + AHEAD
    + "    def one(carry, i):\n"
    + "        h, w = carry\n"
    + "        inner = jnp.tanh(jnp.einsum('bd,df->bf', h, w))\n"
    + "        h += jnp.einsum('bf,df->bd', inner, w)\n"
    + "        return (h, gather(stack[i])), None\n"
    + "    numbers = jnp.arange(1, len(stack))\n"
    + "    (h, w), _ = lax.scan(\n"
    + "        one, (h, gather(stack[0])), numbers, unroll=unroll)\n"
    + "    return apply(h, w)",
}
WAITING = {
    "serial": "ahead = serial",
    "two at a time": AHEAD
    + "    def layer(h, shard):\n"
    + "        return apply(h, gather(shard)), None\n"
    + "    return lax.scan(layer, h, stack, unroll=2)[0]",
}

ANSWERS = {
    "15.1": Answers(
        right=[
            "share_of_peak, recomputed, least = 0.607, 0.506, 0.2167",
            "share_of_peak, recomputed, least = 0.61, 0.51, 0.22",  # two digits
            "needed, peak = 6e14, 4 * 989e12\n"
            "share_of_peak = np.float32(needed / 0.25 / peak)\n"
            "recomputed = jnp.float32(needed / 0.3 / peak)\n"
            "least = needed / peak / 0.7",
        ],
        wrong=[
            (  # what is recomputed counts as needed
                "share_of_peak, recomputed, least = 0.607, 0.6744, 0.2167",
                "look again at recomputed.\nrecomputed is 0.6744. Does the model need",
            ),
            (  # of one card
                "share_of_peak, recomputed, least = 2.427, 2.022, 0.8667",
                "look again at share_of_peak, recomputed, least",
            ),
            (  # at the peak of the sheet
                "share_of_peak, recomputed, least = 0.607, 0.506, 0.1517",
                "least is 0.1517. How many FLOPs do all cards together sustain",
            ),
            (  # two digits, but others
                "share_of_peak, recomputed, least = 0.61, 0.51, 0.21",
                "look again at least.\nleast is 0.21.",
            ),
            (  # percent
                "share_of_peak, recomputed, least = 60.7, 50.6, 0.2167",
                "look again at share_of_peak, recomputed.",
            ),
            (
                "share_of_peak = recomputed = least = float('nan')",
                "share_of_peak is nan",
            ),
            ("share_of_peak = recomputed = least = '0.6'", "'0.6' is not a number"),
            (YES + "share_of_peak = recomputed = least = Yes()", "is not a number"),
        ],
    ),
    "15.2": Answers(
        right=[
            VERDICT
            + PER_FLOP
            + '    if per_flop(new, "most_s") < per_flop(old, "least_s"):\n'
            '        return "faster"\n'
            '    if per_flop(new, "least_s") > per_flop(old, "most_s"):\n'
            '        return "slower"\n'
            '    return "tie"',
            VERDICT + '    scale = old["model_flops"] / new["model_flops"]\n'
            '    low, high = new["least_s"] * scale, new["most_s"] * scale\n'
            '    faster, slower = high < old["least_s"], low > old["most_s"]\n'
            '    return ["tie", "Faster", "slower"][faster + 2 * slower]',
        ],
        wrong=[
            (  # by medians
                VERDICT + '    old, new = (r["median_s"] / r["model_flops"]\n'
                "                for r in (old, new))\n"
                '    return "faster" if new < old else "slower"',
                "Do the two ranges of seconds per FLOP of the model overlap?",
            ),
            (  # seconds, whatever the batch
                VERDICT + '    if new["most_s"] < old["least_s"]:\n'
                '        return "faster"\n'
                '    return "slower" if new["least_s"] > old["most_s"] else "tie"',
                "verdict for the change 'batch 8' is 'slower'",
            ),
            (  # one range against the other's median
                VERDICT
                + PER_FLOP
                + '    if per_flop(new, "most_s") < per_flop(old, "median_s"):\n'
                '        return "faster"\n'
                '    if per_flop(new, "least_s") > per_flop(old, "median_s"):\n'
                '        return "slower"\n'
                '    return "tie"',
                "Do the two ranges of seconds per FLOP of the model overlap?",
            ),
            (VERDICT + '    return "tie"', "is 'tie'"),
            (VERDICT + '    return "gain"', "which is not one of"),
            (VERDICT + "    pass", "is None, which is not one of"),
            ('verdict = "tie"', "has to be a function"),
            (  # what is faster and slower, turned round
                VERDICT
                + PER_FLOP
                + '    if per_flop(new, "most_s") < per_flop(old, "least_s"):\n'
                '        return "slower"\n'
                '    if per_flop(new, "least_s") > per_flop(old, "most_s"):\n'
                '        return "faster"\n'
                '    return "tie"',
                "seconds per FLOP",
            ),
            (YES + VERDICT + "    return Yes()", "which is not one of"),
        ],
    ),
    "15.3": Answers(
        right=[
            EXPOSED + "    def merged(pairs):\n"
            "        out = []\n"
            "        for start, end in sorted(pairs):\n"
            "            if out and start <= out[-1][1]:\n"
            "                out[-1][1] = max(out[-1][1], end)\n"
            "            else:\n"
            "                out.append([start, end])\n"
            "        return out\n"
            "    busy = merged(kernels)\n"
            "    total = 0.0\n"
            "    for start, end in merged(collectives):\n"
            "        hidden = sum(max(0, min(end, b) - max(start, a))\n"
            "                     for a, b in busy)\n"
            "        total += end - start - hidden\n"
            "    return total",
            EXPOSED + "    events = []\n"
            "    for which, pairs in enumerate((kernels, collectives)):\n"
            "        for start, end in pairs:\n"
            "            events += [(start, which, 1), (end, which, -1)]\n"
            "    running, last, total = [0, 0], 0.0, 0.0\n"
            "    for at, which, change in sorted(events):\n"
            "        if running[1] and not running[0]:\n"
            "            total += at - last\n"
            "        running[which] += change\n"
            "        last = at\n"
            "    return np.float64(total)",
        ],
        wrong=[
            (  # all of the collectives
                EXPOSED + "    return sum(end - start for start, end in collectives)",
                "exposed of a hidden collective",
            ),
            (  # the sums of both
                EXPOSED + "    return max(0, sum(b - a for a, b in collectives)\n"
                "               - sum(b - a for a, b in kernels))",
                "which is too little|which is too much",
            ),
            (  # kernels that overlap are taken off twice
                EXPOSED + "    total = 0\n"
                "    for start, end in collectives:\n"
                "        total += end - start - sum(\n"
                "            max(0, min(end, b) - max(start, a))\n"
                "            for a, b in kernels)\n"
                "    return total",
                "exposed of two collectives at once",
            ),
            (  # the same, of merged collectives
                EXPOSED + "    times = sorted({t for p in collectives for t in p})\n"
                "    total = 0\n"
                "    for s, e in zip(times, times[1:]):\n"
                "        if any(a <= s and e <= b for a, b in collectives):\n"
                "            total += e - s - sum(\n"
                "                max(0, min(e, b) - max(s, a)) for a, b in kernels)\n"
                "    return total",
                "exposed of kernels that overlap",
            ),
            (  # what no lane uses is taken for exposed
                EXPOSED
                + "    ends = [t for p in [*kernels, *collectives] for t in p]\n"
                "    if not ends:\n        return 0\n"
                "    return max(ends) - min(ends) - sum(b - a for a, b in kernels)",
                "which is too",
            ),
            (EXPOSED + "    return 0.0", "is 0, which is too little"),
            (EXPOSED + "    return float('nan')", "is nan, which is too little"),
            (EXPOSED + "    pass", "None is not a number"),
            ("exposed = 0.0", "has to be a function"),
            (YES + EXPOSED + "    return Yes()", "is not a number"),
        ],
    ),
    "15.4": Answers(
        right=[
            'line, kind, times = "model.py:236", "all-gather", 1.062',
            "step = read('fsdp cudnn overlapped')\n"
            "line, kind = 'model.py:236', 'All-gather'\n"
            "gone = sum(p.exposed_s for p in step.exposed\n"
            "           if (p.source, p.kind) == (line, kind.lower()))\n"
            "times = step.total_s / (step.total_s - gone)",
        ],
        wrong=[
            (  # the first of the list only
                "step = read('fsdp cudnn overlapped')\n"
                "first = step.exposed[0]\n"
                "line, kind = first.source, first.kind\n"
                "times = step.total_s / (step.total_s - first.exposed_s)",
                "times is 1.00",
            ),
            (  # all seconds of the collectives, hidden ones too
                "step = read('fsdp cudnn overlapped')\n"
                "line, kind = 'model.py:236', 'all-gather'\n"
                "gone = sum(p.seconds for p in step.parts\n"
                "           if (p.source, p.kind) == (line, kind))\n"
                "times = step.total_s / (step.total_s - gone)",
                "without the exposed seconds of these collectives",
            ),
            (  # a share
                'line, kind, times = "model.py:236", "all-gather", 0.0586',
                "times is 0.0586",
            ),
            (
                'line, kind, times = "model.py:236", "reduce-scatter", 1.017',
                "kind is 'reduce-scatter'.",
            ),
            (  # the second line of the table
                'line, kind, times = "model.py:221", "all-gather", 1.062',
                "line is 'model.py:221'.",
            ),
            (
                'line, kind, times = "model.py:236", "gather", 1.062',
                "which is not one of",
            ),
            ('line, kind, times = 236, "all-gather", 1.062', "line is 236. Write it"),
            (
                'line, kind, times = "model.py:236", "all-gather", np.nan',
                "times is nan",
            ),
            (YES + "line = kind = times = Yes()", "Write it as the table does"),
        ],
    ),
    "15.5": Answers(
        right=[
            *HIDDEN.values(),
            # The columns of the next weight, in two halves.
            AHEAD + "    def halves(shard):\n"
            "        return tuple(map(gather, jnp.split(shard, 2, axis=1)))\n"
            "    def layer(carry, shard):\n"
            "        h, ws = carry\n"
            "        h = apply(h, jnp.concatenate(ws, axis=1))\n"
            "        return (h, halves(shard)), None\n"
            "    start = h, halves(stack[0])\n"
            "    (h, ws), _ = lax.scan(layer, start, stack[1:], unroll=unroll)\n"
            "    return apply(h, jnp.concatenate(ws, axis=1))",
        ],
        wrong=[
            (WAITING["serial"], "collectives of 6 of 6 layers have no product"),
            (WAITING["two at a time"], "collectives of 3 of 6 layers have no product"),
            (  # the compiler gathers many of them before the first product
                AHEAD + "    w = gather(stack[0])\n"
                "    for i in range(1, stack.shape[0]):\n"
                "        following = gather(stack[i])\n"
                "        h, w = apply(h, w), following\n"
                "    return apply(h, w)",
                "layers beside the shards, and two are enough",
            ),
            (  # the same by a scan
                AHEAD + "    def layer(h, shard):\n"
                "        return apply(h, gather(shard)), None\n"
                "    return lax.scan(layer, h, stack, unroll=True)[0]",
                "layers beside the shards, and two are enough",
            ),
            (  # all layers at once
                AHEAD + "    w = lax.all_gather(stack, 'data', axis=1, tiled=True)\n"
                "    return lax.scan(lambda h, w: (apply(h, w), None), h, w)[0]",
                "has the weights of several layers",
            ),
            (  # all layers first, one at a time
                AHEAD + "    w = lax.map(gather, stack)\n"
                "    return lax.scan(lambda h, w: (apply(h, w), None), h, w)[0]",
                "collectives of 6 of 6 layers have no product",
            ),
            (  # the first layer is gathered again at the end
                AHEAD + "    def layer(carry, shard):\n"
                "        h, w = carry\n"
                "        return (apply(h, w), gather(shard)), None\n"
                "    rolled = jnp.roll(stack, -1, axis=0)\n"
                "    return lax.scan(layer, (h, gather(stack[0])), rolled)[0][0]",
                "to gather each layer once it has to send",
            ),
            (  # the last layer is forgotten
                AHEAD + "    def layer(carry, shard):\n"
                "        h, w = carry\n"
                "        return (apply(h, w), gather(shard)), None\n"
                "    return lax.scan(\n"
                "        layer, (h, gather(stack[0])), stack[1:])[0][0]",
                "is the last layer there?",
            ),
            (  # the gather waits for the products
                AHEAD + "    def layer(carry, shard):\n"
                "        h, w = carry\n"
                "        h, shard = lax.optimization_barrier((apply(h, w), shard))\n"
                "        return (h, gather(shard)), None\n"
                "    (h, w), _ = lax.scan(layer, (h, gather(stack[0])), stack[1:])\n"
                "    return apply(h, w)",
                "collectives of 6 of 6 layers have no product",
            ),
            (  # a product that nothing needs, to hide behind
                AHEAD + "    def layer(h, shard):\n"
                "        idle = h @ jnp.ones((h.shape[1],) * 2)\n"
                "        return apply(h, gather(shard)) + 0 * idle.min(), None\n"
                "    return lax.scan(layer, h, stack)[0]",
                "is a product repeated, or is there one that no layer needs?",
            ),
            (  # half of a weight hides behind the products of the other half
                AHEAD + "    def layer(h, shard):\n"
                "        left, right = jnp.split(shard, 2, axis=1)\n"
                "        a, b = gather(left), gather(right)\n"
                "        return apply(h, a) + apply(h, b) - h, None\n"
                "    return lax.scan(layer, h, stack)[0]",
                "collectives of 3 of 6 layers have no product to run beside",
            ),
            (  # a sum in place of a gather sends twice as much
                AHEAD + "    n, me = lax.axis_size('data'), lax.axis_index('data')\n"
                "    def gather(shard):\n"
                "        zeros = jnp.zeros((n, *shard.shape), shard.dtype)\n"
                "        every = lax.psum(zeros.at[me].set(shard), 'data')\n"
                "        return every.reshape(-1, shard.shape[1])\n"
                "    def layer(carry, shard):\n"
                "        h, w = carry\n"
                "        return (apply(h, w), gather(shard)), None\n"
                "    (h, w), _ = lax.scan(layer, (h, gather(stack[0])), stack[1:])\n"
                "    return apply(h, w)",
                "or sent another way?",
            ),
            (  # half precision
                AHEAD + "    def layer(carry, shard):\n"
                "        h, w = carry\n"
                "        return (apply(h, w), gather(shard)), None\n"
                "    stack = stack.astype(jnp.bfloat16).astype(jnp.float32)\n"
                "    (h, w), _ = lax.scan(layer, (h, gather(stack[0])), stack[1:])\n"
                "    return apply(h, w)",
                "own weights",
            ),
            (  # a loop whose trips no program says
                AHEAD + "    def one(carry):\n"
                "        i, h, w = carry\n"
                "        shard = lax.dynamic_index_in_dim(stack, i, keepdims=False)\n"
                "        return i + 1, apply(h, w), gather(shard)\n"
                "    end = jnp.int32(len(stack) + 0 * h[0, 0])\n"
                "    i, h, w = lax.while_loop(\n"
                "        lambda c: c[0] < end, one, (1, h, gather(stack[0])))\n"
                "    return apply(h, w)",
                "use lax.scan, lax.fori_loop or a Python loop|is a product repeated",
            ),
            (  # the last gather in a cond
                AHEAD + "    n = len(stack)\n"
                "    def layer(carry, i):\n"
                "        h, w = carry\n"
                "        following = lax.cond(\n"
                "            i + 1 < n,\n"
                "            lambda: gather(stack[(i + 1) % n]), lambda: w)\n"
                "        return (apply(h, w), following), None\n"
                "    return lax.scan(\n"
                "        layer, (h, gather(stack[0])), jnp.arange(n))[0][0]",
                "A gather in a cond counts each time: end the loop one layer earlier",
            ),
            (  # unroll goes nowhere
                HIDDEN["scan"].replace(", unroll=unroll", ""),
                "with unroll=2 is the same program as with unroll=1",
            ),
            (  # no such argument
                HIDDEN["scan"].replace(", unroll=1", "").replace(", unroll=unroll", ""),
                "unroll",
            ),
            (  # unrolled, the loop ends early
                HIDDEN["scan"].replace("stack[1:]", "stack[unroll:]"),
                "own weights",
            ),
            (AHEAD + "    return h", "own weights"),
            (AHEAD + "    pass", "raised|None"),
            ("ahead = None", "has to be a function"),
        ],
    ),
    "15.6": Answers(
        right=[
            CANDIDATES + FIT + '    return {r["name"] for r in fit\n'
            '            if 1 - least / r["predicted_s"] <= error}',
            CANDIDATES
            + "    names, rows = [], sorted(rows, key=lambda r: r['predicted_s'])\n"
            + "    fastest = None\n"
            + "    for row in rows:\n"
            + "        if row['peak_bytes'] > limit_bytes:\n"
            + "            continue\n"
            + "        fastest = fastest or row['predicted_s']\n"
            + "        if fastest >= (1 - error) * row['predicted_s']:\n"
            + "            names.append(row['name'])\n"
            + "    return names",
        ],
        wrong=[
            (  # the fastest that fits, ties or not
                CANDIDATES + FIT + '    return [r["name"] for r in fit\n'
                '            if r["predicted_s"] == least]',
                "that fit and are as near to the fastest",
            ),
            (  # all that fit
                CANDIDATES + FIT + '    return [r["name"] for r in fit]',
                "is that within the error?",
            ),
            (  # near to the fastest of all, also one that does not fit
                CANDIDATES
                + '    least = min(r["predicted_s"] for r in rows)\n'
                + '    return [r["name"] for r in rows\n'
                + '            if r["peak_bytes"] <= limit_bytes\n'
                + '            and 1 - least / r["predicted_s"] <= error]',
                "leaves out",
            ),
            (  # memory is not asked
                CANDIDATES
                + '    least = min(r["predicted_s"] for r in rows)\n'
                + '    return [r["name"] for r in rows\n'
                + '            if 1 - least / r["predicted_s"] <= error]',
                "which needs more memory than the limit",
            ),
            (  # the error in seconds
                CANDIDATES + FIT + '    return [r["name"] for r in fit\n'
                '            if r["predicted_s"] - least <= error]',
                "is that within the error?",
            ),
            (  # less than the error
                CANDIDATES + FIT + '    return [r["name"] for r in fit\n'
                '            if 1 - least / r["predicted_s"] < error]',
                "candidates(a tie at the error, 64 GiB, 25%) leaves out 1",
            ),
            (  # less than the limit
                CANDIDATES
                + FIT.replace("<= limit_bytes", "< limit_bytes")
                + '    return [r["name"] for r in fit\n'
                + '            if 1 - least / r["predicted_s"] <= error]',
                "candidates(a tie at the error, 64 GiB, 25%) leaves out 1",
            ),
            (  # over the mean of the two
                CANDIDATES + FIT + '    return [r["name"] for r in fit\n'
                '            if 2 * (r["predicted_s"] - least)\n'
                '            <= error * (r["predicted_s"] + least)]',
                "leaves out",
            ),
            (CANDIDATES + "    return []", "leaves out"),
            (CANDIDATES + "    return 'fsdp'", "has to be a list of names"),
            (CANDIDATES + "    return [1]", "which no row is called"),
            (CANDIDATES + "    return rows", "which no row is called"),
            (CANDIDATES + "    pass", "is None, but has to be a list of names"),
            ("candidates = []", "has to be a function"),
            (YES + CANDIDATES + "    return [Yes()]", "which no row is called"),
        ],
    ),
}


# --- What the check of 15.5 says is what the GPU's compiler makes ---------------------


@pytest.mark.compiler("gpu")
@pytest.mark.parametrize("name", ["book", *HIDDEN, *WAITING])
def test_a_gather_that_the_check_takes_for_hidden_is_hidden(name):
    """On four H200s, by the schedule of the program that is compiled for them."""
    answers = {**HIDDEN, **WAITING, "book": cells("15")["15.5"].solution}
    names = given()
    run(answers[name], names, name)
    f = names["ahead"]
    if name not in WAITING:  # the scheduler starts a gather early among several layers
        f = partial(f, unroll=4)
    mesh = spmd.gpu_mesh("h200:4", data=4)
    specs = P("data"), P(None, "data")
    mapped = jax.shard_map(
        f, mesh=mesh, in_specs=specs, out_specs=P("data"), check_vma=False
    )
    h, stack = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(((8192, 8192), (9, 8192, 8192)), specs, strict=True)
    )
    step = spmd.step_time(spmd.xray(mapped, h, stack))
    sent, waits = step.lanes["nvlink"], step.exposed_s
    if name in WAITING:
        assert waits > 0.45 * sent
    else:
        assert waits < 0.2 * sent
