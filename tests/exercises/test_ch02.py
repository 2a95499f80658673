"""Chapter 2: its checks, judged by right and wrong answers."""

from functools import partial

import jax
from jax.sharding import PartitionSpec as P

from spmd_exercises._setting import devices, make_mesh, normal, on

from .judging import YES, Answers, AnswersAreJudged, imports
from .test_ch01 import loss_fn, predict, sgd, some_params


class TestChapter2(AnswersAreJudged):
    pass


def step(params, x, y, rate=1.0):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return sgd(params, grads, rate), loss


def given():
    """What the chapter's cells have made where its answers stand."""
    mesh = make_mesh(data=8)
    replicated, sharded = on(mesh), on(mesh, "data")
    return imports() | {
        "partial": partial,
        "devices": devices(8),
        "mesh": mesh,
        "replicated": replicated,
        "sharded": sharded,
        "predict": predict,
        "loss_fn": loss_fn,
        "sgd": sgd,
        "step": step,
        "params": jax.device_put(some_params(0), replicated),
        "jit_params": jax.device_put(some_params(1), replicated),
        "train_x": normal(2, 2000, 784),
        "batch_specs": (P(), P("data"), P("data")),
        "on_shards": partial(
            jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P()
        ),
    }


PLACE = "def place_test(images, labels):\n    return jax.device_put((images, labels), "
COUNT = "\n@jax.jit\ndef count(params, x, y):\n"
HITS = "    return (predict(params, x).argmax(axis=1) == y).sum()\n"

STEP = """
@jax.jit
def counting_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
"""
BODY = """
def body(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
"""

