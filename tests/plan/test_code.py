"""`Plan.code`: the lines run as they are, and equal one device."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spmd_helpers as spmd

MODELS = spmd.MODELS
FLOAT32 = {"compute_dtype": "float32"}
# Heads of keys that `model` does not divide: 2 over 4 devices, 1 over 2; 3 over 2 only
# in a rehearsal of 3 over 6.
FEW = {
    kv: replace(MODELS["llama-3-8b"], heads=24, kv_heads=kv, head_dim=128, d_ff=12288)
    for kv in (1, 2, 3)
}
# model, mesh, zero, policy
LLAMA = ("llama-3-8b", {"data": 2, "fsdp": 2, "model": 2}, 1, "nothing_saveable")
STACK = ("mlp", {"data": 2, "model": 4}, 1, "dots_with_no_batch_dims_saveable")
MORE = [
    LLAMA,
    ("llama-3-8b", {"fsdp": 8}, 0, "dots_with_no_batch_dims_saveable"),
    ("llama-3-8b", {"data": 2, "context": 4}, 2, "nothing_saveable"),
    ("llama-3-8b", {"fsdp": 2, "context": 2, "model": 2}, 0, "everything_saveable"),
    ("llama-3.2-1b", {"fsdp": 4, "model": 2}, 0, "nothing_saveable"),
    ("gpt3-xl", {"data": 8}, 2, "everything_saveable"),
    ("gpt3-xl", {"data": 2, "fsdp": 2, "model": 2}, 0, "nothing_saveable"),
    ("mlp", {"data": 2, "fsdp": 2, "model": 2}, 2, "dots_with_no_batch_dims_saveable"),
    ("mlp", {"model": 8}, 0, "everything_saveable"),
    (FEW[2], {"context": 2, "model": 4}, 0, "nothing_saveable"),
    (FEW[1], {"data": 2, "context": 2, "model": 2}, 1, "everything_saveable"),
    (FEW[2], {"data": 2, "model": 4}, 0, "nothing_saveable"),
]


MIXTURES = [
    ({"data": 2, "fsdp": 2, "expert": 2}, 1, "nothing_saveable"),
    ({"expert": 4, "model": 2}, 0, "everything_saveable"),
    ({"fsdp": 2, "expert": 2, "context": 2}, 0, "nothing_saveable"),
]


def chosen(name, mesh, zero, policy, **more):
    """A plan, and the strategy of it."""
    model = spmd.MLP(4, 1024, 4096) if name == "mlp" else MODELS.get(name, name)
    more |= {} if name == "mlp" else {"seq": 2048}
    plan = spmd.plan_mesh(model, "h100:1x8", batch=64, **FLOAT32 | more)
    (one,) = (
        one
        for one in plan.strategies
        if one.mesh == mesh and one.zero == zero and one.recompute == policy
    )
    return plan, one


def run(text):
    """The names that the lines leave; what they print is not shown."""
    names = {"print": lambda *words: None}
    exec(compile(text, "plan.py", "exec"), names)
    return names


def on_one_device(text):
    """The same lines on one device, of the same model and batch."""
    mesh = re.search(r"jax\.make_mesh\(\n    \(.*?\), (\(.*?\)),", text)
    ones = (1,) * len(eval(mesh[1]))
    changed = re.sub(
        r"(jax\.make_mesh\(\n    )\(.*?\), (\(.*?\)), ",
        rf"\g<1>{ones}, \g<2>, devices=jax.devices()[:1], ",
        text,
    )
    assert changed != text
    return run(changed)


def check(case):
    plan, one = chosen(*case)
    text = plan.code(one)
    assert "devices=" not in text
    several, single = run(text), on_one_device(text)
    assert several["mesh"].size == 8
    assert dict(several["mesh"].shape) == one.mesh
    np.testing.assert_allclose(several["loss"], single["loss"], rtol=1e-5)
    # Adam's first moment is a tenth of the gradient. Its step has the gradient's sign,
    # also where that is noise: up to the rate of 1e-3 for almost nothing.
    # (A bias of keys has no gradient but noise, of 1e-9.)
    for x, y in zip(
        *map(jax.tree.leaves, (several["state"], single["state"])), strict=True
    ):
        most = 1e-4 * float(jnp.max(jnp.abs(y)))
        np.testing.assert_allclose(x, y, rtol=0, atol=max(most, 1e-9))
    both = several["params"], single["params"]
    for params in both:
        params.get("layers", {}).pop("b_k", None)
    for x, y in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(np.median(np.abs(x - np.asarray(y))), 0, atol=1e-6)
    check_state(one, several)


def check_state(one, several):
    """The optimizer's state is sharded as the strategy says, and all is finite."""
    state = jax.tree.leaves(several["state"])
    params = jax.tree.leaves(several["params"])
    here = sum(x.addressable_shards[0].data.nbytes for x in state)
    whole = sum(x.nbytes for x in state)
    shards = one.step.mesh["fsdp"] * one.step.mesh["model"]
    shards *= one.step.mesh["data"] if one.zero else 1
    experts = [x for x in state if x.ndim == 4]
    for x in experts:
        each = x.addressable_shards[0].data.nbytes
        assert each == x.nbytes // shards // one.step.mesh["expert"]
        here, whole = here - each, whole - x.nbytes
    assert here <= 1.6 * whole / shards  # norms are cut less
    assert all(bool(jnp.isfinite(x).all()) for x in params)


