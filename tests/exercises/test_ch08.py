"""Chapter 8: its checks, judged by right and wrong answers."""

from functools import partial

import optax

from spmd_exercises import ch08
from spmd_exercises._setting import abstract, devices, make_mesh, on

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter8(AnswersAreJudged):
    pass


def given():
    """What the chapter's cells have made where its answers stand."""
    mesh = make_mesh(data=8)

    return imports() | {
        "mesh": mesh,
        "devices": devices(8),
        "partial": partial,
        "optax": optax,
        "on": lambda *entries: on(mesh, *entries),
        "abstract": lambda shape, *entries: abstract(shape, on(mesh, *entries)),
        "uneven": ch08._padded,
        "passed_over": ch08._passed_over,
        "deep_loss": ch08._deep_loss,
        "plain_step": ch08._plain_step.__wrapped__,
        "drifting": ch08._drifting,
    }


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

TABLE = """
    def spec(path, leaf):
        first = int(path[0] == jax.tree_util.DictKey("layers"))
        sizes, best = leaf.shape, None
        for d, n in enumerate(sizes):
            if d >= first and n % 8 == 0 and (best is None or n > sizes[best]):
                best = d
        entries = ["data" if d == best else None for d in range(len(sizes))]
        return on(*entries)
    return jax.tree_util.tree_map_with_path(spec, params)
"""
EXPLICIT = """
    types = (AxisType.Explicit,)
    own = jax.make_mesh((8,), ("data",), types, devices=devices)
"""

