"""The mesh planner of the page against `plan_mesh`, strategy by strategy."""

import functools
import json
import re

import pytest

import spmd_helpers as spmd
from spmd_helpers._widgets import source
from spmd_helpers._widgets.plans import planner_state
from spmd_helpers._widgets.widgets import MeshPlanner
from tests.training.memory_oracle import DEFAULTS as CALCULATOR
from tests.training.memory_oracle import counted

from .planner_oracle import (
    CHIPS,
    DEFAULTS,
    LEFT_OUT,
    OFFERED,
    all_of,
    cases,
    expected,
    planned,
)
from .widget_harness import answers, changed, is_clean, is_noticed

NAME = "mesh_planner"
FEW, HUNDREDS, THOUSANDS, OF_ANSWERS = 30, 500, 2000, 300
MOST_OFF = 1e-9
PLANS = """(given) => {
  const [script, states] = given;
  const { meshPlanner, plannerPlan } = new Function(
    `${script}; return { meshPlanner, plannerPlan };`)();
  return states.map((state) => {
    try {
      const { plan } = plannerPlan({ ...meshPlanner.defaults, ...state });
      const name = ({ kind, axes }) => `${kind} over ${axes.join(" and ")}`;
      const exact = plan.strategies.map((one) => [
        one.words, one.recompute, one.attention, one.bytes,
        one.left, one.zero, one.microbatches, one.chunks,
        ...one.exchanges.map((each) => [each.what, name(each), each.when]),
        ...one.exchanges.map(({ count, nbytes, link }) => [count, nbytes, link]),
      ]);
      const timed = plan.strategies.map((one) => [
        one.total, one.compute, one.again, one.memory, one.bubble, one.tokens, one.mfu,
        ...one.exchanges.map(({ seconds }) => seconds),
        ...one.exchanges.map(({ exposed }) => exposed),
      ]);
      return JSON.stringify({ exact, timed, ...plan, strategies: null });
    } catch (error) {
      if (error.refused) return JSON.stringify({ error: error.message });
      return JSON.stringify({ stopped: `${error.stack}` });
    }
  });
}"""


@functools.cache
def planned_states(seed, count):
    """States, and what the package plans: the sentence, or the words and lists."""
    expected = []
    for state in cases(seed, count):
        plan = planned(state)
        if isinstance(plan, str):
            expected.append((state, {"error": plan}))
            continue
        exact, timed = all_of(plan)
        words = {
            "what": plan.what,
            "chips": plan.chips,
            "allowed": plan.allowed_bytes,
            "error": plan.error,
            "notes": list(plan.notes),
            "remedy": plan.remedy,
            "unchecked": plan.unchecked,
            "fitting": len(plan.fitting),
        }
        words["exact"] = json.loads(json.dumps(exact))
        expected.append((state, (words, timed)))
    return expected


def off(got, want):
    """The largest part by which numbers of two lists differ."""
    pairs = [
        pair
        for one, other in zip(got, want, strict=True)
        for pair in zip(one, other, strict=True)
    ]
    return max((abs(a - b) / max(abs(a), abs(b), 1e-300) for a, b in pairs), default=0)


def differences(browser, given, change=None):
    """The states for which the page plans something else than the package."""
    script = source.joined(NAME)
    if change:
        script = changed(script, *change)
    page = browser.new_page()
    states = [state for state, _ in given]
    got = [json.loads(one) for one in page.evaluate(PLANS, [script, states])]
    page.close()
    differing = []
    for (state, want), one in zip(given, got, strict=True):
        if isinstance(want, dict):
            if one != want:
                differing.append((state, one.get("error", one), want))
            continue
        words, timed = want
        shown = {key: one.get(key) for key in words}
        if shown != words or off(one["timed"], timed) > MOST_OFF:
            differing.append((state, shown, words))
    return differing


def test_it_plans_what_the_package_plans(browser):
    assert differences(browser, planned_states(1, FEW)) == []


