"""Memory over a step: at every point the bytes are those of the record."""

import itertools
import re
from functools import cache

import pytest

import spmd_helpers as spmd
from spmd_helpers._figures import courses
from spmd_helpers._figures.course_svg import Chart
from spmd_helpers._training.state import Line
from tests.mutants import both_ways
from tests.player.test_player import Read

MODELS = (
    spmd.MLP(layers=6, d_model=64, d_ff=256),
    spmd.MODELS["gpt3-small"],
    spmd.MODELS["llama-3-8b"],
)
MESHES = ({}, {"data": 8}, {"data": 4, "model": 2})
POLICIES = ("everything_saveable", "nothing_saveable")
CHIPS = (None, "h100", "a100-80gb")

# What is saved for the backward pass, and what each layer needs for itself.
SAVED = {
    "inputs of layers", "hidden, and its mask", "weights as computed with", "norms",
    "inputs of matrices", "queries, keys, values, their result",
    "scores of attention", "sums of the scores' rows", "inside of the mlp",
    "activations",
}  # fmt: skip
OF_A_LAYER = {
    f"{name}, {phase}"
    for name in ("inside of one layer", "scores of one layer", "gathered sequences",
                 "gathered weights")
    for phase in ("forward", "backward")
}  # fmt: skip


@cache
def records():
    """Steps of all kinds; those with a point of each of them come first."""
    timelines = []
    for model, mesh, zero, recompute, chip in itertools.product(
        MODELS, MESHES, range(4), POLICIES, CHIPS
    ):
        attention = {"attention": "flash"} if zero == 1 and "seq" in dir(model) else {}
        timelines.append(
            spmd.training_memory(
                model, mesh=mesh, zero=zero, batch=32, recompute=recompute, chip=chip,
                sequence_parallel=zero == 2 and "model" in mesh and bool(model.layers)
                and not isinstance(model, spmd.MLP),
                **attention,
            )
        )  # fmt: skip
    timelines.append(
        spmd.training_memory(
            MODELS[0], mesh={"data": 8}, batch=512, gradient_accumulation=4
        )
    )
    timelines.append(
        spmd.training_memory(
            spmd.MODELS["gpt3-175b"], mesh={"data": 8, "model": 8}, batch=64,
            counting="megatron",
        )
    )  # fmt: skip
    return timelines


def check_points(course, memory):
    """A course against its record."""
    points, phases = course.points, memory.phases
    assert list(dict.fromkeys(point.phase for point in points)) == list(phases)
    places = [round(point.x, 9) for point in points]
    assert places == sorted(places)
    for point in points:
        assert point.used + point.reserved == phases[point.phase]
        assert min(*point.parts, point.reserved) >= 0
    for phase, total in phases.items():
        assert sum(courses.allocated(course, phase)) == total
    assert course.peak == courses.allocated(course, memory.peak_phase)
    exact = zip(course.peak, courses.PARTS, strict=True)
    sizes = {part: size for size, part in exact}
    assert sizes["parameters"] == memory.params_bytes
    assert sizes["optimizer state"] == memory.optimizer_bytes
    check_layers(course, memory)
    check_gradients(course, memory)


def check_layers(course, memory):
    """Saved activations rise and fall by layers; what a layer needs comes and goes."""
    lines = {name: [x for x in memory.lines if x.name == name] for name in SAVED}
    weights = sum(line.bytes for line in lines.pop("weights as computed with"))
    saved = sum(line.bytes for phase_lines in lines.values() for line in phase_lines)
    teeth = course.teeth
    for phase in ("forward", "backward"):
        points = [p for p in course.points if p.phase == phase]
        column = courses.PARTS.index("saved activations")
        levels = [point.parts[column] for point in points[::4]]
        ends = [point.parts[column] for point in points[3::4]]
        steps = [saved * k / teeth for k in range(teeth + 1)]
        steps = steps[::-1] if phase == "backward" else steps
        close = len(memory.lines)  # each line is rounded
        assert levels == pytest.approx(steps[:-1], abs=close)
        assert ends == pytest.approx(steps[1:], abs=close)
        other = [point.parts[column - 1] for point in points]  # weights rise, too
        assert abs(other[0] - other[-1]) == pytest.approx(weights, abs=close)
        each = sum(
            line.bytes
            for line in memory.lines
            if line.name in OF_A_LAYER and phase in line.when
        )
        for tooth in _by_four(points):
            used = [sum(p.parts[column + 1 :]) for p in tooth]
            assert used == [each, each, 0, 0]
    for point in course.points:
        if point.phase not in ("forward", "backward"):
            assert sum(point.parts[column + 1 :]) == 0
            expected = saved if point.phase == "loss" else 0
            assert point.parts[column] == expected


