"""Chapter 13: right and wrong answers."""

from . import Answers
from .ch01 import YES

EPOCH = "def epoch_batch(tokens, size, rows, step, mesh):\n"
WINDOWS = """\
    count = len(tokens) // size
    windows = tokens[: count * size].reshape(count, size)
    epoch, at = divmod(step, count // rows)
"""
PUT = '    return jax.device_put(mine, on("data", mesh=mesh))'
MAKE = "def make(init, key, places):\n"
WHOLE = """\
    def whole(key):
        params = init(key)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"params": params, "mu": zeros, "nu": zeros}
"""
RESTORE = "def restore(manager, step, specs, mesh):\n"
TREE = """\
    tree = jax.tree.map(target, specs, manager.item_metadata(step).tree,
                        is_leaf=lambda spec: isinstance(spec, P))
    return manager.restore(step, args=ocp.args.StandardRestore(tree))
"""
MEAN = "def mean_loss(score, rows, size, mesh):\n"
PADDED = """\
    weights = np.ones(len(rows), np.float32)
    extra = -len(rows) % size
    padded = np.concatenate([rows, np.zeros((extra, rows.shape[1]), rows.dtype)])
    weights = np.concatenate([weights, np.zeros(extra, np.float32)])
    place = on("data", mesh=mesh)
    parts = [
        jax.device_put((padded[at : at + size], weights[at : at + size]), place)
        for at in range(0, len(padded), size)
    ]
"""
RESUME = "def resume(manager, mesh, steps):\n"
GO_ON = """\
    done = int(run["optimizer"]["step"][...])
    losses = []
    run = train(run, range(done, done + steps), mesh, losses)
    return run, losses
"""

