"""Chapter 16: its checks, judged by right and wrong answers."""

from functools import partial

from jax.sharding import AxisType

from spmd_exercises._setting import devices, make_mesh

from .judging import YES, Answers, AnswersAreJudged, imports


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


LOCAL = "def local_batch(step, process_index, process_count):\n"
REPORT = "def report(errors, valid):\n"
PROGRAM = "def program(p, rows, each, together, say):\n"
SCHEDULE = "def schedule(count, many):\n"
ENOUGH = "def enough(count, idle):\n"
CAPACITY = "def capacity_for(choice, count):\n"
PLACES = "def places(choice, gate, count):\n"
ONE_DEVICE = "def on_one_device(odds, devices, k):\n"
BY_DEVICE = ONE_DEVICE + "    parts = odds.reshape(len(odds), devices, -1)\n"
OF_DEVICE = (
    "    mine = jnp.take_along_axis(parts, device[:, None, None], axis=1)[:, 0]\n"
    "    first = device[:, None] * parts.shape[2]\n"
    "    return first + lax.top_k(mine, k)[1]"
)
ORDERS = "def orders(count, many):\n"
FEWEST = "def microbatches(stages, rows, row_bytes, limit, idle):\n"
DIVISORS = "    fit = [m for m in range(1, rows + 1) if rows % m == 0]\n"

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
    "16.7": Answers(
        right=[
            PLACES + "    c, g = choice.ravel(), gate.ravel()\n"
            "    same = c[:, None] == c[None, :]\n"
            "    larger = g[None, :] > g[:, None]\n"
            "    return (same & larger).sum(axis=1).reshape(choice.shape)",
            "@partial(jax.jit, static_argnames='count')\n"
            + PLACES
            + "    c, g = choice.ravel(), gate.ravel()\n"
            "    def rank(expert):\n"
            "        mine = jnp.where(c == expert, g, -jnp.inf)\n"
            "        return jnp.argsort(jnp.argsort(-mine))\n"
            "    ranks = jax.vmap(rank)(jnp.arange(count))\n"
            "    return ranks[c, jnp.arange(c.size)].reshape(choice.shape)",
            PLACES + "    c = choice.ravel()\n"
            "    order = jnp.lexsort((-gate.ravel(), c))\n"
            "    starts = jnp.searchsorted(c[order], jnp.arange(count))\n"
            "    place = jnp.arange(c.size) - starts[c[order]]\n"
            "    return jnp.zeros_like(c).at[order].set(place)"
            ".reshape(choice.shape)",
        ],
        wrong=[
            (  # in the order of the tokens
                PLACES + "    one = jax.nn.one_hot(choice.ravel(), count, dtype=int)\n"
                "    place = ((one.cumsum(0) - 1) * one).sum(1)\n"
                "    return place.reshape(choice.shape)",
                "of this expert have a larger gate",
            ),
            (  # the smallest gate first
                PLACES + "    c, g = choice.ravel(), gate.ravel()\n"
                "    same = c[:, None] == c[None, :]\n"
                "    smaller = g[None, :] < g[:, None]\n"
                "    return (same & smaller).sum(axis=1).reshape(choice.shape)",
                "of this expert have a larger gate",
            ),
            (  # the places stay in the sorted order
                PLACES + "    order = jnp.argsort(-gate.ravel())\n"
                "    c = choice.ravel()[order]\n"
                "    one = jax.nn.one_hot(c, count, dtype=int)\n"
                "    place = ((one.cumsum(0) - 1) * one).sum(1)\n"
                "    return place.reshape(choice.shape)",
                "which token does each count belong to",
            ),
            (  # all first choices before the second ones
                PLACES + "    c, g = choice.ravel(), gate.ravel()\n"
                "    kind = jnp.broadcast_to(jnp.arange(choice.shape[1]),"
                " choice.shape).ravel()\n"
                "    g = g - kind\n"
                "    same = c[:, None] == c[None, :]\n"
                "    return (same & (g[None, :] > g[:, None])).sum(1)"
                ".reshape(choice.shape)",
                "of this expert have a larger gate",
            ),
            (  # one order for all experts
                PLACES + "    g = gate.ravel()\n"
                "    return (g[None, :] > g[:, None]).sum(1).reshape(choice.shape)",
                "of this expert have a larger gate",
            ),
            (  # counted from 1
                PLACES + "    c, g = choice.ravel(), gate.ravel()\n"
                "    same = c[:, None] == c[None, :]\n"
                "    larger = g[None, :] >= g[:, None]\n"
                "    return (same & larger).sum(axis=1).reshape(choice.shape)",
                "of this expert have a larger gate",
            ),
            (  # does not run under jit
                PLACES + "    out = np.zeros(choice.shape, int)\n"
                "    for e in range(count):\n"
                "        mine = np.asarray(choice) == e\n"
                "        out[mine] = np.argsort(np.argsort(-np.asarray(gate)[mine]))\n"
                "    return out",
                "TracerArrayConversionError",
            ),
            (  # counts in half precision
                PLACES + "    c, g = choice.ravel(), gate.ravel()\n"
                "    same = (c[:, None] == c[None, :]) & (g[None, :] > g[:, None])\n"
                "    return same.astype(jnp.bfloat16).sum(axis=1)"
                ".reshape(choice.shape)",
                "but has to be integers",
            ),
            (PLACES + "    return jnp.argsort(-gate.ravel())", "has shape"),
            (PLACES + "    return 3", "has shape 3, but has to have (6, 2)|has shape"),
            ("places = None", "has to be a function"),
        ],
    ),
    "16.8": Answers(
        right=[
            BY_DEVICE + "    device = jnp.sort(parts)[:, :, -k:].sum(2).argmax(1)\n"
            "    mine = jnp.arange(devices).repeat(parts.shape[2]) =="
            " device[:, None]\n"
            "    return lax.top_k(jnp.where(mine, odds, -1), k)[1]",
            BY_DEVICE + "    device = lax.top_k(parts, k)[0].sum(-1).argmax(-1)\n"
            "    mine = jnp.take_along_axis(parts, device[:, None, None], 1)[:, 0]\n"
            "    best = jnp.argsort(mine, axis=1)[:, -k:]\n"
            "    return best + device[:, None] * parts.shape[2]",
            "def of_token(odds, devices, k):\n"
            "    sums, experts = [], []\n"
            "    each = len(odds) // devices\n"
            "    for n in range(devices):\n"
            "        best, at = lax.top_k(odds[n * each:(n + 1) * each], k)\n"
            "        sums.append(best.sum())\n"
            "        experts.append(at + n * each)\n"
            "    return jnp.stack(experts)[jnp.argmax(jnp.stack(sums))]\n"
            + ONE_DEVICE
            + "    return jax.vmap(lambda row: of_token(row, devices, k))(odds)",
        ],
        wrong=[
            (  # the best of all
                ONE_DEVICE + "    return lax.top_k(odds, k)[1]",
                "so its row is sent 2 times",
            ),
            (  # the device with the most of everything
                BY_DEVICE
                + "    device = parts.sum(axis=2).argmax(axis=1)\n"
                + OF_DEVICE,
                "What do you compare between devices?",
            ),
            (  # the device of the best expert
                BY_DEVICE
                + "    device = parts.max(axis=2).argmax(axis=1)\n"
                + OF_DEVICE,
                "What do you compare between devices?",
            ),
            (  # the numbers on the device
                BY_DEVICE + "    device = lax.top_k(parts, k)[0].sum(2).argmax(1)\n"
                "    mine = jnp.take_along_axis(parts, device[:, None, None], 1)\n"
                "    return lax.top_k(mine[:, 0], k)[1]",
                "What do you compare between devices?",
            ),
            (  # one expert k times
                BY_DEVICE + "    return jnp.tile(odds.argmax(1)[:, None], (1, k))",
                "but has to go to 2 different ones",
            ),
            (  # one device for all tokens
                BY_DEVICE
                + "    device = lax.top_k(parts, k)[0].sum(2).sum(0).argmax()\n"
                "    device = jnp.full(len(odds), device)\n" + OF_DEVICE,
                "What do you compare between devices?",
            ),
            (  # experts on every n-th device
                BY_DEVICE + "    turned = odds.reshape(len(odds), -1, devices)\n"
                "    device = lax.top_k(turned.swapaxes(1, 2), k)[0].sum(2).argmax(1)\n"
                "    mine = turned[jnp.arange(len(odds)), :, device]\n"
                "    return lax.top_k(mine, k)[1] * devices + device[:, None]",
                "so its row is sent",
            ),
            (BY_DEVICE + "    return lax.top_k(odds, k)[0]", "but has to be integers"),
            (BY_DEVICE + "    return lax.top_k(parts, k)[1]", "has shape (12, 4, 2)"),
            ("on_one_device = 1", "has to be a function"),
        ],
    ),
    "16.9": Answers(
        right=[
            ORDERS + "    plans = []\n"
            "    for s in range(count):\n"
            "        forward, back, plan = 0, 0, []\n"
            "        while back < many:\n"
            "            if forward < many and forward - back < count - s:\n"
            "                plan.append(('F', forward))\n"
            "                forward += 1\n"
            "            else:\n"
            "                plan.append(('B', back))\n"
            "                back += 1\n"
            "        plans.append(plan)\n"
            "    return plans",
            ORDERS + "    plan = spmd.PipelineSchedule(count, many, '1f1b').work\n"
            "    plan = sorted(plan, key=lambda one: one.step)\n"
            "    return tuple(tuple(['FB'[one.is_backward], one.microbatch]\n"
            "                       for one in plan if one.stage == s)\n"
            "                 for s in range(count))",
        ],
        wrong=[
            (  # GPipe
                ORDERS + "    return [[('F', i) for i in range(many)]\n"
                "            + [('B', i) for i in range(many)]] * count",
                "saves the inputs of 6 microbatches at once, but 4 are enough",
            ),
            (  # one after the other, without a warm-up
                ORDERS + "    return [[(k, i) for i in range(many) for k in 'FB']\n"
                "            for _ in range(count)]",
                "the work takes 48 ticks, but 18 are enough",
            ),
            (  # one fewer forward pass first
                ORDERS + "    plans = []\n"
                "    for s in range(count):\n"
                "        early = max(0, min(count - s - 2, many))\n"
                "        plan = [('F', i) for i in range(early)]\n"
                "        for i in range(many - early):\n"
                "            plan += [('F', early + i), ('B', i)]\n"
                "        plans.append(plan + [('B', i)"
                " for i in range(many - early, many)])\n"
                "    return plans",
                "How many forward passes does a stage need",
            ),
            (  # B before F in each pair
                ORDERS + "    return [[(k, i) for i in range(many) for k in 'BF']\n"
                "            for _ in range(count)]",
                "after 0 ticks every stage waits",
            ),
            (  # the last backward passes are missing
                ORDERS + "    plans = []\n"
                "    for s in range(count):\n"
                "        early = min(count - s - 1, many)\n"
                "        plan = [('F', i) for i in range(early)]\n"
                "        for i in range(many - early):\n"
                "            plan += [('F', early + i), ('B', i)]\n"
                "        plans.append(plan)\n"
                "    return plans",
                "stage 0 has 9 passes, and has to have 12",
            ),
            (  # the warm-up of the last stage for all, in reverse
                ORDERS + "    plans = []\n"
                "    for s in range(count):\n"
                "        early = min(s, many)\n"
                "        plan = [('F', i) for i in range(early)]\n"
                "        for i in range(many - early):\n"
                "            plan += [('F', early + i), ('B', i)]\n"
                "        plans.append(plan + [('B', i)"
                " for i in range(many - early, many)])\n"
                "    return plans",
                "microbatches at once, but",
            ),
            (  # the last microbatch first
                ORDERS + "    plans = []\n"
                "    for s in range(count):\n"
                "        early = min(count - s, many)\n"
                "        plan = [('F', i) for i in range(early)]\n"
                "        back = list(range(early))[::-1] + list(range(early, many))\n"
                "        for i in range(early, many):\n"
                "            plan += [('B', back[i - early]), ('F', i)]\n"
                "        plans.append(plan + [('B', i)"
                " for i in back[many - early:]])\n"
                "    return plans",
                "every stage waits for another",
            ),
            (ORDERS + "    return [['F0', 'B0']] * count", "'F0' is no pass"),
            (ORDERS + "    return [[('F', 0.5)]] * count", "has to be a whole number"),
            (ORDERS + "    return []", "orders(4, 6) has 0 lists, for 4 stages"),
            (ORDERS + "    return 18", "has to be a list of lists"),
            ("orders = []", "has to be a function"),
        ],
    ),
    "16.10": Answers(
        right=[
            FEWEST + DIVISORS + "    fit = [m for m in fit\n"
            "           if row_bytes * rows * min(stages / m, 1) <= limit\n"
            "           and stages - 1 <= idle * (m + stages - 1)]\n"
            "    return min(fit, default=None)",
            FEWEST + "    m = np.arange(1, rows + 1)\n"
            "    saved = np.minimum(stages, m) * rows // m * row_bytes\n"
            "    fits = (rows % m == 0) & (saved <= limit)\n"
            "    fits &= (stages - 1) / (m + stages - 1) <= idle\n"
            "    return m[fits][0] if fits.any() else None",
        ],
        wrong=[
            (  # all rows are saved, as in GPipe
                FEWEST + DIVISORS + "    if rows * row_bytes > limit:\n"
                "        return None\n"
                "    return next((m for m in fit\n"
                "        if (stages - 1) / (m + stages - 1) <= idle), None)",
                "How many microbatches does a stage save in 1F1B?",
            ),
            (  # one microbatch is saved
                FEWEST + DIVISORS + "    return next((m for m in fit\n"
                "        if rows // m * row_bytes <= limit\n"
                "        and (stages - 1) / (m + stages - 1) <= idle), None)",
                "Which of the two is over",
            ),
            (  # the bubble alone
                FEWEST + DIVISORS + "    return next((m for m in fit\n"
                "        if (stages - 1) / (m + stages - 1) <= idle), None)",
                "Which of the two is over",
            ),
            (  # the bytes alone
                FEWEST + DIVISORS + "    return next((m for m in fit\n"
                "        if min(stages, m) * (rows // m) * row_bytes <= limit), None)",
                "Which of the two is over",
            ),
            (  # the largest
                FEWEST + DIVISORS + "    return next((m for m in fit[::-1]\n"
                "        if min(stages, m) * (rows // m) * row_bytes <= limit\n"
                "        and (stages - 1) / (m + stages - 1) <= idle), None)",
                "is it the smallest number that fits?",
            ),
            (  # any number, whether or not it divides
                FEWEST + "    return next((m for m in range(1, rows + 1)\n"
                "        if min(stages, m) * rows / m * row_bytes <= limit\n"
                "        and (stages - 1) / (m + stages - 1) <= idle), None)",
                "which does not divide",
            ),
            (  # idle over busy
                FEWEST + DIVISORS + "    return next((m for m in fit\n"
                "        if min(stages, m) * (rows // m) * row_bytes <= limit\n"
                "        and (stages - 1) / m <= idle), None)",
                "is it the smallest number that fits?|How many microbatches",
            ),
            (FEWEST + "    return rows", "is it the smallest number|Which of the two"),
            (FEWEST + "    pass", "microbatches(4, 48, 100, 4800, 0.25) is None"),
            (FEWEST + "    return 12.0", "has to be a whole number"),
            ("microbatches = 4", "has to be a function"),
        ],
    ),
}