def check_gradients(course, memory):
    """The backward pass writes them, a layer at a time, beside those of other parts."""
    lines = [x for x in memory.lines if x.name.startswith("gradients")]
    written = [x.bytes for x in lines if x.when[0] == "backward"]
    there = [x.bytes for x in lines if x.when[0] == "forward"]
    points = [p for p in course.points if p.phase == "backward"]
    column = courses.PARTS.index("gradients")
    levels = [points[0].parts[column], *(p.parts[column] for p in points[3::4])]
    steps = [sum(written) * k / course.teeth for k in range(course.teeth + 1)]
    assert levels == pytest.approx([sum(there) + s for s in steps], abs=len(lines))
    assert levels[0] == sum(there) <= levels[-1]


def _by_four(points):
    return [points[k : k + 4] for k in range(0, len(points), 4)]


@pytest.mark.parametrize("number", range(0, len(MODELS) * 72 + 2, 6))
def test_every_point_has_the_bytes_of_the_record(number):
    for memory in records()[number : number + 6]:
        check_points(courses.course("", memory), memory)


def test_a_line_is_drawn_by_what_it_is():
    names = {line.name: line for memory in records() for line in memory.lines}
    for name, line in names.items():
        assert courses.is_saved(line) == (name in SAVED), name
        assert courses.comes_with_layer(line) == (name in OF_A_LAYER), name
    parts = {name: courses.part_of(line) for name, line in names.items()}
    saved = {n for n, p in parts.items() if p == "saved activations"}
    assert saved == (names.keys() & SAVED) - {"weights as computed with"}
    assert parts["weights as computed with"] == "other buffers"
    assert parts["gradients of the layers, zero"] == "gradients"
    assert parts["weights converted before the loop"] == "other buffers"
    assert parts["gathered weights, backward"] == "gathered for a layer"
    assert {part for part in parts.values()} == {*courses.PARTS}


def test_a_line_that_is_not_known_is_there_throughout_its_phases():
    line = Line("cache of a kind to come", "4 B × 3", 12, ("forward", "loss"), "")
    assert courses.part_of(line) == "other buffers"
    assert not courses.comes_with_layer(line)


def small(**how):
    return spmd.training_memory(MODELS[0], mesh={"data": 8}, batch=512, **how)


def test_more_layers_than_are_drawn_are_one_step_for_several():
    deep = spmd.MLP(layers=96, d_model=64, d_ff=256)
    memory = spmd.training_memory(deep, mesh={"data": 8}, batch=512)
    one = courses.course("", memory)
    assert (one.layers, one.teeth) == (96, courses.TEETH)
    assert "stand for 96 layers" in " ".join(str(spmd.MemoryTimeline(memory)).split())
    assert "stand for" not in str(spmd.MemoryTimeline(small()))


def test_frames_share_one_scale_and_one_limit():
    steps = {f"ZeRO-{zero}": small(zero=zero) for zero in range(4)}
    chart = Chart(spmd.MemoryTimeline(steps).courses, None)
    assert chart.top > max(memory.total_bytes for memory in steps.values())
    far = Chart(chart.courses, spmd.HARDWARE["v5p"])
    assert far.limit is None
    assert "It is within the 95.7 GiB that a program on v5p can use." in far.sentence(
        far.courses[0]
    )
    gpt3 = spmd.MODELS["gpt3-175b"]
    large = spmd.training_memory(gpt3, mesh={"data": 8, "model": 8}, batch=128)
    near = Chart(spmd.MemoryTimeline(large).courses, spmd.HARDWARE["v5p"])
    assert near.limit == spmd.HARDWARE["v5p"].program_bytes
    assert "more than the 95.7 GiB that a program on v5p can use" in near.sentence(
        near.courses[0]
    )