ANSWERS = {
    "13.1": Answers(
        right=[
            EPOCH + "    per_epoch = len(tokens) // size // rows\n"
            "    rng = np.random.default_rng(1000 + step // per_epoch)\n"
            "    starts = size * rng.permutation(len(tokens) // size)\n"
            "    starts = starts.reshape(-1)[step % per_epoch * rows :][:rows]\n"
            "    mine = tokens[starts[:, None] + np.arange(size)]\n" + PUT,
            EPOCH + WINDOWS + "    key = jax.random.fold_in(jax.random.key(0), epoch)\n"
            "    order = np.asarray(jax.random.permutation(key, count))\n"
            "    order = order[: count // rows * rows].reshape(-1, rows)[at]\n"
            "    return jax.make_array_from_callback(\n"
            '        (rows, size), on("data", None, mesh=mesh),\n'
            "        lambda index: windows[order][index])",
            # sorted in a batch, for the sake of reading
            EPOCH
            + WINDOWS
            + "    order = np.random.default_rng((3, epoch)).permutation(count)\n"
            "    mine = windows[np.sort(order[at * rows : (at + 1) * rows])]\n" + PUT,
        ],
        wrong=[
            (  # random places, as in the chapter
                EPOCH + "    rng = np.random.default_rng((5, step))\n"
                "    starts = rng.integers(0, len(tokens) - size, rows)\n"
                "    mine = tokens[starts[:, None] + np.arange(size)]\n" + PUT,
                "comes twice|is not one of the windows",
            ),
            (  # a new order in each step
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(step).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "comes twice",
            ),
            (  # one order for all epochs
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(0).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "not another order",
            ),
            (  # two orders, by turns
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(epoch % 2).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "not another order",
            ),
            (  # one order, begun elsewhere
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(0).permutation(count)\n"
                "    order = np.roll(order, 7 * epoch)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "not another order",
            ),
            (  # a generator with a state
                "generator = np.random.default_rng(0)\n"
                + EPOCH
                + WINDOWS
                + "    order = generator.permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "gives other rows",
            ),
            (  # replicated
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng((3, epoch)).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n"
                "    return jax.device_put(mine, on(mesh=mesh))",
                "batch",
            ),
            (  # on the mesh of the chapter
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng((3, epoch)).permutation(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n"
                '    return jax.device_put(mine, on("data"))',
                "batch",
            ),
            (  # not shuffled
                EPOCH
                + WINDOWS
                + "    mine = windows[at * rows : (at + 1) * rows]\n"
                + PUT,
                "not another order",
            ),
            (  # each batch has the windows that it had
                EPOCH
                + WINDOWS
                + "    mine = np.random.default_rng(step).permutation(\n"
                "        windows[at * rows : (at + 1) * rows])\n" + PUT,
                "of the windows come in the same step: not another order",
            ),
            (  # in order at first
                EPOCH
                + WINDOWS
                + "    order = np.random.default_rng(epoch).permutation(count)\n"
                "    order = order if epoch else np.arange(count)\n"
                "    mine = windows[order[at * rows : (at + 1) * rows]]\n" + PUT,
                "the first epoch is not shuffled",
            ),
        ],
    ),
    "13.2": Answers(
        right=[
            "a = 3 * 64 * 96 // 4 // 2 * 4\n"
            "b = 3 * spmd.memory(like['model']['embed']).largest_device_bytes\n"
            "c, d = 3840, [1, 8]",
            "a, b, c, d = 9216, 36864.0, np.int64(3840), (1, 8)",
        ],
        wrong=[
            ("a, b, c, d = 9216, 9216, 3840, (1, 8)", "look again at b"),
            ("a, b, c, d = 3072, 12288, 1280, (1, 8)", "look again at a, b, c"),
            ("a, b, c, d = 9216, 36864, 480, (1, 8)", "look again at c"),
            ("a, b, c, d = 9216, 36864, 3840, (8, 1)", "is not the least"),
            ("a, b, c, d = 9216, 36864, 3840, 'any'", "d: 'any' is not a pair"),
            ("a, b, c, d = 9216, 36864, 3840, ('1', '8')", "is not a pair of numbers"),
            ("a, b, c, d = 9216, 36864, 3840, 8", "d: 8 is not a pair of numbers"),
            ("a, b, c, d = 9216, '36 KiB', 3840, (1, 8)", "b: '36 KiB' is no number"),
            ("a, b, c, d = 9216.9, 36864, 3840, (1, 8)", "look again at a"),
            ("a, b, c, d = 9216, 36864, 3840, (1.7, 8)", "is not the least"),
            ("a, b, c, d = 9216, 36864, float('nan'), (1, 8)", "look again at c"),
            (YES + "a = b = c = d = Yes()", "is no number"),
        ],
    ),
    "13.3": Answers(
        right=[
            MAKE
            + WHOLE
            + "    places = dict.fromkeys(('params', 'mu', 'nu'), places)\n"
            "    return jax.jit(whole, out_shardings=places)(key)",
            MAKE + "    @jax.jit\n"
            "    def held(key):\n"
            "        params = lax.with_sharding_constraint(init(key), places)\n"
            "        zeros = lax.with_sharding_constraint(\n"
            "            jax.tree.map(lambda p: 0 * p, params), places)\n"
            "        return {'params': params, 'mu': zeros, 'nu': zeros}\n"
            "    return held(key)",
        ],
        wrong=[
            (  # as it was
                MAKE + "    params = init(key)\n"
                "    zeros = jax.tree.map(jnp.zeros_like, params)\n"
                '    state = {"params": params, "mu": zeros, "nu": zeros}\n'
                "    return jax.device_put(state, {name: places for name in state})",
                "init ran outside of jit",
            ),
            (  # jitted, and placed afterwards
                MAKE + WHOLE + "    state = jax.jit(whole)(key)\n"
                "    return jax.device_put(state, {name: places for name in state})",
                "at the peak of a device",
            ),
            (  # the places are for the parameters only
                MAKE + "    params = jax.jit(init, out_shardings=places)(key)\n"
                "    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape), params)\n"
                '    return {"params": params, "mu": zeros, "nu": zeros}',
                "mu",
            ),
            (  # replicated
                MAKE
                + WHOLE
                + "    whole_ = jax.tree.map(lambda s: NamedSharding(s.mesh, P()),\n"
                "                          places)\n"
                "    places = {name: whole_ for name in ('params', 'mu', 'nu')}\n"
                "    return jax.jit(whole, out_shardings=places)(key)",
                "lies as",
            ),
            (  # device_put inside jit, which Auto axes pass over
                MAKE + WHOLE + "    return jax.jit(lambda key: jax.device_put(\n"
                "        whole(key), dict.fromkeys(('params', 'mu', 'nu'), places))\n"
                "    )(key)",
                "lies|is on|peak",
            ),
            (  # other values
                MAKE
                + WHOLE.replace("init(key)", "init(jax.random.key(0))")
                + "    places = dict.fromkeys(('params', 'mu', 'nu'), places)\n"
                "    return jax.jit(whole, out_shardings=places)(key)",
                "params",
            ),
        ],
    ),
    "13.4": Answers(
        right=[
            RESTORE + "    saved = manager.item_metadata(step).tree\n"
            "    def target(path, leaf):\n"
            "        spec = specs\n"
            "        for key in path:\n"
            "            spec = spec[key.key]\n"
            "        entries = list(spec)\n"
            "        for d, axis in enumerate(entries):\n"
            "            if axis is not None and leaf.shape[d] % mesh.shape[axis]:\n"
            "                entries[d] = None\n"
            "        place = NamedSharding(mesh, P(*entries))\n"
            "        return jax.ShapeDtypeStruct(\n"
            "            leaf.shape, leaf.dtype, sharding=place)\n"
            "    tree = jax.tree_util.tree_map_with_path(target, saved)\n"
            "    return manager.restore(step, args=ocp.args.StandardRestore(tree))",
            # branch by branch
            RESTORE + "    def targets(saved, specs):\n"
            "        if isinstance(saved, dict):\n"
            "            return {name: targets(saved[name], specs[name])\n"
            "                    for name in saved}\n"
            "        entries = [None] * len(saved.shape)\n"
            "        for d, axis in enumerate(specs):\n"
            "            if axis and saved.shape[d] % mesh.shape[axis] == 0:\n"
            "                entries[d] = axis\n"
            "        place = NamedSharding(mesh, P(*entries))\n"
            "        return jax.ShapeDtypeStruct(\n"
            "            saved.shape, saved.dtype, sharding=place)\n"
            "    tree = targets(manager.item_metadata(step).tree, specs)\n"
            "    return manager.restore(step, args=ocp.args.StandardRestore(tree))",
        ],
        wrong=[
            (  # first as it was, and then where it should go
                RESTORE + "    tree = manager.restore(step)\n"
                "    return jax.device_put(tree, jax.tree.map(\n"
                "        lambda spec: NamedSharding(mesh, spec), specs,\n"
                "        is_leaf=lambda spec: isinstance(spec, P)))",
                "does not say where each array goes",
            ),
            (  # everything whole
                RESTORE + "    def target(spec, leaf):\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, leaf.dtype, sharding=on(mesh=mesh))\n" + TREE,
                "lies as",
            ),
            (  # one axis does not fit, so none is used
                RESTORE + "    def target(spec, leaf):\n"
                "        bad = any(axis and size % mesh.shape[axis]\n"
                "                  for axis, size in zip(spec, leaf.shape))\n"
                "        place = NamedSharding(mesh, P() if bad else spec)\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, leaf.dtype, sharding=place)\n" + TREE,
                "w",
            ),
            (  # everything float32
                RESTORE + "    def target(spec, leaf):\n"
                "        fits = [a if a and n % mesh.shape[a] == 0 else None\n"
                "                for a, n in zip(spec, leaf.shape)]\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, jnp.float32, sharding=on(*fits, mesh=mesh))\n"
                + TREE,
                "bfloat16",
            ),
            (  # on the mesh of the chapter
                RESTORE + "    def target(spec, leaf):\n"
                "        fits = [a if a and n % mesh.shape[a] == 0 else None\n"
                "                for a, n in zip(spec, leaf.shape)]\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, leaf.dtype, sharding=on(*fits))\n" + TREE,
                "lies as",
            ),
            (  # everything whole on each device, and then cut
                RESTORE + "    def target(spec, leaf):\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, leaf.dtype, sharding=on(mesh=mesh))\n"
                "    def cut(spec, leaf):\n"
                "        fits = [a if a and n % mesh.shape[a] == 0 else None\n"
                "                for a, n in zip(spec, leaf.shape)]\n"
                "        return jax.device_put(leaf, on(*fits, mesh=mesh))\n"
                + TREE.replace("return manager", "tree = manager")
                + "    return jax.tree.map(cut, specs, tree,\n"
                "                        is_leaf=lambda spec: isinstance(spec, P))",
                "bytes are read to a device, which is to hold",
            ),
            (
                RESTORE + "    manager.restore(step)",
                "does not say where each array goes",
            ),
            (
                RESTORE + "    def target(spec, leaf):\n"
                "        return jax.ShapeDtypeStruct(\n"
                "            leaf.shape, leaf.dtype, sharding=on(mesh=mesh))\n"
                + TREE.replace("return manager", "manager"),
                "restore returned a NoneType, and the tree is wanted",
            ),
        ],
    ),
    "13.5": Answers(
        right=[
            MEAN
            + PADDED
            + "    total = jnp.stack([score(*part) for part in parts]).sum()\n"
            "    return float(total) / len(rows)",
            MEAN + PADDED + "    total = sum(score(*part) for part in parts)\n"
            "    return total.item() / len(rows)",
            MEAN + PADDED + "    sums = [score(*part) for part in parts]\n"
            "    return float(sum(sums) / len(rows))",
            MEAN + PADDED + "    share = 1 / len(rows)\n"
            "    return float(sum(score(*part) * share for part in parts))",
        ],
        wrong=[
            (  # called for the form, averaged on the host
                MEAN + PADDED + "    for part in parts:\n        score(*part)\n"
                "    return float((rows**2).sum(axis=1).mean())",
                "mean",
            ),
            (  # one batch for the form, the rest on the host
                MEAN + PADDED + "    score(*parts[0])\n"
                "    return float((rows**2).sum(axis=1).mean())",
                "score was called 1 times",
            ),
            (  # as it was
                MEAN + "    means = []\n"
                "    for at in range(0, len(rows), size):\n"
                "        part = jax.device_put(rows[at : at + size], on(mesh=mesh))\n"
                "        means.append(float(score(part, np.ones(len(part)))) / size)\n"
                "    return np.mean(means)",
                "rows",
            ),
            (  # waits for each batch
                MEAN + PADDED + "    total = 0.0\n"
                "    for part in parts:\n"
                "        total += float(score(*part))\n"
                "    return total / len(rows)",
                "the host waited for a result",
            ),
            (  # the rest is left out
                MEAN + PADDED + "    whole = len(rows) // size\n"
                "    total = sum(score(*part) for part in parts[:whole])\n"
                "    return float(total) / (whole * size)",
                "score was called 2 times",
            ),
            (  # the padding counts as rows
                MEAN + PADDED + "    total = sum(score(*part) for part in parts)\n"
                "    return float(total) / len(padded)",
                "mean",
            ),
            (  # the short batch as it is
                MEAN + "    place = on('data', mesh=mesh)\n"
                "    sums = []\n"
                "    for at in range(0, len(rows), size):\n"
                "        part = rows[at : at + size]\n"
                "        ones = np.ones(len(part), np.float32)\n"
                "        if len(part) % mesh.shape['data']:\n"
                "            place = on(mesh=mesh)\n"
                "        sums.append(score(*jax.device_put((part, ones), place)))\n"
                "    return float(sum(sums)) / len(rows)",
                "compiles for each shape",
            ),
            (  # replicated
                MEAN
                + PADDED.replace('on("data", mesh=mesh)', "on(mesh=mesh)")
                + "    total = sum(score(*part) for part in parts)\n"
                "    return float(total) / len(rows)",
                "rows",
            ),
            (  # without the score
                MEAN + "    return float((rows**2).mean())",
                "score was called 0 times",
            ),
            (  # weights of another type
                MEAN
                + PADDED.replace("np.float32", "int")
                + "    total = sum(score(*part) for part in parts)\n"
                "    return float(total) / len(rows)",
                "'int32(16,)'], not ['float32(16, 5)', 'float32(16,)']",
            ),
            (
                MEAN
                + PADDED
                + "    total = jnp.stack([score(*part) for part in parts]).sum()\n"
                "    return np.float32(total) / len(rows)",
                "mean_loss returned a float32, and a float is wanted",
            ),
        ],
    ),
    "13.6": Answers(
        right=[
            RESUME + "    step, losses = manager.latest_step(), []\n"
            "    run = load(manager, mesh)\n"
            "    with jax.set_mesh(mesh):\n"
            "        for n in range(step, step + steps):\n"
            "            run, loss = train_step(run, batch(n, mesh))\n"
            "            losses.append(loss)\n"
            "    return run, [float(x) for x in jax.device_get(losses)]",
            # the chapter's loop, a step at a time, and its count in Adam's state
            RESUME + "    run, losses = load(manager, mesh), []\n"
            '    done = int(run["optimizer"]["opt_state"][0]["count"][...])\n'
            "    while len(losses) < steps:\n"
            "        n = done + len(losses)\n"
            "        run = train(run, range(n, n + 1), mesh, losses)\n"
            "    return run, losses",
        ],
        wrong=[
            (  # as it was
                RESUME + "    with jax.set_mesh(mesh):\n"
                "        run = starter(mesh)()\n"
                '    run["model"] = load(manager, mesh)["model"]\n'
                "    losses = []\n"
                "    run = train(run, range(steps), mesh, losses)\n"
                "    return run, losses",
                "the first loss is",
            ),
            (  # the data from the beginning
                RESUME + "    run, losses = load(manager, mesh), []\n"
                "    run = train(run, range(steps), mesh, losses)\n"
                "    return run, losses",
                "same rows",
            ),
            (  # moments forgotten
                RESUME + "    run = load(manager, mesh)\n"
                '    adam = run["optimizer"]["opt_state"][0]\n'
                "    for name in ('mu', 'nu'):\n"
                "        adam[name] = jax.tree.map(jnp.zeros_like, adam[name])\n"
                + GO_ON,
                "the first loss is right, and then they part",
            ),
            (  # a key of its own
                RESUME + "    run = load(manager, mesh)\n"
                '    run["keys"] = {"dropout": jax.device_put(\n'
                "        jax.random.key(1), on(mesh=mesh))}\n" + GO_ON,
                "same random numbers",
            ),
            (  # the number of the step forgotten
                RESUME + "    run = load(manager, mesh)\n"
                '    done = int(run["optimizer"]["step"][...])\n'
                '    run["optimizer"]["step"] = jax.tree.map(\n'
                '        jnp.zeros_like, run["optimizer"]["step"])\n'
                "    losses = []\n"
                "    run = train(run, range(done, done + steps), mesh, losses)\n"
                "    return run, losses",
                "same random numbers",
            ),
            (  # the step of the one checkpoint that is in the text
                RESUME + "    run, losses = load(manager, mesh), []\n"
                "    run = train(run, range(80, 80 + steps), mesh, losses)\n"
                "    return run, losses",
                "same rows",
            ),
            (  # a loss too few
                RESUME + "    run = load(manager, mesh)\n"
                '    done = int(run["optimizer"]["step"][...])\n'
                "    losses = []\n"
                "    run = train(run, range(done, done + steps), mesh, losses)\n"
                "    return run, losses[1:]",
                "2 losses of three steps",
            ),
            (  # always the mesh of the chapter
                RESUME + "    mesh = jax.make_mesh(\n"
                '        (4, 2), ("data", "model"), devices=devices,\n'
                "        axis_types=(AxisType.Auto,) * 2)\n"
                "    run = load(manager, mesh)\n" + GO_ON,
                "lies as",
            ),
            (
                RESUME
                + "    run = load(manager, mesh)\n"
                + GO_ON.replace("    return run, losses\n", ""),
                "resume returned a NoneType, and the pair",
            ),
            (
                RESUME
                + "    run = load(manager, mesh)\n"
                + GO_ON.replace("return run, losses", "return losses, run"),
                "and the pair of the run and its losses is wanted",
            ),
            (  # the run as it was read
                RESUME
                + "    run = load(manager, mesh)\n"
                + GO_ON.replace("return run", "return load(manager, mesh)"),
                "the run counts 83 steps",
            ),
        ],
    ),
}
