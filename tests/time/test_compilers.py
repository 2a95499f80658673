"""Programs that the compilers of GPUs and TPUs make here, and how long they take."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._errors import NotUnderstood
from tests.time.test_step_time import near

BF16 = jnp.bfloat16


def step(params, x):
    def loss(params):
        h = x
        for w in params:
            h = jnp.tanh(h @ w.astype(BF16))
        return (h.astype(jnp.float32) ** 2).mean()

    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)


def report(mesh, spec, layers=2):
    def on(shape, spec, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    params = [on((4096, 4096), spec, jnp.float32)] * layers
    x = on((16384, 4096), P("data"), BF16)
    return spmd.xray(step, params, x, jit={"donate_argnums": 0})


@pytest.mark.compiler("gpu")
def test_a_program_for_hosts_that_are_not_here_says_its_card_and_its_hosts():
    xrayed = report(spmd.gpu_mesh("h100:2x8", data=16), P("data"))
    assert xrayed.positions.kind == "h100"
    assert xrayed.positions.hosts == (0,) * 8 + (1,) * 8
    done = spmd.step_time(xrayed, tokens=16384)
    assert (done.chip, done.devices, done.how) == ("h100", 16, "predicted")
    assert set(done.lanes) == {"kernels", "network"}
    assert done.flops_per_device == xrayed.flops_per_device
    assert done.tokens_per_s == near(16384 / done.total_s)
    # Each collective is a part, by the name that the program's text gives it.
    names = {part.name for part in done.parts if part.lane != "kernels"}
    assert names == {c.instructions[0] for c in xrayed.collectives}
    assert {line.source for line in done.lines} >= {
        c.source for c in xrayed.collectives
    }
    one_host = spmd.step_time(xrayed, host_devices=16)
    assert set(one_host.lanes) == {"kernels", "nvlink"}
    other = spmd.step_time(xrayed, "h200")
    assert other.notes[0].startswith("compiled for h100")


@pytest.mark.compiler("gpu")
def test_a_group_within_a_host_and_one_between_hosts_have_a_lane_each():
    mesh = spmd.gpu_mesh("h100:2x8", data=2, model=8)
    done = spmd.step_time(report(mesh, P(None, "model")))
    assert set(done.lanes) == {"kernels", "nvlink", "network"}


@pytest.mark.compiler("gpu")
def test_a_card_whose_speeds_are_not_known_is_told():
    mesh = spmd.gpu_mesh("rtx6000pro:1", data=1)
    xrayed = report(mesh, P())
    with pytest.raises(NotUnderstood, match="compiled for 'rtx6000pro'"):
        spmd.step_time(xrayed)


@pytest.mark.compiler("gpu")
@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("steps/fsdp constrained 4096", 0.10),
        ("steps/tensor parallel 4096", 0.10),
        ("collective/all-gather 536870912", 0.10),
        ("matmul/8192x8192x8192", 0.10),
    ],
)
def test_a_measured_row_is_predicted_without_its_card(name, within):
    from tools.measure.seconds.predict import error, prediction
    from tools.measure.seconds.programs import KINDS
    from tools.measure.seconds.rows import rows

    row = rows()[name]
    again = prediction(name, row, KINDS[name.partition("/")[0]](row))
    assert abs(error(again)) <= within


@pytest.mark.compiler("tpu")
def test_a_program_for_a_tpu_is_priced_by_its_torus():
    xrayed = report(spmd.tpu_mesh("v5p:4x4x1", data=16), P("data"))
    assert xrayed.positions.kind == "TPU v5"
    assert len(set(xrayed.positions.coords)) == 16
    done = spmd.step_time(xrayed)
    assert (done.chip, done.how) == ("v5p", "predicted")
    assert set(done.lanes) == {"kernels", "ici"}
    assert done.flops_per_device == xrayed.flops_per_device
    sums = done.lanes["kernels"] + done.lanes["ici"]
    assert max(done.lanes.values()) <= done.total_s <= sums
    assert done.error is None
    assert any("no step was measured on chip v5p" in note for note in done.notes)


def test_a_program_for_cpu_devices_has_bounds_for_a_chip_and_none_without():
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
    xrayed = report(mesh, P("data"))
    with pytest.raises(NotUnderstood, match="compiled for CPU devices"):
        spmd.step_time(xrayed)
    done = spmd.step_time(xrayed, "h100")
    assert done.how == "bounds"
    assert 0 < done.bounds_s[0] < done.bounds_s[1]
    assert set(done.lanes) == {"kernels", "nvlink"}