@pytest.mark.long("plans of hundreds of states in a browser")
@pytest.mark.parametrize(
    "count", [HUNDREDS, pytest.param(THOUSANDS, marks=pytest.mark.rare)]
)
def test_it_plans_what_the_package_plans_in_many_states(browser, count):
    wants = [want for _, want in planned_states(2, count)]
    refused = sum(isinstance(want, dict) for want in wants)
    plans = [want[0] for want in wants if not isinstance(want, dict)]
    assert 0.05 < refused / count < 0.5
    assert sum(0 < one["fitting"] < len(one["exact"]) for one in plans) > count / 10
    assert sum(len(one["exact"]) for one in plans) > 20 * count
    assert differences(browser, planned_states(2, count)) == []


def test_it_answers_what_the_package_says(browser):
    check_answers(browser, 3, FEW)


@pytest.mark.long("plans of hundreds of states in a browser")
def test_it_answers_what_the_package_says_of_hundreds_of_states(browser):
    check_answers(browser, 4, OF_ANSWERS)


def check_answers(browser, seed, count):
    states = cases(seed, count)
    for state, got in zip(states, answers(browser, NAME, states), strict=True):
        assert is_clean(got), got
        want = expected(state)
        assert {key: got.get(key) for key in want} == want, state
        if "error" in want:
            continue
        assert got["refused"] or "code" in want
        row = next(one for one in got["rows"] if one["rank"] == got["chosen"])
        for key in ("seconds", "tokens", "mfu"):
            assert row[key] in got["sentence"] or not want["fitting"]
        check_lanes(got)


def check_lanes(got):
    """A lane's parts are within the picture, and those of the step fill it."""
    lanes = got["lanes"]
    assert [lane["name"] for lane in lanes[:2]] == ["the step", "computes"]
    assert lanes[0]["words"] == got["seconds"]
    for lane in lanes:
        assert sum(part["share"] for part in lane["parts"]) <= 100.05
        assert bool(lane["axis"]) == (lane not in lanes[:2])
    over = {one[1].partition(" over ")[2] for one in got["exchanges"]}
    assert {lane["axis"] for lane in lanes[2:]} == over