@pytest.mark.parametrize("zero", range(4))
def test_no_name_is_where_the_limit_has_its_own(zero):
    """At the right, where gradients have their name above or below."""
    gpt3 = spmd.MODELS["gpt3-175b"]
    names = set()
    for batch, model in itertools.product((16, 64, 128, 256), (1, 2, 4, 8)):
        mesh = {"data": 8, "model": model}
        memory = spmd.training_memory(gpt3, mesh=mesh, batch=batch, zero=zero)
        chart = Chart(spmd.MemoryTimeline(memory).courses, spmd.HARDWARE["v5p"])
        drawn = " ".join(chart._line())
        if not drawn:
            continue
        (line,) = map(float, re.findall(r'y="([\d.]+)"[^>]*>v5p', drawn))
        for item in chart._names(chart.courses[0]):
            y, word = re.search(r'y="([\d.]+)"[^>]*>(\w+)', item).groups()
            names.add(word)
            assert word != "gradients" or abs(float(y) - line) >= 12
    assert zero >= 2 or "gradients" in names


def test_picture_and_text_say_the_same():
    steps = {"plain": small(), "recomputed": small(recompute="nothing_saveable")}
    shown = spmd.MemoryTimeline(steps, chip="h100")
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == str(shown) == repr(shown)
    read, text = Read(bundle["text/html"]), " ".join(str(shown).split())
    assert len(read.frames) == len(read.words) == 2
    for words, one in zip(read.words, shown.courses, strict=True):
        assert " ".join(words.split()) in text
        assert words.startswith(f"{one.name}. The peak is ")
    labels = [a["aria-label"] for t, a in read.elements if t == "svg" and "role" in a]
    for label, one in zip(labels, shown.courses, strict=True):
        assert label.count(";") == len(one.memory.phases) - 1
        assert label.startswith("forward: parameters 96 KiB, ")
    assert len(set(read.ids)) == len(read.ids)
    assert all(a["href"][1:] in read.ids for t, a in read.elements if t == "use")


def test_areas_end_at_the_bytes_of_the_record():
    memory = small()
    shown = spmd.MemoryTimeline(memory)
    chart = Chart(shown.courses, None)
    read = Read(shown._repr_mimebundle_()["text/html"])
    used = max(point.used for point in shown.courses[0].points)
    assert used < memory.total_bytes
    for kind, size in (("area", used), ("reserved", memory.total_bytes)):
        paths = [
            a["d"]
            for _, a in read.frames[0]
            if f"memory-{kind}" in a.get("class", "") and "d" in a
        ]
        highest = min(
            float(corner.split()[1])
            for path in paths
            for corner in path.strip("MZ").split("L")
        )
        assert highest == pytest.approx(chart._y(size), abs=0.06)


@pytest.mark.parametrize("steps", [None, {}, [], {"a": 3}, {"a": small(), "b": "x"}])
def test_what_is_no_step_is_refused(steps):
    with pytest.raises(spmd.NotUnderstood, match="give what spmd"):
        spmd.MemoryTimeline(steps)


def test_an_unknown_chip_is_refused():
    with pytest.raises(spmd.NotUnderstood, match="h200000"):
        spmd.MemoryTimeline(small(), chip="h200000")


MUTANTS = [
    ("_figures.courses:_points", "$before, $after = 1 - $before, 1 - $after", "pass"),
    ("_figures.courses:_points", "($tooth + 1) / $teeth", "$tooth / $teeth"),
    ("_figures.courses:_points", "$size *= $stored", "pass", "$size *= 1 - $stored"),
    ("_figures.courses:_points", "comes_with_layer($line)", "False"),
    ("_figures.courses:_points", "$size *= 1 - $stored", "pass"),
    ("_figures.courses:fills_backward", "$line.when[0] == BACKWARD", "True"),
    ("_figures.courses:part_of", "$line.name.startswith('weights')", "False"),
    ("_figures.courses:_points", "$total - sum($sizes)", "$total"),
    ("_figures.courses:is_saved", "'buffers' not in $line.source", "True"),
    ("_figures.courses:is_saved", "set($line.when) == _SAVED_FOR", "True"),
    ("_figures.courses:comes_with_layer", "len($line.when) == 1", "True"),
    ("_figures.courses:comes_with_layer", "not _LAYERS.match($line.formula)", "True"),
    ("_figures.courses:course", "$phase in $line.when", "True"),
]  # fmt: skip


def answers(copy):
    offloaded = Line("offloaded", "3 layers × 4 B", 12, ("backward",), "")
    assert not copy.is_saved(offloaded)
    for memory in [*records()[::5], records()[-2]]:
        check_points(copy.course("", memory), memory)


test_a_broken_course_is_noticed, test_an_unbroken_course_is_right = both_ways(
    MUTANTS, answers, "_figures.courses", error=AssertionError
)
