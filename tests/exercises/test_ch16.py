"""Chapter 16: its checks, judged by right and wrong answers."""

from functools import partial

from jax.sharding import AxisType

from spmd_exercises._setting import devices, make_mesh

from .judging import Answers, AnswersAreJudged, imports


class TestChapter16(AnswersAreJudged):
    pass


def given():
    """What the chapter's cells have made where its answers stand."""
    return imports() | {
        "partial": partial,
        "devices": devices(8),
        "auto": (AxisType.Auto,) * 2,
        "mesh": make_mesh(data=2, model=4),
        "turned": make_mesh(model=4, data=2),
        "N": 240,
        "B": 24,
        "D": 10,
        "F": 6,
    }


YES = """
class Yes:
    def __eq__(self, other):
        return True
"""

LOCAL = "def local_batch(step, process_index, process_count):\n"
REPORT = "def report(errors, valid):\n"
PROGRAM = "def program(p, rows, each, together, say):\n"
SCHEDULE = "def schedule(count, many):\n"
ENOUGH = "def enough(count, idle):\n"
CAPACITY = "def capacity_for(choice, count):\n"

GOOD_SCHEDULE = (
    SCHEDULE + "    return [[t - s if 0 <= t - s < many else None\n"
    "             for s in range(count)] for t in range(many + count - 1)]\n"
)
GOOD_ENOUGH = (
    ENOUGH + "    many = 1\n"
    "    while (count - 1) > (idle + 1e-9) * (many + count - 1):\n"
    "        many += 1\n"
    "    return many\n"
)
STEPS = """    for s in range(min(rows) // each):
        together("step")
        if s % 2:
            value = together("evaluate")
            if p == 0:
                say(f"step {s}: {value}")
"""

