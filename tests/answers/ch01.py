"""Chapter 01: right and wrong answers."""

from . import Answers

MOMENTUM = """
@partial(jax.pmap, axis_name="data", devices=devices)
def momentum_step(params, velocity, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
"""
MASKED = """
@partial(jax.pmap, axis_name="data", devices=devices)
def masked_loss(params, x, y, mask):
"""
COUNT = """
@partial(jax.pmap, axis_name="data", devices=devices)
def count_right(params, x, y):
    right = predict(params, x).argmax(axis=1) == y
"""
# Equal to everything: the cheapest way to please a check that only compares.
YES = """
class Yes:
    def __eq__(self, other):
        return True
"""

ANSWERS = {
    "1.1": Answers(
        right=[
            "inside, outside = (12, 50), (8, 12)",
            "inside = [12, 50]\noutside = np.zeros((8, 12, 50)).max(-1).shape",
            "inside = np.array([12, 50.0])\noutside = jnp.array([8, 12])",
        ],
        wrong=[
            ("inside = (8, 12, 50)\noutside = (8, 12)", "leading axis is gone inside"),
            ("inside = (12, 50)\noutside = (12,)", "pmap stacks them"),
            ("inside = (12, 50)\noutside = (96,)", "pmap stacks them"),
            ("inside = (1, 12, 50)\noutside = (8, 12)", "leading axis is gone"),
            (YES + "inside = outside = Yes()", "is not what one device sees"),
            ("inside = 600\noutside = 96", "600 is not what one device sees"),
            ("inside = (12, 50)\noutside = (96)", "96 is not what comes back"),
            ("inside = np.zeros((12, 50))\noutside = None", "leading axis is gone"),
            (YES + "inside = outside = (Yes(), Yes())", "is not a number"),
            ("inside = (8, 12)\noutside = (12, 50)", "leading axis is gone inside"),
            ('inside = "(12, 50)"\noutside = "(8, 12)"', "leading axis is gone"),
            ("inside = (12, 50)\noutside = ...", "Exercise 1.1 is open"),
        ],
    ),
    "1.2": Answers(
        right=[
            "def shard_batch(x, n):\n    return np.stack(np.split(x, n))",
            "def shard_batch(x, n):\n    return np.reshape(x, (n, -1) + x.shape[1:])",
            "def shard_batch(x, n):\n"
            "    if x.shape[0] % n != 0:\n"
            "        raise ValueError('no')\n"
            "    return jnp.array([x[i::1][: len(x) // n]\n"
            "        for i in range(0, len(x), len(x) // n)])",
            "def shard_batch(x, n):\n    return jnp.stack(jnp.split(x, n))",
        ],
        wrong=[
            (  # looks at the shape only
                "def shard_batch(x, n):\n"
                "    if len(x) % n:\n"
                "        raise ValueError\n"
                "    return np.arange(x.size).reshape(n, -1, *x.shape[1:])",
                "device 1 has to begin with row 3",
            ),
            (  # the batches that the check once tried
                "def shard_batch(x, n):\n"
                "    if len(x) in (3, 10, 20):\n"
                "        raise ValueError\n"
                "    k = len(x) // n\n"
                "    return x[: n * k].reshape(n, k, *x.shape[1:])",
                "no ValueError was raised",
            ),
            (
                "def shard_batch(x, n):\n"
                "    k = len(x) // n\n"
                "    return x[: n * k].reshape(n, k, *x.shape[1:])",
                "no ValueError was raised",
            ),
            (  # eight in place of n
                "def shard_batch(x, n):\n"
                "    if len(x) % 8:\n"
                "        raise ValueError\n"
                "    return x.reshape(n, -1, *x.shape[1:])",
                "ValueError",
            ),
            (  # flat or two dimensions only
                "def shard_batch(x, n):\n"
                "    if len(x) % n:\n"
                "        raise ValueError\n"
                "    return x.reshape(n, len(x) // n, -1)",
                "is wanted",
            ),
            (  # labels become floats
                "def shard_batch(x, n):\n"
                "    y = np.zeros((n, len(x) // n, *x.shape[1:]))\n"
                "    y.flat = x.reshape(n, -1, *x.shape[1:])\n"
                "    return y",
                "whole numbers came back as float64",
            ),
            (
                "def shard_batch(x, n):\n"
                "    if len(x) % n:\n"
                "        raise NotImplementedError('ragged')\n"
                "    return x.reshape(n, -1, *x.shape[1:])",
                "NotImplementedError",
            ),
            (
                "def shard_batch(x, n):\n"
                "    return x.reshape(-1, n, *x.shape[1:]).swapaxes(0, 1)",
                "device 1 has to begin with row 3",
            ),
            (
                "def shard_batch(x, n):\n    return np.array_split(x, n)",
                "a list came back; one array is wanted",
            ),
            ("def shard_batch(x, n):\n    return x.reshape(8, 3, 2)", "ValueError"),
            ("def shard_batch(x, n):\n    return np.stack([x] * n)", "(8, 24, 2)"),
            (
                "def shard_batch(x, n):\n"
                "    short = -len(x) % n\n"
                "    x = np.pad(x, [(0, short)] + [(0, 0)] * (x.ndim - 1))\n"
                "    return x.reshape(n, -1, *x.shape[1:])",
                "rows may not get lost or invented",
            ),
        ],
    ),
    "1.3": Answers(
        right=[
            "bytes_per_device = sum(p.size for p in jax.tree.leaves(params)) * 4\n"
            "bytes_in_all = bytes_per_device * len(devices)",
            "bytes_per_device = sum(p.nbytes for p in params.values())\n"
            "bytes_in_all = sum(p.nbytes for p in new_replicas.values())",
            "bytes_per_device = jnp.float32(1628200)\n"
            "bytes_in_all = np.int64(8) * 1628200",
        ],
        wrong=[
            (
                "bytes_per_device = (784 * 512 + 512 * 10) * 4\n"
                "bytes_in_all = 8 * bytes_per_device",
                "count every number",
            ),
            (
                "bytes_per_device = 784 * 512 + 512 + 512 * 10 + 10\n"
                "bytes_in_all = 8 * bytes_per_device",
                "4 bytes each",
            ),
            (
                "bytes_per_device = (784 * 512 + 512 + 512 * 10 + 10) * 4\n"
                "bytes_in_all = bytes_per_device",
                "how many copies",
            ),
            (
                "bytes_in_all = (784 * 512 + 512 + 512 * 10 + 10) * 4\n"
                "bytes_per_device = bytes_in_all // 8",
                "is not what a device holds",
            ),
            (YES + "bytes_per_device = bytes_in_all = Yes()", "is not a number"),
            (
                'bytes_per_device = "1628200"\nbytes_in_all = "13025600"',
                "is not what a device holds",
            ),
            (
                "bytes_per_device = 1628200.9\nbytes_in_all = 13025600",
                "count every number",
            ),
            (  # one number a leaf
                "bytes_per_device = np.array([p.nbytes for p in params.values()])\n"
                "bytes_in_all = 8 * bytes_per_device",
                "count every number",
            ),
        ],
    ),
    "1.4": Answers(
        right=[
            MOMENTUM
            + """
    g = jax.tree.map(lambda g: jax.lax.psum(g, "data") / 8, grads)
    v = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, g)
    return sgd(params, v, 0.1), v, jax.lax.pmean(loss, "data")
""",
            MOMENTUM
            + """
    v = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    v, loss = jax.lax.pmean((v, loss), "data")
    return jax.tree.map(lambda p, v: p - 0.1 * v, params, v), v, loss
""",
            # plain jit: the axis of vmap lies on the devices
            """
Spec, Axis = jax.sharding.PartitionSpec, jax.sharding.AxisType
own_mesh = jax.make_mesh((8,), ("data",), (Axis.Auto,), devices=devices)
split = jax.sharding.NamedSharding(own_mesh, Spec("data"))

def inner(params, velocity, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    loss, grads = jax.lax.pmean((loss, grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return [sgd(params, velocity, 0.1), velocity, loss]

momentum_step = jax.jit(
    jax.vmap(inner, axis_name="data"), in_shardings=split, out_shardings=split
)
""",
            """
Spec, Axis = jax.sharding.PartitionSpec, jax.sharding.AxisType
own_mesh = jax.make_mesh((8,), ("data",), (Axis.Auto,), devices=devices)

def inner(*stacked):
    params, velocity, x, y = jax.tree.map(lambda a: a[0], stacked)
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    loss, grads = jax.lax.pmean((loss, grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    loss = jax.lax.pcast(loss, "data", to="varying")
    new = sgd(params, velocity, 0.1), velocity, loss
    return jax.tree.map(lambda a: a[None], new)

momentum_step = jax.shard_map(
    inner, mesh=own_mesh, in_specs=Spec("data"), out_specs=Spec("data")
)
""",
            """
@partial(jax.pmap, axis_name="data", donate_argnums=(0, 1))
def momentum_step(params, velocity, x, y):
    import optax
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    grads = {name: jax.lax.pmean(g, "data") for name, g in grads.items()}
    step, state = optax.trace(0.9).update(grads, optax.TraceState(velocity))
    return sgd(params, step, 0.1), state.trace, jax.lax.pmean(loss, "data")
""",
        ],
        wrong=[
            (  # what the exercise starts from
                MOMENTUM
                + """
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = sgd(params, velocity, rate=0.1)
    return params, velocity, jax.lax.pmean(loss, "data")
""",
                "the replicas of the params differ",
            ),
            (  # a sum where a mean belongs
                MOMENTUM
                + """
    loss, grads = jax.lax.psum((loss, grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "off by up to",
            ),
            (  # parameters repaired, velocity left apart
                MOMENTUM
                + """
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.lax.pmean(sgd(params, velocity, rate=0.1), "data")
    return params, velocity, jax.lax.pmean(loss, "data")
""",
                "the replicas of the velocity differ",
            ),
            (  # everything averaged, to be sure: right, and twice the bytes
                MOMENTUM
                + """
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = sgd(params, velocity, rate=0.1)
    return jax.lax.pmean((params, velocity, loss), "data")
""",
                "the budget is 1,628,204",
            ),
            (  # every device computes the whole batch
                """
@partial(jax.pmap, axis_name="data", devices=devices)
def momentum_step(params, velocity, x, y):
    x = jax.lax.all_gather(x, "data").reshape(160, 784)
    y = jax.lax.all_gather(y, "data").reshape(160)
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "all-gather runs",
            ),
            (  # no data parallelism: each device takes the whole batch
                """
@partial(jax.pmap, axis_name="data", in_axes=(0, 0, None, None))
def momentum_step(params, velocity, x, y):
    x, y = x.reshape(160, 784), y.reshape(160)
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "0 bytes are exchanged, and at least 1,628,200 have to be",
            ),
            (  # the same, with an all-reduce that adds nothing
                """
@partial(jax.pmap, axis_name="data", in_axes=(0, 0, None, None))
def momentum_step(params, velocity, x, y):
    x, y = x.reshape(160, 784), y.reshape(160)
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    loss, grads = jax.lax.pmean((loss, grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "more rows than its own 20",
            ),
            (
                MOMENTUM
                + """
    loss = jax.lax.pmean(loss * jnp.nan, "data")
    params = jax.tree.map(lambda p: p * jnp.nan, params)
    return params, velocity, loss
""",
                "not finite",
            ),
            (  # the batch gathered by adding zeros
                """
@partial(jax.pmap, axis_name="data", devices=devices)
def momentum_step(params, velocity, x, y):
    i = jax.lax.axis_index("data")
    x = jax.lax.psum(jnp.zeros((8, 20, 784)).at[i].set(x), "data")
    y = jax.lax.psum(jnp.zeros((8, 20), int).at[i].set(y), "data")
    x, y = x.reshape(160, 784), y.reshape(160)
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "and at least 1,628,200 have to be",
            ),
            (
                MOMENTUM
                + """
    grads = jax.lax.pmean(grads, "data")
    return sgd(params, grads, rate=0.1), jax.lax.pmean(loss, "data")
""",
                "2 things came back",
            ),
            (  # no return
                MOMENTUM + '    grads = jax.lax.pmean(grads, "data")\n',
                "NoneType came back",
            ),
            (
                MOMENTUM
                + """
    loss, grads = jax.lax.pmean((loss, grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = sgd(params, velocity, rate=0.1)
    return {"params": params, "velocity": velocity, "loss": loss}
""",
                "dict came back",
            ),
            (
                MOMENTUM
                + """
    loss, grads = jax.lax.pmean((loss, grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return loss, sgd(params, velocity, rate=0.1), velocity
""",
                "in this order",
            ),
            (  # one copy comes out: no stack for the next step
                """
@partial(jax.pmap, axis_name="data", devices=devices, out_axes=None)
def momentum_step(params, velocity, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    loss, grads = jax.lax.pmean((loss, grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "with their shapes",
            ),
            (
                MOMENTUM
                + """
    grads = jax.lax.pmean(grads, "batch")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "",  # the wrong name: which error depends on the version
            ),
            (
                MOMENTUM
                + """
    grads = jax.lax.pmean(grads, "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "off by up to",
            ),
        ],
    ),
    "1.5": Answers(
        right=[
            MASKED
            + """
    top = jax.lax.pmean((row_losses(params, x, y) * mask).sum(), "data")
    return top / jax.lax.pmean(mask.sum(), "data")
""",
            MASKED
            + """
    share = mask / jax.lax.psum(mask.sum(), "data")
    return jax.lax.psum((row_losses(params, x, y) * share).sum(), "data")
""",
            MASKED
            + """
    rows = jax.lax.all_gather(row_losses(params, x, y), "data")
    return jnp.average(rows, weights=jax.lax.all_gather(mask, "data"))
""",
        ],
        wrong=[
            (
                MASKED + '    return jax.lax.pmean(loss_fn(params, x, y), "data")\n',
                "What is divided by what?",
            ),
            (
                MASKED
                + """
    rows = row_losses(params, x, y)
    return jax.lax.pmean((rows * mask).sum() / mask.sum(), "data")
""",
                "nan came, which is 0 / 0",
            ),
            (
                MASKED
                + """
    rows = (row_losses(params, x, y) * mask).sum()
    return jax.lax.psum(rows, "data") / 12
""",
                "11 real rows",
            ),
            (
                MASKED
                + """
    return (row_losses(params, x, y) * mask).sum() / mask.sum()
""",
                "nan came, which is 0 / 0",
            ),
            (  # guesses which rows are padding
                MASKED
                + """
    real = jnp.arange(2) + 2 * jax.lax.axis_index("data")
    real = real < jax.lax.psum(mask.sum(), "data")
    rows = (row_losses(params, x, y) * real).sum()
    return jax.lax.psum(rows, "data") / jax.lax.psum(mask.sum(), "data")
""",
                "What is divided by what?",
            ),
            (  # the trained model, whichever is given
                MASKED
                + """
    total = (row_losses(trained, x, y) * mask).sum()
    total, rows = jax.lax.psum((total, mask.sum()), "data")
    return total / rows
""",
                "11 real rows",
            ),
            (  # every device works on all rows
                """
@partial(jax.pmap, axis_name="data", in_axes=(0, None, None, None))
def masked_loss(params, x, y, mask):
    rows = row_losses(params, x.reshape(16, 784), y.reshape(16))
    mask = mask.reshape(16)
    return jax.lax.pmean((rows * mask).sum() / mask.sum(), "data")
""",
                "more than its own two rows",
            ),
            (  # no devices at all
                """
def masked_loss(params, x, y, mask):
    x, y, mask = x.reshape(16, 784), y.reshape(16), mask.reshape(16)
    rows = row_losses(jax.tree.map(lambda p: p[0], params), x, y)
    return jnp.full(8, (rows * mask).sum() / mask.sum())
""",
                "more than its own two rows",
            ),
            (
                MASKED
                + """
    rows = (row_losses(params, x, y) * mask).sum()
    return jax.lax.psum(rows, "data") / jnp.maximum(mask.sum(), 1)
""",
                "disagree",
            ),
        ],
    ),
    "1.6": Answers(
        right=[
            COUNT + '    return jax.lax.psum(jnp.sum(right, dtype=int), "data")\n',
            COUNT
            + """
    return jax.lax.pmean(right.astype(jnp.float32).sum() * 8, "data")
""",
        ],
        wrong=[
            (COUNT + "    return right.sum()\n", "the devices say"),
            (
                COUNT + '    return jax.lax.pmean(right.sum(), "data")\n',
                "and there are",
            ),
            (
                COUNT + '    return jax.lax.psum(right, "data").sum()\n',
                "the budget is 8",
            ),
            (
                COUNT + '    return jax.lax.all_gather(right, "data").sum()\n',
                "all-gather runs",
            ),
            (
                COUNT + '    return jax.lax.psum(right, "data")\n',
                "one number a device is wanted",
            ),
            (COUNT + '    return jax.lax.pmean(right.mean(), "data")\n', "there are"),
            (
                "def count_right(params, x, y):\n    return np.full(8, 1916)",
                "and there are",
            ),
            (  # a name of the check
                "def count_right(params, x, y):\n    return np.full(8, want)",
                "NameError",
            ),
            (  # bfloat16 has no 1915
                COUNT
                + """
    return jax.lax.psum(right.astype(jnp.bfloat16).sum(), "data")
""",
                "and there are",
            ),
            (
                """
@partial(jax.pmap, axis_name="data", in_axes=(0, None, None))
def count_right(params, x, y):
    x, y = x.reshape(-1, 784), y.reshape(-1)
    right = predict(params, x).argmax(axis=1) == y
    return jax.lax.pmax(right.sum(), "data")
""",
                "more rows than its own 50",
            ),
            (
                """
@partial(jax.pmap, axis_name="data", in_axes=(0, None, None))
def count_right(params, x, y):
    x, y = x.reshape(-1, 784), y.reshape(-1)
    return (predict(params, x).argmax(axis=1) == y).sum()
""",
                "all-reduce runs 0 times, and must run at least 1 time",
            ),
        ],
    ),
}
