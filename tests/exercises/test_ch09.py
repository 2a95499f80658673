"""Chapter 9: its checks, judged by right and wrong answers."""

from spmd_exercises import ch09
from spmd_exercises._setting import make_mesh

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter9(AnswersAreJudged):
    pass


def given():
    """What the chapter's cells have made where its answers stand."""
    mesh = make_mesh(data=4, model=2)

    return imports() | {"mesh": mesh, "deep_loss": ch09._deep_loss}


TABLE = "def state_table(parameters, data, model, zero):\n"
LEAN = "def lean_loss(params, x):\n"
LARGEST = "def largest_batch(model, mesh, chip, **how):\n"
COUNT = "spmd.training_memory(model, mesh=mesh, batch=n, **how)"
CHOOSE = "def choose(model, devices, chip, batch, **how):\n"
MESHES = "    meshes = [n for n in range(1, devices + 1) if devices % n == 0]\n"
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
HALF_KEPT = """    @jax.custom_vjp
    def layer(h, up, down):
        return h + jnp.tanh(h @ up) @ down

    def forward(h, up, down):
        return layer(h, up, down), (CAST, up, down)

    def backward(kept, grad):
        h, up, down = kept
        h = h.astype(jnp.float32)
        hidden = jnp.tanh(h @ up)
        inner = (grad @ down.T) * (1 - hidden**2)
        return grad + inner @ up.T, h.T @ inner, hidden.T @ grad

    layer.defvjp(forward, backward)
    h, _ = lax.scan(lambda h, w: (layer(h, w["up"], w["down"]), None), x, params)
    return (h ** 2).mean()"""
END = "    return (lax.scan(layer, x, params)[0] ** 2).mean()"

