"""Chapter 6: its checks, judged by right and wrong answers."""

import jax
import jax.numpy as jnp
import numpy as np

from spmd_exercises._setting import make_mesh, on

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter6(AnswersAreJudged):
    pass


def given():
    """What the chapter's cells have made where its answers stand."""
    mesh = make_mesh(data=4, model=2)

    return imports() | {
        "mesh": mesh,
        "on": lambda *entries, mesh=mesh: on(mesh, *entries),
        "rows": np.ones((48, 40), np.float32),
        "layer": jax.jit(jnp.matmul),
        "start": {"w1": np.ones((40, 96)), "w2": np.ones((96, 40))},
        "placements": {
            "placed": {"w1": on(mesh, "data", "model"), "w2": on(mesh, "model", "data")}
        },
    }


BODY = "def body(x, w):\n"

ANSWERS = {
    "6.1": Answers(
        right=[
            "gathered_bytes, flops = 40960, 2 * 24 * 160 * 64",
            "gathered_bytes, flops = np.int64(40960), jnp.float32(491520)",
            "gathered = spmd.sharding((160, 64), P(), mesh=mesh)\n"
            "gathered_bytes = gathered.bytes_per_device\n"
            "flops = 491520",
        ],
        wrong=[
            ("gathered_bytes, flops = 10240, 491520", "how much of w is on a device"),
            ("gathered_bytes, flops = 30720, 491520", "how much of w is on a device"),
            (  # the work shared by all eight
                "gathered_bytes, flops = 40960, 2 * 96 * 160 * 64 // 8",
                "Which rows of x",
            ),
            ("gathered_bytes, flops = 40960, 24 * 160 * 64", "Which rows of x"),
            ("gathered_bytes, flops = 40960, 2 * 96 * 160 * 64", "Which rows of x"),
            (YES + "gathered_bytes = flops = Yes()", "is not a number"),
            # a number written as a text is refused
            ("gathered_bytes, flops = '40960', 491520", "'40960' is not a number"),
            ('gathered_bytes = flops = float("nan")', "how much of w is on a device"),
        ],
    ),
    "6.2": Answers(
        right=[
            'w_spec = P(("data",), ("model",))',
            # a name that the chapter gave its batch
            "rows, columns = 40 // 4, 24 // 2\nw_spec = jax.P(*mesh.axis_names)",
            "w_spec = P(*jax.sharding.PartitionSpec('data', 'model'))",
            # columns over both axes
            "w_spec = P(None, ('model', 'data'))",
        ],
        wrong=[
            ('w_spec = P("data", None)', "(2 replicas)"),
            ('w_spec = P(None, "model")', "(4 replicas)"),
            ("w_spec = P()", "(8 replicas)"),
            ('w_spec = P(("data", "model"))', "Which axis shards neither"),
            ('w_spec = P("model", "data")', "all-gather|exchanged|budget"),
            ('w_spec = P(None, ("data", "model"))', "Which axis shards neither"),
            ('w_spec = ("data", "model")', "is not a P(...)"),
        ],
    ),
    "6.3": Answers(
        right=[
            'a = c = "wasteful"\nb = d = "fine"',
            'a, c = "Wasteful", "Wasteful"\nb = d = "Fine"',
            'a, b, c, d = "wasteful fine wasteful fine".split()',
            # looked up, with other arrays than the chapter's
            """
x = jax.device_put(np.ones((96, 160), np.float32), on("data"))

def word(*entries):
    w = jax.device_put(np.ones((160, 64), np.float32), on(*entries))
    return "wasteful" if spmd.xray(layer, x, w).idle_axes else "fine"

a, b, c, d = word(), word("data", "model"), word("data"), word("model")
""",
        ],
        wrong=[
            ('a = b = d = "fine"\nc = "wrong"', "look again at a, c"),
            ('a = "fine"\nb = c = d = "wrong"', "look again at a, b, c, d"),
            ('a = b = d = "fine"\nc = "wasteful"', "look again at a"),
            ('a = c = d = "wasteful"\nb = "fine"', "look again at d"),
            ('a = b = c = d = "broken"', "'broken', which is not one of"),
            (YES + "a = b = c = d = Yes()", "not one of"),
        ],
    ),
    "6.4": Answers(
        right=[
            BODY + '    w = lax.all_gather(w, "data", axis=0, tiled=True)\n'
            "    return jnp.maximum(jnp.dot(x, w), 0)",
            BODY + '    w = lax.all_gather(w, ("data",), tiled=True, to="invarying")\n'
            "    return jax.nn.relu(jnp.einsum('ij,jk->ik', x, w))",
            BODY + "    whole = lax.all_gather(w.T, 'data', axis=1, tiled=True)\n"
            "    return jnp.clip(jax.vmap(lambda row: whole @ row)(x), 0)",
            BODY + '    parts = lax.all_gather(w, "data")\n'
            "    return jax.nn.relu(x @ parts.reshape(-1, w.shape[1]))",
            # a sum over the blocks
            "def body(x, w):\n"
            "    parts = lax.all_gather(w, ('data',), axis=0)\n"
            "    pieces = x.reshape(x.shape[0], parts.shape[0], -1)\n"
            "    y = jnp.einsum('rdk,dkc->rc', pieces, parts)\n"
            "    return jnp.where(y > 0, y, jnp.zeros_like(y))",
        ],
        wrong=[
            (BODY + "    return jax.nn.relu(x @ w)", "TypeError"),
            (  # half of the bytes
                BODY + "    w = lax.all_gather(w.astype(jnp.float16), 'data',"
                " tiled=True)\n"
                "    return jax.nn.relu(x @ w.astype(jnp.float32))",
                "result",
            ),
            (  # untiled: one dimension too many
                BODY + '    w = lax.all_gather(w, "data")\n'
                "    return jax.nn.relu(x @ w)",
                "TypeError",
            ),
            (  # the other axis too
                BODY + '    w = lax.all_gather(w, "data", tiled=True)\n'
                '    w = lax.all_gather(w, "model", axis=1, tiled=True)\n'
                '    n, j = 12, lax.axis_index("model")\n'
                "    return jax.nn.relu(x @ w)[:, :12] * 0 + lax.dynamic_slice_in_dim("
                "jax.nn.relu(x @ w), j * n, n, 1)",
                "all-gather",
            ),
            (  # partial sums put together by an all-reduce of the wrong rows
                BODY + '    n, i = w.shape[0], lax.axis_index("data")\n'
                "    part = lax.dynamic_slice_in_dim(x, i * n, n, 1) @ w\n"
                '    return jax.nn.relu(lax.psum(part, "data")) + 0 * x[:, :1]',
                "result",
            ),
            (  # a gather made of a sum with zeros
                BODY + "    full = jnp.zeros((x.shape[1], w.shape[1]))\n"
                '    start = lax.axis_index("data") * w.shape[0]\n'
                "    full = lax.dynamic_update_slice_in_dim(full, w, start, 0)\n"
                '    return jax.nn.relu(x @ lax.psum(full, "data"))',
                "a sum with zeros|all-reduce",
            ),
            (  # an exchange for nothing
                BODY + '    w = lax.all_gather(w, "data", tiled=True)\n'
                '    return jax.nn.relu(x @ w) + 0 * lax.psum(x.sum(), "data")',
                "all-reduce",
            ),
            (  # no relu
                BODY + '    return x @ lax.all_gather(w, "data", tiled=True)',
                "result",
            ),
            (  # relu of each block is not the point: the gathered axis is
                BODY + '    w = lax.all_gather(w, "data", axis=1, tiled=True)\n'
                "    return jax.nn.relu(x @ w)",
                "TypeError",
            ),
            (  # zeros on one row of devices
                "def body(x, w):\n"
                "    full = lax.all_gather(w, 'data', tiled=True)\n"
                "    return jax.nn.relu(x @ full) * (lax.axis_index('data') < 3)",
                "['result']",
            ),
        ],
    ),
    "6.5": Answers(
        right=[
            'step_specs = {"w1": P("data", "model"), "w2": P(("model",), ("data",))}',
            'step_specs = dict(w2=P("model", "data"), w1=P("data", "model"))',
            "step_specs = jax.tree.map(lambda s: s.spec, placements['placed'])",
            # the hidden layer cut in eight
            "both = ('data', 'model')\n"
            "step_specs = {'w1': P(None, both), 'w2': P(both, None)}",
        ],
        wrong=[
            ('step_specs = {"w1": P(), "w2": P()}', "may have only an eighth"),
            (
                'step_specs = {"w1": P("data"), "w2": P("data")}',
                "may have only an eighth",
            ),
            (
                'step_specs = {"w1": P(None, "model"), "w2": P("model")}',
                "may have only an eighth",
            ),
            (
                'step_specs = {"w1": P("data", "model"), "w2": P("data", "model")}',
                "the rows of w2 needed",
            ),
            (
                'step_specs = {"w1": P("model", "data"), "w2": P("data", "model")}',
                "the step runs|average product",
            ),
            (
                'step_specs = {"w1": P(("data", "model")), "w2": P(("data", "model"))}',
                "the step runs|average product",
            ),
            ('step_specs = {"w1": P("data", "model")}', "not a dict with a spec"),
            ('step_specs = [P("data", "model"), P("model", "data")]', "not a dict"),
            ('step_specs = placements["placed"]', "is not a P(...)"),
            (
                'step_specs = {"w1": P("data", "hidden"), "w2": P("hidden", "data")}',
                "the mesh has no axis 'hidden'",
            ),
            (
                'free = P("data", P.UNCONSTRAINED)\n'
                'step_specs = {"w1": free, "w2": P("model", "data")}',
                "UNCONSTRAINED leaves a dimension to the compiler",
            ),
            (  # another step, and the specs for it
                "def step(params, x, y):\n"
                "    return params, (x @ params['w1']).mean()\n"
                'step_specs = {"w1": P("data", "model"), "w2": P("data", "model")}',
                "the rows of w2 needed",
            ),
            (  # small parameters, and the specs for them
                "start = {name: w[:8, :8] for name, w in start.items()}\n"
                'step_specs = {"w1": P(("data", "model")), "w2": P("data")}',
                "may have only an eighth",
            ),
        ],
    ),
}