ANSWERS = {
    "8.1": Answers(
        right=[
            'a, d = " Padded-Constraint", "dropped-constraint"\n'
            'b, c = "SUMMED-TWICE", np.str_("replicated-output")',
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
            ("a, b, c, d = 2, 1, 3, 2", "a is 2, which is not one of"),
            (
                "a = c = d = 'summed-twice'\nb = ['summed-twice']",
                "b is ['summed-twice'], which is not one of",
            ),
            (YES + "a = b = c = d = Yes()", "which is not one of"),
            (  # a text that says it is equal
                "class Same(str):\n"
                "    __eq__ = lambda self, other: True\n"
                "    __hash__ = lambda self: hash('padded-constraint')\n"
                "    __str__ = lambda self: self\n"
                "a = b = c = d = Same('any')",
                "a is 'any', which is not one of",
            ),
        ],
    ),
    "8.2": Answers(
        right=[
            # axes of another type on the same devices
            PLACE
            + EXPLICIT
            + TABLE.replace("on(*entries)", "NamedSharding(own, P(*entries))"),
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
            # a tree of first dimensions
            "def place(params):\n"
            '    stacked = jax.tree.map(lambda _: 1, params.get("layers", {}))\n'
            '    firsts = {**jax.tree.map(lambda _: 0, params), "layers": stacked}\n'
            "    def one(leaf, first):\n"
            "        fits = [(n, -d) for d, n in enumerate(leaf.shape) if n % "
            "mesh.size == 0 and d >= first]\n"
            '        return on(*[None] * -max(fits)[1], "data") if fits else on()\n'
            "    return jax.tree.map(one, params, firsts)",
        ],
        wrong=[
            (  # the first tree of the check
                PLACE + "    cut, second = on('data'), on(None, 'data')\n"
                "    return {'embed': second, 'norm': on(), 'scale': on(),\n"
                "        'layers': {'w': on(None, None, 'data'), 'b': second,\n"
                "            'odd': on(), 'one': on(), 'deep': {'w': second}},\n"
                "        'layers_norm': cut, 'square': cut,\n"
                "        'head': {'w': second, 'both': [cut, second]}}",
                "params['embed'] of shape (56, 24)",
            ),
            ("place = on()", "has to be a function"),
            (PLACE + "    params['layers']", "differs in structure from params"),
            (  # half of the devices
                PLACE + "    few = jax.make_mesh((4,), ('data',), (AxisType.Auto,),\n"
                "                        devices=jax.devices()[:4])\n"
                + TABLE.replace("on(*entries)", "NamedSharding(few, P(*entries))"),
                "params['embed'] of shape (24, 56)",
            ),
            (  # what divides by 16
                PLACE + TABLE.replace("n % 8", "n % 16"),
                "params['embed'] of shape (24, 56)",
            ),
            (  # the last of equal dimensions
                PLACE + TABLE.replace("n > sizes[best]", "n >= sizes[best]"),
                "params['head']['w'] of shape (8, 56, 56)",
            ),
            (  # one entry too many
                PLACE + TABLE.replace("on(*entries)", "on(*entries, None, None)"),
                "SpecTooLong|entries|dimensions",
            ),
            (  # specs in place of places
                PLACE + "    return jax.tree.map(lambda leaf: P(), params)",
                "is not a NamedSharding",
            ),
            (PLACE + "    return params", "is not a NamedSharding"),
            (PLACE + "    return on()", "differs in structure from params"),
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
                "params['layers']['b'] of shape (56, 24)",
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
                "params['head']['w'] of shape (8, 56, 56)",
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
            # compiled beforehand
            MAKE
            + PLACES
            + PUT
            + HELD
            + STEP
            + JIT.replace(
                "    return",
                "    x = abstract((16, 32), 'data')\n"
                "    step = step.lower(params, moments, x).compile()\n    return",
            ),
            # on Explicit axes
            MAKE
            + EXPLICIT
            + """    specs = {"stack": P(None, "data"), "out": P("data")}
    params = {n: jax.device_put(a, NamedSharding(own, specs[n]))
              for n, a in params.items()}
    moments = jax.tree.map(jnp.zeros_like, params)

    def loss(params, x):
        out = jax.sharding.reshard(params["out"], NamedSharding(own, P()))

        @jax.checkpoint
        def layer(h, w):
            w = jax.sharding.reshard(w, NamedSharding(own, P()))
            return h + jnp.tanh(h @ w) @ out, None

        return (lax.scan(layer, x, params["stack"])[0] ** 2).mean()
"""
            + STEP.replace("held_loss", "loss")
            + "    return params, moments, jax.jit(step, donate_argnums=(0, 1))",
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
                "there is still a finding",
            ),
            (  # everything replicated
                MAKE
                + '    places = {"stack": on(), "out": on()}\n'
                + PUT
                + HELD
                + STEP
                + JIT,
                "params: one device has 73,728 of 73,728 bytes",
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
                "moments: one device has 73,728 of 73,728 bytes",
            ),
            ("make = lambda params: None", "make returned None"),
            (  # a step before the first one
                MAKE
                + PLACES
                + PUT
                + HELD
                + STEP
                + JIT.replace(
                    "    return",
                    "    step(params, moments, jax.device_put("
                    "jnp.ones((16, 32)), on('data')))\n    return",
                ),
                "moments/out is already deleted",
            ),
            (  # moments of NumPy
                MAKE + PLACES + "    params = jax.device_put(params, places)\n"
                "    moments = jax.tree.map(lambda p: np.zeros(p.shape, p.dtype),"
                " params)\n" + HELD + STEP + JIT,
                "moments['out'] is an ndarray",
            ),
            (  # not jitted
                MAKE + PLACES + PUT + HELD + STEP + "    return params, moments, step",
                "step is not jitted",
            ),
            (  # the products in half of the precision
                MAKE
                + PLACES
                + PUT
                + HELD.replace(
                    "h @ w)",
                    "(h.astype(jnp.float16)"
                    " @ w.astype(jnp.float16)).astype(jnp.float32))",
                )
                + STEP
                + JIT,
                "['moments']",
            ),
            (  # no gradient below the last product
                MAKE
                + PLACES
                + PUT
                + HELD.replace("jnp.tanh(h @ w)", "lax.stop_gradient(jnp.tanh(h @ w))")
                + STEP
                + JIT,
                "['moments']['stack']",
            ),
            (  # the first step right, and the second as if moments were zero
                MAKE
                + PLACES
                + PUT
                + HELD
                + STEP.replace("0.9 * m + g", "0 * m + g")
                + JIT,
                "after two steps",
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
                "moments/out and params/out share one buffer",
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
                "bytes per device at its peak",
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
                "['moments']['out']: off by up to",
            ),
            (  # nothing is returned
                MAKE
                + PLACES
                + PUT
                + HELD
                + STEP
                + JIT.replace("return params, moments, step", "pass"),
                "make returned None, but has to return (params, moments, step)",
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
                "step returned a tuple, but a pair is expected",
            ),
        ],
    ),
    "8.4": Answers(
        right=[
            # jitted first; an error of the package
            """
def assert_healthy(step, *args, carry=None):
    seen = spmd.xray(jax.jit(step), *args, carry=carry)
    codes = {found.code for found in seen.findings}
    if seen.redundancy is not None and 1 / seen.redundancy < 1 / 1.05:
        codes.add("redundancy")
    if codes:
        raise spmd.CheckFailed(" ".join(sorted(codes)))
""",
            """
class Healthy:
    def __call__(self, step, *args, **options):
        seen = spmd.xray(step, *args, **options)
        lines = list(map(repr, seen.findings))
        lines += [f"redundancy {seen.redundancy}"] * ((seen.redundancy or 0) > 1.05)
        assert not lines, lines

assert_healthy = Healthy()
""",
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
            ("assert_healthy = spmd.xray", "a step with gathered-stack passed"),
            (  # a limit of six percent
                HEALTHY + CODES.replace("1.05", "1.06") + "    assert not codes, codes",
                "a step with redundancy passed",
            ),
            (  # a limit of four percent
                HEALTHY + CODES.replace("1.05", "1.04") + "    assert not codes, codes",
                "rejects a step without a mistake, with",
            ),
            (  # only if an axis idles everywhere
                HEALTHY
                + CODES.replace("(seen.redundancy or 1) > 1.05", "bool(seen.idle_axes)")
                + "    assert not codes, codes",
                "a step with redundancy passed",
            ),
            (  # no product, no number
                HEALTHY
                + CODES.replace("(seen.redundancy or 1)", "seen.redundancy")
                + "    assert not codes, codes",
                "TypeError",
            ),
            (  # runs it where it can
                HEALTHY + CODES + "    if isinstance(args[0], jax.Array):\n"
                "        if isinstance(args[1], jax.Array):\n"
                "            step(*args)\n"
                "    assert not codes, codes",
                "the step was run",
            ),
            (HEALTHY + "    return None", "a step with gathered-stack passed"),
            (HEALTHY + "    raise AssertionError('unhealthy')", "your message names"),
            (  # carry is forgotten
                HEALTHY + "    seen = spmd.xray(step, *args)\n"
                "    codes = [f.code for f in seen.findings]\n"
                "    codes += ['redundancy'] * ((seen.redundancy or 1) > 1.05)\n"
                "    assert not codes, codes",
                "a step with sharding-drift passed",
            ),
            (  # only findings
                HEALTHY + "    seen = spmd.xray(step, *args, carry=carry)\n"
                "    assert not seen.findings, [f.code for f in seen.findings]",
                "a step with redundancy passed",
            ),
            (  # every code there is
                HEALTHY
                + "    raise AssertionError('padded-constraint dropped-constraint"
                " sharding-drift gathered-stack redundancy')",
                "your message names",
            ),
            (  # says "redundancy" whatever it is
                HEALTHY + "    seen = spmd.xray(step, *args, carry=carry)\n"
                "    codes = [f.code for f in seen.findings] + ['redundancy']\n"
                "    many = seen.redundancy or 1\n"
                "    assert many <= 1.05 and not seen.findings, codes",
                "your message names",
            ),
            (  # a table of the tried cases, in their order
                "told = iter(['padded-constraint dropped-constraint',\n"
                "    'sharding-drift', 'gathered-stack', 'redundancy idle-axis',\n"
                "    'redundancy', '', '', ''])\n"
                + HEALTHY
                + "    said = next(told)\n    assert not said, said",
                "your message names",
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
                "passed",
            ),
            (HEALTHY + CODES + "    return codes", "passed"),
            (  # only the first
                HEALTHY + CODES + "    assert not codes, codes[0]",
                "your message names",
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
                "a step with redundancy passed",
            ),
            (  # something comes back
                "def assert_healthy(step, *args, carry=None):\n"
                "    report = spmd.xray(step, *args, carry=carry)\n"
                "    bad = {f.code for f in report.findings} | ({'redundancy'} "
                "if (report.redundancy or 1) > 1.05 else set())\n"
                "    if bad: raise AssertionError(sorted(bad))\n"
                "    return True",
                "has to return None",
            ),
            (  # always the word
                "def assert_healthy(step, *args, carry=None):\n"
                "    seen = spmd.xray(step, *args, carry=carry)\n"
                "    if seen.findings or (seen.redundancy or 1) > 1.05: raise "
                'AssertionError(str(seen) + " redundancy")',
                "gathered-stack and redundancy",
            ),
        ],
    ),
    "8.5": Answers(
        right=[
            # axes of another type
            SETTLE
            + EXPLICIT
            + "    put = lambda x, *e: jax.device_put(x, NamedSharding(own, P(*e)))\n"
            "    return {n: put(x, *['data'][: n == 'rows'])\n"
            "            for n, x in start.items()}",
            # what divides is sharded, too: the step keeps it so
            SETTLE + "    places = {'ema': on(), 'count': on(), 'rows': on('data')}\n"
            "    if start['ema'].shape[0] % 8 == 0:\n"
            "        places |= {'ema': on('data'), 'rows': on(None, 'data')}\n"
            "    return jax.device_put(start, places)",
            # as a step returns it
            SETTLE + "    places = {'ema': on(), 'count': on(), 'rows': on('data')}\n"
            "    start = jax.tree.map(np.asarray, start)\n"
            "    return jax.jit(lambda s: s, out_shardings=places)(start)",
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
            ("settle = {'ema': on(), 'rows': on('data')}", "has to be a function"),
            (  # only from a start on one device
                SETTLE + "    if isinstance(start['ema'], np.ndarray):\n"
                "        return start\n"
                "    places = {'ema': on(), 'count': on(), 'rows': on('data')}\n"
                "    return jax.device_put(start, places)",
                "a start state of NumPy arrays",
            ),
            (  # deleted by a call that donates it
                SETTLE + "    places = {'ema': on(), 'count': on(),"
                " 'rows': on('data')}\n"
                "    start = jax.device_put(start, places)\n"
                "    jax.tree.map(lambda a: a.delete(), start)\n"
                "    return start",
                "is already deleted",
            ),
            (  # in half of the precision
                SETTLE + "    places = {'ema': on(), 'count': on(),"
                " 'rows': on('data')}\n"
                "    start = {**start, 'ema': start['ema'].astype(jnp.bfloat16)}\n"
                "    return jax.device_put(start, places)",
                "goes in as bfloat16",
            ),
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
            (SETTLE + "    return None", "None, but it must be a value"),
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
            (  # a count in floating point
                "def settle(start):\n"
                '    return {"ema": jax.device_put(jnp.asarray(start["ema"], '
                "jnp.float32), on()),\n"
                '            "count": '
                'jax.device_put(jnp.asarray(start["count"], jnp.float32), on()),\n'
                '            "rows": jax.device_put(jnp.asarray(start["rows"], '
                'jnp.float32), on("data"))}',
                "count was int32",
            ),
        ],
    ),
}
