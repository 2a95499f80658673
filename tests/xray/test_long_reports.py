"""Reports of large programs: folded, and all of it in the attributes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._xray import report

SIZES = {"data": 4, "stage": 1, "model": 2}
MESH = Mesh(
    np.array(jax.devices()).reshape(4, 1, 2), tuple(SIZES), (AxisType.Auto,) * 3
)


def on(shape, *spec):
    sharding = NamedSharding(MESH, P(*spec))
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def fifty_layers(ps, x):
    for p in ps["layers"]:
        x = x + jnp.tanh(x @ p["up"]) @ p["down"]
    return x


def test_fifty_unrolled_layers_fit_a_screen():
    layer = {
        "up": on((32, 64), None, "model"),
        "down": on((64, 32), ("model", "stage")),
    }
    params = {"layers": [layer] * 50}
    f = jax.jit(fifty_layers, donate_argnums=0)
    report = spmd.xray(f, params, on((16, 32), "data"))
    lines = repr(report).splitlines()
    assert len(lines) < 24
    assert "data=4 × model=2 (" in lines[0]  # without stage, which has one device
    assert report.mesh_shape == SIZES
    assert len(report.collectives) == 50
    (row,) = [line for line in lines if line.startswith("all-reduce")]
    assert " 50 × 1 " in row
    assert "50 collectives, equal ones in one row" in repr(report)
    (lost,) = report.findings
    assert "ps['layers'][0–49]['down']" in lost.sentence
    assert "ps['layers'][0–49]['up']" in lost.sentence
    assert [line.spec for line in spmd.memory(params).lines[:2]] == [
        "P('model', None)",
        "P(None, 'model')",
    ]


def collective(n):
    return spmd.read_hlo(
        f"""HloModule jit_f, num_partitions=8

ENTRY main {{
  p = f32[{n}] parameter(0)
  ROOT r = f32[{n}] all-reduce(p), replica_groups={{}}
}}
""",
        {"data": 8},
    )[0]


def test_rows_of_many_different_collectives():
    many = [collective(64 * n) for n in range(1, 31)]
    rows = report.rows(many)
    assert len(rows) == report.ROWS + 1
    assert rows[-1][0] == f"… {30 - report.ROWS} more"
    # Of 8 · 256 bytes and less, 2 · 7/8 are sent: 256 · 18 · 19 / 2 · 7/4 in all.
    assert rows[-1][5] == "74.8 KiB in all"
    assert report.rows(many[:12])[3] == report.rows(many[:4])[3]


def test_findings_of_one_kind():
    same = spmd.xray(lambda x: x, on((8,)))
    assert same.findings == ()
    finding = report.Finding("code", "It is.", "Do.", "10_fsdp")
    words = report.finding_notes([finding] * 5)
    assert len(words) == report.ALIKE + 1
    assert words[-1] == "code: 2 more of this kind are in .findings"