def test_the_lines_run_and_equal_one_device():
    check(STACK)


@pytest.mark.long("plans run as code")
@pytest.mark.parametrize("case", MORE, ids=lambda case: f"{case[0]!s:.12} {case[1]}")
def test_more_lines_run_and_equal_one_device(case):
    check(case)


@pytest.mark.long("plans run as code")
@pytest.mark.parametrize(("mesh", "zero", "policy"), MIXTURES, ids=str)
def test_a_mixtures_lines_run_and_equal_one_device(mesh, zero, policy):
    check(("mixtral-8x7b", mesh, zero, policy))


def test_a_mixture_has_the_room_of_the_plan():
    case = ("mixtral-8x7b", {"expert": 8}, 0, "nothing_saveable")
    plan, one = chosen(*case)
    text = plan.code(one)
    assert "CAPACITY = EXPERTS / TOP  # room for all" in text
    assert text.count("lax.all_to_all(") == 2
    assert "P(None, 'expert', over, None)" in text
    plan, one = chosen(*case, capacity_factor=1.5)
    assert "CAPACITY = 1.5  # as the plan has it" in plan.code(one)
    plan, one = chosen("mixtral-8x7b", {"fsdp": 8}, 0, "nothing_saveable")
    assert "all_to_all" not in plan.code(one)


