"""What real programs hand over: methods, modules, references, odd dicts, constants."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import jax_utils, nnx
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._errors import NotUnderstood
from tests.xray import equinox_stand_in as eqx

AUTO = (AxisType.Auto,) * 2
GRID = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"), axis_types=AUTO)
B, D, F = 64, 32, 48


def to(*spec):
    return NamedSharding(GRID, P(*spec))


def put(shape, *spec, dtype="float32"):
    return jax.device_put(np.ones(shape, dtype), to(*spec))


def codes(report):
    return [finding.code for finding in report.findings]


def message(*args, **options):
    with pytest.raises(NotUnderstood) as caught:
        spmd.xray(*args, **options)
    return str(caught.value)


def donated(report):
    """The numbers of the parameters whose memory a result takes."""
    return report.hlo.count("may-alias") + report.hlo.count("must-alias")


# --- Bound methods and partials ---------------------------------------------------


class Trainer:
    """Old code: a class whose methods are jitted."""

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def step(self, state, x):
        return state + (x @ x.T)[:1, :1], x.sum()

    @functools.partial(jax.pmap, axis_name="batch", static_broadcasted_argnums=0)
    def mapped(self, x):
        return lax.pmean(x, "batch")


def test_a_bound_method_of_jit_has_its_object():
    trainer, state, x = Trainer(), put((B, D), "data"), put((B, D), "data")
    report = spmd.xray(trainer.step, state, x, carry={0: 0})
    assert report.name == "step"
    assert donated(report) == 1
    unbound = spmd.xray(Trainer.step, trainer, state, x, carry={0: 1})
    assert str(unbound) == str(report)


def test_a_bound_method_of_pmap():
    report = spmd.xray(Trainer().mapped, np.ones((8, D), np.float32))
    assert [(c.kind, c.axes) for c in report.collectives] == [
        ("all-reduce", ("batch",))
    ]


def test_a_partial_keeps_its_options():
    @functools.partial(jax.jit, donate_argnums=(0, 1), static_argnames="scale")
    def step(params, state, x, *, scale):
        return params - scale * x.T @ x, state + 1.0

    params, state, x = put((D, D)), put((B, D), "data"), put((B, D), "data")
    expected = spmd.xray(step, params, state, x, scale=2, carry=2)
    assert donated(expected) == 2
    for f, rest in (
        (functools.partial(step, params, scale=2), (state, x)),
        (functools.partial(functools.partial(step, params), state, scale=2), (x,)),
        (jax.tree_util.Partial(step, params, scale=2), (state, x)),
    ):
        report = spmd.xray(f, *rest)
        assert report.hlo == expected.hlo
        assert str(report) == str(expected)


def test_a_partial_of_a_plain_function_stays_as_it_is():
    f = functools.partial(lambda k, x: x * k, 3)
    assert spmd.xray(f, put((B, D), "data")).peak_memory == 2 * B * D * 4 // 4


def test_the_carry_of_a_method_counts_the_readers_arguments():
    trainer, state, x = Trainer(), put((B, D), "data"), put((B, D), "data")
    said = message(trainer.step, state, x, carry={0: 7})
    assert "no number 7 among the arguments of step, of which there are 2" in said


# --- Flax NNX -------------------------------------------------------------------------


class Net(nnx.Module):
    """Parameters, statistics, random numbers, a list."""

    def __init__(self, rngs):
        self.blocks = nnx.List([nnx.Linear(D, D, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(D, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.drop(self.norm(x))

    @nnx.jit
    def step(self, x):
        return self(x).sum(), x * 2

    @functools.partial(nnx.jit, static_argnums=2, donate_argnums=0)
    def scaled(self, x, scale):
        return self(x).sum() * scale

    def plain(self, x):
        return self(x).sum()


def net_and_optimizer():
    net = Net(nnx.Rngs(0))
    return net, nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)


def update(net, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda net: (net(x) ** 2).mean())(net)
    optimizer.update(net, grads)
    return loss, x + 1


STEP = nnx.jit(update)


@pytest.fixture
def kept():
    """A model and its optimizer, which must come out as they went in."""
    objects = net_and_optimizer()
    before = jax.tree.leaves(nnx.state(objects))
    yield objects
    after = jax.tree.leaves(nnx.state(objects))
    assert len(before) == len(after)
    assert all(a is b for a, b in zip(before, after, strict=True))
    objects[0](jnp.ones((B, D)))  # and still runs


@pytest.mark.parametrize("way", ["bound", "partial", "static", "stage"])
def test_a_step_of_nnx_and_its_model(kept, way):
    net, optimizer = kept
    x = put((B, D), "data")
    report = {
        "bound": lambda: spmd.xray(net.step, x),
        "partial": lambda: spmd.xray(functools.partial(STEP, net, optimizer), x),
        "static": lambda: spmd.xray(net.scaled, x, 3),
        "stage": lambda: spmd.xray(STEP.trace(net, optimizer, x)),
    }[way]()
    assert ("all-reduce", ("data",)) in {(c.kind, c.axes) for c in report.collectives}
    assert donated(report) == (10 if way == "static" else 0)


@pytest.mark.parametrize(
    "f",
    [
        lambda net, optimizer: lambda x: STEP(net, optimizer, x),
        lambda net, optimizer: net.plain,
        lambda net, optimizer: functools.partial(update, net, optimizer),
        lambda net, optimizer: (
            lambda x: [STEP(*both, x) for both in [(net, optimizer)]]
        ),
    ],
    ids=["closure", "method", "partial", "inner"],
)
def test_a_model_that_is_no_argument_is_left_as_it_was(kept, f):
    with pytest.raises(Exception, match="trace level") as caught:
        spmd.xray(f(*kept), put((B, D), "data"))
    assert "xray(step, model, x)" in "".join(caught.value.__notes__)


def test_the_state_of_nnx_is_carried_by_itself(kept):
    x = put((B, D), "data")
    (drift,) = [f for f in spmd.xray(STEP, *kept, x).findings if "drift" in f.code]
    assert drift.sentence.startswith(
        "net.blocks[0].kernel, net.blocks[1].kernel, "
        "optimizer.opt_state[0].mu.blocks[0].kernel, "
    )
    assert "go in on one device and come out as P() on 8 devices" in drift.sentence
    nnx.update(placed := net_and_optimizer(), jax.device_put(nnx.state(kept), to()))
    assert "sharding-drift" not in codes(spmd.xray(STEP, *placed, x))
    # The reader's results and arguments are what a carry counts.
    one = jnp.ones((B, D))  # comes out on eight devices
    report = spmd.xray(STEP, *placed, one, carry={1: 2}, mesh=GRID)
    assert [f.sentence[:10] for f in report.findings if "drift" in f.code] == [
        "x → result"
    ]
    assert "which is carried by itself" in message(STEP, *kept, x, carry={0: 0})


def test_a_step_of_nnx_that_returns_its_modules(kept):
    @nnx.jit
    def step(both, x):
        return both, STEP(*both, x)

    x = put((B, D), "data")
    for carry in ({0: 0}, None):  # it is carried by itself
        report = spmd.xray(step, kept, x, carry=carry)
        assert "sharding-drift" in codes(report), carry
    nnx.update(placed := net_and_optimizer(), jax.device_put(nnx.state(kept), to()))
    assert "sharding-drift" not in codes(spmd.xray(step, placed, x, carry={0: 0}))
    assert "which is carried by itself" in message(step, kept, x, carry={1: 0})


def test_a_module_itself():
    net = Net(nnx.Rngs(0))
    nnx.update(net, jax.device_put(nnx.state(net), to()))
    report = spmd.xray(net, put((B, D), "data"))
    assert report.name == "Net"
    constants = [line for line in report.hlo.splitlines() if f"{D},{D}]" in line]
    assert not any(" constant(" in line for line in constants)


# --- Equinox --------------------------------------------------------------------------


class MLP(eqx.Module):
    """A function among the weights."""

    first: jax.Array
    second: jax.Array
    activation: object

    def __call__(self, x):
        return self.activation(x @ self.first) @ self.second

    @eqx.filter_jit
    def loss(self, x):
        return (self(x) ** 2).mean()


def mlp(*spec):
    return MLP(put((D, F), *spec), put((F, D), *reversed(spec)), jax.nn.relu)


def eqx_step(model, x, scale=1.0):
    arrays = model.first, model.second

    def loss(arrays):
        return (MLP(*arrays, model.activation)(x) ** 2).mean() * scale

    value, grads = jax.value_and_grad(loss)(arrays)
    new = jax.tree.map(lambda p, g: p - 0.1 * g, arrays, grads)
    return MLP(*new, model.activation), value


def test_a_step_of_equinox_has_the_readers_paths_and_options():
    model, x = mlp(None, "model"), put((B, D), "data")
    report = spmd.xray(eqx.filter_jit(eqx_step, donate="all"), model, x, carry={0: 0})
    assert report.name == "eqx_step"
    assert donated(report) == 2
    assert codes(report) == []
    assert report.input_shardings[0].first.spec == P(None, "model")
    rest = spmd.xray(eqx.filter_jit(eqx_step, donate="all-except-first"), model, x)
    assert donated(rest) == 0
    assert codes(rest) == []  # Equinox's own word for: no warnings
    plain = spmd.xray(eqx_step, model, x, carry={0: 0}, jit={"donate_argnums": 0})
    assert plain.collectives == report.collectives
    assert "result[1]" not in str(plain.output_shardings[0])


def test_drift_of_a_step_of_equinox():
    model = MLP(jnp.ones((D, F)), jnp.ones((F, D)), jax.nn.relu)  # on one device
    step, x = eqx.filter_jit(eqx_step), put((B, D), "data")
    report = spmd.xray(step, model, x, carry={0: 0})
    assert codes(report) == ["idle-axis", "sharding-drift"]
    drift = report.findings[-1]
    assert drift.sentence.startswith("model.first and model.second go in on one device")
    placed = jax.device_put((model.first, model.second), to())
    model = MLP(*placed, jax.nn.relu)
    assert codes(spmd.xray(step, model, x, carry={0: 0})) == ["idle-axis"]


def test_methods_modules_and_stages_of_equinox():
    model, x = mlp(), put((B, D), "data")
    step = eqx.filter_jit(eqx_step)
    same = spmd.xray(MLP.loss, model, x)
    assert str(spmd.xray(model.loss, x)) == str(same)
    assert same.name == "loss"
    for stage in (step.lower(model, x), step.lower(model, x).compile()):
        report = spmd.xray(stage)
        assert [c.kind for c in report.collectives] == ["all-reduce"]
        assert "does not tell its arguments apart" in message(stage, carry={0: 0})
    # A module that is called has its weights as an argument, not as constants.
    expected = spmd.xray(model, x)
    assert expected.name == "MLP"
    assert " constant({...})" not in expected.hlo
    assert str(spmd.xray(eqx.filter_jit(model), x)) == str(expected)


def test_memory_of_a_module_with_functions():
    report = spmd.memory(mlp(None, "model"))
    assert [line.path for line in report.lines] == ["first", "second"]
    assert report.largest_device_bytes == 2 * D * F * 4 // 2


# --- References -----------------------------------------------------------------------


def test_references_are_arguments_like_others():
    ref = jax.new_ref(put((B, D), "data", "model"))

    @jax.jit
    def step(ref, x):
        def body(total, _):
            ref[...] = ref[...] * 0.9
            return total + ref[...].sum(), None

        total, _ = lax.scan(body, 0.0, length=3)
        return {"loss": total, "y": x + ref[...]}

    x = put((B, D), "data", "model")
    report = spmd.xray(step, ref, x)
    assert [(c.axes, c.count) for c in report.collectives] in (
        [(("model",), 3), (("data",), 3)],
        [(("data", "model"), 3)],
    )
    assert report.output_shardings["y"].spec == P("data", "model")
    assert report.output_shardings["loss"].replicas == 8
    assert report.input_shardings[0].spec == P("data", "model")
    np.testing.assert_array_equal(ref[...], 1.0)
    assert "does not tell them from its results" in message(step.lower(ref, x))
    assert "as arguments" in message(lambda x: step(ref, x), x)


@pytest.mark.parametrize(
    "spec", [(), ("data",), (None, "model"), (("model", "data"),), ("model", "data")]
)
def test_results_beside_a_reference_are_placed_as_without(spec):
    def f(ref, x):
        ref[...] = ref[...] + 1
        return x * 2

    x, ref = put((B, D), *spec), jax.new_ref(put((B, D)))
    beside = spmd.xray(f, ref, x).output_shardings
    alone = spmd.xray(lambda x: x * 2, x).output_shardings
    assert beside.entries == alone.entries


# --- Odd arguments ----------------------------------------------------------------


def test_the_gradient_of_integers():
    """JAX gives float0, which holds nothing, for a weight of whole numbers."""
    weights = {"q": put((D, F), None, "model", dtype="int8"), "scale": put((D, F))}

    def loss(weights, x):
        return (x @ (weights["q"].astype(jnp.float32) * weights["scale"])).sum()

    report = spmd.xray(jax.grad(loss, allow_int=True), weights, put((B, D), "data"))
    assert report.output_shardings["q"].dtype == "float0"
    assert report.output_shardings["q"].bytes_per_device == 0
    assert spmd.memory(report.output_shardings).lines[0].bytes_per_device == 0


class Attributes(dict):
    """A dict with attribute access, which raises KeyError for what it lacks."""

    __getattr__ = dict.__getitem__


class Settings(dict):
    """Static options of a step."""

    __getattr__ = dict.__getitem__

    def __hash__(self):
        return 1


jax.tree_util.register_pytree_with_keys(
    Attributes,
    lambda d: (
        tuple((jax.tree_util.DictKey(k), d[k]) for k in sorted(d)),
        tuple(sorted(d)),
    ),
    lambda keys, values: Attributes(zip(keys, values, strict=True)),
)


def test_dicts_with_attributes():
    params = Attributes(lower=put((B, D), "data"), value=put((D, F), None, "model"))
    report = spmd.xray(lambda p: p.lower @ p.value, params)
    assert report.redundancy == 1.0
    assert report.input_shardings[0]["value"].spec == P(None, "model")
    assert [line.path for line in spmd.memory(params).lines] == ["lower", "value"]

    @functools.partial(jax.jit, static_argnums=0)
    def step(settings, x):
        return x * settings.rate

    settings = Settings(rate=3, sharding="fsdp")
    report = spmd.xray(step, settings, params.lower, carry={0: 1})
    assert codes(report) == []
    one = spmd.xray(step, settings, jnp.ones((B, D)), carry={0: 1})
    assert codes(one) == []
    assert "no number 0 among the arguments" in message(
        step, settings, params.lower, carry={0: 0}
    )


def test_arguments_of_pmap_under_another_name():
    def step(w, x):
        grad = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - 0.1 * lax.pmean(grad, "batch")

    mapped = jax.pmap(step, axis_name="batch")
    x, one = np.ones((8, B, D), np.float32), jnp.ones((D, D))
    weights = {
        "numpy": np.ones((8, D, D), np.float32),
        "replicate": jax_utils.replicate(one),
        "unnamed": jax.pmap(lambda i: one * 1.0)(jnp.arange(8)),
        "named": jax.pmap(lambda i: one * 1.0, axis_name="i")(jnp.arange(8)),
    }
    for w in weights.values():
        report = spmd.xray(mapped, w, x)
        assert report.mesh_shape == {"batch": 8}
        assert report.redundancy == 1.0
        assert codes(report) == []
        assert report.input_shardings[0].mesh_shape == {"batch": 8}


def test_arguments_on_two_meshes_of_the_same_devices():
    flat = Mesh(np.array(jax.devices()), ("all",))
    x = jax.device_put(np.ones((B, D), np.float32), NamedSharding(flat, P("all")))
    report = spmd.xray(lambda w, x: x @ w, put((D, F)), x)
    assert report.mesh_shape == {"data": 4, "model": 2}
    assert report.redundancy == 1.0
    assert report.input_shardings[1].entries == (("data", "model"), ())


# --- Closed-over arrays ---------------------------------------------------------------


def test_closed_over_arrays_are_in_the_peak():
    x, w = put((B, D), "data"), put((D, 64 * F), None, "model")
    w = jax.device_put(np.random.default_rng(0).normal(size=w.shape), w.sharding)
    inside = spmd.xray(lambda x: x @ w, x)
    outside = spmd.xray(lambda w, x: x @ w, w, x)
    assert codes(inside) == ["closed-over"]
    assert inside.findings[0].source is not None
    assert codes(outside) == []  # the remedy
    # All of w, instead of half of it, and twice the columns of the result.
    more = w.nbytes // 2 + B // 4 * (64 * F) // 2 * 4
    assert inside.peak_memory - outside.peak_memory == more
