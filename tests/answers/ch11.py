"""Chapter 11: right and wrong answers."""

from . import Answers
from .ch01 import YES

LOCAL = "def local(x, w1, b1, w2, b2):\n"
PACK = "def pack(gate, up):\n"
GATED = "def gated(x, packed, down):\n"
ACT = "    return (jax.nn.silu(gate) * up) @ down"
PLACE = "def place_by_name(params, mesh, rules):\n"
BY_NAME = """    def spec(path, leaf):
        name = name_of(path)
        first = int("layers" in name.split("/"))
        for pattern, named in rules:
            if re.search(pattern, name):
                entries = [None] * len(leaf.shape)
                for d, axis in enumerate(named, start=first):
                    if axis and leaf.shape[d] % mesh.shape[axis] == 0:
                        entries[d] = axis
                return NamedSharding(mesh, P(*entries))
        return NamedSharding(mesh, by_size(leaf.shape, mesh, first))
    return jax.tree_util.tree_map_with_path(spec, params)
"""
START = "def start(seed):\n"
MAKE = """    def make():
        model = GatedBlock(nnx.Rngs(seed))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    graph, shapes = nnx.split(nnx.eval_shape(make))
"""
INIT = """    state = jax.jit(lambda: nnx.split(make())[1], out_shardings=places)()
    return state, make_step(graph)
"""
SPECS = """    def spec(path, leaf):
        name = name_of(path)
        if "kernel" not in name:
            return on()
        return {entries}
    places = jax.tree_util.tree_map_with_path(spec, shapes)
"""