def on_one_head(q, k, v):
    """JAX's attention, a head of keys for each of the queries."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.long("plans run as code")
@pytest.mark.parametrize(
    ("kv", "mesh", "heads"),
    [
        (2, {"context": 2, "model": 4}, (8, 2)),
        (3, {"context": 2, "model": 6}, (12, 3)),  # rehearsed on 8: 3 over 2
        (1, {"context": 4, "model": 2}, (4, 1)),
        (2, {"context": 4, "model": 2}, (24, 2)),  # cut: each device has its own
        (2, {"data": 2, "model": 4}, (8, 2)),  # no ring
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_is_jaxs_for_every_number_of_heads(kv, mesh, heads, dtype):
    chips = "h100:2x6" if kv == 3 else "h100:1x8"
    plan = spmd.plan_mesh(FEW[kv], chips, batch=64, seq=2048, compute_dtype=dtype)
    one = next(one for one in plan.strategies if one.mesh == mesh)
    names = run(plan.code(one, devices=8).split("\noptimizer =")[0])
    assert names["mesh"].size == 8
    assert (names["HEADS"], names["KV"]) == heads
    # As many as the small model has, and the real one's.
    shapes = [(names["BATCH"], names["SEQ"], h, names["HEAD_DIM"]) for h in heads]
    q, k, v = (jax.random.normal(jax.random.key(n), shapes[n > 0]) for n in range(3))
    found = jax.jit(names["attention"])(q, k, v)
    np.testing.assert_allclose(found, on_one_head(q, k, v), atol=1e-5)
    slopes, wanted = (
        jax.jit(jax.grad(lambda *x, f=f: jnp.sum(f(*x) ** 2), (0, 1, 2)))(q, k, v)
        for f in (names["attention"], on_one_head)
    )
    for x, y in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4)


def test_the_policy_and_the_mesh_stand_in_the_lines():
    plan, one = chosen(*LLAMA)
    text = plan.code(one)
    assert "policy=jax.checkpoint_policies.nothing_saveable" in text
    assert "(2, 2, 2), ('data', 'fsdp', 'model')" in text
    assert "ZeRO-1" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    every = chosen("mlp", {"model": 8}, 0, "everything_saveable")
    assert "checkpoint" not in every[0].code(every[1])


def test_a_large_plan_is_rehearsed_on_eight():
    plan = spmd.plan_mesh(MODELS["llama-3-70b"], "h100:8x8", batch=64, seq=4096)
    text = plan.code(devices=8)
    sizes = re.search(r"make_mesh\(\n    (\(.*?\)),", text)[1]
    assert np.prod(eval(sizes)) == 8
    assert (
        np.prod(eval(re.search(r"make_mesh\(\n    (\(.*?\)),", plan.code())[1])) == 64
    )


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("gemma-3-4b", {}, "has window=1024, and code.. has reference models"),
        ("qwen3-8b", {}, "has qk_norm=True"),
        ("llama-3-8b", {"master_weights": True}, "master_weights=True is not in"),
        ("llama-3-8b", {"optimizer": "adafactor"}, "optimizer='adafactor' keeps"),
    ],
)
def test_what_has_no_reference_is_refused_in_a_sentence(name, more, words):
    plan = spmd.plan_mesh(MODELS[name], "h100:8x8", batch=64, seq=2048, **more)
    with pytest.raises(spmd.NotUnderstood, match=words) as raised:
        plan.code()
    assert "\n" not in str(raised.value)


def test_a_pipeline_has_no_lines():
    plan = spmd.plan_mesh("llama-3-8b", "h100:1x8", batch=64, axes=("stage", "data"))
    one = next(one for one in plan.strategies if one.mesh == {"stage": 4, "data": 2})
    with pytest.raises(spmd.NotUnderstood, match="is a pipeline, for which") as raised:
        plan.code(one)
    assert "\n" not in str(raised.value)


def test_no_number_of_devices():
    plan, one = chosen(*LLAMA)
    with pytest.raises(spmd.NotUnderstood, match="devices=0"):
        plan.code(one, devices=0)


def test_devices_can_be_numpys():
    plan, one = chosen(*LLAMA)
    assert plan.code(one, devices=np.int64(4)) == plan.code(one, devices=4)


CUDNN = '"cudnn" if jax.default_backend() == "gpu" else None'


@pytest.mark.parametrize(
    ("mesh", "more", "words"),
    [
        ({"fsdp": 8}, {"compute_dtype": "bfloat16"}, CUDNN),
        ({"fsdp": 8}, {"compute_dtype": "float16"}, CUDNN),
        ({"fsdp": 8}, {}, "# cuDNN has no kernel for float32.\n    how = None"),
        ({"fsdp": 8}, {"attention": "plain"}, 'how = "xla"'),
        (
            {"context": 8},
            {"compute_dtype": "bfloat16", "attention": "flash"},
            "# cuDNN has no kernel for a sharded sequence.\n    how = None",
        ),
        ({"context": 8}, {"attention": "plain"}, 'how = "xla"'),
    ],
)
def test_flash_attention_is_cudnns_where_it_has_a_kernel(mesh, more, words):
    plan, one = chosen("llama-3-8b", mesh, 0, "nothing_saveable", **more)
    text = plan.code(one)
    assert words in text
    assert "implementation=how" in text
    assert ("CPUs and TPUs write the scores" in text) == (words == CUDNN)
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.long("plans run as code")
# On CPUs JAX has no attention in float16.
@pytest.mark.parametrize("param", ["float32", "bfloat16"])
@pytest.mark.parametrize("attention", ["flash", "plain"])
def test_the_lines_run_in_each_type(param, attention):
    more = {"compute_dtype": "bfloat16" if param == "float32" else param}
    more |= {"param_dtype": param, "attention": attention}
    plan, one = chosen(FEW[2], {"data": 2, "model": 4}, 1, "nothing_saveable", **more)
    names = run(plan.code(one))
    assert names["params"]["layers"]["q"].dtype == param
    assert jnp.isfinite(names["loss"])


@pytest.mark.parametrize("dtype", ["float64", "float8_e4m3fn"])
def test_a_type_that_does_not_run_is_refused(dtype):
    plan, one = chosen(
        "llama-3-8b", {"fsdp": 8}, 0, "nothing_saveable", param_dtype=dtype
    )
    with pytest.raises(spmd.NotUnderstood, match=f"param_dtype='{dtype}' is no type"):
        plan.code(one)


@pytest.mark.parametrize(
    "more",
    [
        {"gradient_accumulation": 1, "interleave": 1, "sequence_parallel": False},
        {"moment_dtype": "float32", "mu_dtype": "float32", "grad_dtype": "float32"},
        {"grad_dtype": ("float32",), "capacity_factor": None},
        {"param_dtype": "bfloat16", "moment_dtype": "bfloat16"},
    ],
    ids=str,
)
def test_what_is_usual_is_in_the_lines(more):
    case = ("llama-3-8b", {"fsdp": 8}, 0, "nothing_saveable")
    plan, one = chosen(*case, **more)
    few = {key: x for key, x in more.items() if key == "param_dtype"}
    same, other = chosen(*case, **few)
    assert plan.code(one) == same.code(other)
    moved = "float32" if few else "bfloat16"
    plan, one = chosen(*case, **more | {"moment_dtype": moved})
    with pytest.raises(spmd.NotUnderstood, match="moment_dtype"):
        plan.code(one)


def test_a_rehearsal_says_what_it_leaves_out():
    plan = spmd.plan_mesh("llama-3-8b", "h100:4x8", batch=64, seq=4096)
    mesh = {"data": 2, "fsdp": 4, "context": 2, "model": 2}
    one = next(o for o in plan.strategies if o.mesh == mesh and o.zero == 2)
    text = plan.code(one, devices=8)
    assert text.splitlines()[2:4] == [
        "# Here a rehearsal on 8 devices: fsdp 2 × context 2 × model 2,",
        "# without data, and so without ZeRO-2.",
    ]
    assert "as the parameters" in text
    assert "rehearsal" not in plan.code(one)
    assert "rehearsal" not in plan.code(one, devices=32)
    two = plan.code(one, devices=2)
    assert "# Here a rehearsal on 2 devices: model 2,\n# without data, fsdp and" in two
    assert "ZeRO-2 and the ring" in two
    every = plan.code(one, devices=16)
    assert every.splitlines()[2].endswith("fsdp 2 × context 2 × model 2.")
