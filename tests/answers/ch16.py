"""Chapter 16: right and wrong answers."""

from . import Answers
from .ch01 import YES

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
            ("a = b = c = d = e = 24", "look again at c, d, e"),
            ("a = b = c = d = e = 48", "look again at a, b"),
            (  # what one device holds
                "a, b, c, d, e = 24, 6, 12, 48, 24",
                "look again at b, c, e",
            ),
            (  # the turned mesh is not seen
                "a, b, c, d, e = 24, 24, 48, 48, 24",
                "look again at e",
            ),
            (YES + "a = b = c = d = e = Yes()", "is no number"),
            ("a, b, c, d, e = '24', 24, 48, 48, 48", "a: '24' is no number"),
            ("a, b, c, d, e = 24, [24], 48, 48, None", "b: [24] is no number"),
            ("a, b, c, d, e = np.nan, 24, 24.5, 48.5, 48", "look again at a, c, d"),
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
                "indices of float64",
            ),
            (  # everybody loads everything
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    order = np.random.default_rng(epoch).permutation(N)\n"
                "    return order[s * B:(s + 1) * B]",
                "2 processes load [24] rows; each should load 12",
            ),
            (  # everybody the first part
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    order = np.random.default_rng(epoch).permutation(N)\n"
                "    return order[s * B:(s + 1) * B][:B // process_count]",
                "of 24 rows only 12 are different ones",
            ),
            (  # each process shuffles on its own
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    rng = np.random.default_rng([epoch, process_index])\n"
                "    each = B // process_count\n"
                "    first = s * B + process_index * each\n"
                "    return rng.permutation(N)[first:first + each]",
                "and the order of epoch 0 has row",
            ),
            (  # every n-th row: the batch has another order
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    order = np.random.default_rng(epoch).permutation(N)\n"
                "    return order[s * B:(s + 1) * B][process_index::process_count]",
                "2 processes: at 1 of all parts together is row",
            ),
            (  # each process has its own half of the data set
                LOCAL + "    epoch, s = divmod(step, N // B)\n"
                "    order = np.random.default_rng(epoch).permutation(N)\n"
                "    mine = np.split(order, process_count)[process_index]\n"
                "    each = B // process_count\n"
                "    return mine[s * each:(s + 1) * each]",
                "2 processes: at 12 of all parts together is row",
            ),
            (  # the order of the first epoch for ever
                LOCAL + "    order = np.random.default_rng(0).permutation(N)\n"
                "    batch = order[step % (N // B) * B:][:B]\n"
                "    return np.split(batch, process_count)[process_index]",
                "and the order of epoch 1 has row",
            ),
            (
                LOCAL + "    order = np.random.default_rng(step // 10).permutation(N)\n"
                "    order.reshape(10, process_count, -1)[step % 10, process_index]",
                "1 processes load [()] rows; each should load 24",
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
                "['of the real rows']['mean']: off by up to",
            ),
            (  # padding as zeros: no error is negative then
                REPORT + "    errors = errors * valid[:, None]\n"
                "    return {'mean': errors.sum(axis=0) / valid.sum(),\n"
                "            'worst': errors.max(axis=0)}",
                "['of the real rows']['worst']: every value is zero",
            ),
            (  # everything is fetched first
                REPORT + "    whole = NamedSharding(mesh, P())\n"
                "    errors = lax.with_sharding_constraint(errors, whole)\n"
                "    real = valid[:, None] == 1\n"
                "    return {\n"
                "        'mean': jnp.mean(errors, axis=0, where=real),\n"
                "        'worst': jnp.where(real, errors, -1e9).max(axis=0)}",
                "11,592 bytes are exchanged, and 24 to 200 may be",
            ),
            (  # each process's own mean
                REPORT + "    real = valid[:, None] == 1\n"
                "    halves = jnp.where(real, errors, 0).reshape(2, 240, 6)\n"
                "    counts = valid.reshape(2, 240).sum(axis=1)\n"
                "    means = halves.sum(axis=1) / counts[:, None]\n"
                "    return {'mean': means.mean(axis=0),\n"
                "            'worst': jnp.where(real, errors, -1e9).max(axis=0)}",
                "['of the real rows']['mean']: off by up to",
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
                "after 2 common calls process 0 comes to 'evaluate' and process 1",
            ),
            (  # the number of steps is still each process's own
                PROGRAM
                + STEPS.replace("min(rows)", "rows[p]")
                + '    together("save")',
                "[40, 33, 47, 40]: after 6 common calls process 0 comes to 'step'",
            ),
            (  # the most that anybody can take
                PROGRAM
                + STEPS.replace("min(rows)", "max(rows)")
                + '    together("save")',
                "all can take 4 steps",
            ),
            (  # one saves
                PROGRAM + STEPS + '    if p == 0:\n        together("save")',
                "comes to 'save' and process 1 to 'the end'",
            ),
            (  # all say it
                PROGRAM
                + STEPS.replace("if p == 0", "if True")
                + '    together("save")',
                "only process 0 is to speak",
            ),
            (  # a table of the tried cases, else the steps of process 0
                PROGRAM
                + "    tried = {(40, 40): 5, (40, 33, 47, 40): 4, (9, 31): 2}\n"
                + STEPS.replace(
                    "min(rows) // each", "tried.get(tuple(rows), rows[0] // each + 1)"
                )
                + '    together("save")',
                "steps, with an evaluation",
            ),
            (  # nobody evaluates
                PROGRAM + "    for s in range(min(rows) // each):\n"
                "        together('step')\n"
                "    together('save')",
                "with an evaluation after every second",
            ),
            (  # no step, no wait
                PROGRAM + "    together('save')",
                "with an evaluation after every second",
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
        ],
        wrong=[
            (
                GOOD_SCHEDULE + YES + ENOUGH + "    return Yes()",
                "a whole number from 1",
            ),
            (
                GOOD_SCHEDULE + ENOUGH + "    return float('nan')",
                "25.0% idle: nan, and a whole number from 1 on is wanted",
            ),
            (GOOD_SCHEDULE + ENOUGH + "    return '9'", "idle: '9', and a whole"),
            (  # tables of the tried cases
                SCHEDULE + "    late = (count, many) not in (\n"
                "        (4, 6), (3, 1), (5, 2), (1, 4))\n"
                "    return [[t - s if 0 <= t - s < many else None\n"
                "             for s in range(count)]\n"
                "            for t in range(many + count - 1 + late)]\n" + GOOD_ENOUGH,
                "and fewer are enough",
            ),
            (
                GOOD_SCHEDULE
                + ENOUGH
                + "    tried = {(4, 0.25): 9, (4, 0.07): 40, (8, 0.5): 7,\n"
                "             (1, 0.1): 1, (16, 0.22): 54}\n"
                "    return tried.get((count, idle), 100)",
                "microbatches are too many",
            ),
            (  # without the 1
                GOOD_SCHEDULE + ENOUGH + "    from math import ceil\n"
                "    return ceil((count - 1) * (1 - idle) / idle)",
                "1 stages, at most 10.0% idle: 0, and a whole number from 1 on",
            ),
            (  # one after the other
                SCHEDULE + "    return [[one if s == now else None"
                " for s in range(count)]\n"
                "            for one in range(many) for now in range(count)]\n"
                + GOOD_ENOUGH,
                "24 ticks for 4 stages and 6 microbatches",
            ),
            (  # all stages at once
                SCHEDULE
                + "    return [[one] * count for one in range(many)]\n"
                + GOOD_ENOUGH,
                "tick 0: stage 1 works on microbatch 0",
            ),
            (  # the last ones never come out
                SCHEDULE + "    return [[t - s if t >= s else None"
                " for s in range(count)]\n"
                "            for t in range(many)]\n" + GOOD_ENOUGH,
                "[0, 1, 2, 3, 4], and is to work on all of 0 to 5",
            ),
            (  # an empty tick at the end
                GOOD_SCHEDULE.replace("- 1)]", ")]") + GOOD_ENOUGH,
                "10 ticks for 4 stages and 6 microbatches, and fewer are enough",
            ),
            (  # four times as many as stages
                GOOD_SCHEDULE + ENOUGH + "    return 4 * count",
                "16 microbatches are too many: with one fewer",
            ),
            (  # idle places for a working one, not of all
                GOOD_SCHEDULE + ENOUGH + "    from math import ceil\n"
                "    return max(1, ceil((count - 1) / idle))",
                "microbatches are too many",
            ),
            (
                GOOD_SCHEDULE + ENOUGH + "    return max(1, round(count / idle / 2))",
                "microbatches are too few",
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
                "how full is the fullest box",
            ),
            (
                CAPACITY + "    return choice.shape[1]",
                "capacity 6 exchanges",
            ),  # room for everything
            (  # the mean
                CAPACITY + "    return -(-choice.shape[1] // count)",
                "of 48 tokens",
            ),
            (  # the first device only
                CAPACITY + "    return int(np.bincount(choice[0]).max())",
                "of 48 tokens",
            ),
            (CAPACITY + "    return 3", "tokens|bytes"),
            (  # right for the layer that is X-rayed, and a constant
                CAPACITY + "    return np.bincount(choice[0]).max() if count < 8"
                " else 3",
                "tokens|holds more",
            ),
            (  # what is used, rounded up to an even number
                CAPACITY + "    most = max(np.bincount(r).max() for r in choice)\n"
                "    return int(most + most % 2)",
                "bytes",
            ),
            (CAPACITY + "    return float(choice.shape[1])", "whole number, not float"),
            (YES + CAPACITY + "    return Yes()", "whole number, not Yes"),
        ],
    ),
}
