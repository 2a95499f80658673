"""Chapter 02: right and wrong answers."""

from . import Answers
from .ch01 import YES

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
            "shard_shape = [48, 5]\nbytes_per_device = 48 * 40 * 4 // 8\ncopies = 1",
            "shard_shape = np.array([48, 5])\n"
            "bytes_per_device, copies = 960.0, jnp.int32(1)",
        ],
        wrong=[
            (
                "shard_shape, bytes_per_device, copies = (6, 40), 960, 1",
                "the entries of the spec follow",
            ),
            (
                "shard_shape, bytes_per_device, copies = (48, 40), 7680, 8",
                "is not what a device holds",
            ),
            (
                "shard_shape, bytes_per_device, copies = (48, 5), 240, 1",
                "4 bytes each",
            ),
            (
                "shard_shape, bytes_per_device, copies = (48, 5), 960, 8",
                "on how many devices",
            ),
            (
                YES + "shard_shape = bytes_per_device = copies = Yes()",
                "is not what a device holds",
            ),
            (
                "shard_shape, bytes_per_device, copies = 240, 960, 1",
                "240 is not what a device holds",
            ),
            (  # the block itself
                "shard_shape, bytes_per_device, copies = np.zeros((48, 5)), 960, 1",
                "is not what a device holds",
            ),
            (
                "shard_shape, bytes_per_device, copies = (48, 5), np.ones(8), 1",
                "count the numbers",
            ),
            (
                YES + "bytes_per_device = copies = Yes()\nshard_shape = (copies,) * 2",
                "is not a number",
            ),
        ],
    ),
    "2.2": Answers(
        right=[
            "rows_talk = each_talks = False\nmean_talks = grad_talks = True",
            "rows_talk, mean_talks, each_talks, grad_talks = map(bool, (0, 1, 0, 1))",
            "rows_talk = each_talks = np.False_\n"
            "mean_talks = grad_talks = jnp.array(True)",
        ],
        wrong=[
            ("rows_talk = mean_talks = each_talks = grad_talks = True", "rows, each"),
            ("rows_talk = mean_talks = each_talks = grad_talks = False", "mean, grad"),
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
                "answer each with True or False",
            ),
            (
                'rows_talk = each_talks = "no"\nmean_talks = grad_talks = "yes"',
                "answer each with True or False",
            ),
        ],
    ),
    "2.3": Answers(
        right=[
            "def place(batch):\n"
            "    return {k: jax.device_put(v, split) for k, v in batch.items()}",
            "def place(batch):\n"
            "    return jax.device_put(batch, {\n"
            '        "image": NamedSharding(mesh, P("data", None, None)),\n'
            '        "label": NamedSharding(mesh, P("data")),\n'
            "    })",
            "def place(batch):\n"
            "    return jax.jit(lambda b: b, out_shardings=split)(batch)",
            "place = partial(jax.device_put, device=split)",
            "def place(batch):\n"
            "    with jax.set_mesh(mesh):\n"
            '        return jax.device_put(batch, P("data"))',
            "def place(batch):\n"
            "    return jax.tree.map(lambda a: jax.make_array_from_callback(\n"
            "        a.shape, split, lambda place: a[place]), batch)",
            "def place(batch):\n"
            "    strict = jax.make_mesh((len(devices),), ('data',),\n"
            "        (AxisType.Explicit,), devices=devices)\n"
            "    return {k: jax.make_array_from_process_local_data(\n"
            "        NamedSharding(strict, P('data')), v) for k, v in batch.items()}",
        ],
        wrong=[
            (
                "def place(batch):\n    return jax.device_put(batch, whole)",
                "['label']: int32[24] lies as P(None)",
            ),
            ("def place(batch):\n    return batch", "has no sharding"),
            (  # in place, as in chapter 1
                "def place(batch):\n"
                "    for name in batch:\n"
                "        x = batch[name].reshape(8, -1, *batch[name].shape[1:])\n"
                "        batch[name] = jax.device_put(x, split)\n"
                "    return batch",
                "shape (8, 3, 28, 28)",
            ),
            (
                "def place(batch):\n"
                "    return jax.device_put(jax.tree.map(np.zeros_like, batch), split)",
                "is zero, and not",
            ),
            (
                "def place(batch):\n"
                "    batch = jax.tree.map(lambda x: x.astype(np.float32), batch)\n"
                "    return jax.device_put(batch, split)",
                "label was int32",
            ),
            (  # changes what it is given
                "def place(batch):\n"
                "    for leaf in batch.values():\n"
                "        leaf[...] = 0\n"
                "    return jax.device_put(batch, split)",
                "is zero, and not",
            ),
            (
                "few = jax.make_mesh((2,), ('data',), (AxisType.Auto,),"
                " devices=devices[:2])\n"
                "split = NamedSharding(few, P('data'))\n"
                "def place(batch):\n    return jax.device_put(batch, split)",
                "image lies on 2 devices",
            ),
            (
                "mesh = jax.make_mesh((4,), ('data',), (AxisType.Auto,),"
                " devices=devices[:4])\n"
                "def place(batch):\n"
                "    return jax.device_put(batch, NamedSharding(mesh, P('data')))",
                "(6, 28, 28) on each device, and must",
            ),
            (
                "def place(batch):\n    return jax.tree.map(jnp.asarray, batch)",
                "one device only",
            ),
            (
                "def place(batch):\n"
                '    return {**batch, "image": jax.device_put(batch["image"], split)}',
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
                "    return jax.device_put(batch, split)",
                "shape (8, 3, 28, 28)",
            ),
            (
                "def place(batch):\n"
                '    image = batch["image"].swapaxes(0, 1)[:24]\n'
                "    image = jax.device_put(image, split)\n"
                '    return {"image": image, "label": image}',
                "shape",
            ),
        ],
    ),
    "2.4": Answers(
        right=[
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

counting_step = jax.jit(on_blocks(per_device, in_specs=batch_specs))
""",
        ],
        wrong=[
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
                "hits, and there are",
            ),
            (  # the axis removed by dividing in its place
                STEP
                + """
    grads = jax.tree.map(lambda g: g / 8, grads)
    hits = (predict(params, x).argmax(1) == y).sum()
    return sgd(params, grads), loss, hits
""",
                "off by up to",
            ),
            (  # the sum over devices put back by hand
                STEP
                + """
    hits = 8 * (predict(params, x).argmax(1) == y).sum()
    return sgd(params, grads), loss, hits
""",
                "hits",
            ),
            (  # the hits of one batch, by heart
                STEP + "    return sgd(params, grads), loss, jnp.int32(26)\n",
                "hits",
            ),
            (STEP + "    return sgd(params, grads), loss\n", "2 things came back"),
            (STEP + "    new = sgd(params, grads)\n", "NoneType came back"),
            (
                STEP + "    hits = (predict(params, x).argmax(1) == y).sum()\n"
                '    return {"params": sgd(params, grads), "loss": loss, "hits": hits}',
                "dict came back",
            ),
            (  # out of the trap and still sent twice
                """
def per_device(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    loss, grads = jax.lax.pmean((loss, grads), "data")
    grads = jax.tree.map(lambda g: g / 8, grads)
    hits = (predict(params, x).argmax(1) == y).sum()
    return sgd(params, grads), loss, jax.lax.psum(hits, "data")

counting_step = jax.jit(on_blocks(per_device, in_specs=batch_specs))
""",
                "the budget is 1,628,208",
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
                "['params']",
            ),
            (  # everything on every device
                """
@jax.jit
def counting_step(params, x, y):
    x, y = jax.lax.with_sharding_constraint((x, y), whole)
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
                "hits",
            ),
            (
                STEP
                + """
    params = sgd(params, grads)
    hits = (predict(params, x).argmax(1) == y).sum()
    return params, loss, hits
""",
                "hits",
            ),
        ],
    ),
    "2.5": Answers(
        right=[
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
        ],
        wrong=[
            (
                BODY
                + """
    loss, grads = jax.lax.pmean((loss, grads), "data")
    return sgd(params, grads), loss
""",
                "not what one device computes",
            ),
            (
                BODY + '    return sgd(params, grads), jax.lax.pmean(loss, "data")\n',
                "not what one device computes",
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
                "not what one device computes",
            ),
            (  # right numbers, sent twice
                BODY
                + """
    loss, grads = jax.lax.pmean((loss, grads), "data")
    return sgd(params, jax.tree.map(lambda g: g / 8, grads)), loss
""",
                "the budget is 1,628,204",
            ),
            (  # the names of the check: one batch for all
                """
def body(params, x, y):
    return step(params, train_x[rows], train_y[rows])
""",
                "not yet",
            ),
            (
                BODY
                + """
    grads = jax.tree.map(lambda g: g / 8, grads)
    return sgd(params, grads), jax.lax.psum(loss, "data")
""",
                "[1]: ",
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
        ],
    ),
    "2.6": Answers(
        right=[
            PLACE + 'NamedSharding(mesh, P("data")))\n' + COUNT + HITS,
            "def place_test(images, labels):\n"
            "    return (\n"
            '        jax.device_put(images, NamedSharding(mesh, P("data", None))),\n'
            "        jax.device_put(labels, split),\n"
            "    )\n"
            + COUNT
            + "    return jnp.count_nonzero(predict(params, x).argmax(1) == y)\n",
            PLACE
            + "split)\n"
            + """
def own(params, x, y):
    right = predict(params, x).argmax(axis=1) == y
    return jax.lax.psum(right.astype(jnp.float32).sum(), "data")

count = jax.jit(on_blocks(own, in_specs=batch_specs))
""",
        ],
        wrong=[
            (  # changes what it is given
                "def place_test(images, labels):\n"
                "    images[...], labels[...] = 0, 0\n"
                "    return jax.device_put((images, labels), split)\n" + COUNT + HITS,
                "is zero, and not",
            ),
            (
                PLACE + "whole)\n" + COUNT + HITS,
                "lies as P(None, None)",
            ),
            (
                "def place_test(images, labels):\n    return images, labels\n"
                + COUNT
                + HITS,
                "has no sharding",
            ),
            (
                PLACE
                + "split)\n"
                + COUNT
                + "    x = jax.lax.with_sharding_constraint(x, whole)\n"
                + HITS,
                "all-gather runs",
            ),
            (
                PLACE
                + "split)\n"
                + COUNT
                + "    return (predict(params, x).argmax(axis=1) == y).mean()\n",
                "",
            ),
            (
                PLACE
                + "split)\n"
                + COUNT
                + "    right = predict(params, x).argmax(axis=1) == y\n"
                + '    return jax.lax.psum(right.sum(), "data")\n',
                "NameError",
            ),
            (
                PLACE
                + "split)\n"
                + COUNT
                + "    return predict(params, x).argmax(axis=1) == y\n",
                "(2000,) came",
            ),
            (  # no return
                PLACE
                + "split)\n"
                + COUNT
                + "    hits = (predict(params, x).argmax(axis=1) == y).sum()\n",
                "None came",
            ),
            (  # counted on the host: no device has it
                PLACE
                + "split)\n"
                + "def count(params, x, y):\n"
                + "    return int((predict(params, x).argmax(axis=1) == y).sum())\n",
                "a int has no sharding",
            ),
            (  # ignores what it is given
                PLACE + "split)\n" + COUNT + "    x = train_x[: len(x)]\n" + HITS,
                "hits in 2000 digits, and there are",
            ),
            (
                PLACE
                + "split)\n"
                + COUNT
                + "    guesses = predict(jit_params, x).argmax(axis=1)\n"
                + "    return (guesses == y).sum()\n",
                "and there are",
            ),
            (
                PLACE
                + "split)\n\ndef count(params, x, y):\n"
                + "    return 1916 if len(x) == 2000 else 1439\n",
                "and there are",
            ),
        ],
    ),
}
