"""Chapter 09: right and wrong answers."""

from . import Answers
from .ch01 import YES

TABLE = "def state_table(parameters, data, model, zero):\n"
LEAN = "def lean_loss(params, x):\n"
LARGEST = "def largest_batch(model, mesh, chip, **how):\n"
COUNT = "spmd.training_memory(model, mesh=mesh, batch=n, **how)"
CHOOSE = "def choose(model, devices, chip, batch, **how):\n"
TRY = """
        try:
            found = spmd.training_memory(
                model, mesh={"data": devices // split, "model": split},
                zero=zero, batch=batch, **how)
        except spmd.NotDivisible:
            continue
        if found.fits(chip):
            return devices // split, split, zero
    return None
"""
LAYER = """    def layer(h, w):
        return h + jnp.tanh(h @ w["up"]) @ w["down"], None
"""
END = "    return (lax.scan(layer, x, params)[0] ** 2).mean()"

ANSWERS = {
    "9.1": Answers(
        right=[
            "a, b, c, d = 8, 12, 12, 10",
            "each = {'bf16': 2, 'f32': 4}\n"
            "a = each['bf16'] * 4\n"
            "b = each['f32'] * 3\n"
            "c = each['bf16'] * 2 + each['f32'] * 2\n"
            "d = each['bf16'] + each['f32'] + 2 * each['bf16']",
        ],
        wrong=[
            ("a = b = c = d = 16", "look again at a, b, c, d"),
            # moments always in float32, the second moment for everyone, no master
            ("a, b, c, d = 12, 16, 8, 14", "look again at a, b, c, d"),
            # gradients forgotten
            ("a, b, c, d = 6, 8, 10, 6", "look again at a, b, c, d"),
            ("a, b, c, d = 8, 12, 8, 10", "look again at c"),
            ("a = b = c = d = float('nan')", "look again at a, b, c, d"),
            (YES + "a = b = c = d = Yes()", "is no number"),
            ("a, b, c, d = 8, 12, 12, '10 bytes'", "d: '10 bytes' is no number"),
        ],
    ),
    "9.2": Answers(
        right=[
            "embed_bytes, stack_bytes, norm_bytes, head_bytes = 96e3, 13824, 1152, 24e3"
            "\ntree_bytes = 134_976",
            "def each(shape, spec, dtype='float32'):\n"
            "    return spmd.sharding(\n"
            "        shape, spec, mesh=mesh, dtype=dtype).bytes_per_device\n"
            "embed_bytes = each((1000, 48), P('model'))\n"
            "stack_bytes = each((6, 48, 192), P(None, 'data', 'model'), 'bfloat16')\n"
            "norm_bytes = each((6, 48), P())\n"
            "head_bytes = each((48, 1000), P(None, ('data', 'model')))\n"
            "tree_bytes = sum(\n"
            "    (embed_bytes, stack_bytes, norm_bytes, head_bytes))",
        ],
        wrong=[
            (  # everything over 8
                "embed_bytes, stack_bytes = 24000, 13824\n"
                "norm_bytes, head_bytes = 144, 24000\n"
                "tree_bytes = 61968",
                "look again at embed, norm, tree:",
            ),
            (  # bfloat16 as four bytes
                "embed_bytes, stack_bytes = 96000, 27648\n"
                "norm_bytes, head_bytes = 1152, 24000\n"
                "tree_bytes = 148800",
                "look again at stack, tree:",
            ),
            (  # whole arrays
                "embed_bytes, stack_bytes = 192000, 110592\n"
                "norm_bytes, head_bytes = 1152, 192000\n"
                "tree_bytes = 495744",
                "look again at embed, stack, head, tree:",
            ),
            (  # with its unit
                "embed_bytes, stack_bytes, norm_bytes = 96000, 13824, 1152\n"
                "head_bytes, tree_bytes = '24 kB', 134976",
                "head: '24 kB' is no number",
            ),
            (  # numbers instead of bytes
                "embed_bytes, stack_bytes = 24000, 6912\n"
                "norm_bytes, head_bytes = 288, 6000\n"
                "tree_bytes = 37200",
                "look again at embed, stack, norm, head, tree:",
            ),
        ],
    ),
    "9.3": Answers(
        right=[
            TABLE + "    parts = {'parameters': (2, 3), 'gradients': (2, 2),\n"
            "             'optimizer': (4 + 4 + 4, 1)}\n"
            "    return {part: each * parameters / model / data ** (zero >= stage)\n"
            "            for part, (each, stage) in parts.items()}",
            TABLE + "    def cut(each, stage):\n"
            "        pieces = model * data if zero >= stage else model\n"
            "        return -(-each * parameters // pieces)\n"
            "    return dict(parameters=cut(2, 3), gradients=cut(2, 2),\n"
            "                optimizer=cut(12, 1))",
        ],
        wrong=[
            (  # a table of four cases, and no master copy for all others
                TABLE + "    each = {0: (64, 8), 1: (16, 1), 2: (8, 4), 3: (4, 2)}\n"
                "    state = 12 if (data, model) == each[zero] and parameters in [\n"
                "        spmd.MODELS[name].parameters for name in (\n"
                "            'gpt3-175b', 'gpt3-xl', 'gpt2-xl', 'gpt3-13b')] else 8\n"
                "    cut = [data if zero >= s else 1 for s in (3, 2, 1)]\n"
                "    sizes = [n * parameters / model / c\n"
                "             for n, c in zip((2, 2, state), cut)]\n"
                "    return dict(zip(('parameters', 'gradients', 'optimizer'), sizes))",
                "optimizer: 0.667 times",
            ),
            (  # as it stands in the text
                TABLE + "    each = parameters / model\n"
                "    return {\n"
                '        "parameters": 2 * each / (data if zero >= 2 else 1),\n'
                '        "gradients": 2 * parameters / (data if zero >= 2 else 1),\n'
                '        "optimizer": 8 * each / (data if zero >= 1 else 1),\n'
                "    }",
                "gradients: 8 times what it is, optimizer: 0.667",
            ),
            (  # the master copy is not there
                TABLE + "    each = parameters / model\n"
                "    return {\n"
                '        "parameters": 2 * each / (data if zero >= 3 else 1),\n'
                '        "gradients": 2 * each / (data if zero >= 2 else 1),\n'
                '        "optimizer": 8 * each / (data if zero >= 1 else 1),\n'
                "    }",
                "optimizer: 0.667 times",
            ),
            (  # one stage too early
                TABLE + "    each = parameters / model\n"
                "    return {\n"
                '        "parameters": 2 * each / (data if zero >= 2 else 1),\n'
                '        "gradients": 2 * each / (data if zero >= 1 else 1),\n'
                '        "optimizer": 12 * each / data,\n'
                "    }",
                "ZeRO-0, data 64 × model 8: optimizer: 0.0156 times",
            ),
            (  # all of it in 64 pieces
                TABLE + "    each = parameters / model / data\n"
                "    return dict(parameters=2 * each, gradients=2 * each,\n"
                "                optimizer=12 * each)",
                "ZeRO-0, data 64 × model 8: parameters: 0.0156 times",
            ),
            (  # model is forgotten
                TABLE + "    cut = [data if zero >= s else 1 for s in (3, 2, 1)]\n"
                "    sizes = [n * parameters / c for n, c in zip((2, 2, 12), cut)]\n"
                "    return dict(zip(('parameters', 'gradients', 'optimizer'), sizes))",
                "parameters: 8 times",
            ),
            (
                TABLE + "    parameters / model",
                "None is no dict of parameters, gradients, optimizer",
            ),
            (
                TABLE + "    return 2 * parameters, 2 * parameters, 12 * parameters",
                "is no dict of parameters",
            ),
        ],
    ),
    "9.4": Answers(
        right=[
            LEAN + LAYER + "    kept = jax.checkpoint_policies.nothing_saveable\n"
            "    layer = jax.checkpoint(layer, policy=kept)\n" + END,
            LEAN + "    def block(h, up, down):\n"
            "        return h + jnp.tanh(h @ up) @ down\n"
            "    again = jax.remat(block)\n"
            "    h, _ = lax.scan(\n"
            "        lambda h, w: (again(h, w['up'], w['down']), None), x, params)\n"
            "    return jnp.square(h).mean()",
            # only the hidden part is recomputed
            LEAN + "    @jax.checkpoint\n"
            "    def hidden(h, up, down):\n"
            "        return jnp.tanh(h @ up) @ down\n"
            "    def layer(h, w):\n"
            "        return h + hidden(h, w['up'], w['down']), None\n" + END,
            # a part of the rows after the other
            LEAN + "    @jax.checkpoint\n"
            "    def part(x):\n"
            "        def layer(h, w):\n"
            "            return h + jnp.tanh(h @ w['up']) @ w['down'], None\n"
            "        return (lax.scan(layer, x, params)[0] ** 2).sum()\n"
            "    parts = x.reshape(-1, 4, x.shape[1]).swapaxes(0, 1)\n"
            "    return lax.map(part, parts).sum() / x.size",
        ],
        wrong=[
            (LEAN + "    return deep_loss(params, x)", "the budget is"),
            # around the whole loss: all layers are recomputed, and kept, at once
            (LEAN + "    return jax.checkpoint(deep_loss)(params, x)", "the budget is"),
            # the products are kept
            (
                LEAN
                + LAYER
                + "    kept = jax.checkpoint_policies.dots_saveable\n"
                + "    layer = jax.checkpoint(layer, policy=kept)\n"
                + END,
                "the budget is",
            ),
            # groups of layers, recomputed twice
            (
                LEAN + LAYER + "    groups = jax.tree.map(\n"
                "        lambda w: w.reshape(-1, 3, *w.shape[1:]), params)\n"
                "    inner = jax.checkpoint(layer)\n"
                "    outer = jax.checkpoint(lambda h, w: lax.scan(inner, h, w))\n"
                "    return (lax.scan(outer, x, groups)[0] ** 2).mean()",
                "1.50 times the FLOPs",
            ),
            # in half the bits
            (
                LEAN + LAYER + "    layer = jax.checkpoint(layer)\n"
                "    half = lambda a: a.astype(jnp.bfloat16)\n"
                "    x, params = half(x), jax.tree.map(half, params)\n"
                "    last = lax.scan(layer, x, params)[0].astype(jnp.float32)\n"
                "    return (last ** 2).mean()",
                "differ|expected|off",
            ),
            # without gradients below
            (
                LEAN + LAYER + "    x = lax.scan(layer, x, params)[0]\n"
                "    return (lax.stop_gradient(x) ** 2).mean()",
                "times the FLOPs, and 1 to 1.25 are wanted",
            ),
            (  # what is measured is not what is compared
                LEAN + LAYER + "    if x.shape[0] > 8:\n"
                "        layer = lambda h, w: (\n"
                "            h * w['up'].sum() * w['down'].sum(), None)\n" + END,
                "0.00 times the FLOPs, and 1 to 1.25 are wanted",
            ),
        ],
    ),
    "9.5": Answers(
        right=[
            LARGEST + "    data, n = mesh.get('data', 1), 0\n"
            "    while True:\n"
            "        n += data\n"
            f"        if not {COUNT}.fits(chip):\n"
            "            return np.int64(n - data)",
            # memory grows by the same bytes for each sequence, in each phase
            LARGEST + "    data = mesh.get('data', 1)\n"
            "    def counted(each):\n"
            "        return spmd.training_memory(\n"
            "            model, mesh=mesh, batch=each * data, **how)\n"
            "    one, two = counted(1), counted(2)\n"
            "    left = one.left_bytes(chip)\n"
            "    if left < 0:\n"
            "        return 0\n"
            "    room = left + one.total_bytes\n"
            "    most = min((room - first) // (two.phases[when] - first)\n"
            "               for when, first in one.phases.items()\n"
            "               if two.phases[when] > first)\n"
            "    while counted(1 + most).fits(chip):\n"
            "        most += 1\n"
            "    while most and not counted(1 + most).fits(chip):\n"
            "        most -= 1\n"
            "    return (1 + most) * data",
        ],
        wrong=[
            (LARGEST + "    return 64", "does not divide over data|does not fit"),
            (LARGEST + "    return 0", "6 more fit too"),
            (LARGEST + "    return float('nan')", "no whole number"),
            (LARGEST + "    return None", "no whole number"),
            (  # at least one sequence, whatever it takes
                LARGEST + "    data = mesh.get('data', 1)\n"
                "    n = data\n"
                f"    while {COUNT}.fits(chip):\n"
                "        n += data\n"
                "    return max(data, n - data)",
                "gpt3-13b on {'data': 4} of v5e: 4 does not fit",
            ),
            (  # powers of two only
                LARGEST + "    data = mesh.get('data', 1)\n"
                "    n = data\n"
                f"    while {COUNT}.fits(chip):\n"
                "        n *= 2\n"
                "    return n // 2 if n > data else 0",
                "more fit too",
            ),
            (  # one after the other
                LARGEST + "    n = 1\n"
                f"    while {COUNT}.fits(chip):\n"
                "        n += 1\n"
                "    return n - 1",
                "NotDivisible",
            ),
            (  # the first that does not fit
                LARGEST + "    data = n = mesh.get('data', 1)\n"
                f"    while {COUNT}.fits(chip):\n"
                "        n += data\n"
                "    return n",
                "does not fit",
            ),
            (  # without the margin
                LARGEST + "    data = mesh.get('data', 1)\n"
                "    n = data\n"
                f"    while {COUNT}.fits(chip, margin=1.0):\n"
                "        n += data\n"
                "    return n - data",
                "does not fit",
            ),
            (  # on each device
                LARGEST + "    data = mesh.get('data', 1)\n"
                "    n = data\n"
                f"    while {COUNT}.fits(chip):\n"
                "        n += data\n"
                "    return n // data - 1",
                "does not divide over data|more fit too",
            ),
        ],
    ),
    "9.6": Answers(
        right=[
            CHOOSE + "    meshes = [n for n in (1, 2, 4, 8) if devices % n == 0]\n"
            "    for split, zero in [(n, z) for n in meshes for z in range(4)]:" + TRY,
            CHOOSE + "    good = []\n"
            "    for split in range(devices, 0, -1):\n"
            "        for zero in (3, 2, 1, 0):\n"
            "            if devices % split:\n"
            "                break\n"
            "            try:\n"
            "                found = spmd.training_memory(\n"
            "                    model, zero=zero, batch=batch, **how,\n"
            "                    mesh={'data': devices // split, 'model': split})\n"
            "            except ValueError:\n"
            "                continue\n"
            "            if found.left_bytes(chip) >= 0:\n"
            "                good.append((split, zero))\n"
            "    if good:\n"
            "        split, zero = min(good)\n"
            "        return devices // split, split, zero",
            CHOOSE + "    meshes = [n for n in (1, 2, 4, 8) if devices % n == 0]\n"
            "    for split, zero in [(n, z) for n in meshes for z in range(4)]:"
            + TRY.replace(
                "return devices // split, split, zero",
                "return np.array([devices // split, split, zero])",
            ),
        ],
        wrong=[
            (CHOOSE + "    return devices, 1, 3", "a lower stage fits too"),
            (CHOOSE + "    return 1, devices, 0", "fits too|does not fit"),
            (CHOOSE + "    return None", "fits too"),
            (  # the stage first, and then the mesh
                CHOOSE + "    meshes = [n for n in (1, 2, 4, 8) if devices % n == 0]\n"
                "    for zero, split in [(z, n) for z in range(4) for n in meshes]:"
                + TRY,
                "fits too",
            ),
            (  # powers of two, none for data
                CHOOSE + "    for zero in range(4):\n"
                "        found = spmd.training_memory(\n"
                "            model, mesh={'data': devices}, zero=zero, batch=batch,\n"
                "            **how)\n"
                "        if found.fits(chip):\n"
                "            return devices, 1, zero",
                "NotDivisible",
            ),
            (  # the highest stage always
                CHOOSE + "    meshes = [n for n in (1, 2, 4, 8) if devices % n == 0]\n"
                "    for split, zero in [(n, 3) for n in meshes]:" + TRY,
                "fits too",
            ),
            (CHOOSE + "    return 2, 4, 0", "does not fit|fits too|other devices"),
            (
                CHOOSE + "    return devices, 1",
                "(8, 1) is neither None nor (data, model, zero)",
            ),
            (
                CHOOSE + "    return dict(data=devices, model=1, zero=3)",
                "is neither None nor (data, model, zero)",
            ),
            (
                CHOOSE + "    meshes = [n for n in (1, 2, 4, 8) if devices % n == 0]\n"
                "    for split, zero in [(n, z) for n in meshes for z in range(4)]:"
                + TRY.replace("return None", "return False"),
                "False is neither None nor",
            ),
        ],
    ),
}
