"""`Plan.code`: what the lines say. Others run them: test_code_runs.py and the next."""

import re
from dataclasses import replace

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
LLAMA = ("llama-3-8b", {"data": 2, "fsdp": 2, "model": 2}, 1, "nothing_saveable")


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