ANSWERS = {
    "9.1": Answers(
        right=[
            "a, b, c, d = 8, 12, 12, 10",
            "a, b, c, d = np.int32(8), 12.0, jnp.float32(12), np.array(10)",
            "each = {'bf16': 2, 'f32': 4}\n"
            "a = each['bf16'] * 4\n"
            "b = each['f32'] * 3\n"
            "c = each['bf16'] * 2 + each['f32'] * 2\n"
            "d = each['bf16'] + each['f32'] + 2 * each['bf16']",
            (
                "from decimal import Decimal\n"
                "a, b, c, d = Decimal(8), 12, 12, Decimal('10')"
            ),
        ],
        wrong=[
            ("a = b = c = d = 16", "look again at a, b, c, d"),
            # moments always in float32, the second moment for everyone, no master
            ("a, b, c, d = 12, 16, 8, 14", "look again at a, b, c, d"),
            # gradients forgotten
            ("a, b, c, d = 6, 8, 10, 6", "look again at a, b, c, d"),
            ("a, b, c, d = 8, 12, 8, 10", "look again at c."),
            ("a, b, c, d = 8.4, 12, 12, 10", "look again at a."),
            ("a, b, c, d = 8, None, 12, 10", "b: None is not a number"),
            ("a = b = c = d = float('nan')", "look again at a, b, c, d"),
            (YES + "a = b = c = d = Yes()", "is not a number"),
            ("a, b, c, d = 8, 12, 12, '10 bytes'", "d: '10 bytes' is not a number"),
        ],
    ),
    "9.2": Answers(
        right=[
            "embed_bytes, stack_bytes, norm_bytes, head_bytes = 96e3, 13824, 1152, 24e3"
            "\ntree_bytes = 134_976",
            # real arrays
            """
def each(shape, spec, dtype=jnp.float32):
    x = jax.device_put(jnp.zeros(shape, dtype), NamedSharding(mesh, spec))
    return x.addressable_shards[0].data.nbytes

embed_bytes = each((1000, 48), P("model"))
stack_bytes = each((6, 48, 192), P(None, "data", "model"), jnp.bfloat16)
norm_bytes = each((6, 48), P())
head_bytes = each((48, 1000), P(None, ("data", "model")))
tree_bytes = embed_bytes + stack_bytes + norm_bytes + head_bytes
""",
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
                "look again at embed_bytes, norm_bytes, tree_bytes.",
            ),
            (  # bfloat16 as four bytes
                "embed_bytes, stack_bytes = 96000, 27648\n"
                "norm_bytes, head_bytes = 1152, 24000\n"
                "tree_bytes = 148800",
                "look again at stack_bytes, tree_bytes.",
            ),
            (  # whole arrays
                "embed_bytes, stack_bytes = 192000, 110592\n"
                "norm_bytes, head_bytes = 1152, 192000\n"
                "tree_bytes = 495744",
                "look again at embed_bytes, stack_bytes, head_bytes, tree_bytes.",
            ),
            (  # with its unit
                "embed_bytes, stack_bytes, norm_bytes = 96000, 13824, 1152\n"
                "head_bytes, tree_bytes = '24 kB', 134976",
                "head_bytes: '24 kB' is not a number",
            ),
            (  # numbers instead of bytes
                "embed_bytes, stack_bytes = 24000, 6912\n"
                "norm_bytes, head_bytes = 288, 6000\n"
                "tree_bytes = 37200",
                "embed_bytes, stack_bytes, norm_bytes, head_bytes, tree_bytes. How",
            ),
        ],
    ),
    "9.3": Answers(
        right=[
            "from fractions import Fraction\n"
            "def cut(n, data, model, reached):\n"
            "    return Fraction(n, model * (data if reached else 1))\n"
            "class Table:\n"
            "    def __call__(self, parameters, data, model, zero):\n"
            "        n = parameters\n"
            "        return {'optimizer': cut(12 * n, data, model, zero > 0),\n"
            "                'gradients': cut(2 * n, data, model, zero > 1),\n"
            "                'parameters': cut(2 * n, data, model, zero > 2)}\n"
            "state_table = Table()",
            TABLE + "    parts = {'parameters': (2, 3), 'gradients': (2, 2),\n"
            "             'optimizer': (4 + 4 + 4, 1)}\n"
            "    return {part: each * parameters / model / data ** (zero >= stage)\n"
            "            for part, (each, stage) in parts.items()}",
            TABLE + "    def cut(each, stage):\n"
            "        pieces = model * data if zero >= stage else model\n"
            "        return -(-each * parameters // pieces)\n"
            "    return dict(parameters=cut(2, 3), gradients=cut(2, 2),\n"
            "                optimizer=cut(12, 1))",
            (
                "import types\n"
                "def state_table(parameters, data, model, zero):\n"
                "    each = parameters / model\n"
                "    f = lambda least: data if zero >= least else 1\n"
                "    return types.MappingProxyType({'parameters': 2 * each / f(3),\n"
                "        'gradients': 2 * each / f(2), 'optimizer': 12 * each / f(1)})"
            ),
        ],
        wrong=[
            (  # a table of four cases, and no master copy for all others
                TABLE + "    each = {0: (64, 8), 1: (16, 1), 2: (8, 4), 3: (4, 2)}\n"
                "    state = 8 + 4 * ((data, model) == each[zero] and parameters in [\n"
                "        spmd.MODELS[name].parameters for name in (\n"
                "            'gpt3-175b', 'gpt3-xl', 'gpt3-medium', 'gpt3-13b')])\n"
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
                "gradients: 8 times the right number, optimizer: 0.667",
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
            (  # powers of two only
                TABLE + "    each = parameters >> (model.bit_length() - 1)\n"
                "    cut = [data if zero >= s else 1 for s in (3, 2, 1)]\n"
                "    sizes = [n * each / c for n, c in zip((2, 2, 12), cut)]\n"
                "    return dict(zip(('parameters', 'gradients', 'optimizer'), sizes))",
                "gpt3-175b, ZeRO-1, data 12 × model 3: parameters: 1.5 times",
            ),
            (  # in text
                TABLE + "    return dict.fromkeys(\n"
                "        ('parameters', 'gradients', 'optimizer'), '2 GB')",
                "parameters: '2 GB' is not a number",
            ),
            (
                TABLE + "    parameters / model",
                "None is not a dict of parameters, gradients, optimizer",
            ),
            (
                TABLE + "    return 2 * parameters, 2 * parameters, 12 * parameters",
                "is not a dict of parameters",
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
            # a loop of Python
            LEAN + "    @jax.checkpoint\n"
            "    def layer(h, up, down):\n"
            "        return h + jnp.tanh(h @ up) @ down\n"
            "    for up, down in zip(params['up'], params['down']):\n"
            "        x = layer(x, up, down)\n"
            "    return (x ** 2).mean()",
            # the rule by hand; the products of the forward pass are not repeated
            LEAN
            + """    @jax.custom_vjp
    def layer(h, up, down):
        return h + jnp.tanh(h @ up) @ down

    def forward(h, up, down):
        return layer(h, up, down), (h, up, down)

    def backward(kept, grad):
        h, up, down = kept
        hidden = jnp.tanh(h @ up)
        inner = (grad @ down.T) * (1 - hidden**2)
        return grad + inner @ up.T, h.T @ inner, hidden.T @ grad

    layer.defvjp(forward, backward)
    h, _ = lax.scan(lambda h, w: (layer(h, w["up"], w["down"]), None), x, params)
    return (h ** 2).mean()""",
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
            (LEAN + "    return deep_loss(params, x)", "the budget is half of"),
            # around the whole loss: all layers are recomputed, and kept, at once
            (
                LEAN + "    return jax.checkpoint(deep_loss)(params, x)",
                "the budget is half of",
            ),
            # the products are kept
            (
                LEAN
                + LAYER
                + "    kept = jax.checkpoint_policies.dots_saveable\n"
                + "    layer = jax.checkpoint(layer, policy=kept)\n"
                + END,
                "the budget is half of",
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
            # what is kept has half the bits; the loss is exact
            (
                LEAN + HALF_KEPT.replace("CAST", "h.astype(jnp.float16)"),
                "x [3072, 40]:\n['gradient']",
            ),
            # the same where the check measures memory
            (
                LEAN
                + HALF_KEPT.replace(
                    "CAST", "h.astype(jnp.float16 if len(h) > 99 else jnp.float32)"
                ),
                "x [3072, 40]:\n['gradient']",
            ),
            # float16 between the layers
            (
                LEAN + "    @jax.checkpoint\n"
                "    def layer(h, w):\n"
                "        h = h.astype(jnp.float32)\n"
                "        h = h + jnp.tanh(h @ w['up']) @ w['down']\n"
                "        return h.astype(jnp.float16), None\n"
                "    h = lax.scan(layer, x.astype(jnp.float16), params)[0]\n"
                "    return (h.astype(jnp.float32) ** 2).mean()",
                "x [3072, 40]:\n['gradient']",
            ),
            (  # no gradient of x
                LEAN + "    layer = jax.checkpoint(lambda h, w: (\n"
                "        h + jnp.tanh(h @ w['up']) @ w['down'], None))\n"
                "    x = lax.stop_gradient(x)\n" + END,
                "['gradient']['x']: every value is zero",
            ),
            (
                "lean_loss = deep_loss(\n"
                "    {'up': jnp.ones((1, 2, 3)), 'down': jnp.ones((1, 3, 2))},\n"
                "    jnp.ones((4, 2)))",
                "has to be a function",
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
                "times the FLOPs",
            ),
            (  # what is measured is not what is compared
                LEAN + LAYER + "    if x.shape[0] > 8:\n"
                "        layer = lambda h, w: (\n"
                "            h * w['up'].sum() * w['down'].sum(), None)\n" + END,
                "0.00 times the FLOPs",
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
            "import bisect\n" + LARGEST + "    data = mesh.get('data', 1)\n"
            "    def too_many(each):\n"
            "        n = each * data\n"
            f"        return bool(n) and not {COUNT}.fits(chip)\n"
            "    return float(data * (bisect.bisect_left(\n"
            "        range(10**6), True, key=too_many) - 1))",
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
            (LARGEST + "    return 0", "6 more also fit"),
            (LARGEST + "    return False", "False is not a number"),
            (LARGEST + "    return -6", "not a whole number of 0 or more"),
            (LARGEST + "    return 258.5", "not a whole number of 0 or more"),
            (  # a search that ends too early
                LARGEST + "    data = mesh.get('data', 1)\n"
                "    fitting = [0]\n"
                "    for n in range(data, 1024 * data, data):\n"
                f"        if {COUNT}.fits(chip):\n"
                "            fitting.append(n)\n"
                "    return max(fitting)",
                "384 more also fit. Where does your search end?",
            ),
            (  # the same, in halves
                LARGEST + "    data, low, high = mesh.get('data', 1), 0, 2**20\n"
                "    while high - low > 1:\n"
                "        n = (low + high) // 2 * data\n"
                "        if n > 2**20:\n"
                "            high = (low + high) // 2\n"
                f"        elif {COUNT}.fits(chip):\n"
                "            low = (low + high) // 2\n"
                "        else:\n"
                "            high = (low + high) // 2\n"
                "    return low * data",
                "384 more also fit",
            ),
            (
                LARGEST + "    return float('nan')",
                "is not a whole number|is not a number",
            ),
            (LARGEST + "    return None", "is not a whole number|is not a number"),
            (  # at least one sequence, whatever it takes
                LARGEST + "    data = mesh.get('data', 1)\n"
                "    n = data\n"
                f"    while {COUNT}.fits(chip):\n"
                "        n += data\n"
                "    return max(data, n - data)",
                "gpt3-13b on {'data': 4} of v5e: a batch of 4 does not fit",
            ),
            (  # powers of two only
                LARGEST + "    data = mesh.get('data', 1)\n"
                "    n = data\n"
                f"    while {COUNT}.fits(chip):\n"
                "        n *= 2\n"
                "    return n // 2 if n > data else 0",
                "more also fit",
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
                "does not divide over data|more also fit",
            ),
            (  # a mesh without data
                LARGEST
                + (
                    "    data = mesh['data']\n"
                    "    n = data\n"
                    "    while spmd.training_memory(model, mesh=mesh, batch=n,"
                    " **how).fits(chip):\n"
                    "        n += data\n"
                    "    return n - data"
                ),
                "KeyError: 'data'",
            ),
        ],
    ),
    "9.6": Answers(
        right=[
            # a list, and NumPy's numbers; sorted by what is wanted
            CHOOSE
            + """
    def fits(split, zero):
        mesh = {"data": int(devices // split), "model": int(split)}
        try:
            return spmd.training_memory(
                model, mesh=mesh, zero=zero, batch=batch, **how).fits(chip)
        except spmd.NotDivisible:
            return False

    splits = np.arange(1, devices + 1)
    splits = splits[devices % splits == 0]
    pairs = sorted((n, z) for n in splits for z in range(4))
    best = next((pair for pair in pairs if fits(*pair)), None)
    return best and [devices // best[0], *best]
""",
            CHOOSE
            + MESHES
            + "    for split, zero in [(n, z) for n in meshes for z in range(4)]:"
            + TRY,
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
            CHOOSE
            + MESHES
            + "    for split, zero in [(n, z) for n in meshes for z in range(4)]:"
            + TRY.replace(
                "return devices // split, split, zero",
                "return np.array([devices // split, split, zero])",
            ),
        ],
        wrong=[
            (  # powers of two only
                CHOOSE + "    meshes = [n for n in (1, 2, 4, 8) if devices % n == 0]\n"
                "    for split, zero in [(n, z) for n in meshes for z in range(4)]:"
                + TRY,
                "gpt2-small on 12 v5e, 2 sequences: None: this is not the first choice",
            ),
            (
                CHOOSE + "    split = 1\n"
                "    while split <= devices:\n"
                "        for zero in range(4):\n"
                "            try:\n"
                "                found = spmd.training_memory(\n"
                "                    model, zero=zero, batch=batch, **how,\n"
                "                    mesh={'data': devices // split, 'model': split})\n"
                "            except spmd.NotDivisible:\n"
                "                continue\n"
                "            if found.fits(chip):\n"
                "                return devices // split, split, zero\n"
                "        split *= 2",
                "is not 12|not the first choice",
            ),
            (
                CHOOSE + "    return '8, 1, 3'",
                "this is neither None nor (data, model, zero)",
            ),
            (
                CHOOSE + "    return '813'",
                "this is neither None nor (data, model, zero)",
            ),
            (
                CHOOSE + "    return [str(devices), '1', '3']",
                "data: '8' is not a number",
            ),
            ("choose = 8, 1, 3", "choose is (8, 1, 3), but has to be a function"),
            (
                CHOOSE + "    return devices, 1, 3",
                "(8, 1, 3): this is not the first choice that fits",
            ),
            (CHOOSE + "    return 1, devices, 0", "not the first choice|does not fit"),
            (CHOOSE + "    return None", "not the first choice"),
            (  # the stage first, and then the mesh
                CHOOSE
                + MESHES
                + "    for zero, split in [(z, n) for z in range(4) for n in meshes]:"
                + TRY,
                "not the first choice",
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
                CHOOSE
                + MESHES
                + "    for split, zero in [(n, 3) for n in meshes]:"
                + TRY,
                "not the first choice",
            ),
            (
                CHOOSE + "    return 2, 4, 0",
                "does not fit|not the first choice|is not 8",
            ),
            (
                CHOOSE + "    return devices, 1",
                "(8, 1): this is neither None nor (data, model, zero)",
            ),
            (
                CHOOSE + "    return dict(data=devices, model=1, zero=3)",
                "this is neither None nor (data, model, zero)",
            ),
            (
                CHOOSE
                + MESHES
                + "    for split, zero in [(n, z) for n in meshes for z in range(4)]:"
                + TRY.replace("return None", "return False"),
                "False: this is neither None nor",
            ),
        ],
    ),
}
