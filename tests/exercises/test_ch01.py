"""Chapter 1: its checks, judged by right and wrong answers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from spmd_exercises._setting import devices, normal

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter1(AnswersAreJudged):
    pass


def predict(params, x):
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def loss_fn(params, x, y):
    return row_losses(params, x, y).mean()


def row_losses(params, x, y):
    log_probs = jax.nn.log_softmax(predict(params, x))
    return -jnp.take_along_axis(log_probs, y[:, None], axis=1)[:, 0]


def sgd(params, grads, rate=1.0):
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


def some_params(seed):
    sizes = {"w1": (784, 512), "b1": (512,), "w2": (512, 10), "b2": (10,)}
    return {name: 0.05 * normal(seed, *shape) for name, shape in sizes.items()}


def given():
    """What the chapter's cells have made where its answers stand."""

    def stack(tree):
        return jax.tree.map(lambda p: np.stack([p] * 8), tree)

    return imports() | {
        "partial": partial,
        "devices": devices(8),
        "predict": predict,
        "loss_fn": loss_fn,
        "row_losses": row_losses,
        "sgd": sgd,
        "params": some_params(0),
        "new_replicas": stack(some_params(1)),
        "trained": some_params(2),
    }


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

ANSWERS = {
    "1.1": Answers(
        right=[
            "inside, outside = (12, 50), (8, 12)",
            "inside = [12, 50]\noutside = np.zeros((8, 12, 50)).max(-1).shape",
            "inside = jax.eval_shape(lambda: jnp.ones((12, 50))).shape\n"
            "outside = (len(devices), *inside[:1])",
            "inside = np.array([12, 50.0])\noutside = jnp.array([8, 12])",
        ],
        wrong=[
            ("inside = (8, 12, 50)\noutside = (8, 12)", "what is left of the shape"),
            ("inside = (12, 50)\noutside = (12,)", "along which axis does pmap stack"),
            ("inside = (12, 50)\noutside = (96,)", "along which axis does pmap stack"),
            ("inside = (1, 12, 50)\noutside = (8, 12)", "what is left of the shape"),
            (YES + "inside = outside = Yes()", "object at"),
            ("inside = 600\noutside = 96", "600 is not a shape"),
            ("inside = (12, 50)\noutside = (96)", "96 is not a shape"),
            ("inside = np.zeros((12, 50))\noutside = (8, 12)", "is not a shape"),
            ("inside = (12, 50)\noutside = None", "None is not a shape"),
            ('inside = (12, float("nan"))\noutside = (8, 12)', "(12, nan)"),
            (YES + "inside = outside = (Yes(), Yes())", "is not a shape"),
            ("inside = (8, 12)\noutside = (12, 50)", "what is left of the shape"),
            ('inside = "(12, 50)"\noutside = "(8, 12)"', "is not a shape"),
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
            "@partial(jax.jit, static_argnums=1)\n"
            "def shard_batch(x, n):\n"
            "    k, rest = divmod(len(x), n)\n"
            "    if rest:\n"
            "        raise ValueError(f'{rest} rows are left')\n"
            "    return jax.lax.reshape(x, (n, k) + x.shape[1:])",
        ],
        wrong=[
            (  # looks at the shape only
                "def shard_batch(x, n):\n"
                "    if len(x) % n:\n"
                "        raise ValueError\n"
                "    return np.arange(x.size).reshape(n, -1, *x.shape[1:])",
                "device 1 begins with row 3",
            ),
            (  # the batches that the check once tried
                "def shard_batch(x, n):\n"
                "    if len(x) in (3, 10, 20):\n"
                "        raise ValueError\n"
                "    k = len(x) // n\n"
                "    return x[: n * k].reshape(n, k, *x.shape[1:])",
                "raised no ValueError",
            ),
            (
                "def shard_batch(x, n):\n"
                "    k = len(x) // n\n"
                "    return x[: n * k].reshape(n, k, *x.shape[1:])",
                "raised no ValueError",
            ),
            (  # eight in place of n
                "def shard_batch(x, n):\n"
                "    if len(x) % 8:\n"
                "        raise ValueError\n"
                "    return x.reshape(n, -1, *x.shape[1:])",
                "for n=4 can be split equally, but shard_batch raised ValueError",
            ),
            (  # flat or two dimensions only
                "def shard_batch(x, n):\n"
                "    if len(x) % n:\n"
                "        raise ValueError\n"
                "    return x.reshape(n, len(x) // n, -1)",
                "but (4, 3) is expected",
            ),
            (  # labels become floats
                "def shard_batch(x, n):\n"
                "    y = np.zeros((n, len(x) // n, *x.shape[1:]))\n"
                "    y.flat = x.reshape(n, -1, *x.shape[1:])\n"
                "    return y",
                "the dtype was int64, but shard_batch returned float64",
            ),
            (
                "def shard_batch(x, n):\n"
                "    if len(x) % n:\n"
                "        raise NotImplementedError('ragged')\n"
                "    return x.reshape(n, -1, *x.shape[1:])",
                "a ValueError is expected, but shard_batch raised NotImplementedError",
            ),
            (
                "def shard_batch(x, n):\n"
                "    return x.reshape(-1, n, *x.shape[1:]).swapaxes(0, 1)",
                "device 1 begins with row 3",
            ),
            (
                "def shard_batch(x, n):\n    return np.array_split(x, n)",
                "returned a list, but one array is expected",
            ),
            (
                "def shard_batch(x, n):\n    return x.reshape(8, 3, 2)",
                "for n=4 can be split equally",
            ),
            ("def shard_batch(x, n):\n    return np.stack([x] * n)", "(8, 24, 2)"),
            (
                "def shard_batch(x, n):\n    x = np.stack(np.split(x, n))",
                "returned None",
            ),
            (  # another exception than the one that is asked for
                "def shard_batch(x, n):\n"
                "    assert len(x) % n == 0\n"
                "    return x.reshape(n, -1, *x.shape[1:])",
                "shard_batch raised AssertionError",
            ),
            (  # the stub is left where it does not divide
                "def shard_batch(x, n):\n"
                "    if len(x) % n == 0:\n"
                "        return np.stack(np.split(x, n))\n"
                "    raise NotImplementedError",
                "shard_batch raised NotImplementedError",
            ),
            (  # half precision
                "def shard_batch(x, n):\n"
                "    if x.dtype == np.float32:\n"
                "        x = x.astype(np.float16).astype(np.float32)\n"
                "    return np.stack(np.split(x, n))",
                "device 1 has the wrong rows",
            ),
            (  # the last devices in the wrong order
                "def shard_batch(x, n):\n"
                "    x = np.stack(np.split(x, n))\n"
                "    x[2:] = x[2:][::-1].copy()\n"
                "    return x",
                "but those of other devices are not",
            ),
            (
                "def shard_batch(x, n):\n"
                "    short = -len(x) % n\n"
                "    x = np.pad(x, [(0, short)] + [(0, 0)] * (x.ndim - 1))\n"
                "    return x.reshape(n, -1, *x.shape[1:])",
                "rows may neither get lost nor be added",
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
                "how many numbers is that",
            ),
            (
                "bytes_per_device = 784 * 512 + 512 + 512 * 10 + 10\n"
                "bytes_in_all = 8 * bytes_per_device",
                "how many bytes is each",
            ),
            (
                "bytes_per_device = (784 * 512 + 512 + 512 * 10 + 10) * 4\n"
                "bytes_in_all = bytes_per_device",
                "How many replicas",
            ),
            (
                "bytes_in_all = (784 * 512 + 512 + 512 * 10 + 10) * 4\n"
                "bytes_per_device = bytes_in_all // 8",
                "bytes_per_device is 203525",
            ),
            (YES + "bytes_per_device = bytes_in_all = Yes()", "is not a number"),
            (
                'bytes_per_device = "1628200"\nbytes_in_all = "13025600"',
                "bytes_per_device: '1628200' is not a number",
            ),
            (
                "bytes_per_device = 1628200.9\nbytes_in_all = 13025600",
                "how many numbers is that",
            ),
            (  # one number a leaf
                "bytes_per_device = np.array([p.nbytes for p in params.values()])\n"
                "bytes_in_all = 8 * bytes_per_device",
                "is not a number",
            ),
            ('bytes_per_device = bytes_in_all = float("nan")', "is nan"),
            ("bytes_per_device = 1628200\nbytes_in_all = None", "None is not a number"),
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

momentum_step = jax.jit(
    jax.shard_map(inner, mesh=own_mesh, in_specs=Spec("data"), out_specs=Spec("data"))
)
""",
            """
@partial(jax.pmap, axis_name="data", donate_argnums=(0, 1))
def momentum_step(params, velocity, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    new, trace = {}, {}
    for name in params:
        mean = jax.lax.pmean(grads[name], "data")
        trace[name] = mean + velocity[name] * 0.9
        new[name] = params[name] - 0.1 * trace[name]
    return new, trace, jax.lax.pmean(loss, "data")
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
                "every value is 8 times",
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
                "but the budget is 76,364",
            ),
            (  # every device computes the whole batch
                """
@partial(jax.pmap, axis_name="data", devices=devices)
def momentum_step(params, velocity, x, y):
    x = jax.lax.all_gather(x, "data").reshape(-1, 784)
    y = jax.lax.all_gather(y, "data").reshape(-1)
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
    x, y = x.reshape(-1, 784), y.reshape(-1)
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "0 bytes are communicated, but at least 76,360 are needed",
            ),
            (  # the same, with an all-reduce that adds nothing
                """
@partial(jax.pmap, axis_name="data", in_axes=(0, 0, None, None))
def momentum_step(params, velocity, x, y):
    x, y = x.reshape(-1, 784), y.reshape(-1)
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    loss, grads = jax.lax.pmean((loss, grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "more rows than its own 20",
            ),
            (  # the sizes of one batch
                MOMENTUM
                + """
    loss, grads = jax.lax.psum((loss * 20, grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g / 8, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss / 160 * 20 / len(x)
""",
                "step 2, with 4 rows per device",
            ),
            (  # averaged in half precision
                MOMENTUM
                + """
    grads = jax.tree.map(lambda g: g.astype(jnp.float16), grads)
    loss, grads = jax.lax.pmean((loss, grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "['velocity']['w1']: off by up to",
            ),
            (  # computed in half precision
                """
@partial(jax.pmap, axis_name="data", devices=devices)
def momentum_step(params, velocity, x, y):
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    loss, grads = jax.value_and_grad(loss_fn)(half, x.astype(jnp.bfloat16), y)
    grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    loss, grads = jax.lax.pmean((loss.astype(jnp.float32), grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "['loss']",
            ),
            (  # no momentum: as right in the first step
                MOMENTUM
                + """
    loss, velocity = jax.lax.pmean((loss, grads), "data")
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "step 2",
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
    x = jax.lax.psum(jnp.zeros((8, *x.shape)).at[i].set(x), "data")
    y = jax.lax.psum(jnp.zeros((8, *y.shape), int).at[i].set(y), "data")
    x, y = x.reshape(-1, 784), y.reshape(-1)
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return sgd(params, velocity, rate=0.1), velocity, loss
""",
                "bytes are communicated, but the budget is 76,364",
            ),
            (
                MOMENTUM
                + """
    grads = jax.lax.pmean(grads, "data")
    return sgd(params, grads, rate=0.1), jax.lax.pmean(loss, "data")
""",
                "returned 2 things",
            ),
            (  # no return
                MOMENTUM + '    grads = jax.lax.pmean(grads, "data")\n',
                "returned None, but a tuple",
            ),
            (
                MOMENTUM
                + """
    loss, grads = jax.lax.pmean((loss, grads), "data")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = sgd(params, velocity, rate=0.1)
    return {"params": params, "velocity": velocity, "loss": loss}
""",
                "returned a dict",
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
                "in the shapes it was given",
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
            (  # momentum twice in the step of the parameters
                '@partial(jax.pmap, axis_name="data", devices=devices)\n'
                "def momentum_step(params, velocity, x, y):\n"
                "    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)\n"
                '    grads = jax.lax.pmean(grads, "data")\n'
                "    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, "
                "velocity, grads)\n"
                "    params = sgd(params, jax.tree.map(lambda v, g: 0.9 * v + "
                "g, velocity, grads), rate=0.1)\n"
                '    return params, velocity, jax.lax.pmean(loss, "data")',
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
            MASKED
            + """
    rows = jnp.where(mask > 0, row_losses(params, x, y), 0)
    return jax.lax.psum(rows.sum(), "data") / jax.lax.psum(mask, "data").sum()
""",
            # one exchange of two numbers
            '@partial(jax.pmap, axis_name="data", devices=devices)\n'
            "def masked_loss(params, x, y, mask):\n"
            "    sums = jnp.stack([jnp.sum(row_losses(params, x, y), "
            "where=mask > 0), (mask > 0).sum()])\n"
            '    total, n = jax.lax.psum(sums, "data")\n'
            "    return total / n",
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
                "returned nan, which is 0 / 0",
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
                "returned nan, which is 0 / 0",
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
                "12 real rows",
            ),
            (  # half precision
                MASKED
                + """
    rows = row_losses(params, x, y).astype(jnp.float16).astype(jnp.float32)
    total, real = jax.lax.psum(((rows * mask).sum(), mask.sum()), "data")
    return total / real
""",
                "real rows: ",
            ),
            (
                MASKED
                + """
    total = jax.lax.psum((row_losses(params, x, y) * mask).sum(), "data")
    return total / jax.lax.psum(len(x), "data")
""",
                "What is divided by what?",
            ),
            (  # a number for each row
                MASKED
                + """
    rows = row_losses(params, x, y) * mask
    return rows / jax.lax.psum(mask.sum(), "data")
""",
                "returned an array of shape (8, 2)",
            ),
            (MASKED + "    total = jax.lax.psum(mask, 'data')\n", "returned None"),
            (  # every device works on all rows
                """
@partial(jax.pmap, axis_name="data", in_axes=(0, None, None, None))
def masked_loss(params, x, y, mask):
    rows = row_losses(params, x.reshape(16, 784), y.reshape(16))
    mask = mask.reshape(16)
    return jax.lax.pmean((rows * mask).sum() / mask.sum(), "data")
""",
                "more rows than its own 2",
            ),
            (  # no devices at all
                """
def masked_loss(params, x, y, mask):
    x, y, mask = x.reshape(16, 784), y.reshape(16), mask.reshape(16)
    rows = row_losses(jax.tree.map(lambda p: p[0], params), x, y)
    return jnp.full(8, (rows * mask).sum() / mask.sum())
""",
                "more rows than its own 2",
            ),
            (
                MASKED
                + """
    rows = (row_losses(params, x, y) * mask).sum()
    return jax.lax.psum(rows, "data") / jnp.maximum(mask.sum(), 1)
""",
                "but all have to return the same number",
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
            # the axis of vmap lies on the devices
            """
mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,), devices=devices)

def own(params, x, y):
    hits = jnp.count_nonzero(predict(params, x).argmax(-1) == y)
    return jax.lax.psum(hits, "data")

split = NamedSharding(mesh, P("data"))
count_right = jax.jit(
    jax.vmap(own, axis_name="data"), in_shardings=split, out_shardings=split
)
""",
        ],
        wrong=[
            (COUNT + "    return right.sum()\n", "the devices return 240, 240, 238"),
            (
                COUNT + '    return jax.lax.pmean(right.sum(), "data")\n',
                "but the model gets 1915 right",
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
                "one number for each of the 8 devices",
            ),
            (
                COUNT + '    return jax.lax.pmean(right.mean(), "data")\n',
                "but the model gets 1915 right",
            ),
            (
                "def count_right(params, x, y):\n    return np.full(8, 1916)",
                "but the model gets 1915 right",
            ),
            (  # a network in half precision
                """
@partial(jax.pmap, axis_name="data", devices=devices)
def count_right(params, x, y):
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    right = predict(half, x.astype(jnp.bfloat16)).argmax(axis=1) == y
    return jax.lax.psum(right.sum(), "data")
""",
                "but the model gets 1915 right",
            ),
            ("count_right = 1915", "count_right is 1915, but has to be a function"),
            (  # a type that is too small
                COUNT
                + """
    return jax.lax.psum(right.sum(dtype=jnp.uint8), "data")
""",
                "but the model gets 1915 right",
            ),
            (  # the trained model, whichever is given
                """
@partial(jax.pmap, axis_name="data", devices=devices)
def count_right(params, x, y):
    right = predict(trained, x).argmax(axis=1) == y
    return jax.lax.psum(right.sum(), "data")
""",
                "but the model gets 1915 right",
            ),
            (COUNT + "    hits = jax.lax.psum(right.sum(), 'data')\n", "returned None"),
            (  # bfloat16 has no 1915
                COUNT
                + """
    return jax.lax.psum(right.astype(jnp.bfloat16).sum(), "data")
""",
                "but the model gets 1915 right",
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
                "all-reduce runs 0 times, but must run at least 1 time",
            ),
            (  # each device's own, times eight
                '@partial(jax.pmap, axis_name="data", devices=devices)\n'
                "def count_right(params, x, y):\n"
                "    right = predict(params, x).argmax(axis=1) == y\n"
                "    return jnp.rint(8 * right.sum()).astype(jnp.int32)",
                "each device|the devices return",
            ),
        ],
    ),
}