ANSWERS = {
    "16.1": Answers(
        right=[
            "a, b = 48 // 2, 48 // 2\nc = d = e = 48",
            "def rows_of(grid, *entries):\n"
            "    place = NamedSharding(grid, P(*entries))\n"
            "    where = place.devices_indices_map((48,))\n"
            "    mine = [where[d][0] for d in grid.devices.flat[4:]]\n"
            "    return len(set().union(*[range(48)[m] for m in mine]))\n"
            "a, b = rows_of(mesh, 'data'), rows_of(mesh, ('data', 'model'))\n"
            "c, d = rows_of(mesh, 'model'), rows_of(mesh)\n"
            "e = rows_of(turned, 'data')",
            "a, b, c, d, e = 24.0, np.int64(24), jnp.int32(48), np.float32(48), 48",
        ],
        wrong=[
            (
                "a = b = c = d = e = 24",
                "look again at c, which is 24, d, which is 24, e, which is 24.",
            ),
            ("a = b = c = d = e = 48", "look again at a, which is 48, b, which is 48."),
            (  # what one device holds
                "a, b, c, d, e = 24, 6, 12, 48, 24",
                "look again at b, which is 6, c, which is 12, e, which is 24.",
            ),
            (  # the turned mesh is not seen
                "a, b, c, d, e = 24, 24, 48, 48, 24",
                "look again at e, which is 24.",
            ),
            (YES + "a = b = c = d = e = Yes()", "is not a number"),
            ("a, b, c, d, e = '24', 24, 48, 48, 48", "a: '24' is not a number"),
            ("a, b, c, d, e = 24, [24], 48, 48, None", "b: [24] is not a number"),
            (
                "a, b, c, d, e = np.nan, 24, 24.5, 48.5, 48",
                "look again at a, which is nan, c, which is 24.5, d, which",
            ),
        ],
    ),
    "16.2": Answers(
        right=[
            LOCAL + "    epoch = step * B // N\n"
            "    order = np.random.default_rng(epoch).permutation(N)\n"
            "    batch = order.reshape(N // B, B)[step % (N // B)]\n"
            "    return np.split(batch, process_count)[process_index]",
            LOCAL + "    order = np.random.default_rng(step // 10).permutation(240)\n"
            "    rows = order.reshape(10, process_count, -1)\n"
            "    return [int(i) for i in rows[step % 10, process_index]]",
            LOCAL + "    epoch, s = step // (N // B), step % (N // B)\n"
            "    order = np.random.default_rng(epoch).permutation(N)\n"
            "    each = B // process_count\n"
            "    first = s * B + process_index * each\n"
            "    return jnp.asarray(order)[first:first + each]",
        ],
        wrong=[
            (  # right numbers that can't be used as indices
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    order = np.random.default_rng(epoch).permutation(N)\n"
                "    batch = order[s * B:(s + 1) * B]\n"
                "    return np.split(batch / 1, process_count)[process_index]",
                "has the dtype float64, but an index is an integer",
            ),
            (  # everybody loads everything
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    order = np.random.default_rng(epoch).permutation(N)\n"
                "    return order[s * B:(s + 1) * B]",
                "local_batch(25, 0, 2) has shape (24,), and has to have 12",
            ),
            (  # everybody the first part
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    order = np.random.default_rng(epoch).permutation(N)\n"
                "    return order[s * B:(s + 1) * B][:B // process_count]",
                "have 12 different rows, but the batch has 24",
            ),
            (  # each process shuffles on its own
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    rng = np.random.default_rng([epoch, process_index])\n"
                "    each = B // process_count\n"
                "    first = s * B + process_index * each\n"
                "    return rng.permutation(N)[first:first + each]",
                "2 processes: all parts together have 23 different rows",
            ),
            (  # every n-th row: the batch has another order
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    order = np.random.default_rng(epoch).permutation(N)\n"
                "    return order[s * B:(s + 1) * B][process_index::process_count]",
                "2 processes: entry 1 of all parts together is row",
            ),
            (  # each process has its own half of the data set
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    order = np.random.default_rng(epoch).permutation(N)\n"
                "    mine = np.split(order, process_count)[process_index]\n"
                "    each = B // process_count\n"
                "    return mine[s * each:(s + 1) * each]",
                "2 processes: entry 0 of all parts together is row",
            ),
            (  # the order of the first epoch for ever
                LOCAL + "    order = np.random.default_rng(0).permutation(N)\n"
                "    batch = order[step % (N // B) * B:][:B]\n"
                "    return np.split(batch, process_count)[process_index]",
                "but in the order of epoch 2 it is row",
            ),
            (
                LOCAL + "    order = np.random.default_rng(step // 10).permutation(N)\n"
                "    order.reshape(10, process_count, -1)[step % 10, process_index]",
                "local_batch(25, 0, 1) is None, but has to be an array",
            ),
            (LOCAL + "    return 24", "has shape (), and has to have 24 indices"),
            (LOCAL + "    return 'all'", "is 'all', but has to be an array"),
            (YES + LOCAL + "    return Yes()", "has shape ()"),
            (
                YES + LOCAL + "    return [Yes()] * (24 // process_count)",
                "has the dtype object",
            ),
            ("local_batch = np.arange(24)", "has to be a function"),
            (  # only the counts that are powers of two
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    order = np.random.default_rng(epoch).permutation(N)\n"
                "    batch = order[s * B:(s + 1) * B]\n"
                "    for _ in range(process_count.bit_length() - 1):\n"
                "        half = len(batch) // 2\n"
                "        process_count //= 2\n"
                "        first = process_index < process_count\n"
                "        batch = batch[:half] if first else batch[half:]\n"
                "        process_index %= process_count\n"
                "    return batch",
                "local_batch(25, 0, 3) has shape (12,), and has to have 8",
            ),
            (  # a generator that goes on: another order at each call
                "order = np.random.default_rng(0)\n" + LOCAL + ""
                "    batch = order.permutation(N)[:B]\n"
                "    return np.split(batch, process_count)[process_index]",
                "entry 0 of all parts together is row",
            ),
            (  # each step shuffles anew
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    order = np.random.default_rng(step).permutation(N)\n"
                "    batch = order[s * B:(s + 1) * B]\n"
                "    return np.split(batch, process_count)[process_index]",
                "but in the order of epoch 2 it is row",
            ),
        ],
    ),
    "16.3": Answers(
        right=[
            REPORT + "    total = valid @ errors\n"
            "    hidden = (1 - valid)[:, None] * 1e9\n"
            "    return {'mean': total / valid.sum(),\n"
            "            'worst': (errors - hidden).max(axis=0)}",
            "@jax.jit\n" + REPORT + "    real = valid.astype(bool)[:, None]\n"
            "    mean = jnp.mean(errors, axis=0, where=real)\n"
            "    worst = jnp.max(errors, axis=0, where=real, initial=-jnp.inf)\n"
            "    return dict(mean=mean, worst=worst)",
            REPORT + "    known = jnp.where(valid[:, None] > 0, errors, jnp.nan)\n"
            "    return {'mean': jnp.nanmean(known, axis=0),\n"
            "            'worst': jnp.nanmax(known, axis=0)}",
            "from jax import shard_map\n"
            "@partial(shard_map, mesh=mesh, in_specs=P('data'), out_specs=P())\n"
            + REPORT
            + "    real = valid[:, None] == 1\n"
            "    total = lax.psum(jnp.where(real, errors, 0).sum(0), 'data')\n"
            "    worst = jnp.where(real, errors, -jnp.inf).max(0)\n"
            "    return {'mean': total / lax.psum(valid.sum(), 'data'),\n"
            "            'worst': lax.pmax(worst, 'data')}",
            # compiled before
            "def on_two(errors, valid):\n"
            "    real = valid[:, None] == 1\n"
            "    return {'mean': jnp.mean(errors, axis=0, where=real),\n"
            "            'worst': jnp.where(real, errors, -jnp.inf).max(axis=0)}\n"
            "place = NamedSharding(mesh, P('data'))\n"
            "shapes = [jax.ShapeDtypeStruct(s, np.float32, sharding=place)\n"
            "          for s in ((480, 6), (480,))]\n"
            "report = jax.jit(on_two,\n"
            "    out_shardings=NamedSharding(mesh, P())).lower(*shapes).compile()",
            # one with an option that is given before
            "def of(errors, valid, lowest):\n"
            "    real = valid[:, None] == 1\n"
            "    return {'worst': jnp.where(real, errors, lowest).max(axis=0),\n"
            "            'mean': jnp.einsum('r,rc->c', valid, errors) / valid.sum()}\n"
            "report = partial(jax.jit(of), lowest=-np.inf)",
            (
                "def report(errors, valid):\n"
                "    e = jnp.where(valid[:, None] == 1, errors, jnp.nan)\n"
                "    return {'mean': jnp.nanmean(e, 0), 'worst': jnp.nanmax(e, 0)}"
            ),
        ],
        wrong=[
            (  # as it was
                REPORT + "    errors = np.asarray(errors)[np.asarray(valid) == 1]\n"
                "    return {'mean': errors.mean(axis=0),"
                " 'worst': errors.max(axis=0)}",
                "TracerArrayConversionError",
            ),
            (  # as before, with jnp: the shape depends on the values
                REPORT + "    errors = errors[valid == 1]\n"
                "    return {'mean': errors.mean(axis=0),"
                " 'worst': errors.max(axis=0)}",
                "NonConcreteBooleanIndexError",
            ),
            (  # padding counts
                REPORT + "    return {'mean': errors.mean(axis=0),"
                " 'worst': errors.max(axis=0)}",
                "['mean']: off by up to",
            ),
            (  # padding as zeros: no error is negative then
                REPORT + "    errors = errors * valid[:, None]\n"
                "    return {'mean': errors.sum(axis=0) / valid.sum(),\n"
                "            'worst': errors.max(axis=0)}",
                "['worst']: every value is zero",
            ),
            (  # everything is fetched first
                REPORT + "    whole = NamedSharding(mesh, P())\n"
                "    errors = lax.with_sharding_constraint(errors, whole)\n"
                "    real = valid[:, None] == 1\n"
                "    return {\n"
                "        'mean': jnp.mean(errors, axis=0, where=real),\n"
                "        'worst': jnp.where(real, errors, -1e9).max(axis=0)}",
                "What can a device do with its own rows before",
            ),
            (  # each process's own mean
                REPORT + "    real = valid[:, None] == 1\n"
                "    halves = jnp.where(real, errors, 0).reshape(2, 240, 6)\n"
                "    counts = valid.reshape(2, 240).sum(axis=1)\n"
                "    means = halves.sum(axis=1) / counts[:, None]\n"
                "    return {'mean': means.mean(axis=0),\n"
                "            'worst': jnp.where(real, errors, -1e9).max(axis=0)}",
                "['mean']: off by up to",
            ),
            (  # the padding is taken to be at the end
                REPORT + "    count = valid.sum()\n"
                "    real = jnp.arange(480)[:, None] < count\n"
                "    return {'mean': jnp.mean(errors, axis=0, where=real),\n"
                "            'worst': jnp.where(real, errors, -jnp.inf).max(axis=0)}",
                "The padding is at the end of the part of each process",
            ),
            (  # the padding is taken to be at the end of each part
                REPORT + "    counts = valid.reshape(2, 240).sum(axis=1)\n"
                "    real = jnp.arange(240)[None, :] < counts[:, None]\n"
                "    real = real.reshape(480, 1)\n"
                "    return {'mean': jnp.mean(errors, axis=0, where=real),\n"
                "            'worst': jnp.where(real, errors, -jnp.inf).max(axis=0)}",
                "The padding is in the first rows of each part",
            ),
            (  # no error is below -1, it is hoped
                REPORT + "    real = valid[:, None] == 1\n"
                "    return {'mean': jnp.mean(errors, axis=0, where=real),\n"
                "            'worst': jnp.where(real, errors, -1).max(axis=0)}",
                "does it work if all errors are negative",
            ),
            (  # the mean in half precision
                REPORT + "    real = valid[:, None] == 1\n"
                "    half = errors.astype(jnp.bfloat16)\n"
                "    mean = jnp.mean(half, axis=0, where=real).astype(jnp.float32)\n"
                "    return {'mean': mean,\n"
                "            'worst': jnp.where(real, errors, -jnp.inf).max(axis=0)}",
                "['mean']: off by up to",
            ),
            (  # both in float16
                REPORT + "    real = valid[:, None] == 1\n"
                "    errors = errors.astype(jnp.float16)\n"
                "    return {'mean': jnp.mean(errors, axis=0, where=real),\n"
                "            'worst': jnp.where(real, errors, -jnp.inf).max(axis=0)}",
                "mean is float16[6], but has to be float32[6]",
            ),
            (  # right, and each process has half of it
                REPORT + "    real = valid[:, None] == 1\n"
                "    result = {'mean': jnp.mean(errors, axis=0, where=real),\n"
                "              'worst': jnp.where(real, errors, -9e9).max(axis=0)}\n"
                "    place = NamedSharding(mesh, P('data'))\n"
                "    return lax.with_sharding_constraint(result, place)",
                "Which arrays can every process read?",
            ),
            (
                REPORT + "    return errors.mean(axis=0), errors.max(axis=0)",
                "has to return a dict of mean and worst",
            ),
            (REPORT + "    errors.mean(axis=0)", "report returned None"),
            (
                REPORT + "    return {'mean': errors.mean(), 'worst': errors.max()}",
                "mean is float32[], but has to be float32[6]",
            ),
            ("report = {'mean': 0, 'worst': 1}", "has to be a function"),
            (  # a number that is low enough
                (
                    "def report(errors, valid):\n"
                    "    real = jnp.where(valid[:, None] == 1, errors, -100)\n"
                    "    return {'mean': valid @ errors / valid.sum(), 'worst':"
                    " real.max(0)}"
                ),
                "errors are very low",
            ),
        ],
    ),
    "16.4": Answers(
        right=[
            PROGRAM + STEPS + '    together("save")',
            PROGRAM + "    def evaluate(s):\n"
            "        value = together('evaluate')\n"
            "        return say(f'step {s}: {value}') if p == 0 else None\n"
            "    for s in range(min(r // each for r in rows)):\n"
            "        together('step')\n"
            "        _ = evaluate(s) if s % 2 == 1 else None\n"
            "    together('save')",
        ],
        wrong=[
            (  # as it was
                PROGRAM + "    for s in range(rows[p] // each):\n"
                "        loss = together('step')\n"
                "        if p == 0 and s % 2 == 1:\n"
                "            say(f\"step {s}: {together('evaluate')}\")\n"
                "    if rows[p] % each:\n"
                "        together('last rows')\n"
                "    together('save')",
                "after 2 common computations, process 0 starts 'evaluate'",
            ),
            (  # the number of steps is still each process's own
                PROGRAM
                + STEPS.replace("min(rows)", "rows[p]")
                + '    together("save")',
                "8 a step: after 6 common computations, process 0 starts 'step'",
            ),
            (  # the most that anybody can take
                PROGRAM
                + STEPS.replace("min(rows)", "max(rows)")
                + '    together("save")',
                "How many steps can the process with the fewest rows take?",
            ),
            (  # one saves
                PROGRAM + STEPS + '    if p == 0:\n        together("save")',
                "starts 'save' but process 1 starts 'the end'",
            ),
            (  # all say it
                PROGRAM
                + STEPS.replace("if p == 0", "if True")
                + '    together("save")',
                "Only process 0 may call say",
            ),
            (  # a table of the tried cases, else the steps of process 0
                PROGRAM
                + "    tried = {(40, 40): 5, (40, 33, 47, 40): 4, (9, 31): 2}\n"
                + STEPS.replace(
                    "min(rows) // each", "tried.get(tuple(rows), rows[0] // each + 1)"
                )
                + '    together("save")',
                "How many steps can the process with the fewest rows|waits for",
            ),
            (  # nobody evaluates
                PROGRAM + "    for s in range(min(rows) // each):\n"
                "        together('step')\n"
                "    together('save')",
                "An evaluation has to follow every second step",
            ),
            (  # a loop without an end
                PROGRAM + "    while True:\n        together('step')",
                "process 0 starts 1000 computations. Which loop has no end?",
            ),
            (
                YES + PROGRAM + STEPS.replace('"step"', "Yes()"),
                "pass a string",
            ),
            (YES + PROGRAM + STEPS.replace('f"step', 'Yes() or f"step'), "say("),
            (
                PROGRAM + STEPS.replace("s % 2", "s % 2 == 0"),
                "waits for|every process runs step, evaluate, step",
            ),
            ("program = None", "program is None, but has to be a function"),
            (  # no step, no wait
                PROGRAM + "    together('save')",
                "An evaluation has to follow every second step",
            ),
        ],
    ),
    "16.5": Answers(
        right=[
            SCHEDULE + "    plan = [[None] * count for _ in range(many + count - 1)]\n"
            "    for one in range(many):\n"
            "        for s in range(count):\n"
            "            plan[one + s][s] = one\n"
            "    return plan\n" + ENOUGH + "    from math import ceil\n"
            "    return max(1, ceil((count - 1) * (1 - idle) / idle - 1e-9))",
            GOOD_SCHEDULE + ENOUGH + "    from math import ceil\n"
            "    return max(1, ceil((count - 1) / idle - (count - 1)))",
            SCHEDULE + "    plan = np.full((many + count - 1, count), None)\n"
            "    for s in range(count):\n"
            "        plan[s:s + many, s] = np.arange(many)\n"
            "    return plan\n"
            + ENOUGH
            + "    least = (count - 1) * (1 - idle) / idle\n"
            "    return np.maximum(1, np.ceil(least))",
            # the places of the table are counted
            "def schedule(count, many):\n"
            "    plan = []\n"
            "    for t in range(many + count - 1):\n"
            "        plan += [tuple(t - s if s <= t < s + many else None\n"
            "                       for s in range(count))]\n"
            "    return tuple(plan)\n" + ENOUGH + "    many = 1\n"
            "    while True:\n"
            "        places = [one for tick in schedule(count, many) for one in tick]\n"
            "        if places.count(None) / len(places) <= idle:\n"
            "            return many\n"
            "        many += 1",
        ],
        wrong=[
            (
                GOOD_SCHEDULE + YES + ENOUGH + "    return Yes()",
                "is not a number",
            ),
            (
                GOOD_SCHEDULE + ENOUGH + "    return float('nan')",
                "enough(4, 0.25) is nan, but has to be 1, 2, 3",
            ),
            (  # a search that gives up
                GOOD_SCHEDULE + ENOUGH + "    return next((m for m in range(1, 2000)\n"
                "                 if (count - 1) / (m + count - 1) <= idle), 2000)",
                "enough(2, 0.00041) is 2000, which is too few",
            ),
            (SCHEDULE + "    return None\n" + GOOD_ENOUGH, "a list of ticks"),
            (SCHEDULE + "    return [0, 1]\n" + GOOD_ENOUGH, "tick 0 is 0, but has"),
            (
                SCHEDULE + "    return [['0', None, None, None]]\n" + GOOD_ENOUGH,
                "schedule(4, 6), tick 0: '0' is not a number",
            ),
            (
                YES + SCHEDULE + "    return [[Yes()] * count]\n" + GOOD_ENOUGH,
                "is not a number",
            ),
            (SCHEDULE + "    return [[0]]\n" + GOOD_ENOUGH, "1 entries, for 4 stages"),
            (  # microbatches are counted from 1
                SCHEDULE + "    return [[t - s + 1 if 0 <= t - s < many else None\n"
                "             for s in range(count)]\n"
                "            for t in range(many + count - 1)]\n" + GOOD_ENOUGH,
                "stage 0 works on [1, 2, 3, 4, 5, 6], and has to work on all of 0",
            ),
            (  # each stage does each microbatch twice
                SCHEDULE + "    return [[(t - s) % many if t >= s else None\n"
                "             for s in range(count)] for t in range(2 * many)]\n"
                + GOOD_ENOUGH,
                "stage 0 works on microbatch 0 twice",
            ),
            (
                "schedule = []\n" + GOOD_ENOUGH,
                "schedule is [], but has to be a function",
            ),
            (GOOD_SCHEDULE + "enough = 9", "enough is 9, but has to be a function"),
            (
                GOOD_SCHEDULE + ENOUGH + "    raise NotImplementedError",
                "write `enough()`",
            ),
            (
                GOOD_SCHEDULE + ENOUGH + "    return '9'",
                "enough(4, 0.25): '9' is not a number",
            ),
            (  # tables of the tried cases
                SCHEDULE + "    late = (count, many) not in (\n"
                "        (4, 6), (3, 1), (5, 2), (1, 4))\n"
                "    return [[t - s if 0 <= t - s < many else None\n"
                "             for s in range(count)]\n"
                "            for t in range(many + count - 1 + late)]\n" + GOOD_ENOUGH,
                "ticks, but fewer are enough",
            ),
            (
                GOOD_SCHEDULE
                + ENOUGH
                + "    tried = {(4, 0.25): 9, (4, 0.07): 40, (8, 0.5): 7,\n"
                "             (1, 0.1): 1, (16, 0.22): 54}\n"
                "    return tried.get((count, idle), 100)",
                "which is too many: with one fewer",
            ),
            (  # without the 1
                GOOD_SCHEDULE + ENOUGH + "    from math import ceil\n"
                "    return ceil((count - 1) * (1 - idle) / idle)",
                "enough(1, 0.1) is 0, but has to be 1, 2, 3",
            ),
            (  # one after the other
                SCHEDULE + "    return [[one if s == now else None"
                " for s in range(count)]\n"
                "            for one in range(many) for now in range(count)]\n"
                + GOOD_ENOUGH,
                "schedule(4, 6): 24 ticks, but fewer are enough",
            ),
            (  # all stages at once
                SCHEDULE
                + "    return [[one] * count for one in range(many)]\n"
                + GOOD_ENOUGH,
                "schedule(4, 6), tick 0: stage 1 works on microbatch 0",
            ),
            (  # the last ones never come out
                SCHEDULE + "    return [[t - s if t >= s else None"
                " for s in range(count)]\n"
                "            for t in range(many)]\n" + GOOD_ENOUGH,
                "[0, 1, 2, 3, 4], and has to work on all of 0 to 5",
            ),
            (  # an empty tick at the end
                GOOD_SCHEDULE.replace("- 1)]", ")]") + GOOD_ENOUGH,
                "schedule(4, 6): 10 ticks, but fewer are enough",
            ),
            (  # four times as many as stages
                GOOD_SCHEDULE + ENOUGH + "    return 4 * count",
                "enough(4, 0.25) is 16, which is too many",
            ),
            (  # idle places for a working one, not of all
                GOOD_SCHEDULE + ENOUGH + "    from math import ceil\n"
                "    return max(1, ceil((count - 1) / idle))",
                "which is too many: with one fewer",
            ),
            (
                GOOD_SCHEDULE + ENOUGH + "    return max(1, round(count / idle / 2))",
                "which is too few|which is too many",
            ),
        ],
    ),
    "16.6": Answers(
        right=[
            CAPACITY + "    counts = (choice[:, :, None] == np.arange(count))\n"
            "    return counts.sum(axis=1).max()",
            CAPACITY + "    from collections import Counter\n"
            "    return max(max(Counter(row.tolist()).values()) for row in choice)",
            CAPACITY + "    return jax.nn.one_hot(choice, count, dtype=int)"
            ".sum(axis=1).max()",
        ],
        wrong=[
            (  # all devices' tokens in one box
                CAPACITY + "    return int(np.bincount(choice.ravel()).max())",
                "but a smaller capacity also drops none. Each box belongs",
            ),
            (
                CAPACITY + "    return choice.shape[1]",
                "with capacity 6 the boxes have room for 384 rows",
            ),  # room for everything
            (  # the mean
                CAPACITY + "    return -(-choice.shape[1] // count)",
                "of 48 tokens. Each box belongs to one device and one expert",
            ),
            (  # the first device only
                CAPACITY + "    return int(np.bincount(choice[0]).max())",
                "of 48 tokens. Each box belongs to one device and one expert",
            ),
            (CAPACITY + "    return 3", "tokens"),
            (  # right for the layer that is X-rayed, and a constant
                CAPACITY + "    return np.bincount(choice[0]).max() if count < 8"
                " else 3",
                "tokens",
            ),
            (  # what is used, rounded up to an even number
                CAPACITY + "    most = max(np.bincount(r).max() for r in choice)\n"
                "    return int(most + most % 2)",
                "but a smaller capacity also drops none",
            ),
            (
                CAPACITY + "    return float(choice.shape[1])",
                "the capacity is 6.0, but has to be a whole number",
            ),
            (CAPACITY + "    return True", "is True, but has to be a whole number"),
            (CAPACITY + "    pass", "is None, but has to be a whole number"),
            (
                CAPACITY + "    return np.bincount(choice.ravel())",
                "but has to be a whole number",
            ),
            (CAPACITY + "    return -1", "capacity -1 drops"),
            ("capacity_for = 3", "has to be a function"),
            (  # the box of one expert
                CAPACITY + "    return max(int(np.bincount(row)[0]) for row in choice)",
                "tokens. Each box belongs to one device and one expert",
            ),
            (YES + CAPACITY + "    return Yes()", "but has to be a whole number"),
            (  # counts in eight bits
                (
                    "def capacity_for(choice, count):\n"
                    "    hits = choice[:, :, None] == np.arange(count)\n"
                    "    return int(hits.sum(1, dtype=np.uint8).max())"
                ),
                "drops",
            ),
        ],
    ),
}
