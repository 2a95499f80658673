"""Traces: which instruction each kernel is, what is exposed, and what is refused."""

import random
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import spmd_helpers as spmd
from spmd_helpers._errors import NotUnderstood
from spmd_helpers._hlo.validate import read_module
from spmd_helpers._time import profile as profiling
from spmd_helpers._time.matching import matched
from spmd_helpers._time.measured import _alone, _busy
from spmd_helpers._time.step_time import step_time
from spmd_helpers._time.trace import KernelRun, read_runs, runs_of, write_runs

# A step of a loop of two layers: a gathered weight, a product by cuBLAS, cuDNN's
# attention, two fusions and a stack that is copied into beside them.
TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=2

FileNames
1 "train.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=0 end_column=0}
2 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=0 end_column=0}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}

one {
  p0 = f32[1024,512]{1,0} parameter(0)
  ROOT n0 = f32[1024,512]{1,0} negate(p0)
}

two {
  p1 = f32[1024,512]{1,0} parameter(0)
  ROOT n1 = f32[1024,512]{1,0} negate(p1)
}

body {
  t = (s32[], f32[1024,512]{1,0}, f32[512,512]{1,0}) parameter(0)
  n = s32[] get-tuple-element(t), index=0
  x = f32[1024,512]{1,0} get-tuple-element(t), index=1
  w = f32[512,512]{1,0} get-tuple-element(t), index=2
  g = ((f32[512,512]{1,0}), f32[1024,512]{1,0}) all-gather-start(w), channel_id=1, \
replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true, \
metadata={op_name="gathered" stack_frame_id=1}
  fusion.1 = f32[1024,512]{1,0} fusion(x), kind=kLoop, calls=one, \
metadata={op_name="first" stack_frame_id=2}
  gd = f32[1024,512]{1,0} all-gather-done(g), metadata={op_name="gathered" \
stack_frame_id=1}
  fusion.2 = f32[1024,512]{1,0} fusion(gd), kind=kLoop, calls=two, \
metadata={op_name="second" stack_frame_id=2}
  g2 = ((f32[512,512]{1,0}), f32[1024,512]{1,0}) all-gather-start(w), channel_id=2, \
replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true, \
metadata={op_name="gathered" stack_frame_id=2}
  gd2 = f32[1024,512]{1,0} all-gather-done(g2), metadata={op_name="gathered" \
stack_frame_id=2}
  mm = (f32[1024,1024]{1,0}, s8[4096]{0}) custom-call(fusion.2, fusion.1), \
custom_call_target="__cublas$gemm", metadata={op_name="product" stack_frame_id=1}
  at = (f32[1024,512]{1,0}, u8[0]{0}) custom-call(fusion.2, fusion.2), \
custom_call_target="__cudnn$fmhaSoftmaxBackward", metadata={op_name="attention" \
stack_frame_id=1}
  fusion.3 = f32[1024,512]{1,0} fusion(gd2), kind=kLoop, calls=one, \
metadata={op_name="third" stack_frame_id=2}
  one.1 = s32[] constant(1)
  n1.1 = s32[] add(n, one.1)
  ROOT out = (s32[], f32[1024,512]{1,0}, f32[512,512]{1,0}) tuple(n1.1, fusion.3, w)
}

condition {
  c = (s32[], f32[1024,512]{1,0}, f32[512,512]{1,0}) parameter(0)
  cn = s32[] get-tuple-element(c), index=0
  most = s32[] constant(2)
  ROOT less = pred[] compare(cn, most), direction=LT
}

