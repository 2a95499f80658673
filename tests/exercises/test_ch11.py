"""Chapter 11: its checks, judged by right and wrong answers."""

import re
from functools import partial

import jax
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from spmd_exercises import _setting

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter11(AnswersAreJudged):
    pass


def given():
    """What the chapter's cells have made where its answers stand."""
    mesh = make_mesh(4, 2)
    return imports() | {
        "re": re,
        "partial": partial,
        "nnx": nnx,
        "optax": optax,
        "mesh": mesh,
        "make_mesh": make_mesh,
        "on": lambda *entries, mesh=mesh: _setting.on(mesh, *entries),
        "by_size": by_size,
        "name_of": name_of,
        "place": place,
        "GatedBlock": GatedBlock,
        "loss_fn": loss_fn,
        "make_step": make_step,
    }


def make_mesh(data, model):
    return _setting.make_mesh(data=data, model=model)


def name_of(path):
    return jax.tree_util.keystr(path, simple=True, separator="/")


def by_size(shape, mesh, first=0):
    entries = [None] * len(shape)
    for axis in ("model", "data") * (len(shape) - first > 1):
        fits = [
            d
            for d in range(first, len(shape))
            if entries[d] is None and shape[d] % mesh.shape[axis] == 0
        ]
        if fits:
            entries[max(fits, key=lambda d: shape[d])] = axis
    return P(*entries)


def place(params, mesh):
    def spec(path, leaf):
        stacked = "/layers/" in "/" + name_of(path)
        return NamedSharding(mesh, by_size(leaf.shape, mesh, first=int(stacked)))

    return jax.tree_util.tree_map_with_path(spec, params)


