"""Schedules: by property, by published formula, and as the chapter's program runs."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._figures import pipeline
from tests.mutants import both_ways
from tests.properties import options

from . import chapters
from .slots import slots


@st.composite
def sizes(draw):
    kind = draw(st.sampled_from(pipeline.KINDS))
    stages = draw(st.integers(1, 6))
    many = draw(st.integers(1, 12))
    if kind == "interleaved":
        return stages, stages * draw(st.integers(1, 3)), kind, draw(st.integers(2, 4))
    return stages, many, kind, 1


def schedule(case, module=pipeline):
    stages, many, kind, chunks = case
    return module.PipelineSchedule(stages, many, kind, chunks=chunks)


def check_each_unit_once(case, module=pipeline):
    stages, many, kind, chunks = case
    work = schedule(case, module).work
    units = Counter((w.stage, w.microbatch, w.chunk, w.is_backward) for w in work)
    passes = (False,) if kind == "forward" else (False, True)
    assert units == Counter(
        (s, m, c, b)
        for s in range(stages)
        for m in range(many)
        for c in range(chunks)
        for b in passes
    )
    assert max(Counter((w.stage, w.step) for w in work).values()) == 1


def check_order(case, module=pipeline):
    stages, _, _, chunks = case
    at = {
        (w.is_backward, w.microbatch, w.chunk * stages + w.stage): w.step
        for w in schedule(case, module).work
    }
    last = stages * chunks - 1
    for (is_backward, batch, place), step in at.items():
        if is_backward:
            assert at[False, batch, place] < step
            assert place == last or at[True, batch, place + 1] < step
        else:
            assert place == 0 or at[False, batch, place - 1] < step


def check_last_in_first_out(case, module=pipeline):
    """GPipe goes back as `jax.grad` of a loop does."""
    if case[2] == "gpipe":
        work = [w.microbatch for w in schedule(case, module).work if w.is_backward]
        first = [*dict.fromkeys(work)]
        assert first == sorted(first, reverse=True)


def check_bubble(case, module=pipeline):
    """Narayanan et al., 2021, section 2.2: (p - 1) / (v · m) of the work.

    Of all time that is (p - 1) / (v · m + p - 1).
    """
    stages, many, _, chunks = case
    shown = schedule(case, module)
    bubble = (stages - 1) / (chunks * many)
    assert shown.idle == pytest.approx(bubble / (1 + bubble))
    assert shown.length == pytest.approx(shown.steps / chunks)


def check_saved(case, module=pipeline):
    """GPipe saves all; 1F1B as many as there are stages from this one on.

    Interleaved it is (p · v + p - 1) chunks on stage 0: 1 + (p - 1) / (p · v) times the
    layers of p stages (Korthikanti et al., 2022, arXiv:2205.05198, section 4.2.3).
    """
    stages, many, kind, chunks = case
    if kind == "forward":
        expected = None
    elif kind == "gpipe":
        expected = (many,) * stages
    elif kind == "1f1b":
        expected = tuple(min(many, stages - s) for s in range(stages))
    else:
        expected = tuple(
            min(many, (stages * chunks + stages - 1 - 2 * s) / chunks)
            for s in range(stages)
        )
    assert schedule(case, module).saved == expected


CHECKS = (
    check_each_unit_once,
    check_order,
    check_last_in_first_out,
    check_bubble,
    check_saved,
)


@options(60)
@given(sizes())
def test_a_schedule_has_its_properties(case):
    for check in CHECKS:
        check(case)


def test_the_program_of_the_chapter_runs_this_schedule():
    stages, many = 4, 6
    mesh = jax.make_mesh((stages,), ("stage",), axis_types=(AxisType.Auto,),
                         devices=jax.devices()[:stages])  # fmt: skip
    each_tick = ('return lax.psum(last, "stage")', "return outs[None]")
    names = chapters.run(
        chapters.cell("16", "def pipeline("), each_tick, ("out_specs=P()",
        'out_specs=P("stage")'), jax=jax, jnp=jnp, lax=lax, P=P, stages=mesh,
    )  # fmt: skip
    values = np.arange(1, many + 1, dtype=np.float32) / many
    x = np.broadcast_to(values[:, None, None], (many, 1, 3))
    outs = jax.jit(names["piped"])(np.stack([np.eye(3, dtype=np.float32)] * stages), x)
    shown = spmd.PipelineSchedule(stages, many)
    assert outs.shape[:2] == (stages, shown.steps)
    passed = [values]
    for _ in range(stages):
        passed.append(np.tanh(passed[-1]))
    for one in shown.work:
        expected = passed[one.stage + 1][one.microbatch]
        got = outs[one.stage, one.step]
        np.testing.assert_allclose(got, np.full_like(got, expected), rtol=1e-6)
    busy = {(one.stage, one.step) for one in shown.work}
    new = {s: set() for s in range(stages)}
    for stage in range(stages):
        for step in range(shown.steps):
            value = float(outs[stage, step, 0, 0])
            fresh = value != 0 and value not in new[stage]
            assert fresh == ((stage, step) in busy)
            new[stage].add(value)


def test_the_exercise_has_this_schedule():
    names = chapters.run(
        chapters.cell("16", "def schedule(").split("def enough")[0].replace(
            "    raise NotImplementedError", ""))  # fmt: skip
    for count, many in ((4, 6), (3, 1), (1, 5)):
        shown = spmd.PipelineSchedule(count, many)
        rows = [[None] * count for _ in range(shown.steps)]
        for one in shown.work:
            rows[one.step][one.stage] = one.microbatch
        assert names["schedule"](count, many) == rows


def test_the_text_has_each_unit_and_the_drawing_each_box():
    for case in ((4, 6, "forward", 1), (3, 3, "1f1b", 1), (2, 4, "interleaved", 2)):
        shown = schedule(case)
        words = [w for line in str(shown).splitlines()[1:] for w in line.split()[2:]]
        assert len(words) == shown.steps * shown.stages
        assert sum(w != "·" for w in words) == len(shown.work)
        html = shown._repr_mimebundle_()["text/html"]
        assert len(slots(html)) == shown.steps * shown.stages - len(shown.work)
        assert html.count('class="edge"') == len(shown.work)


def test_it_plays_a_step_a_frame():
    text = str(spmd.PipelineSchedule(2, 2).play())
    assert "Tick 0. Stage 0 runs microbatch 0. Stage 1 is idle." in text
    assert "Tick 2. Stage 1 runs microbatch 1. Stage 0 is idle." in text
    assert text.count("Tick ") == 3


def test_schedules_that_are_compared_have_one_unit():
    each = [spmd.PipelineSchedule(3, 6, kind) for kind in ("gpipe", "1f1b")]
    each += [spmd.PipelineSchedule(3, 6, "interleaved", chunks=2)]
    starts = [one.sentence.split(",")[0] for one in each]
    assert starts == ["16 units", "16 units", "14 units"]
    assert each[2].steps == 28
    assert "a tick is 1/2 of a unit" in each[2]._note
    assert spmd.PipelineSchedule(4, 6).sentence.startswith("9 ticks, 33.3% of")


@pytest.mark.parametrize(
    ("args", "more", "words"),
    [
        ((0, 2), {}, "stages=0 is not a number of stages"),
        ((2, 1.5), {}, "microbatches=1.5"),
        ((2, 2, "zero"), {}, "kind='zero'"),
        ((2, 2, "gpipe"), {"chunks": 2}, "chunks=2 with kind='gpipe'"),
        ((2, 2, "interleaved"), {}, "chunks=1"),
        ((2, 3, "interleaved"), {"chunks": 2}, "microbatches=3 is no multiple"),
    ],
)
def test_bad_input_is_named(args, more, words):
    with pytest.raises(spmd.NotUnderstood, match=words):
        spmd.PipelineSchedule(*args, **more)


MUTANTS = [
    ("_figures.pipeline:_timed", "$done.get($need, $step) < $step",
     "$done.get($need, $step) <= $step"),
    ("_figures.pipeline:_timed", "$place < $last", "False"),
    ("_figures.pipeline:_timed", "[(False, $batch, $place - 1)] if $place else []",
     "[]"),
    ("_figures.pipeline:_order", "$backward[::-1]", "$backward",
     "$forward + $backward[::-1]"),
    ("_figures.pipeline:_order", "$schedule.stages - $stage - 1",
     "$schedule.stages - $stage"),
    ("_figures.pipeline:_order", "2 * $first", "$first",
     "2 * $first + ($chunks - 1) * $schedule.stages"),
    ("_figures.pipeline:_by_group", "range($start, $start + $p)",
     "range($start, $start + 1)"),
    ("_figures.pipeline:_saved", "-1 if $one.is_backward else 1", "1"),
]  # fmt: skip


def right(module):
    cases = [(4, 6, "forward", 1), (3, 5, "gpipe", 1), (3, 5, "1f1b", 1),
             (3, 6, "interleaved", 2)]  # fmt: skip
    for case in cases:
        for check in CHECKS:
            check(case, module)


test_a_broken_schedule_is_noticed, test_an_unbroken_copy_is_right = both_ways(
    MUTANTS, right, "_figures.pipeline"
)
