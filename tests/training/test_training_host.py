"""What is in the host's memory: an optimizer's state, and offloaded results."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from spmd_helpers._errors import NotUnderstood
from spmd_helpers._training.model import MLP, Transformer
from spmd_helpers._training.training_memory import training_memory
from tests.properties import options
from tests.training.test_training_memory import check_sums, line, scans
from tools.measure.truth import programs, reference

SMALL = Transformer(4, 64, 4, vocab=100, seq=32)
HOST = {"offload_optimizer": True, "chip": "h100"}


def count(model=SMALL, **how):
    return training_memory(model, **{"mesh": {"data": 2}, "batch": 8, **HOST, **how})


def test_the_state_is_on_the_device_during_the_update_alone():
    stack = MLP(4, 64, 256)
    counted = count(stack, batch=16)
    kept = count(stack, batch=16, offload_optimizer=False)
    assert counted.optimizer_bytes == kept.optimizer_bytes == 8 * 131072 // 2 + 4
    assert counted.host_bytes == 8 * 131072 // 2
    assert kept.host_bytes == 0
    for phase in ("forward", "loss", "backward"):
        less = kept.phases[phase] - counted.phases[phase]
        assert less == counted.optimizer_bytes
    moved = line(counted, "moved to the host and back").bytes
    assert moved == 2 * 4 * 4 * 64 * 256 // 2
    assert counted.phases["update"] == kept.phases["update"] + moved
    assert counted.notes[-1] == (
        "In the host's memory, for each device: optimizer (adam), 512 KiB."
    )


def test_it_can_make_a_step_fit():
    """Llama 2 7B on four H100s, recomputing nothing."""
    how = {"mesh": {"fsdp": 4}, "batch": 4, "recompute": "everything_saveable"}
    assert count("llama-2-7b", **how).fits("h100")
    assert not count("llama-2-7b", **how, offload_optimizer=False).fits("h100")


@options(30)
@given(
    st.sampled_from(["adam", "adamw", "lion", "momentum", "sgd"]),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([None, 4]),
)
def test_lines_add_up_and_formulas_say_their_bytes(optimizer, master, zero, rank):
    way = {"optimizer": optimizer, "master_weights": master, "zero": zero}
    way |= {"lora_rank": rank, "mesh": {"data": 4}, "batch": 8, **HOST}
    check_sums(SMALL, way)


def test_the_reference_has_this_state_on_the_host():
    program = programs.Program("", SMALL, 8, data=8, offload_optimizer=True)
    mesh = Mesh(np.array(jax.devices()).reshape(8, 1), reference.AXES)
    state = reference.state_shapes(program, mesh)
    leaves = [leaf for part in ("m", "v") for leaf in jax.tree.leaves(state[part])]
    assert {leaf.sharding.memory_kind for leaf in leaves} == {"pinned_host"}
    sizes = (math.prod(one.sharding.shard_shape(one.shape)) for one in leaves)
    assert count(mesh={"data": 8}).host_bytes == 4 * sum(sizes)


@pytest.mark.parametrize(
    "how",
    [
        {"recompute": "offload_dot_with_no_batch_dims"},
        {
            "recompute": "save_and_offload_only_these_names",
            "names_which_can_be_saved": ("query",),
            "names_which_can_be_offloaded": ("up", "out"),
        },
    ],
)
def test_offloaded_results_are_those_that_the_scan_sends_to_the_host(how):
    program = programs.Program("", SMALL, 8, **how)
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), reference.AXES)
    net = reference.Net(program, mesh)
    params = reference.state_shapes(program, mesh)["params"]
    batch = reference.batch_shapes(program, mesh)
    jaxpr = jax.make_jaxpr(jax.value_and_grad(net.loss))(params, batch)
    forward = next(scans(jaxpr.jaxpr))
    sent = [v.aval for v in forward.outvars if "<host>" in v.aval.str_short()]
    counted = training_memory(SMALL, mesh={}, batch=8, attention="plain", **how)
    size = sum(math.prod(one.shape) * one.dtype.itemsize for one in sent)
    assert counted.host_bytes == size > 0


WRONG = {
    "a TPU": (
        {"chip": "v5p"},
        r"^offload_optimizer=True is counted for GPUs: a TPU's compiler keeps the .* "
        r"give chip= a GPU, such as 'h100', or leave it out\.$",
    ),
    "no chip, which is a TPU": ({"chip": None}, r"^offload_optimizer=True is counted"),
    "no switch": ({"offload_optimizer": 1}, r"^offload_optimizer=1 is not known"),
    "muon": ({"optimizer": "muon"}, r"True is not counted for optimizer='muon'; leave"),
    "adafactor": ({"optimizer": "adafactor"}, r"not counted for optimizer='adafactor'"),
    "stages": (
        {
            "mesh": {"stage": 2},
            "recompute": "nothing_saveable",
        },
        r"not counted for stage=2; leave one of them out\.$",
    ),
    "published formulas": (
        {"counting": "megatron"},
        r"not counted for counting='megatron'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_gets_one_sentence(name):
    how, words = WRONG[name]
    with pytest.raises(NotUnderstood, match=words) as caught:
        count(**how)
    assert caught.value.__suppress_context__


def test_whether_it_fits_a_tpu_is_not_counted():
    with pytest.raises(NotUnderstood, match="a TPU's compiler keeps") as caught:
        count().fits("v5p")
    assert caught.value.__suppress_context__