MUTANTS = {
    "any axis for a pipeline": ("planMeshes", "$mesh.context === 1", "true"),
    "ZeRO without data": ("planWaysOn", "[0, 1, 2] : [0]", "[0, 1, 2] : [0, 1]"),
    "one count of microbatches": ("planSchedules", "slice(0, 2)", "slice(0, 1)"),
    "every group in one host": ("planStanding", "/ $perHost", "/ 1e9"),
    "a torus that never closes": ("planTorus", "=== 0", "=== 99"),
    "no logits in float32": ("planProducts", "$rates.flops.f32", "$rates.flops.bf16"),
    "more hidden than there is work": ("planSeconds", "Math.min(1,", "Math.max(1,"),
    "no bubble": ("planSeconds", ".mesh.stage - 1", ".mesh.stage * 0"),
    "experts have no rows": (
        "planRowNumbers",
        "return $expertRows * $each",
        "return 0",
    ),
    "a head that is not padded": ("planStep", "Math.ceil", "Math.floor"),
    "state that is not updated": ("planStrategy", "2n * $memory.params_bytes", "0n"),
    "the fastest group": ("planPrices", "$seconds > $slowest[0]", "$seconds < 0"),
    "the slowest first": ("planCompared", "? -1 : 1", "? 1 : -1"),
    "the last mesh left out": ("planEach", "$bounds.length - $place", "$place"),
    "any state is small": ("planTooLarge", "> $planner.allowed", "> 1e30"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_module_is_noticed(browser, mutant):
    differ = functools.partial(differences, browser, change=MUTANTS[mutant])
    assert is_noticed(differ, planned_states(5, 150))


def test_models_and_chips_that_are_offered_can_be_planned(browser):
    page = browser.new_page()
    script = source.joined(NAME)
    states = [{"chip": chip} for chip in CHIPS]
    controls = page.evaluate(
        f"""() => {{ {script};
        return {json.dumps(states)}.map((state) =>
          meshPlanner.controls({{...meshPlanner.defaults, ...state}}).map(
            ({{key, options, label}}) => [key, options ?? [], label])); }}"""
    )
    page.close()
    first = {key: [one[0] for one in options] for key, options, _ in controls[0]}
    assert first["model"] == OFFERED
    assert first["chip"] == list(CHIPS)
    for name in LEFT_OUT:
        with pytest.raises(spmd.NotUnderstood):
            spmd.plan_mesh(name, "h100:1x8", batch=8, seq=128)
    for state, one in zip(states, controls, strict=True):
        slices = [
            name for key, options, _ in one for name, *_ in options if key == "slice"
        ]
        assert bool(slices) == bool(CHIPS[state["chip"]]["dims"])
        for name in slices:
            assert read_devices(f"{state['chip']}:{name}") <= 1024
    labels = {key: label for one in controls for key, _, label in one}
    assert {*labels, "chosen", "shown", "expert"} == set(DEFAULTS)
    for key, label in labels.items():
        assert key.removesuffix("_axis") in label.lower()


def read_devices(topology):
    from spmd_helpers._plan.cluster import read_chips

    return read_chips(topology).devices


def test_arguments_become_a_state():
    planner = MeshPlanner(
        "mixtral-8x7b", "h200:4x8", batch=64, axes=("fsdp", "expert"), optimizer="lion"
    )
    state = DEFAULTS | planner.state
    plan = spmd.plan_mesh(
        "mixtral-8x7b", "h200:4x8", batch=64, axes=("fsdp", "expert"), optimizer="lion"
    )
    assert planned(state).strategies == plan.strategies
    assert MeshPlanner().state == {}
    assert planner_state("gemma-3-1b", "v5e:4x4", batch=8)["slice"] == "4x4"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"moment_dtype": "bfloat16"}, "no control"),
        ({"recompute": ("nothing_saveable",)}, "no control"),
        ({"compute_dtype": "float32"}, "no control"),
        ({"topology": "h100:256x8", "batch": 2048}, "1024 at most"),
        ({"topology": "v5p:2x4x8"}, "the slices 2x2x1, "),
        ({"topology": "h100:1x7"}, "make batch=35"),
        ({"model": spmd.Transformer(2, 64, 4)}, "has the models of MODELS"),
        ({"topology": "h99:1x8"}, "names no card"),
    ],
)
def test_what_the_planner_has_no_control_for_is_refused(how, words):
    given = {"model": "llama-3.2-1b", "topology": "h100:1x8", "batch": 32, "seq": 512}
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        MeshPlanner(**given | how)
    assert len(caught.traceback) <= 2 or isinstance(caught.value, spmd.NotUnderstood)


def test_the_link_opens_the_same_strategy_in_the_calculator(browser):
    from urllib.parse import parse_qsl, urlsplit

    states = [
        one for one in cases(3, FEW) if isinstance(expected(one).get("fits"), bool)
    ]
    got = answers(browser, NAME, states)
    linked = []
    for answer in got:
        address = urlsplit(answer["link"])
        assert address.path == "memory_calculator.html"
        pairs = parse_qsl(address.query, keep_blank_values=True)
        state = {key.removeprefix("mc."): text for key, text in pairs}
        assert state.keys() <= CALCULATOR.keys()
        linked.append(state)
        _, _, memory, left = counted(CALCULATOR | state)
        assert memory.total_bytes == answer["total_bytes"]
        assert (left >= 0) == answer["fits"]
    there = answers(browser, "memory_calculator", linked)
    for answer, other in zip(got, there, strict=True):
        assert other["bars"] == answer["bars"]
        assert int(other["total_bytes"]) == answer["total_bytes"]


def test_the_python_lines_plan_the_same(browser):
    states = [one for one in cases(3, FEW) if "error" not in expected(one)][:12]
    for state, answer in zip(states, answers(browser, NAME, states), strict=True):
        names: dict = {}
        exec(answer["call"].partition("print(")[0], names)
        plan = planned(state)
        assert names["plan"].strategies == plan.strategies
        assert answer["call"].endswith(f"print(plan.code({answer['chosen']}))")
        assert max(map(len, answer["call"].splitlines())) <= 72