ENTRY main {
  zero = s32[] constant(0)
  a = f32[1024,512]{1,0} parameter(0)
  b = f32[512,512]{1,0} parameter(1)
  fusion.9 = f32[1024,512]{1,0} fusion(a), kind=kLoop, calls=one, \
metadata={op_name="start" stack_frame_id=1}
  start = (s32[], f32[1024,512]{1,0}, f32[512,512]{1,0}) tuple(zero, fusion.9, b)
  loop = (s32[], f32[1024,512]{1,0}, f32[512,512]{1,0}) while(start), \
condition=condition, body=body
  ROOT y = f32[1024,512]{1,0} get-tuple-element(loop), index=1
}
"""
MS = 1e-3
# (name of the kernel, instruction or graph in the trace, operation, start, end in ms)
TURN = (
    ("nccl_a", "all-gather.7.1", "gathered", 0.0, 3.0),
    ("fusion_1", "command_buffer_1", "", 0.0, 2.0),
    ("fusion_2", "command_buffer_2", "", 3.0, 4.0),
    ("nccl_b", "all-gather.8", "gathered", 3.5, 5.0),
    ("nvjet_sm90_tst", "command_buffer_2", "", 4.0, 6.0),
    ("cudnn::fusion::compute_dot", "command_buffer_2", "", 6.0, 6.5),
    ("cudnn_flash_bprop", "command_buffer_2", "", 6.5, 8.0),
    ("fusion_1", "command_buffer_2", "", 8.0, 9.0),  # the code of an equal fusion
)
NAMES = ["g", "fusion.1", "fusion.2", "g2", "mm", "at", "at", "fusion.3"]


def a_step(start):
    """The runs of one step: a fusion, and two turns of the loop. It takes 20 ms."""
    yield KernelRun("fusion_9", "fusion.9", "start", start, start + 1 * MS)
    for turn in (1.0, 10.0):
        for node, (name, op, op_name, begin, end) in enumerate(TURN):
            yield KernelRun(
                *(name, op, op_name),
                *(start + (turn + begin) * MS, start + (turn + end) * MS),
                node=node if op.startswith("command") else None,
            )


def steps(count=3, every=20 * MS):
    runs = [run for n in range(count) for run in a_step(5.0 + n * every)]
    return tuple(sorted(runs, key=lambda run: (run.start_s, run.end_s)))


@pytest.fixture(scope="module")
def module():
    return read_module(TEXT)


@pytest.fixture(scope="module")
def predicted():
    return step_time(TEXT, "h200", tokens=1000)


@pytest.fixture
def traced(tmp_path):
    def traced(runs):
        write_runs(runs, tmp_path / "a.runs.json.gz")
        return spmd.read_trace(tmp_path / "a.runs.json.gz", TEXT, "h200", tokens=1000)

    return traced


def test_each_kernel_is_matched_with_its_instruction(module, predicted):
    runs = steps(2)
    names = matched(module, predicted.parts, runs)
    ordered = sorted(a_step(0), key=lambda run: (run.start_s, run.end_s))
    of_turn = {(run.name, run.op): n for run, n in zip(TURN_RUNS, NAMES, strict=True)}
    wanted = [of_turn.get((r.name, r.op), "fusion.9") for r in ordered] * 2
    assert names == wanted


TURN_RUNS = [KernelRun(*row) for row in TURN]


def test_what_is_not_known_is_not_guessed(module, predicted):
    runs = [
        KernelRun("mystery", "elsewhere.3", "", 0.0, 1.0),
        KernelRun("Memset 3", "command_buffer_2", "", 1.0, 2.0, 0),
        KernelRun("nccl", "all-reduce.1", "summed", 2.0, 3.0),
        # one of two gathers: which one cannot be told
        KernelRun("nccl", "all-gather.7", "other", 3.0, 4.0),
    ]
    assert matched(module, predicted.parts, runs) == [None] * 4


def test_a_step_is_measured(traced):
    step = traced(steps(3))
    assert step.how == "measured"
    assert step.error is None
    assert step.total_s == pytest.approx(20 * MS)
    assert step.lanes["nvlink"] == pytest.approx(2 * (3.0 + 1.5) * MS)
    assert step.lanes["kernels"] == pytest.approx((1 + 2 * 8.0) * MS)
    exposed = {part.name: part.exposed_s / MS for part in step.exposed}
    assert exposed == {"g": pytest.approx(2.0)}  # a millisecond a turn; g2 is hidden
    assert step.exposed_s == pytest.approx(2 * MS)
    seconds = {part.name: part.seconds / MS for part in step.parts}
    assert seconds == pytest.approx(
        {"fusion.9": 1, "g": 6, "fusion.1": 4, "fusion.2": 2, "g2": 3, "mm": 4}
        | {"at": 4, "fusion.3": 2}
    )
    lines = {line.source: line for line in step.lines}
    assert lines["train.py:9"].kernel_s == pytest.approx((4 + 2 + 2) * MS)
    assert lines["train.py:7"].exposed_s == pytest.approx(2 * MS)
    assert step.tokens_per_s == pytest.approx(50_000)
    assert step.predicted.how == "predicted"
    assert step.notes[0].endswith(
        "idle (no kernel, no collective): 5.0%"
    )  # one of twenty milliseconds


def test_one_step_is_measured_from_end_to_end(traced):
    step = traced(steps(1))
    assert step.total_s == pytest.approx(19 * MS)
    assert len(step.spans) == 1 + 2 * len(TURN)
    assert step.spans[0].start_s == 0


def test_the_timeline_is_that_of_one_step(traced):
    step = traced(steps(3))
    assert len(step.spans) == 1 + 2 * len(TURN)
    assert [s.name for s in step.spans][:3] == ["fusion.9", "fusion.1", "g"]
    assert max(span.end_s for span in step.spans) == pytest.approx(19 * MS)


def test_measured_and_predicted_stand_side_by_side(traced):
    step = traced(steps(3))
    text = str(step)
    assert "measured: 20 ms, predicted:" in text.splitlines()[0]
    head = text.splitlines()[1].split()
    assert head[1:3] == ["kernels", "pred."]
    assert head[3:5] == ["collectives", "pred."]
    (line,) = [one for one in text.splitlines() if one.startswith("train.py:9")]
    assert line.split()[1:3] == ["8", "ms"]
    assert "<table" in step._repr_mimebundle_()["text/html"]


def test_much_that_is_not_matched_is_said(traced):
    odd = KernelRun("mystery", "elsewhere.3", "", 5.0 + 19 * MS, 5.0 + 20 * MS)
    step = traced((*steps(1), odd))
    assert any("could not be matched" in note for note in step.notes)
    assert not any("could not be matched" in note for note in traced(steps(1)).notes)


@pytest.mark.parametrize("seed", range(20))
def test_exposed_seconds_are_those_in_which_no_kernel_runs(seed):
    """Against counting moment by moment."""
    draw = random.Random(seed)
    runs = []
    for n in range(12):
        start = draw.randrange(40)
        op = draw.choice(["fusion.1", "all-gather.2", "reduce-scatter.9"])
        run = KernelRun(f"k{n}", op, "", float(start), float(start + draw.randrange(9)))
        runs.append(run)
    runs.sort(key=lambda run: (run.start_s, run.end_s))
    moments = [m + 0.5 for m in range(50)]
    on = [[r.start_s <= m < r.end_s for m in moments] for r in runs]
    kernels = [n for n, run in enumerate(runs) if run.kind is None]
    for n, alone in enumerate(_alone(runs)):
        others = [k for k in kernels if k != n]
        free = [not any(on[k][m] for k in others) for m in range(50)]
        assert alone == sum(a and b for a, b in zip(on[n], free, strict=True)), n
    assert _busy(runs) == sum(any(row[m] for row in on) for m in range(50))


# --- Files ----------------------------------------------------------------------------


def an_event(op, module="jit_step", **stats):
    given = {"hlo_module": module, "hlo_op": op, **stats}.items()
    return SimpleNamespace(name=op, start_ns=5, duration_ns=0, stats=list(given))


def a_trace(**planes):
    return SimpleNamespace(
        planes=[
            SimpleNamespace(
                name=name.replace("_", ":").replace("device", "/device"),
                lines=[SimpleNamespace(name="Stream #1", events=events)],
            )
            for name, events in planes.items()
        ]
    )


def test_the_runs_of_one_program_on_the_first_gpu():
    copy = an_event(
        "copy.1",
        **{"memcpy_details": "kind_src:device size:4096 dest:0", "name": "jit(f)/add"},
    )
    data = a_trace(
        **{"device_GPU_1": [an_event("b")], "host_CPU": [an_event("c")]},
        **{"device_GPU_0": [an_event("a", "jit_g"), copy]},
    )
    (run,) = runs_of(data, "jit_step", "here")
    assert run == KernelRun("copy.1", "copy.1", "jit(f)/add", 5e-9, 5e-9, None, 4096)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (a_trace(host_CPU=[an_event("a")]), "path='here' is a trace without a GPU"),
        (a_trace(device_TPU_0=[an_event("a")]), "path='here' is a trace of a TPU"),
        (
            a_trace(device_GPU_0=[an_event("a", "jit_other")]),
            "has no kernel of jit_step: it has those of jit_other",
        ),
    ],
)
def test_a_trace_without_the_program(data, words):
    with pytest.raises(NotUnderstood, match=words):
        runs_of(data, "jit_step", "here")


def test_no_trace(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotUnderstood, match="neither a trace nor a folder"):
            spmd.read_trace(path, TEXT, "h200")
    with pytest.raises(NotUnderstood, match="path=3 is no path"):
        spmd.read_trace(3, TEXT, "h200")


def test_a_trace_of_cpu_devices(tmp_path):
    """A real file of JAX's profiler."""
    f = jax.jit(lambda x: x + 1)
    with jax.profiler.trace(str(tmp_path)):
        f(jnp.ones(8)).block_until_ready()
    with pytest.raises(NotUnderstood, match="without a GPU"):
        read_runs(jax, tmp_path, "jit_step")


