"""Chapter 08: right and wrong answers."""

from . import Answers
from .ch01 import YES

PLACE = "def place(params):\n"
MAKE = "def make(params):\n"
HELD = """
    def held_loss(params, x):
        def layer(h, w):
            h = h + jnp.tanh(h @ w) @ params["out"]
            return lax.with_sharding_constraint(h, on("data")), None
        return (lax.scan(layer, x, params["stack"])[0] ** 2).mean()
"""
STEP = """
    def step(params, moments, x):
        grads = jax.grad(held_loss)(params, x)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments
"""
PUT = """    params = jax.device_put(params, places)
    moments = jax.tree.map(jnp.zeros_like, params)
"""
PLACES = '    places = {"stack": on(None, "data"), "out": on("data")}\n'
JIT = (
    "    step = jax.jit(step, donate_argnums=(0, 1),"
    " out_shardings=(places, places))\n"
    "    return params, moments, step"
)
HEALTHY = "def assert_healthy(step, *args, carry=None):\n"
CODES = """    seen = spmd.xray(step, *args, carry=carry)
    codes = [f.code for f in seen.findings]
    codes += ['redundancy'] * ((seen.redundancy or 1) > 1.05)
"""
SETTLE = "def settle(start):\n"

ANSWERS = {
    "8.1": Answers(
        right=[
            'a, b = "padded-constraint", "summed-twice"\n'
            'c, d = "replicated-output", "dropped-constraint"',
            "a = spmd.xray(uneven, abstract((10,))).findings[0].code\n"
            'b = "summed-twice"\n'
            'c = "replicated-output"\n'
            'd = spmd.xray(passed_over, abstract((16, 24), "data")).findings[0].code',
        ],
        wrong=[
            (
                'a = b = c = d = "summed-twice"',
                "look again at a, c, d",
            ),
            (
                'a, b = "dropped-constraint", "summed-twice"\n'
                'c, d = "replicated-output", "padded-constraint"',
                "look again at a, d",
            ),
            (
                'a, b = "padded-constraint", "replicated-output"\n'
                'c, d = "summed-twice", "dropped-constraint"',
                "look again at b, c",
            ),
            ("a, b, c, d = 2, 1, 3, 2", "look again at a, b, c, d"),
            (YES + "a = b = c = d = Yes()", "look again at a, b, c, d"),
            (  # a text that says it is equal
                "class Same(str):\n"
                "    __eq__ = lambda self, other: True\n"
                "    __hash__ = lambda self: hash('padded-constraint')\n"
                "    __str__ = lambda self: self\n"
                "a = b = c = d = Same('any')",
                "look again at a, b, c, d",
            ),
        ],
    ),
    "8.2": Answers(
        right=[
            PLACE + "    def cut(leaf, first):\n"
            "        best = None\n"
            "        for d in range(first, len(leaf.shape)):\n"
            "            n = leaf.shape[d]\n"
            "            if n % 8 == 0 and (best is None or n > leaf.shape[best]):\n"
            "                best = d\n"
            "        return on() if best is None else on(*[None] * best, 'data')\n"
            "    return {name: jax.tree.map(\n"
            "        lambda leaf: cut(leaf, int(name == 'layers')), part)\n"
            "        for name, part in params.items()}",
            PLACE + "    def spec(path, leaf):\n"
            "        name = jax.tree_util.keystr(path, simple=True, separator='/')\n"
            "        dims = [d for d, n in enumerate(leaf.shape) if n % 8 == 0]\n"
            "        if name.startswith('layers/'):\n"
            "            dims = [d for d in dims if d > 0]\n"
            "        entries = [None] * len(leaf.shape)\n"
            "        if dims:\n"
            "            entries[max(dims, key=lambda d: leaf.shape[d])] = 'data'\n"
            "        return NamedSharding(mesh, P(*entries))\n"
            "    return jax.tree_util.tree_map_with_path(spec, params)",
            PLACE + "    def spec(path, leaf):\n"
            "        skip = int(path[0] == jax.tree_util.DictKey('layers'))\n"
            "        sizes = np.array(jnp.shape(leaf)[skip:], int)\n"
            "        fits = np.where(sizes % 8 == 0, sizes, 0)\n"
            "        entries = [None] * jnp.ndim(leaf)\n"
            "        if fits.any():\n"
            "            entries[skip + int(fits.argmax())] = 'data'\n"
            "        return NamedSharding(mesh, P(*entries))\n"
            "    return jax.tree.map_with_path(spec, params)",
        ],
        wrong=[
            (  # the tree of the check
                PLACE + "    cut, second = on('data'), on(None, 'data')\n"
                "    return {'embed': cut, 'norm': on(), 'scale': on(),\n"
                "        'layers': {'w': on(None, None, 'data'), 'b': second,\n"
                "            'odd': on(), 'one': on(), 'deep': {'w': second}},\n"
                "        'layers_norm': cut, 'square': cut, 'head': {'w': second}}",
                "must lie as",
            ),
            (  # specs in place of places
                PLACE + "    return jax.tree.map(lambda leaf: P(), params)",
                "is no NamedSharding",
            ),
            (PLACE + "    return params", "is no NamedSharding"),
            (PLACE + "    return on()", "is not built like params"),
            (PLACE + "    return jax.tree.map(lambda leaf: on(), params)", "embed"),
            (
                PLACE + '    return jax.tree.map(lambda leaf: on("data"), params)',
                "Error|divide|norm",
            ),
            (  # stacks are forgotten
                PLACE + "    def spec(leaf):\n"
                "        fits = [n if n % 8 == 0 else 0 for n in leaf.shape]\n"
                "        if not any(fits):\n"
                "            return on()\n"
                "        return on(*[None] * fits.index(max(fits)), 'data')\n"
                "    return jax.tree.map(spec, params)",
                "odd",
            ),
            (  # by the beginning of the name: layers_norm is no stack
                PLACE + "    def spec(path, leaf):\n"
                "        name = jax.tree_util.keystr(path, simple=True)\n"
                "        first = int(name.startswith('layers'))\n"
                "        fits = [n if n % 8 == 0 else 0 for n in leaf.shape[first:]]\n"
                "        if not any(fits):\n"
                "            return on()\n"
                "        return on(*[None] * (first + fits.index(max(fits))), 'data')\n"
                "    return jax.tree_util.tree_map_with_path(spec, params)",
                "layers_norm",
            ),
            (  # the last of equal or any, not the largest
                PLACE + "    def spec(path, leaf):\n"
                "        first = int(getattr(path[0], 'key', '') == 'layers')\n"
                "        for d in reversed(range(first, len(leaf.shape))):\n"
                "            if leaf.shape[d] % 8 == 0:\n"
                "                return on(*[None] * d, 'data')\n"
                "        return on()\n"
                "    return jax.tree_util.tree_map_with_path(spec, params)",
                "embed",
            ),
        ],
    ),
    "8.3": Answers(
        right=[
            MAKE + '    places = {"out": on(None, "data"),\n'
            '        "stack": on(None, None, "data")}\n' + PUT + HELD + STEP + JIT,
            MAKE
            + PLACES
            + PUT
            + HELD
            + "    @partial(jax.jit, donate_argnums=(0, 1))\n"
            + STEP.lstrip("\n").replace(
                "        return jax.tree.map(lambda p, m: p - 0.1 * m, params,"
                " moments), moments\n",
                "        new = jax.tree.map(\n"
                "            lambda p, m: p - 0.1 * m, params, moments)\n"
                "        return lax.with_sharding_constraint(\n"
                "            (new, moments), (places, places))\n",
            )
            + "    return params, moments, step",
            # on this model the compiler finds the shardings by itself
            MAKE
            + PLACES
            + PUT
            + "    return params, moments, jax.jit(plain_step, donate_argnums=(0, 1))",
            # by hand
            MAKE
            + """    specs = {"stack": P(None, "data"), "out": P("data")}
    params = {n: jax.device_put(a, on(*specs[n])) for n, a in params.items()}
    moments = {n: jnp.zeros(a.shape, device=a.sharding) for n, a in params.items()}
    def local(params, moments, x):
        def loss(params):
            out = lax.all_gather(params["out"], "data", tiled=True)
            @jax.checkpoint
            def layer(h, w):
                w = lax.all_gather(w, "data", tiled=True)
                return h + jnp.tanh(h @ w) @ out, None
            h = lax.scan(layer, x, params["stack"])[0]
            return lax.pmean((h ** 2).mean(), "data")
        grads = jax.grad(loss)(params)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments
    mapped = jax.shard_map(local, mesh=mesh, out_specs=(specs, specs),
                           in_specs=(specs, specs, P("data")))
    return [params, moments, jax.jit(mapped, donate_argnums=(0, 1))]""",
        ],
        wrong=[
            (  # the stack along its layers
                MAKE
                + PLACES.replace('on(None, "data")', 'on("data")')
                + PUT
                + HELD
                + STEP
                + JIT,
                "a finding is left",
            ),
            (  # everything replicated
                MAKE
                + '    places = {"stack": on(), "out": on()}\n'
                + PUT
                + HELD
                + STEP
                + JIT,
                "lie on one device",
            ),
            (  # moments left on one device
                MAKE
                + PLACES
                + PUT.replace(
                    "jax.tree.map(jnp.zeros_like, params)",
                    "jax.tree.map(lambda p: jnp.zeros(p.shape), params)",
                )
                + HELD
                + STEP
                + JIT,
                "a finding is left|donated buffers",
            ),
            (  # not donated
                MAKE
                + PLACES
                + PUT
                + HELD
                + STEP
                + JIT.replace(" donate_argnums=(0, 1),", ""),
                "not donated",
            ),
            (  # moments that are the parameters: nothing may run
                MAKE + PLACES + "    params = jax.device_put(params, places)\n"
                "    moments = params\n" + HELD + STEP + JIT,
                "moments",
            ),
            (  # all layers whole before the first is used
                MAKE
                + PLACES
                + PUT
                + HELD
                + STEP.replace(
                    "        grads = jax.grad(held_loss)(params, x)\n",
                    "        whole = lax.with_sharding_constraint(params, on())\n"
                    "        grads = jax.grad(held_loss)(whole, x)\n",
                )
                + JIT,
                "bytes at the peak",
            ),
            (  # only half of it is donated
                MAKE + PLACES + PUT + HELD + STEP + JIT.replace("(0, 1)", "(0,)"),
                "not donated",
            ),
            (  # another step, there too
                "plain_step = lambda params, moments, x: (params, moments)\n"
                + MAKE
                + PLACES
                + PUT
                + "    step = jax.jit(lambda p, m, x: (p, m), donate_argnums=(0, 1))\n"
                "    return params, moments, step",
                "off by|not donated|finding",
            ),
            (  # another step
                MAKE
                + PLACES
                + PUT
                + HELD
                + STEP.replace("0.1 * m", "0.1 * 8 * m")
                + JIT,
                "stack|out",
            ),
            (  # moments in half of the bits
                MAKE
                + PLACES
                + PUT.replace(
                    "jax.tree.map(jnp.zeros_like, params)",
                    "jax.tree.map(lambda p: jnp.zeros_like(p, jnp.float16), params)",
                )
                + HELD
                + STEP.replace("0.9 * m + g", "(0.9 * m + g).astype(m.dtype)").replace(
                    "p - 0.1 * m", "(p - 0.1 * m).astype(p.dtype)"
                )
                + JIT,
                "[1]['out']: off by up to",
            ),
            (  # nothing is returned
                MAKE
                + PLACES
                + PUT
                + HELD
                + STEP
                + JIT.replace("return params, moments, step", "pass"),
                "make returned a NoneType, and (params, moments, step) is wanted",
            ),
            (  # the loss as well
                MAKE
                + PLACES
                + PUT
                + HELD
                + STEP.replace(
                    "params, moments), moments", "params, moments), moments, 0.0"
                )
                + JIT.replace("(places, places)", "(places, places, None)"),
                "step returned a tuple, and a pair is wanted",
            ),
        ],
    ),
    "8.4": Answers(
        right=[
            HEALTHY + "    seen = spmd.xray(step, *args, carry=carry)\n"
            "    codes = [f.code for f in seen.findings]\n"
            "    many = seen.redundancy\n"
            "    if many is not None and many > 1.05:\n"
            "        codes.append('redundancy')\n"
            "    assert not codes, ' and '.join(codes)",
            HEALTHY + "    seen = spmd.xray(step, *args, carry=carry)\n"
            "    lines = [f'{f.code}: {f.sentence} {f.remedy}'\n"
            "             for f in seen.findings]\n"
            "    if seen.redundancy and seen.redundancy > 1.05:\n"
            "        lines.append(f'redundancy: {seen.redundancy}')\n"
            "    if lines:\n"
            "        raise AssertionError('\\n'.join(lines))",
        ],
        wrong=[
            (HEALTHY + "    return None", "and passed"),
            (HEALTHY + "    raise AssertionError('unhealthy')", "you name|refused"),
            (  # carry is forgotten
                HEALTHY + "    seen = spmd.xray(step, *args)\n"
                "    codes = [f.code for f in seen.findings]\n"
                "    codes += ['redundancy'] * ((seen.redundancy or 1) > 1.05)\n"
                "    assert not codes, codes",
                "has ['sharding-drift'], and passed",
            ),
            (  # only findings
                HEALTHY + "    seen = spmd.xray(step, *args, carry=carry)\n"
                "    assert not seen.findings, [f.code for f in seen.findings]",
                "you name|and passed",
            ),
            (  # every code there is
                HEALTHY
                + "    raise AssertionError('padded-constraint dropped-constraint"
                " sharding-drift gathered-stack redundancy')",
                "you name|refused",
            ),
            (  # says "redundancy" whatever it is
                HEALTHY + "    seen = spmd.xray(step, *args, carry=carry)\n"
                "    codes = [f.code for f in seen.findings] + ['redundancy']\n"
                "    many = seen.redundancy or 1\n"
                "    assert many <= 1.05 and not seen.findings, codes",
                "and you name",
            ),
            (  # a table of the tried cases, in their order
                "told = iter(['padded-constraint dropped-constraint',\n"
                "    'sharding-drift', 'gathered-stack', 'redundancy idle-axis',\n"
                "    'redundancy', '', '', ''])\n"
                + HEALTHY
                + "    said = next(told)\n    assert not said, said",
                "passed|you name|refused",
            ),
            (  # a table by name
                HEALTHY + "    said = {'two': 'padded-constraint dropped-constraint',\n"
                "        '<lambda>': 'sharding-drift'}.get(step.__name__, '')\n"
                "    cut = [bool(getattr(a.sharding, 'spec', ())) for a in args]\n"
                "    if step.__name__ == 'scanned' and args[0].sharding.spec[0]:\n"
                "        said = 'gathered-stack'\n"
                "    if step.__name__ == 'halves' and not cut[0]:\n"
                "        said = 'redundancy idle-axis'\n"
                "    if step.__name__ == 'pair' and args[3].shape[1] == 64:\n"
                "        said = 'redundancy'\n"
                "    assert not said, said",
                "and passed",
            ),
            (HEALTHY + CODES + "    return codes", "and passed"),
            (  # only the first
                HEALTHY + CODES + "    assert not codes, codes[0]",
                "and you name",
            ),
            (
                HEALTHY + CODES + "    if codes:\n        raise ValueError(codes)",
                "ValueError",
            ),
            (  # a limit of seven
                HEALTHY + "    seen = spmd.xray(step, *args, carry=carry)\n"
                "    codes = [f.code for f in seen.findings]\n"
                "    codes += ['redundancy'] * ((seen.redundancy or 1) > 7)\n"
                "    assert not codes, codes",
                "pair has ['redundancy'], and passed",
            ),
        ],
    ),
    "8.5": Answers(
        right=[
            SETTLE + "    ema, count, rows = jax.device_put(\n"
            '        (start["ema"], start["count"], start["rows"]),\n'
            '        (on(None), on(), on("data", None)))\n'
            '    return {"ema": ema, "count": count, "rows": rows}',
            SETTLE + "    for name, value in start.items():\n"
            "        cut = ('data',) if np.ndim(value) == 2 else ()\n"
            "        start[name] = jax.device_put(value, on(*cut))\n"
            "    return start",
        ],
        wrong=[
            (SETTLE + "    return start", "as P"),
            (
                SETTLE + "    return jax.device_put(start, on())",
                "as P|rows are",
            ),
            (
                SETTLE
                + '    return {**start, "ema": jax.device_put(start["ema"], on()),'
                '\n            "rows": jax.device_put(start["rows"], on("data"))}',
                "as P",
            ),
            (
                SETTLE + "    return jax.device_put(start, devices[0])",
                "as P|ValueError",
            ),
            (  # another step
                "drifting = lambda state, x: jax.tree.map(lambda a: a * 1, state)\n"
                + SETTLE
                + "    return jax.device_put(start, on())",
                "as P|rows are",
            ),
            (SETTLE + "    return None", "is missing"),
            (  # a plain number drifts
                SETTLE
                + '    places = {"ema": on(), "count": on(), "rows": on("data")}\n'
                "    start = jax.device_put(start, places)\n"
                '    return {**start, "count": int(start["count"])}',
                "count",
            ),
            (  # other values
                SETTLE
                + '    places = {"ema": on(), "count": on(), "rows": on("data")}\n'
                "    zeros = jax.tree.map(jnp.zeros_like, start)\n"
                "    return jax.device_put(zeros, places)",
                "count|ema|rows",
            ),
        ],
    ),
}