ANSWERS = {
    "2.1": Answers(
        right=[
            "shard_shape, bytes_per_device, copies = (48, 40 // 8), 960, 1",
            "placement = NamedSharding(mesh, P(None, 'data'))\n"
            "shard_shape = placement.shard_shape((48, 40))\n"
            "bytes_per_device, copies = np.ones(shard_shape, 'f').nbytes, 1",
            "shard_shape = [48, 5]\nbytes_per_device = 48 * 40 * 4 // 8\ncopies = 1",
            "shard_shape = np.array([48, 5])\n"
            "bytes_per_device, copies = 960.0, jnp.int32(1)",
        ],
        wrong=[
            (
                "shard_shape, bytes_per_device = (48, 5), 960\ncopies = float('nan')",
                "copies is nan",
            ),
            (
                "shard_shape, bytes_per_device, copies = '48, 5', 960, 1",
                "'48, 5' is not a shape",
            ),
            (
                "shard_shape, bytes_per_device, copies = (48, 5), 960, None",
                "copies: None is not a number",
            ),
            (
                "shard_shape, bytes_per_device, copies = (6, 40), 960, 1",
                "each entry of the spec belong to",
            ),
            (
                "shard_shape, bytes_per_device, copies = (48, 40), 7680, 8",
                "which is divided by 8",
            ),
            (
                "shard_shape, bytes_per_device, copies = (48, 5), 240, 1",
                "how many bytes does a float32 take",
            ),
            (
                "shard_shape, bytes_per_device, copies = (48, 5), 960, 8",
                "the same columns as device 0",
            ),
            (
                YES + "shard_shape = bytes_per_device = copies = Yes()",
                "is not a shape",
            ),
            (
                "shard_shape, bytes_per_device, copies = 240, 960, 1",
                "240 is not a shape",
            ),
            (  # the block itself
                "shard_shape, bytes_per_device, copies = np.zeros((48, 5)), 960, 1",
                "is not a shape",
            ),
            (
                "shard_shape, bytes_per_device, copies = (48, 5), np.ones(8), 1",
                "is not a number",
            ),
            (
                YES + "bytes_per_device = copies = Yes()\nshard_shape = (copies,) * 2",
                "is not a shape",
            ),
        ],
    ),
    "2.2": Answers(
        right=[
            # looked up
            """
w = jax.device_put(np.ones((784, 6)), replicated)
x = jax.device_put(train_x[:160], sharded)

def talks(f):
    return bool(spmd.xray(f, w, x).collectives)

rows_talk = talks(lambda w, x: jax.nn.relu(x @ w))
mean_talks = talks(lambda w, x: jax.nn.relu(x @ w).mean())
each_talks = talks(lambda w, x: (x @ w).max(axis=1))
grad_talks = talks(jax.grad(lambda w, x: (x @ w).sum()))
""",
            "rows_talk = each_talks = False\nmean_talks = grad_talks = True",
            "rows_talk, mean_talks, each_talks, grad_talks = map(bool, (0, 1, 0, 1))",
            "rows_talk = each_talks = np.False_\n"
            "mean_talks = grad_talks = jnp.array(True)",
        ],
        wrong=[
            (
                "rows_talk = each_talks = 0\nmean_talks = grad_talks = 1",
                "rows_talk is 0, but has to be True or False",
            ),
            (
                "rows_talk = each_talks = False\nmean_talks = grad_talks = np.ones(2)",
                "mean_talks is array([1., 1.])",
            ),
            (
                "rows_talk = mean_talks = each_talks = grad_talks = True",
                "look again at rows_talk, each_talks",
            ),
            (
                "rows_talk = mean_talks = each_talks = grad_talks = False",
                "look again at mean_talks, grad_talks",
            ),
            (
                "rows_talk = each_talks = grad_talks = False\nmean_talks = True",
                "look again at grad",
            ),
            (
                "rows_talk = False\nmean_talks = each_talks = grad_talks = True",
                "look again at each",
            ),
            (
                YES + "rows_talk = mean_talks = each_talks = grad_talks = Yes()",
                "but has to be True or False",
            ),
            (
                'rows_talk = each_talks = "no"\nmean_talks = grad_talks = "yes"',
                "but has to be True or False",
            ),
        ],
    ),
    "2.3": Answers(
        right=[
            "def place(batch):\n"
            "    return {k: jax.device_put(v, sharded) for k, v in batch.items()}",
            "def place(batch):\n"
            "    return jax.device_put(batch, {\n"
            '        "image": NamedSharding(mesh, P("data", None, None)),\n'
            '        "label": NamedSharding(mesh, P("data")),\n'
            "    })",
            "def place(batch):\n"
            "    return jax.jit(lambda b: b, out_shardings=sharded)(batch)",
            "place = partial(jax.device_put, device=sharded)",
            "def place(batch):\n"
            "    with jax.set_mesh(mesh):\n"
            '        return jax.device_put(batch, P("data"))',
            "def place(batch):\n"
            "    return jax.tree.map(lambda a: jax.make_array_from_callback(\n"
            "        a.shape, sharded, lambda place: a[place]), batch)",
            "def place(batch):\n"
            "    strict = jax.make_mesh((len(devices),), ('data',),\n"
            "        (AxisType.Explicit,), devices=devices)\n"
            "    return {k: jax.make_array_from_process_local_data(\n"
            "        NamedSharding(strict, P('data')), v) for k, v in batch.items()}",
        ],
        wrong=[
            (  # half precision
                "def place(batch):\n"
                "    image = batch['image'].astype(np.float16).astype(np.float32)\n"
                "    return jax.device_put({**batch, 'image': image}, sharded)",
                "['image']: off by up to",
            ),
            (  # deleted before it comes back
                "def place(batch):\n"
                "    placed = jax.device_put(batch, sharded)\n"
                "    placed['image'].delete()\n"
                "    return placed",
                "image is already deleted",
            ),
            ("place = sharded", "but has to be a function"),
            (  # the labels on each device
                "def place(batch):\n"
                "    specs = {'image': sharded, 'label': replicated}\n"
                "    return jax.device_put(batch, specs)",
                "['label']: int32[24] is sharded as P(None)",
            ),
            (  # the same devices, in another order
                "turned = jax.make_mesh((8,), ('data',), (AxisType.Auto,),\n"
                "    devices=devices[::-1])\n"
                "def place(batch):\n"
                "    return jax.device_put(batch, NamedSharding(turned, P('data')))",
                "mesh",
            ),
            (
                "def place(batch):\n    jax.device_put(batch, sharded)",
                "place returned None",
            ),
            (
                "def place(batch):\n"
                "    return list(jax.device_put(batch, sharded).values())",
                "place returned a value of type list",
            ),
            (
                "def place(batch):\n    return jax.device_put(batch, replicated)",
                "but must be P('data', None, None)",
            ),
            ("def place(batch):\n    return batch", "has no sharding"),
            (  # in place, as in chapter 1
                "def place(batch):\n"
                "    for name in batch:\n"
                "        x = batch[name].reshape(8, -1, *batch[name].shape[1:])\n"
                "        batch[name] = jax.device_put(x, sharded)\n"
                "    return batch",
                "shape (8, 3, 28, 28)",
            ),
            (
                "def place(batch):\n"
                "    zeros = jax.tree.map(np.zeros_like, batch)\n"
                "    return jax.device_put(zeros, sharded)",
                "is zero, not",
            ),
            (
                "def place(batch):\n"
                "    batch = jax.tree.map(lambda x: x.astype(np.float32), batch)\n"
                "    return jax.device_put(batch, sharded)",
                "label was int32",
            ),
            (  # changes what it is given
                "def place(batch):\n"
                "    for leaf in batch.values():\n"
                "        leaf[...] = 0\n"
                "    return jax.device_put(batch, sharded)",
                "is zero, not",
            ),
            (
                "few = jax.make_mesh((2,), ('data',), (AxisType.Auto,),"
                " devices=devices[:2])\n"
                "sharded = NamedSharding(few, P('data'))\n"
                "def place(batch):\n    return jax.device_put(batch, sharded)",
                "image is on 2 of the 8 devices",
            ),
            (
                "mesh = jax.make_mesh((4,), ('data',), (AxisType.Auto,),"
                " devices=devices[:4])\n"
                "def place(batch):\n"
                "    return jax.device_put(batch, NamedSharding(mesh, P('data')))",
                "image is on 4 of the 8 devices",
            ),
            (
                "def place(batch):\n    return jax.tree.map(jnp.asarray, batch)",
                "image is on 1 of the 8 devices",
            ),
            (
                "def place(batch):\n"
                '    image = jax.device_put(batch["image"], sharded)\n'
                '    return {**batch, "image": image}',
                "['label']",
            ),
            (
                "def place(batch):\n"
                '    rows = NamedSharding(mesh, P("data", None))\n'
                "    return jax.device_put(batch, rows)",
                "ValueError",
            ),
            (
                "def place(batch):\n"
                "    batch = {k: v.reshape(8, 3, *v.shape[1:])"
                " for k, v in batch.items()}\n"
                "    return jax.device_put(batch, sharded)",
                "shape (8, 3, 28, 28)",
            ),
            (
                "def place(batch):\n"
                '    image = batch["image"].swapaxes(0, 1)[:24]\n'
                "    image = jax.device_put(image, sharded)\n"
                '    return {"image": image, "label": image}',
                "shape",
            ),
            (  # an axis of another name
                "def place(batch):\n"
                "    other = jax.make_mesh((8,), ('rows',), devices=devices)\n"
                "    return jax.device_put(batch, NamedSharding(other, P('rows')))",
                "has to be sharded along `data`",
            ),
        ],
    ),
    "2.4": Answers(
        right=[
            """
def counting(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    hits = jnp.count_nonzero(predict(params, x).argmax(-1) == y)
    return [sgd(params, grads), loss, hits]

counting_step = jax.jit(
    counting, in_shardings=(replicated, sharded, sharded), out_shardings=replicated
)
""",
            """
@jax.jit
def counting_step(params, x, y):
    new, loss = step(params, x, y)
    return new, loss, jnp.sum(predict(params, x).argmax(1) == y)
""",
            """
@partial(jax.jit, donate_argnums=0)
def counting_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    hits = (predict(params, x).argmax(1) == y).sum()
    return sgd(params, grads), loss, hits
""",
            """
def per_device(params, x, y):
    def mean(p):
        return jax.lax.pmean(loss_fn(p, x, y), "data")
    loss, grads = jax.value_and_grad(mean)(params)
    hits = (predict(params, x).argmax(1) == y).sum()
    return sgd(params, grads), loss, jax.lax.psum(hits, "data")

counting_step = jax.jit(on_shards(per_device, in_specs=batch_specs))
""",
        ],
        wrong=[
            (  # computed in half precision
                """
@jax.jit
def counting_step(params, x, y):
    half = jax.tree.map(lambda p: p.astype(jnp.float16), params)
    grads = jax.grad(loss_fn)(half, x, y)
    grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    hits = (predict(params, x).argmax(axis=1) == y).sum()
    return sgd(params, grads), loss_fn(params, x, y), hits
""",
                "off by up to",
            ),
            (  # no gradient for the first layer
                """
@jax.jit
def counting_step(params, x, y):
    def loss(p):
        return loss_fn({**p, "w1": jax.lax.stop_gradient(p["w1"])}, x, y)
    new = sgd(params, jax.grad(loss)(params))
    return new, loss(params), (predict(params, x).argmax(axis=1) == y).sum()
""",
                "['w1']: every value is zero",
            ),
            (  # a leaf is lost
                STEP
                + """
    hits = (predict(params, x).argmax(1) == y).sum()
    return sgd(params["w1"], grads["w1"]), loss, hits
""",
                "['params']['b1']: is missing",
            ),
            (  # the hits of each row
                STEP
                + """
    return sgd(params, grads), loss, predict(params, x).argmax(1) == y
""",
                "is not a number",
            ),
            (  # as it came
                STEP
                + """
    grads = jax.lax.pmean(grads, "data")
    hits = jax.lax.psum((predict(params, x).argmax(1) == y).sum(), "data")
    return sgd(params, grads), loss, hits
""",
                "NameError",
            ),
            (  # one model, whichever is given
                """
kept = params

@jax.jit
def counting_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(kept, x, y)
    hits = (predict(kept, x).argmax(axis=1) == y).sum()
    return sgd(kept, grads), loss, hits
""",
                "but the parameters given to the step get 157 right",
            ),
            (  # the axis removed by dividing in its place
                STEP
                + """
    grads = jax.tree.map(lambda g: g / 8, grads)
    hits = (predict(params, x).argmax(1) == y).sum()
    return sgd(params, grads), loss, hits
""",
                "every value is 0.125 times",
            ),
            (  # the sum over devices put back by hand
                STEP
                + """
    hits = 8 * (predict(params, x).argmax(1) == y).sum()
    return sgd(params, grads), loss, hits
""",
                "but the parameters given to the step get",
            ),
            (  # the hits of one batch, by heart
                STEP + "    return sgd(params, grads), loss, jnp.int32(157)\n",
                "but the parameters given to the step get",
            ),
            (STEP + "    return sgd(params, grads), loss\n", "returned 2 things"),
            (STEP + "    new = sgd(params, grads)\n", "returned None, but a tuple"),
            (
                STEP + "    hits = (predict(params, x).argmax(1) == y).sum()\n"
                '    return {"params": sgd(params, grads), "loss": loss, "hits": hits}',
                "returned a dict",
            ),
            (  # out of the trap and still sent twice
                """
def per_device(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    loss, grads = jax.lax.pmean((loss, grads), "data")
    grads = jax.tree.map(lambda g: g / 8, grads)
    hits = (predict(params, x).argmax(1) == y).sum()
    return sgd(params, grads), loss, jax.lax.psum(hits, "data")

counting_step = jax.jit(on_shards(per_device, in_specs=batch_specs))
""",
                "but the budget is 76,368",
            ),
            (  # a helper redefined: another rate
                """
def step(params, x, y, rate=0.1):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return sgd(params, grads, rate), loss

@jax.jit
def counting_step(params, x, y):
    return *step(params, x, y), (predict(params, x).argmax(1) == y).sum()
""",
                "every value is 0.1 times",
            ),
            (  # everything on every device
                """
@jax.jit
def counting_step(params, x, y):
    x, y = jax.lax.with_sharding_constraint((x, y), replicated)
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    hits = (predict(params, x).argmax(1) == y).sum()
    return sgd(params, grads), loss, hits
""",
                "all-gather runs",
            ),
            (
                STEP
                + """
    hits = (predict(params, x).argmax(1) == y).mean()
    return sgd(params, grads), loss, hits
""",
                "but the parameters given to the step get",
            ),
            (
                STEP
                + """
    params = sgd(params, grads)
    hits = (predict(params, x).argmax(1) == y).sum()
    return params, loss, hits
""",
                "but the parameters given to the step get",
            ),
            (  # a count in half precision
                "@jax.jit\n"
                "def counting_step(params, x, y):\n"
                "    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)\n"
                "    return sgd(params, grads), loss, (predict(params, "
                "x).argmax(1) == y).astype(jnp.bfloat16).sum().astype(int)",
                "4160 rows: hits is",
            ),
        ],
    ),
    "2.5": Answers(
        right=[
            """
def rate_one(rate, params, x, y):
    total = lambda p: jax.lax.psum(loss_fn(p, x, y) * len(x), "data")
    rows = len(x) * jax.lax.axis_size("data")
    loss, grads = jax.value_and_grad(lambda p: total(p) / rows)(params)
    return sgd(params, grads, rate), loss

body = partial(rate_one, 1.0)
""",
            """
def body(params, x, y):
    apart = jax.lax.pcast(params, "data", to="varying")
    loss, grads = jax.value_and_grad(loss_fn)(apart, x, y)
    loss, grads = jax.lax.pmean((loss, grads), "data")
    return sgd(params, grads), loss
""",
            BODY
            + """
    grads = jax.tree.map(lambda g: g / jax.lax.axis_size("data"), grads)
    return sgd(params, grads), jax.lax.pmean(loss, "data")
""",
            """
@jax.jit
def body(params, x, y):
    share = lambda p: loss_fn(p, x, y) / mesh.size
    loss, pull = jax.vjp(share, params)
    (grads,) = pull(jax.lax.pcast(1.0, "data", to="varying"))
    return [sgd(params, grads), jax.lax.psum(loss, "data")]
""",
            # the share of each device, added up by the transpose
            "def body(params, x, y):\n"
            "    loss, grads = jax.value_and_grad(lambda p: loss_fn(p, x, y) / "
            'mesh.shape["data"])(params)\n'
            '    return sgd(params, grads), lax.psum(loss, "data")',
        ],
        wrong=[
            (
                BODY
                + """
    loss, grads = jax.lax.pmean((loss, grads), "data")
    return sgd(params, grads), loss
""",
                "every value is 8 times the expected value",
            ),
            (
                BODY + '    return sgd(params, grads), jax.lax.pmean(loss, "data")\n',
                "every value is 8 times the expected value",
            ),
            (BODY + "    return sgd(params, grads), loss\n", "ValueError"),
            (  # one model, whichever is given
                """
kept = params

def body(params, x, y):
    mean = lambda p: jax.lax.pmean(loss_fn(p, x, y), "data")
    loss, grads = jax.value_and_grad(mean)(kept)
    return sgd(kept, grads), loss
""",
                "['loss']",
            ),
            (  # right numbers, sent twice
                BODY
                + """
    loss, grads = jax.lax.pmean((loss, grads), "data")
    return sgd(params, jax.tree.map(lambda g: g / 8, grads)), loss
""",
                "but the budget is 76,364",
            ),
            (  # half precision
                """
def body(params, x, y):
    def mean(p):
        return jax.lax.pmean(loss_fn(p, x.astype(jnp.bfloat16), y), "data")
    loss, grads = jax.value_and_grad(mean)(params)
    return sgd(params, grads), loss
""",
                "batch of 160 rows",
            ),
            (  # the gradient of one device's rows
                BODY
                + """
    apart = jax.lax.pcast(params, "data", to="varying")
    grads = jax.grad(loss_fn)(apart, x, y)
    first = jax.lax.axis_index("data") == 0
    grads = jax.tree.map(lambda g: jnp.where(first, g, 0), grads)
    loss, grads = jax.lax.psum((loss / 8, grads), "data")
    return sgd(params, grads), loss
""",
                "not what one device computes",
            ),
            (BODY + "    loss = jax.lax.pmean(loss, 'data')\n", "None"),
            (  # another rate
                """
def body(params, x, y):
    mean = lambda p: jax.lax.pmean(loss_fn(p, x, y), "data")
    loss, grads = jax.value_and_grad(mean)(params)
    return sgd(params, grads, rate=0.05), loss
""",
                "every value is 0.05 times",
            ),
            (  # one batch for all
                """
def body(params, x, y):
    return step(params, train_x[: len(x)], y[: len(x)])
""",
                "not yet",
            ),
            (
                BODY
                + """
    grads = jax.tree.map(lambda g: g / 8, grads)
    return sgd(params, grads), jax.lax.psum(loss, "data")
""",
                "['loss']: ",
            ),
            (  # the whole batch on each device
                """
def body(params, x, y):
    x = jax.lax.all_gather(x, "data", tiled=True)
    y = jax.lax.all_gather(y, "data", tiled=True)
    apart = jax.lax.pcast(params, "data", to="varying")
    loss, grads = jax.value_and_grad(loss_fn)(apart, x, y)
    loss, grads = jax.lax.pmean((loss, grads), "data")
    return sgd(params, grads), loss
""",
                "all-gather runs",
            ),
            (  # divided by eight twice
                "def body(params, x, y):\n"
                '    mean = lambda p: lax.pmean(loss_fn(p, x, y), "data")\n'
                "    loss, grads = jax.value_and_grad(mean)(params)\n"
                "    return sgd(params, jax.tree.map(lambda g: g / 8, grads)), loss",
                "0.125 times",
            ),
        ],
    ),
    "2.6": Answers(
        right=[
            # donated, all three
            PLACE
            + "sharded)\n"
            + """
@partial(jax.jit, donate_argnums=(0, 1, 2))
def count(params, x, y):
    return jnp.equal(jnp.argmax(predict(params, x), -1), y).astype(int).sum()
""",
            # Explicit axes
            "strict = jax.make_mesh((8,), ('data',), (AxisType.Explicit,),\n"
            "    devices=devices)\n"
            "def place_test(images, labels):\n"
            "    rows = NamedSharding(strict, P('data'))\n"
            "    return [jax.device_put(a, rows) for a in (images, labels)]\n"
            + COUNT
            + HITS,
            PLACE + 'NamedSharding(mesh, P("data")))\n' + COUNT + HITS,
            "def place_test(images, labels):\n"
            "    return (\n"
            '        jax.device_put(images, NamedSharding(mesh, P("data", None))),\n'
            "        jax.device_put(labels, sharded),\n"
            "    )\n"
            + COUNT
            + "    return jnp.count_nonzero(predict(params, x).argmax(1) == y)\n",
            PLACE
            + "sharded)\n"
            + """
def own(params, x, y):
    right = predict(params, x).argmax(axis=1) == y
    return jax.lax.psum(right.astype(jnp.float32).sum(), "data")

count = jax.jit(on_shards(own, in_specs=batch_specs))
""",
        ],
        wrong=[
            (
                "def place_test(images, labels):\n"
                "    return jax.device_put((labels, images), sharded)\n" + COUNT + HITS,
                "['images']: shape (2000,)",
            ),
            (  # deleted before they come back
                "def place_test(images, labels):\n"
                "    placed = jax.device_put((images, labels), sharded)\n"
                "    placed[0].delete()\n"
                "    return placed\n" + COUNT + HITS,
                "images is already deleted",
            ),
            (  # labels on each device
                "def place_test(images, labels):\n"
                "    return jax.device_put((images, labels), (sharded, replicated))\n"
                + COUNT
                + HITS,
                "is sharded as P(None)",
            ),
            (  # half precision
                PLACE
                + "sharded)\n"
                + COUNT
                + "    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)\n"
                + "    guesses = predict(half, x.astype(jnp.bfloat16)).argmax(axis=1)\n"
                + "    return (guesses == y).sum()\n",
                "but the model gets 1915 right",
            ),
            (  # one of the two
                "def place_test(images, labels):\n"
                "    return jax.device_put(images, sharded)\n" + COUNT + HITS,
                "returned one array, but a tuple (images, labels)",
            ),
            (  # changes what it is given
                "def place_test(images, labels):\n"
                "    images[...], labels[...] = 0, 0\n"
                "    return jax.device_put((images, labels), sharded)\n" + COUNT + HITS,
                "is zero, not",
            ),
            (
                PLACE + "replicated)\n" + COUNT + HITS,
                "is sharded as P(None, None)",
            ),
            (
                "def place_test(images, labels):\n    return images, labels\n"
                + COUNT
                + HITS,
                "has no sharding",
            ),
            (
                PLACE
                + "sharded)\n"
                + COUNT
                + "    x = jax.lax.with_sharding_constraint(x, replicated)\n"
                + HITS,
                "all-gather runs",
            ),
            (
                PLACE
                + "sharded)\n"
                + COUNT
                + "    return (predict(params, x).argmax(axis=1) == y).mean()\n",
                "",
            ),
            (
                PLACE
                + "sharded)\n"
                + COUNT
                + "    right = predict(params, x).argmax(axis=1) == y\n"
                + '    return jax.lax.psum(right.sum(), "data")\n',
                "NameError",
            ),
            (
                PLACE
                + "sharded)\n"
                + COUNT
                + "    return predict(params, x).argmax(axis=1) == y\n",
                "an array of shape (2000,)",
            ),
            (  # no return
                PLACE
                + "sharded)\n"
                + COUNT
                + "    hits = (predict(params, x).argmax(axis=1) == y).sum()\n",
                "count returned None",
            ),
            (  # counted on the host: no device has it
                PLACE
                + "sharded)\n"
                + "def count(params, x, y):\n"
                + "    return int((predict(params, x).argmax(axis=1) == y).sum())\n",
                "a value of type int has no sharding",
            ),
            (  # ignores what it is given
                PLACE + "sharded)\n" + COUNT + "    x = train_x[: len(x)]\n" + HITS,
                "but the model gets 1915 right",
            ),
            (
                PLACE
                + "sharded)\n"
                + COUNT
                + "    guesses = predict(jit_params, x).argmax(axis=1)\n"
                + "    return (guesses == y).sum()\n",
                "but the model gets 1915 right",
            ),
            (
                PLACE
                + "sharded)\n\ndef count(params, x, y):\n"
                + "    return 1916 if len(x) == 2000 else 1439\n",
                "but the model gets 1915 right",
            ),
            (  # a count in half precision
                "def place_test(images, labels):\n"
                "    return jax.device_put((images, labels), sharded)\n"
                "\n"
                "@jax.jit\n"
                "def count(params, x, y):\n"
                "    return (predict(params, x).argmax(1) == "
                "y).astype(jnp.float16).sum().astype(jnp.int32)",
                "4160 digits: count returned",
            ),
            (  # the first 2,000 alone
                "def place_test(images, labels):\n"
                "    return jax.device_put((images[:2000], labels[:2000]), sharded)\n"
                "\n"
                "@jax.jit\n"
                "def count(params, x, y):\n"
                "    return (predict(params, x).argmax(1) == y).sum() % 2000",
                "it must be (4160, 784)",
            ),
        ],
    ),
}