# --- profile --------------------------------------------------------------------------

SHAPE = jax.ShapeDtypeStruct((8, 8), jnp.float32)


def test_what_can_t_be_profiled():
    x = jnp.ones((8, 8))
    with pytest.raises(NotUnderstood, match="f runs on cpu, whose times say nothing"):
        spmd.profile(lambda x: x @ x, x)
    with pytest.raises(NotUnderstood, match=r"args\[0\] is a ShapeDtypeStruct"):
        spmd.profile(lambda x: x @ x, SHAPE)
    for steps in (0, 1.5, "3", True):
        with pytest.raises(NotUnderstood, match="steps="):
            spmd.profile(lambda x: x @ x, x, steps=steps)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """As if the devices were GPUs: runs on CPU devices, with a trace made up."""
    monkeypatch.setattr(profiling, "_check_devices", lambda *_: None)
    monkeypatch.setattr(profiling, "read_runs", lambda *_: steps(2))


def test_a_donated_argument_has_to_come_back(on_a_gpu):
    step = jax.jit(lambda w, x: (w + x, x.sum()), donate_argnums=0)
    w, x = jnp.zeros((8, 8)), jnp.ones((8, 8))
    with pytest.raises(NotUnderstood, match=r"donates argument 0.*carry=\{0: 0\}"):
        spmd.profile(step, w, x, chip="h200")
    assert not w.is_deleted()
    report = spmd.profile(step, w, x, chip="h200", carry={0: 0})
    assert report.how == "measured"
    assert w.is_deleted()


def test_steps_follow_each_other(on_a_gpu):
    """Two to warm up, three that are traced; the state goes from one to the next."""
    values = []

    def step(w, x):
        jax.debug.callback(lambda w: values.append(float(w)), w)
        return w + x, x

    spmd.profile(step, jnp.zeros(()), jnp.ones(()), chip="h200", carry={0: 0}, steps=3)
    jax.effects_barrier()
    assert values == [0, 1, 2, 3, 4]