ANSWERS = {
    "11.1": Answers(
        right=[
            'case_a = case_c = ("all-reduce", 1152)\n'
            'case_b, case_d = ("all-gather", 3840), ("nothing", 0)',
        ],
        wrong=[
            (
                'case_a = case_b = case_c = case_d = ("all-reduce", 1152)',
                "look again at b, d",
            ),
            (  # the bytes of the whole batch
                'case_a = case_c = ("all-reduce", 48 * 24 * 4)\n'
                'case_b, case_d = ("all-gather", 48 * 80 * 4), ("nothing", 0)',
                "look again at a, b, c",
            ),
            (  # a whole second weight looks like no exchange
                'case_a, case_b = ("all-reduce", 1152), ("all-gather", 3840)\n'
                'case_c, case_d = ("all-gather", 3840), ("nothing", 0)',
                "look again at c",
            ),
            ('case_a = case_b = case_c = case_d = "all-reduce"', "is not a pair"),
            (
                YES + "case_a = case_b = case_c = case_d = (Yes(), 1152)",
                "look again at a, b, c, d",
            ),
        ],
    ),
    "11.2": Answers(
        right=[
            LOCAL + "    h = jax.nn.relu(x @ w1 + b1)\n"
            "    b2 = jnp.where(lax.axis_index('model') == 0, b2, 0)\n"
            "    return lax.psum(h @ w2 + b2, 'model')",
            LOCAL + "    h = jnp.maximum(jnp.dot(x, w1) + b1, 0)\n"
            "    n = lax.axis_size('model')\n"
            "    return lax.psum(h @ w2 + b2 / n, 'model')",
        ],
        wrong=[
            (  # the bias is added once on each device
                LOCAL + "    h = jax.nn.relu(x @ w1 + b1)\n"
                "    return lax.psum(h @ w2 + b2, 'model')",
                "result",
            ),
            (  # the mean
                LOCAL + "    h = jax.nn.relu(x @ w1 + b1)\n"
                "    return lax.pmean(h @ w2, 'model') + b2",
                "result",
            ),
            (  # as it was
                LOCAL + "    h = jax.nn.relu(x @ w1 + b1)\n"
                "    h = lax.all_gather(h, 'model', axis=1, tiled=True)\n"
                "    return h @ w2 + b2",
                "Error",
            ),
            (  # both weights are put together first
                LOCAL + "    both = lax.all_gather(x @ w1 + b1, 'model', axis=1,"
                " tiled=True)\n"
                "    size = w2.shape[0]\n"
                "    at = lax.axis_index('model') * size\n"
                "    h = lax.dynamic_slice_in_dim(both, at, size, axis=1)\n"
                "    return lax.psum(jax.nn.relu(h) @ w2, 'model') + b2",
                "all-gather",
            ),
            (  # the sum before the nonlinearity
                LOCAL + "    h = lax.psum(x @ w1 + b1, 'model')\n"
                "    return lax.psum(jax.nn.relu(h) @ w2, 'model') + b2",
                "result",
            ),
        ],
    ),
    "11.3": Answers(
        right=[
            # interleaved: gate and up of a feature are neighbors
            PACK + "    both = jnp.stack([gate, up], axis=2)\n"
            "    both = both.reshape(gate.shape[0], -1)\n"
            "    return jax.device_put(both, on(None, 'model'))\n"
            + GATED
            + "    h = (x @ packed).reshape(x.shape[0], -1, 2)\n"
            "    gate, up = h[..., 0], h[..., 1]\n" + ACT,
            PACK + "    return jax.device_put(\n"
            "        jnp.stack([gate, up]), on(None, None, 'model'))\n"
            + GATED
            + "    gate, up = jnp.einsum('bd,gdf->gbf', x, packed)\n"
            + ACT,
        ],
        wrong=[
            (  # side by side
                PACK + "    both = jnp.concatenate([gate, up], axis=1)\n"
                "    return jax.device_put(both, on(None, 'model'))\n"
                + GATED
                + "    gate, up = jnp.split(x @ packed, 2, axis=1)\n"
                + ACT,
                "collective-permute",
            ),
            (  # whole everywhere
                PACK
                + "    return jax.device_put(jnp.stack([gate, up], axis=1), on())\n"
                + GATED
                + "    h = jnp.einsum('bd,dgf->bgf', x, packed)\n"
                "    gate, up = h[:, 0], h[:, 1]\n" + ACT,
                "a device holds",
            ),
            (  # cut between gate and up
                PACK + "    return jax.device_put(\n"
                "        jnp.stack([gate, up]), on('model'))\n"
                + GATED
                + "    gate, up = jnp.einsum('bd,gdf->gbf', x, packed)\n"
                + ACT,
                "all-gather|all-reduce|permute|all-to-all",
            ),
            (  # two products
                PACK + "    return jax.device_put(\n"
                "        jnp.stack([gate, up]), on(None, None, 'model'))\n"
                + GATED
                + "    gate, up = x @ packed[0], x @ packed[1]\n"
                + ACT,
                "3 products",
            ),
            (  # the two are exchanged
                PACK + "    return jax.device_put(\n"
                "        jnp.stack([up, gate]), on(None, None, 'model'))\n"
                + GATED
                + "    gate, up = jnp.einsum('bd,gdf->gbf', x, packed)\n"
                + ACT,
                "result",
            ),
            (
                PACK + "    return (jax.device_put(gate, on(None, 'model')),\n"
                "            jax.device_put(up, on(None, 'model')))\n"
                + GATED
                + "    gate, up = x @ packed[0], x @ packed[1]\n"
                + ACT,
                "one array",
            ),
        ],
    ),
    "11.4": Answers(
        right=[
            PLACE + BY_NAME,
            PLACE + "    leaves, tree = jax.tree_util.tree_flatten_with_path(params)\n"
            "    out = []\n"
            "    for path, leaf in leaves:\n"
            "        name = name_of(path)\n"
            "        first = 1 if '/layers/' in f'/{name}' else 0\n"
            "        found = [p for r, p in rules if re.search(r, name)]\n"
            "        if found:\n"
            "            named = (None,) * first + tuple(found[0])\n"
            "            spec = P(*(a if a and n % mesh.shape[a] == 0 else None\n"
            "                       for a, n in zip(named, leaf.shape)))\n"
            "        else:\n"
            "            spec = by_size(leaf.shape, mesh, first)\n"
            "        out.append(NamedSharding(mesh, spec))\n"
            "    return jax.tree.unflatten(tree, out)",
        ],
        wrong=[
            (PLACE + "    return place(params, mesh)", "must lie as"),
            (
                PLACE + "    whole = NamedSharding(mesh, P())\n"
                "    return jax.tree.map(lambda leaf: whole, params)",
                "must lie as",
            ),
            (  # the last rule that fits, not the first
                PLACE + BY_NAME.replace("in rules:", "in reversed(rules):"),
                "kv|up",
            ),
            (  # a rule that doesn't divide is given up whole
                PLACE
                + BY_NAME.replace(
                    "            if re.search(pattern, name):\n",
                    "            fits = all(\n"
                    "                not a or n % mesh.shape[a] == 0 for a, n\n"
                    "                in zip(named, leaf.shape[first:]))\n"
                    "            if fits and re.search(pattern, name):\n",
                ),
                "odd|embed|kv",
            ),
            (  # the stack is forgotten
                PLACE
                + BY_NAME.replace(
                    'first = int("layers" in name.split("/"))', "first = 0"
                ),
                "layers",
            ),
            (  # players is no stack
                PLACE
                + BY_NAME.replace(
                    'int("layers" in name.split("/"))', 'int("layers/" in name)'
                ),
                "players",
            ),
            (  # not divisible: an error of JAX
                PLACE
                + BY_NAME.replace(
                    "if axis and leaf.shape[d] % mesh.shape[axis] == 0:", "if axis:"
                ),
                "odd|divide",
            ),
            (  # match at the beginning of the name only
                PLACE + BY_NAME.replace("re.search", "re.match"),
                "must lie as",
            ),
        ],
    ),
    "11.5": Answers(
        right=[
            START
            + MAKE
            + SPECS.format(
                entries="on('model', 'data') if 'down' in name else on('data', 'model')"
            )
            + INIT,
            START
            + MAKE
            + "    places = place(shapes, mesh)\n"
            + "    state = jax.device_put(nnx.split(make())[1], places)\n"
            + "    return state, make_step(graph)",
        ],
        wrong=[
            (START + MAKE + "    places = on()\n" + INIT, "idle-axis|redundancy"),
            (  # FSDP over both axes
                START + MAKE + SPECS.format(entries="on(('data', 'model'))") + INIT,
                "along model|unrequested|redundan|idle",
            ),
            (  # both by columns
                START + MAKE + SPECS.format(entries="on('data', 'model')") + INIT,
                "along model|unrequested-reshard",
            ),
            (  # tensor parallel only: too much on a device
                START
                + MAKE
                + SPECS.format(
                    entries="on('model') if 'down' in name else on(None, 'model')"
                )
                + INIT,
                "a device holds",
            ),
            (  # the optimizer's state is whole
                START
                + MAKE
                + SPECS.format(
                    entries="on() if 'opt_state' in name else on('model', 'data')"
                    " if 'down' in name else on('data', 'model')"
                )
                + INIT,
                "drift|a device holds|replicated|unrequested",
            ),
            (  # not donated
                START
                + MAKE
                + "    places = place(shapes, mesh)\n"
                + INIT.replace(
                    "make_step(graph)",
                    "jax.jit(lambda s, x, y: make_step(graph)(s, x, y))",
                ),
                "not donated",
            ),
            (  # another seed
                START
                + MAKE.replace("nnx.Rngs(seed)", "nnx.Rngs(0)")
                + "    places = place(shapes, mesh)\n"
                + INIT,
                "loss",
            ),
        ],
    ),
}