class GatedBlock(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.RMSNorm(40, rngs=rngs)
        lay = partial(nnx.Linear, use_bias=False, rngs=rngs)
        self.gate, self.up = lay(40, 96), lay(40, 96)
        self.down = lay(96, 40)

    def __call__(self, x):
        h = self.norm(x)
        return x + self.down(nnx.silu(self.gate(h)) * self.up(h))


def loss_fn(model, x, y):
    return ((model(x) - y) ** 2).mean()


def make_step(graphdef):
    @partial(jax.jit, donate_argnums=0)
    def step(state, x, y):
        model, optimizer = nnx.merge(graphdef, state)
        loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    return step


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
PUT = """    state = jax.device_put(nnx.split(make())[1], places)
    return state, make_step(graph)
"""
BY_HAND = """    tx, model = optax.adam(1e-2), GatedBlock(nnx.Rngs(seed))
    graph, params = nnx.split(model)
    state = params, tx.init(params)
    @partial(jax.jit, donate_argnums=0)
    def step(state, x, y):
        params, opt = state
        loss, grads = jax.value_and_grad(
            lambda p: loss_fn(nnx.merge(graph, p), x, y))(params)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss
    return jax.device_put(state, place(state, mesh)), step
"""
WITH_GRAPH = """
@partial(jax.jit, static_argnums=0, donate_argnums=1)
def jitted(graph, state, x, y):
    model, optimizer = nnx.merge(graph, state)
    loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
    optimizer.update(model, grads)
    return nnx.state((model, optimizer)), loss
"""
HALF = """
def make_half(graph):
    @partial(jax.jit, donate_argnums=0)
    def step(state, x, y):
        model, optimizer = nnx.merge(graph, state)
        def half(model, x, y):
            for layer in (model.gate, model.up, model.down):
                layer.dtype = jnp.bfloat16
            return ((model(x).astype(jnp.float32) - y) ** 2).mean()
        loss, grads = nnx.value_and_grad(half)(model, x, y)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss
    return step
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
            'case_a = case_c = ["All_Reduce", np.int64(1152)]\n'
            'case_b, case_d = ("all-gather", 3840.0), ("nothing", jnp.int32(0))',
            "case_a = case_c = ('all reduce', 1152)\n"
            "case_b, case_d = ('all gather', 3840), ('nothing ', 0)",
        ],
        wrong=[
            (
                'case_a = case_b = case_c = case_d = ("all-reduce", 1152)',
                "look again at case_b, case_d: ",
            ),
            (  # the bytes of the whole batch
                'case_a = case_c = ("all-reduce", 48 * 24 * 4)\n'
                'case_b, case_d = ("all-gather", 48 * 80 * 4), ("nothing", 0)',
                "The collective is right, but its bytes are not",
            ),
            (  # a whole second weight looks like no exchange
                'case_a, case_b = ("all-reduce", 1152), ("all-gather", 3840)\n'
                'case_c, case_d = ("all-gather", 3840), ("nothing", 0)',
                "look again at case_c: case_c is ('all-gather', 3840)",
            ),
            ('case_a = case_b = case_c = case_d = "all-reduce"', "is not a pair"),
            (
                YES + "case_a = case_b = case_c = case_d = (Yes(), 1152)",
                "is not a pair",
            ),
            (
                YES + "case_a = case_c = ('all-reduce', Yes())\n"
                "case_b, case_d = ('all-gather', Yes()), ('nothing', Yes())",
                "is not a pair",
            ),
            (  # nearly, and nothing that can be compared
                'case_a, case_c = ("all-reduce", 1152.9), ("all-reduce", np.nan)\n'
                'case_b, case_d = ("all-gather", 3840), ("nothing", 0)',
                "look again at case_a, case_c: case_a is ('all-reduce', 1152.9)",
            ),
            ('case_a = case_b = case_c = case_d = ("nothing", None)', "is not a pair"),
            ("case_a = case_b = case_c = case_d = None", "case_a: None is not a pair"),
            (  # bytes of a hidden layer that is added, not gathered
                'case_a = case_c = ("all-reduce", 3840)\n'
                'case_b, case_d = ("all-gather", 3840), ("nothing", 0)',
                "look again at case_a, case_c",
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
            "@jax.jit\n"
            + LOCAL
            + "    h = jax.nn.relu(jnp.einsum('bd,df->bf', x, w1) + b1)\n"
            "    n = lax.axis_size('model')\n"
            "    return lax.pmean(h @ w2, axis_name=('model',)) * n + b2",
        ],
        wrong=[
            (  # the bias is added once on each device
                LOCAL + "    h = jax.nn.relu(x @ w1 + b1)\n"
                "    return lax.psum(h @ w2 + b2, 'model')",
                "each term once']: off by up to",
            ),
            (  # the mean
                LOCAL + "    h = jax.nn.relu(x @ w1 + b1)\n"
                "    return lax.pmean(h @ w2, 'model') + b2",
                "each term once']: off by up to",
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
                "relu(x @ w1 + b1) @ w2 + b2",
            ),
            (  # half of the bytes, and of the digits
                LOCAL + "    part = jax.nn.relu(x @ w1 + b1) @ w2\n"
                "    part = part.astype(jnp.bfloat16)\n"
                "    return lax.psum(part, 'model').astype(x.dtype) + b2",
                "relu(x @ w1 + b1) @ w2 + b2",
            ),
            (  # the digits of float16 in the sum, of bfloat16 in the weights
                LOCAL + "    part = jax.nn.relu(x @ w1 + b1) @ w2\n"
                "    part = lax.reduce_precision(part, 5, 10)\n"
                "    return lax.psum(part, 'model') + b2",
                "each term once']: off by up to",
            ),
            (
                LOCAL + "    w1, w2 = (w.astype(jnp.bfloat16) for w in (w1, w2))\n"
                "    part = jax.nn.relu(x @ w1 + b1) @ w2\n"
                "    return lax.psum(part, 'model') + b2",
                "each term once']: off by up to",
            ),
            (  # right for one size of the axis
                LOCAL + "    h = jax.nn.relu(x @ w1 + b1)\n"
                "    return lax.psum(h @ w2 + b2 / 4, 'model')",
                "on a mesh of 4 × 2: ",
            ),
            (LOCAL + "    lax.psum(x @ w1 @ w2, 'model')", "local returned None"),
            (  # one exchange more, of nothing
                LOCAL + "    part = jax.nn.relu(x @ w1 + b1) @ w2\n"
                "    mean = lax.pmean(part.sum(), ('data', 'model'))\n"
                "    return lax.psum(part, 'model') + b2 + mean - mean",
                "may only run over 'model'",
            ),
            (  # a bias that is never negative
                LOCAL
                + (
                    "    h = jax.nn.relu(x @ w1 + b1)\n"
                    "    return lax.psum(h @ w2, 'model') + jnp.abs(b2)"
                ),
                "each term once']: off by up to",
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
            # each device's gates beside its ups, in two dimensions
            PACK + "    D, F = gate.shape\n"
            "    halves = gate.reshape(D, 2, F // 2), up.reshape(D, 2, F // 2)\n"
            "    both = jnp.concatenate(halves, axis=2).reshape(D, 2 * F)\n"
            "    return jax.device_put(both, on(None, 'model'))\n"
            + GATED
            + "    h = (x @ packed).reshape(len(x), 2, 2, -1)\n"
            "    gate, up = (h[:, :, i].reshape(len(x), -1) for i in (0, 1))\n" + ACT,
            # by hand
            PACK + "    return jax.jit(lambda *both: jnp.stack(both, axis=1),\n"
            "        out_shardings=on(None, None, 'model'))(gate, up)\n"
            "def body(x, packed, down):\n"
            "    h = jax.vmap(lambda w: x @ w, in_axes=1)(packed)\n"
            "    return lax.psum((jax.nn.silu(h[0]) * h[1]) @ down, 'model')\n"
            "gated = jax.jit(jax.shard_map(body, mesh=mesh, out_specs=P('data'),\n"
            "    in_specs=(P('data'), P(None, None, 'model'), P('model'))))\n",
        ],
        wrong=[
            (  # two products, in a loop
                PACK + "    return jax.device_put(\n"
                "        jnp.stack([gate, up]), on(None, None, 'model'))\n"
                + GATED
                + "    gate, up = lax.map(lambda w: x @ w, packed)\n"
                + ACT,
                "gated has 3 matrix products, and the average one is computed 1.00",
            ),
            (  # two calls of one function
                PACK + "    return jax.device_put(\n"
                "        jnp.stack([gate, up]), on(None, None, 'model'))\n"
                "mul = jax.jit(lambda a, b: a @ b)\n"
                + GATED
                + "    gate, up = mul(x, packed[0]), mul(x, packed[1])\n"
                + ACT,
                "gated has 3 matrix products, and the average one is computed 1.00",
            ),
            (  # the result is put together
                PACK + "    return jax.device_put(\n"
                "        jnp.stack([gate, up]), on(None, None, 'model'))\n"
                + GATED
                + "    gate, up = jnp.einsum('bd,gdf->gbf', x, packed)\n"
                "    y = (jax.nn.silu(gate) * up) @ down\n"
                "    return lax.with_sharding_constraint(y, on())",
                "all-gather",
            ),
            (  # half of the bytes, and of the digits
                PACK + "    both = jnp.stack([gate, up]).astype(jnp.bfloat16)\n"
                "    return jax.device_put(both, on(None, None, 'model'))\n"
                + GATED
                + "    gate, up = jnp.einsum('bd,gdf->gbf', x, packed)\n"
                + ACT,
                "packed is bfloat16, but gate and up are float32",
            ),
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
                "each device has 30,720 bytes of packed, but half of packed is",
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
                "gated has 3 matrix products, and the average one is computed 1.00",
            ),
            (  # the two are exchanged
                PACK + "    return jax.device_put(\n"
                "        jnp.stack([up, gate]), on(None, None, 'model'))\n"
                + GATED
                + "    gate, up = jnp.einsum('bd,gdf->gbf', x, packed)\n"
                + ACT,
                "(silu(x @ gate) * (x @ up)) @ down",
            ),
            (
                PACK + "    return (jax.device_put(gate, on(None, 'model')),\n"
                "            jax.device_put(up, on(None, 'model')))\n"
                + GATED
                + "    gate, up = x @ packed[0], x @ packed[1]\n"
                + ACT,
                "pack returned a tuple, but one array",
            ),
            (  # the product with the digits of float16, of bfloat16
                PACK + "    return jax.device_put(\n"
                "        jnp.stack([gate, up]), on(None, None, 'model'))\n"
                + GATED
                + "    both = jnp.einsum('bd,gdf->gbf', x, packed)\n"
                "    gate, up = lax.reduce_precision(both, 5, 10)\n" + ACT,
                "@ down']: off by up to",
            ),
            (
                PACK + "    return jax.device_put(\n"
                "        jnp.stack([gate, up]), on(None, None, 'model'))\n"
                + GATED
                + "    x, packed = jnp.bfloat16(x), jnp.bfloat16(packed)\n"
                "    gate, up = jnp.einsum('bd,gdf->gbf', x, packed)\n" + ACT,
                "@ down']: off by up to",
            ),
            (  # the last gate and up that were packed, wherever it is called
                PACK + "    global last\n"
                "    last = gate, up\n"
                "    return jax.device_put(\n"
                "        jnp.stack([gate, up]), on(None, None, 'model'))\n"
                + GATED
                + "    both = jnp.stack(last)\n"
                "    gate, up = jnp.einsum('bd,gdf->gbf', x, both)\n" + ACT,
                "Error",
            ),
            (  # another mesh
                PACK + "    other = make_mesh(2, 4)\n"
                "    return jax.device_put(\n"
                "        jnp.stack([gate, up]), on('data', mesh=other))\n"
                + GATED
                + "    gate, up = jnp.einsum('bd,gdf->gbf', x, packed)\n"
                + ACT,
                "which is not on `mesh`",
            ),
            (  # not placed
                PACK
                + "    return jnp.stack([gate, up])\n"
                + GATED
                + "    gate, up = jnp.einsum('bd,gdf->gbf', x, packed)\n"
                + ACT,
                "which is not on `mesh`",
            ),
            (  # half done
                PACK
                + "    both = jnp.stack([gate, up])\n"
                + "    return jax.device_put(both, on(None, None, 'model'))\n"
                + GATED
                + "    raise NotImplementedError",
                "Exercise 11.3 is open: write `gated()`",
            ),
            (  # on no device
                PACK
                + "    return np.stack([gate, up], axis=1)\n"
                + GATED
                + "    both = jnp.einsum('bd,dgf->bgf', x, packed)\n"
                "    gate, up = both[:, 0], both[:, 1]\n" + ACT,
                "pack returned an ndarray [40, 2, 96], but one array on the mesh",
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
            (PLACE + "    return place(params, mesh)", "but must be"),
            (  # specs
                PLACE
                + "    return jax.tree.map(lambda at: at.spec, place(params, mesh))",
                "but each has to be a NamedSharding",
            ),
            (  # a rule of which nothing is left gives way to the sizes
                PLACE
                + BY_NAME.replace(
                    "                return NamedSharding(mesh, P(*entries))\n",
                    "                if any(entries):\n"
                    "                    return NamedSharding(mesh, P(*entries))\n"
                    "                break\n",
                ),
                "['none']",
            ),
            (  # what is left moves up
                PLACE + BY_NAME.replace("P(*entries)", "P(*[e for e in entries if e])"),
                "what happens to an entry that does not divide",
            ),
            (  # a mesh, but not the one given
                PLACE.replace("mesh", "other") + BY_NAME,
                "a sharding is on the mesh {'data': 4, 'model': 2}, but the mesh",
            ),
            (
                PLACE + "    whole = NamedSharding(mesh, P())\n"
                "    return jax.tree.map(lambda leaf: whole, params)",
                "but must be",
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
                "what happens to an entry that does not divide",
            ),
            (  # match at the beginning of the name only
                PLACE + BY_NAME.replace("re.search", "re.match"),
                "but must be",
            ),
            (  # the names of the first tree
                PLACE
                + BY_NAME.replace(
                    'int("layers" in name.split("/"))', 'int("a/layers" in name)'
                ),
                "['decoder']['layers'][0]['b']",
            ),
            (PLACE + "    pass", "the leaves that place_by_name returns are none"),
            (  # by name, in one flat dict
                PLACE
                + "    return {name_of(path): NamedSharding(mesh, P()) for path, leaf\n"
                "            in jax.tree_util.tree_leaves_with_path(params)}",
                "the tree of shardings differs in structure from params",
            ),
            (  # another name or case
                PLACE
                + BY_NAME.replace(
                    "re.search(pattern, name)", "re.search(pattern, '/' + name)"
                ),
                "per device, but must be P(",
            ),
            (  # another name or case
                PLACE
                + BY_NAME.replace(
                    "re.search(pattern, name)", "re.search(pattern, name, re.I)"
                ),
                "per device, but must be P(",
            ),
            (  # `layers` at the top of the tree
                PLACE
                + BY_NAME.replace('"layers" in name.split("/")', '"/layers/" in name'),
                "is sharded as|divide",
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
            + "    places = place_by_name(shapes, mesh, [])\n"
            + PUT
            + PLACE
            + BY_NAME,
            # model and optimizer as the state, under nnx.jit
            START + "    state = model, opt = make_pair(GatedBlock, seed)\n"
            "    for part in state:\n"
            "        held = nnx.state(part)\n"
            "        nnx.update(part, jax.device_put(held, place(held, mesh)))\n"
            "    @partial(nnx.jit, donate_argnums=0)\n"
            "    def step(state, x, y):\n"
            "        model, opt = state\n"
            "        loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)\n"
            "        opt.update(model, grads)\n"
            "        return state, loss\n"
            "    return state, step\n"
            "def make_pair(block, seed):\n"
            "    model = block(nnx.Rngs(seed))\n"
            "    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)\n",
            # a partial of a jitted function, and one that calls it
            *(
                START
                + MAKE
                + "    places = place(shapes, mesh)\n"
                + INIT.replace("make_step(graph)", ending)
                + WITH_GRAPH
                for ending in (
                    "partial(jitted, graph)",
                    "lambda state, x, y: jitted(graph, state, x, y)",
                )
            ),
            # optax, and no nnx.Optimizer
            START + BY_HAND,
        ],
        wrong=[
            (
                START + MAKE + "    places = on()\n" + PUT,
                "but at most a sixth is allowed: over which axes",
            ),
            (  # FSDP over both axes
                START + MAKE + SPECS.format(entries="on(('data', 'model'))") + PUT,
                "along `model`|unrequested|average product|idle",
            ),
            (  # both by columns
                START + MAKE + SPECS.format(entries="on('data', 'model')") + PUT,
                "along `model`|unrequested-reshard",
            ),
            (  # tensor parallel only: too much on a device
                START
                + MAKE
                + SPECS.format(
                    entries="on('model') if 'down' in name else on(None, 'model')"
                )
                + PUT,
                "69,608 of the state's 138,728 bytes, but at most a sixth is allowed",
            ),
            (  # the optimizer's state is whole
                START
                + MAKE
                + SPECS.format(
                    entries="on() if 'opt_state' in name else on('model', 'data')"
                    " if 'down' in name else on('data', 'model')"
                )
                + PUT,
                "drift|one device has|replicated|unrequested",
            ),
            (  # not donated
                START
                + MAKE
                + "    places = place(shapes, mesh)\n"
                + PUT.replace(
                    "make_step(graph)",
                    "jax.jit(lambda s, x, y: make_step(graph)(s, x, y))",
                ),
                "the old state is still in memory",
            ),
            (  # Adam on the placed model, but its counters
                START + MAKE + "    model = make()[0]\n"
                "    held = nnx.state(model)\n"
                "    nnx.update(model, jax.device_put(held, place(held, mesh)))\n"
                "    opt = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)\n"
                "    return nnx.split((model, opt))[1], make_step(graph)\n",
                "sharding-drift",
            ),
            (  # a new function, and a new compilation, in each step
                START
                + MAKE
                + "    places = place(shapes, mesh)\n"
                + PUT.replace(
                    "make_step(graph)", "lambda s, x, y: make_step(graph)(s, x, y)"
                ),
                "step is traced anew in each call",
            ),
            (  # the state is not renewed
                START + MAKE + "    places = place(shapes, mesh)\n"
                "    def step(s, x, y):\n"
                "        return s, loss_fn(nnx.merge(graph, s)[0], x, y)\n"
                "    state = jax.device_put(nnx.split(make())[1], places)\n"
                "    return state, jax.jit(step, donate_argnums=0)\n",
                "Adam's first moment of down/kernel",
            ),
            (  # another seed
                START
                + MAKE.replace("nnx.Rngs(seed)", "nnx.Rngs(0)")
                + "    places = place(shapes, mesh)\n"
                + PUT,
                "start(3): ['down/kernel at the start']: off by up to",
            ),
            (  # the moments are not renewed
                START + BY_HAND.replace("updates, opt =", "updates, _ ="),
                "Adam's first moment of down/kernel",
            ),
            (  # one seed for all
                START
                + MAKE.replace("nnx.Rngs(seed)", "nnx.Rngs(7)")
                + "    places = place(shapes, mesh)\n"
                + INIT,
                "start(3): ['down/kernel at the start']: off by up to",
            ),
            (  # decayed weights
                START
                + MAKE.replace("optax.adam(", "optax.adamw(")
                + "    places = place(shapes, mesh)\n"
                + INIT,
                "a batch of zeros has no gradient",
            ),
            (  # another step size
                START
                + MAKE.replace("1e-2", "2e-2")
                + "    places = place(shapes, mesh)\n"
                + INIT,
                "['loss of step 3']",
            ),
            (  # one buffer for both moments, which kills a step that donates both
                START
                + BY_HAND.replace(
                    "return jax.device_put(state, place(state, mesh))",
                    "state = jax.device_put(state, place(state, mesh))\n"
                    "    params, (adam, *rest) = state\n"
                    "    return (params, (adam._replace(nu=adam.mu), *rest))",
                ),
                "share one buffer",
            ),
            (  # products in bfloat16
                START
                + MAKE
                + "    places = place(shapes, mesh)\n"
                + INIT.replace("make_step(graph)", "make_half(graph)")
                + HALF,
                "Adam's first moment of|is not right",
            ),
            (  # a state that a call has used up
                START + MAKE + "    places = place(shapes, mesh)\n"
                "    state, step = jax.device_put(\n"
                "        nnx.split(make())[1], places), make_step(graph)\n"
                "    x = jax.device_put(np.zeros((48, 40), np.float32), on('data'))\n"
                "    step(state, x, x)\n"
                "    return state, step\n",
                "is already deleted: did a call donate it?",
            ),
            (  # the loss alone
                START + MAKE + "    places = place(shapes, mesh)\n"
                "    state = jax.device_put(nnx.split(make())[1], places)\n"
                "    step = make_step(graph)\n"
                "    return state, jax.jit(\n"
                "        lambda s, x, y: step(s, x, y)[1], donate_argnums=0)\n",
                "carry|step returned",
            ),
            (
                START + MAKE + "    places = place(shapes, mesh)",
                "start returned None, but has to return (state, step)",
            ),
        ],
    ),
}
