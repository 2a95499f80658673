"""The sharding explorer against the package, and as a reader uses it."""

import itertools
import json
import random
import re
from functools import partial
from urllib.parse import urlencode

import jax
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_helpers as spmd
from spmd_helpers._core.words import bytes_words, device_list
from spmd_helpers._drawing import words as drawing_words
from spmd_helpers._shardings.sharding import ShardingInfo, spec_words
from spmd_helpers._widgets import source

from . import widget_harness
from .widget_harness import answers, axe_faults, is_clean, is_noticed, too_small

pytestmark = pytest.mark.long("widgets in a browser, each in hundreds of states")

NAME = "sharding_explorer"
AXES = ("data", "model", "fsdp", "x", "y", "expert")
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int32", "int8", "bool")
CASES = 6000


def cases(seed: int, count: int) -> list[tuple]:
    """(mesh, shape, entries, dtype), of which about a quarter do not fit."""
    draw = random.Random(seed)
    drawn = []
    while len(drawn) < count:
        names = draw.sample(AXES, draw.randint(0, 3))
        mesh = {name: draw.choice((1, 2, 2, 3, 4, 8)) for name in names}
        rank = draw.randint(1, 4)
        pool = [*names, *names, draw.choice(AXES), "modle"]
        bad = draw.random() < 0.25
        entries = []
        left = list(names)
        for _ in range(rank + (bad and draw.random() < 0.2)):
            few = draw.choice((0, 0, 1, 1, 2, 3))
            if bad:
                entry = draw.sample(pool, min(few, len(pool)))
            else:
                draw.shuffle(left)
                entry, left = left[:few], left[few:]
            entries.append(tuple(entry))
        if draw.random() < 0.3:
            entries = entries[: draw.randint(0, len(entries))]
        shape = []
        for dim in range(rank):
            axes = entries[dim] if dim < len(entries) else ()
            blocks = 1
            for axis in axes:
                blocks *= mesh.get(axis, 2)
            step = draw.choice((0, 1, 2, 3, 5, 10**6 if draw.random() < 0.05 else 4))
            shape.append(blocks * step + (bad and draw.random() < 0.4))
        drawn.append((mesh, tuple(shape), tuple(entries), draw.choice(DTYPES)))
    return drawn


def typed(mesh, shape, entries, dtype, device=0) -> dict[str, str]:
    """The state that a reader would type."""
    return {
        "mesh": ", ".join(f"{axis}={size}" for axis, size in mesh.items()),
        "shape": ", ".join(map(str, shape)),
        "spec": spec_words(entries),
        "dtype": dtype,
        "device": str(device),
    }


def expected(mesh, shape, entries, dtype, device=0) -> dict:
    """What the package says of the same sharding."""
    try:
        info = ShardingInfo(shape, dtype, mesh_shape=mesh, entries=entries)
    except spmd.SpecError as error:
        return {"error": str(error)}
    words = drawing_words.say_sharding(info, info)
    facts = list(words.facts)
    if info.device_count > 1:
        times = f", {info.replicas} times the array" if info.replicas > 1 else ""
        total = bytes_words(info.bytes_per_device * info.device_count)
        facts.append(f"all devices together have {total}{times}")
    owners = itertools.islice(info.owners.items(), 64)
    return {
        "title": words.title,
        "facts": facts,
        "sentence": f"{words.title}: {'; '.join(facts)}.",
        "mesh": [list(axis) for axis in info.axes],
        "entries": [list(entry) for entry in info.entries],
        "grid": list(info.grid),
        "shape": list(info.shape),
        "shard": list(info.shard_shape),
        "replicas": info.replicas,
        "replicatedOver": list(info.replicated_over),
        "devices": info.device_count,
        "bytesPerDevice": str(info.bytes_per_device),
        "totalBytes": str(info.total_bytes),
        "blocks": len(info.owners),
        "chosen": chosen(info, device % info.device_count),
        "owners": [
            {
                "block": list(block),
                "slices": ", ".join(f"{a}:{b}" for a, b in info.slices(block)),
                "devices": list(devices),
            }
            for block, devices in owners
        ],
    }


def chosen(info: ShardingInfo, device: int) -> dict:
    """What the package says of one device."""
    block, holders = next(pair for pair in info.owners.items() if device in pair[1])
    where, rest = {}, device
    for axis, size in reversed(info.axes):
        rest, where[axis] = divmod(rest, size)
    place = ", ".join(f"{axis} {where[axis]}" for axis, _ in info.axes)
    slices = ", ".join(f"{a}:{b}" for a, b in info.slices(block))
    others = [one for one in holders if one != device]
    shared = "no other device has it"
    if others:
        word = "devices" if len(others) > 1 else "device"
        shared = f"the same shard is on {word} {device_list(others)}"
    at = f" ({place})" if place else ""
    return {
        "device": device,
        "block": list(block),
        "holders": list(holders),
        "where": where,
        "sentence": f"Device {device}{at} has [{slices}]; {shared}.",
    }


def differences(browser, given, change=None) -> list[tuple]:
    """The states in which browser and package do not say the same."""
    wanted = [expected(*case, number) for number, case in enumerate(given)]
    devices = [want.get("chosen", {"device": 0})["device"] for want in wanted]
    states = [typed(*case, one) for case, one in zip(given, devices, strict=True)]
    differing = []
    widget_answers = answers(browser, NAME, states, change)
    for case, want, answer in zip(given, wanted, widget_answers, strict=True):
        got = {key: answer.get(key) for key in want}
        if got != want or {"error", "stopped"} & (set(answer) - set(want)):
            differing.append((case, got, want))
    return differing


def test_it_says_what_the_package_says(browser):
    given = cases(1, CASES)
    refused = sum("error" in expected(*case) for case in given)
    assert 0.1 < refused / CASES < 0.4
    assert differences(browser, given) == []


MUTANTS = {
    "the first axis runs fastest": (
        "coordinates",
        "[...$mesh].reverse()",
        "[...$mesh]",
    ),
    "nothing is sharded": ("shardingOf", "$size / $grid[$dim]", "$size"),
    "copies over the used axes": (
        "shardingOf",
        "$used.has($axis) ? $n : $n * $size",
        "$n * $size",
    ),
    "the order in a tuple": (
        "blockOf",
        "$number * $sizes[$axis] + $where[$axis]",
        "$number + $sizes[$axis] * $where[$axis]",
    ),
    "anything divides": (
        "checkDivision",
        "if ($size % $blocks === 0) return;",
        "return;",
    ),
    "an axis twice": ("checkAxes", "if ($axis in $seen)", "if ($axis in {})"),
    "a half rounded up": ("fixedWords", "&& $whole % 2n === 1n", ""),
    "no replicas": ("shardingOf", "$n > 1 && !$used.has($a)", "$n > 1"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_module_is_noticed(browser, mutant):
    differ = partial(differences, browser, change=MUTANTS[mutant])
    assert is_noticed(differ, cases(2, 1200))


def test_the_package_says_what_jax_does():
    """The oracle of the oracle, on some of the same cases: JAX's own index maps."""
    devices = jax.devices()[:8]
    compared = 0
    for mesh, shape, entries, dtype in cases(3, 300):
        want = expected(mesh, shape, entries, dtype)
        if "error" in want or not mesh or want["devices"] != 8 or 0 in shape:
            continue
        compared += 1
        real = jax.make_mesh(
            tuple(mesh.values()),
            tuple(mesh),
            devices=devices,
            axis_types=(jax.sharding.AxisType.Auto,) * len(mesh),
        )
        places = list(real.devices.flat)
        index_map = NamedSharding(real, P(*entries)).devices_indices_map(shape)
        for owner in want["owners"]:
            spans = [tuple(map(int, s.split(":"))) for s in owner["slices"].split(", ")]
            for device in owner["devices"]:
                at = [
                    s.indices(n)[:2]
                    for s, n in zip(index_map[places[device]], shape, strict=True)
                ]
                assert at == spans
    assert compared >= 10


# What a person types.

ODD = {
    "mesh": ("data", "data=", "data=0", "data=-2", "data=2.5", "data=two", "=4", "2=4")
    + ("data=2, data=2", "a=2, b=2, c=2, d=2", "data=99999999", "data=2 model=4", ",")
    + ("x" * 200, "data=٣", "data=1e3", "{'data': 'x'}", "data==2", "data=2;model=4"),
    "shape": (
        "",
        "eight",
        "8, -16",
        "8.5",
        "8,,16",
        "1, 2, 3, 4, 5",
        "9" * 16,
        "8 x 16",
    )
    + ("NaN", "Infinity", "1e3", "(8", "-0.0", "٨", "8, None", "0x8"),
    "spec": ("P(", "P('data'", "P(data model)", "P(('data', 'model')", "P(1)", "P(,)")
    + ("P('data'))", "P((('data',),))", "P('nope')", "None, None, None", "P(-)", "🙂")
    + ("P('data', 'data')", "'", "P('data'.)", "P(('data', None))", "P(()())"),
    "dtype": ("float31", "", "constructor", "__proto__"),
}


@pytest.mark.parametrize("key", ODD)
def test_bad_input_gets_a_sentence(browser, key):
    for text, answer in zip(
        ODD[key],
        answers(browser, NAME, [{key: text} for text in ODD[key]]),
        strict=True,
    ):
        assert set(answer) == {"error"}, text
        assert is_clean({"error": answer["error"].replace(f"“{text}”", "")}), answer
        assert len(answer["error"]) > 30, answer
        assert answer["error"].endswith((".", "?")), answer


@pytest.mark.parametrize(
    ("state", "entries"),
    [
        ({"spec": 'P("data", None)'}, [["data"], []]),
        ({"spec": "data, model"}, [["data"], ["model"]]),
        ({"spec": "(('data', 'model'), None)"}, [["data", "model"], []]),
        ({"spec": "('data', 'model'), None"}, [["data", "model"], []]),
        ({"spec": "('data',), ('model',)"}, [["data"], ["model"]]),
        ({"spec": "PartitionSpec(None, 'model',)"}, [[], ["model"]]),
        ({"spec": ""}, [[], []]),
        ({"spec": "P()"}, [[], []]),
        ({"spec": "P((), 'model')"}, [[], ["model"]]),
        ({"spec": "P(['data', 'model'])"}, [["data", "model"], []]),
        ({"spec": "['data', None]"}, [["data"], []]),
        ({"spec": "jax.sharding.PartitionSpec('data')"}, [["data"], []]),
        ({"spec": "jax.P(None, ['data'])"}, [[], ["data"]]),
        ({"mesh": "{'data': 2, 'model': 4}"}, [["data"], ["model"]]),
        ({"mesh": "data:2 , model : 4"}, [["data"], ["model"]]),
        ({"shape": "(8, 16)"}, [["data"], ["model"]]),
        ({"shape": "8 × 16"}, [["data"], ["model"]]),
        ({"device": "99"}, [["data"], ["model"]]),
    ],
)
def test_what_can_be_meant_is_taken(browser, state, entries):
    (answer,) = answers(browser, NAME, [state])
    assert answer["entries"] == entries
    assert answer["devices"] == 8


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"spec": "P('data', 'model"}, "has a bracket that is not closed; add ) at"),
        ({"spec": "P(['data', 'model'"}, "add ]) at its end"),
        ({"spec": "P('data'))"}, "closes a bracket with ) that is not open"),
        ({"spec": "P(('data', 'model'])"}, "closes a bracket with ] that is not open"),
        ({"spec": "P('data', 'model)"}, "a quote at one side of model only"),
        ({"spec": "P(data', None)"}, "write 'data'"),
        ({"spec": "P('None')"}, "the mesh has no axis 'None'"),
        ({"mesh": "None=8", "spec": "P('None')"}, "give the axis another name"),
        ({"mesh": "x=8", "spec": "P('q')"}, "its only axis is 'x' (8). Use it, or"),
        ({"spec": "P(('data', 'data'))"}, "'data' twice for dimension 0; an axis"),
    ],
)
def test_the_sentence_has_the_remedy(browser, state, words):
    (answer,) = answers(browser, NAME, [state])
    assert words in answer["error"]


def test_a_large_mesh_is_not_counted_device_by_device(browser):
    """65,536 devices: as large as it takes, with blocks beyond those listed."""
    state = typed({"a": 32, "b": 32, "c": 64}, (64, 64, 128), (("a",), ("b",)), "int8")
    (answer,) = answers(browser, NAME, [state])
    want = expected(
        {"a": 32, "b": 32, "c": 64}, (64, 64, 128), (("a",), ("b",)), "int8"
    )
    assert {key: answer[key] for key in want} == want


def test_the_code_draws_the_same(browser, monkeypatch):
    given = [c for c in cases(5, 150) if "error" not in expected(*c) and 0 not in c[1]]
    given = [c for c in given if expected(*c)["devices"] <= 8][:40]
    devices = jax.devices()
    monkeypatch.setattr(spmd, "use_devices", lambda n: devices[:n], raising=False)
    for case, answer in zip(
        given, answers(browser, NAME, [typed(*c) for c in given]), strict=True
    ):
        lines = answer["code"].splitlines()
        names: dict = {}
        exec("\n".join(lines[:-1]), names)
        text = str(eval(lines[-1], names))
        assert answer["title"] in text
        info = spmd.sharding(case[1], P(*case[2]), mesh=names["mesh"], dtype=case[3])
        assert list(info.shard_shape) == answer["shard"]


# In a page.


class Opened(widget_harness.Opened):
    name = NAME


def test_it_begins_with_an_answer(context):
    opened = Opened(context)
    assert "per device: (4, 4), 64 B of 512 B" in opened.said
    pressed = opened.page.locator('[aria-pressed="true"]')
    assert pressed.count() == 1
    assert "device 5" in pressed.inner_text()
    assert opened.errors == []


def test_with_a_mouse(context):
    opened = Opened(context)
    page = opened.page
    page.get_by_label("Replicated").check()
    assert "8 replicas of the array" in opened.said
    page.get_by_label("Dimension 1 over").select_option("model,data")
    assert "P(None, ('model', 'data'))" in opened.said
    assert (
        page.get_by_label("PartitionSpec").input_value() == "P(None, ('model', 'data'))"
    )
    page.locator("[data-key=device-3]").click()
    assert (
        "Device 3 (data 0, model 3) has" in page.locator(".spmd-w-chosen").inner_text()
    )
    assert page.evaluate("document.activeElement.dataset.key") == "device-3"
    page.get_by_text("The same as a table").click()
    assert page.locator(".spmd-w-words tbody tr").count() == 8
    page.get_by_role("button", name="Reset").click()
    assert "P('data', 'model')" in opened.said
    assert opened.errors == []


def test_with_the_keyboard_alone(context):
    opened = Opened(context)
    page = opened.page
    press = page.keyboard.press
    press("Tab")
    assert page.evaluate("document.activeElement.type") == "radio"
    press("ArrowDown")
    assert "P('data', None)" in opened.said
    ring = "parseFloat(getComputedStyle(document.activeElement).outlineWidth)"
    stops, in_mesh = [], 0
    for _ in range(14):
        press("Tab")
        assert page.evaluate(ring) >= 2
        key = page.evaluate("document.activeElement.dataset.key || ''")
        stops.append(
            key or page.evaluate("document.activeElement.textContent.slice(0, 20)")
        )
        if key.startswith("device-"):
            in_mesh += 1
            press("ArrowUp")
            press("ArrowRight")
            assert page.evaluate("document.activeElement.dataset.key") == "device-2"
            press("End")
            press("ArrowDown")
            press("Space")
            assert "Device 7" in page.locator(".spmd-w-chosen").inner_text()
            assert page.evaluate("document.activeElement.dataset.key") == "device-7"
    assert in_mesh == 1, stops
    assert [s for s in stops if s in ("mesh", "shape", "spec", "dtype")] == [
        *("mesh", "shape", "dtype", "spec")
    ]
    for name in ("Reset", "Copy link", "Copy code"):
        assert any(name in stop for stop in stops), stops
    assert opened.errors == []


def test_typing_keeps_the_place_and_an_error_keeps_the_picture(context):
    opened = Opened(context)
    page = opened.page
    before = page.locator(".spmd-w-picture").inner_html()
    page.get_by_label("PartitionSpec").fill("P('data', 'data')")
    wrong = page.locator(".spmd-w-error")
    assert "uses the mesh axis 'data' for dimension 0 and again" in wrong.inner_text()
    assert page.locator(".spmd-w-picture").inner_html() == before
    page.wait_for_timeout(500)
    assert page.get_by_role("status").inner_text() == wrong.inner_text().removeprefix(
        "✕ "
    )
    page.get_by_label("Shape of the array").fill("8, 16, 4")
    page.get_by_label("Shape of the array").press("End")
    page.keyboard.type("0")
    assert page.get_by_label("Shape of the array").input_value() == "8, 16, 40"
    assert page.evaluate("document.activeElement.dataset.key") == "shape"
    page.get_by_label("PartitionSpec").fill("P('data')")
    assert not wrong.is_visible()
    assert page.get_by_label("Dimension 2 over").is_visible()
    assert opened.errors == []


def test_a_change_is_announced_once(context):
    page = Opened(context).page
    page.evaluate(
        """() => { window.heard = []; new MutationObserver(() => heard.push(
        document.querySelector('[role=status]').textContent)).observe(
        document.querySelector('[role=status]'), {childList: true}); }"""
    )
    page.get_by_label("Mesh", exact=True).fill("")
    page.get_by_label("Mesh", exact=True).press_sequentially("data=2, model=4", delay=5)
    page.wait_for_timeout(900)
    assert len(page.evaluate("heard")) == 1
    assert page.locator("[aria-live], [role=status], [role=alert]").count() == 1


def test_a_device_is_no_part_of_a_preset(context):
    page = Opened(context).page
    status = page.get_by_role("status")
    page.locator("[data-key=device-3]").click()
    assert page.get_by_label("Two axes").is_checked()
    page.wait_for_timeout(600)
    chosen = page.locator(".spmd-w-chosen").inner_text()
    assert status.text_content() == chosen.replace("\xa0", " ")
    page.get_by_label("Replicated").check()
    page.locator("[data-key=device-6]").click()
    page.wait_for_timeout(600)
    assert status.text_content().startswith("float32[8, 16] as P(None, None)")
    page.locator("[data-key=device-7]").click()
    page.wait_for_timeout(600)
    assert status.text_content().startswith("Device 7 ")


def test_what_is_copied(context):
    page = Opened(context).page
    page.evaluate(
        """() => { window.kept = []; window.works = true;
        const writeText = async (text) => {
          if (!works) throw new Error("no"); kept.push(text); };
        Object.defineProperty(navigator, "clipboard", {value: {writeText}});
        document.execCommand = () => false; }"""
    )
    button = page.get_by_role("button", name="Copy code")
    notice = page.locator(".spmd-w-seen")
    place = "document.querySelector('figcaption').getBoundingClientRect().top + scrollY"
    before = page.evaluate(place)
    assert not notice.is_visible()
    button.click()
    assert notice.inner_text() == "Code copied."
    assert page.evaluate(place) == before
    assert page.evaluate("kept")[0].startswith("import jax")
    notice.wait_for(state="hidden", timeout=8000)
    page.get_by_label("PartitionSpec").fill("P('data'")
    assert button.is_disabled()
    dimmed = "parseFloat(getComputedStyle(document.querySelector('pre')).opacity)"
    assert page.evaluate(dimmed) < 1
    page.get_by_label("PartitionSpec").fill("P('data')")
    assert button.is_enabled()
    page.evaluate("works = false")
    page.get_by_role("button", name="Copy link").click()
    words = "Link could not be copied; select it in the address bar."
    assert notice.inner_text() == words
    assert page.get_by_role("status").text_content() == words
    assert page.evaluate("document.getAnimations().length") == 0


@pytest.mark.parametrize(
    "spec", ["P('data', P.UNCONSTRAINED)", "jax.P(UNCONSTRAINED)", "P.UNCONSTRAINED"]
)
def test_an_unconstrained_dimension_is_refused_as_in_python(browser, spec):
    unconstrained = jax.P("data", jax.P.UNCONSTRAINED)
    with pytest.raises(spmd.NotUnderstood) as raised:
        spmd.sharding((8, 4), unconstrained, mesh={"data": 4})
    words = str(raised.value).partition(": ")[2]
    quoted = {"mesh": "UNCONSTRAINED=2", "spec": "P('UNCONSTRAINED')", "shape": "8"}
    said, known = answers(browser, "sharding_explorer", [{"spec": spec}, quoted])
    assert said["error"] == f"spec: {words}"
    assert not known.get("error")


def test_back_undoes_what_a_control_did(context):
    opened = Opened(context)
    page = opened.page
    said = [opened.said]
    page.locator("input[type=radio]:not(:checked)").first.check()
    said.append(opened.said)
    page.get_by_label("PartitionSpec").fill("")
    page.get_by_label("PartitionSpec").press_sequentially("P(None, None)")
    said.append(opened.said)
    queries = [opened.query()]
    assert len(set(said)) == 3
    for words in (said[1], said[0]):
        page.go_back()
        assert opened.said == words
        assert page.get_by_role("status").text_content().replace("\xa0", " ") == words
        queries.append(opened.query())
    assert queries[-1] == {}
    page.go_forward()
    page.go_forward()
    assert opened.said == said[2]
    assert opened.query() == queries[0]
    assert page.get_by_label("PartitionSpec").input_value() == "P(None, None)"
    page.evaluate("location.hash = '#elsewhere'")
    page.go_back()
    assert opened.said == said[2]
    assert opened.errors == []


def test_a_link_holds_the_state(context):
    opened = Opened(context, "?other=1&se.spec=P(None)")
    page = opened.page
    length = page.evaluate("history.length")
    for shape in ("4, 8", "16, 8", "2, 4, 8"):
        page.get_by_label("Shape of the array").fill(shape)
        page.get_by_label("Mesh", exact=True).fill("a=2, b=2, c=2")
    page.get_by_label("PartitionSpec").fill("P('a', ('b', 'c'))")
    page.get_by_label("Element type").select_option("bfloat16")
    page.locator("[data-key=device-6]").click()
    query = opened.query()
    assert query == {
        "other": "1",
        "se.mesh": "a=2, b=2, c=2",
        "se.shape": "2, 4, 8",
        "se.spec": "P('a', ('b', 'c'))",
        "se.dtype": "bfloat16",
        "se.device": "6",
    }
    assert page.evaluate("history.length") == length + 6  # as often as it was another
    again = Opened(context, f"?{urlencode(query)}")
    figure = "document.querySelector('figure').innerHTML"
    clean = [
        re.sub(r' (?:checked|selected|value|open)="[^"]*"', "", p.evaluate(figure))
        for p in (page, again.page)
    ]
    assert again.said == opened.said
    assert (
        again.page.locator(".spmd-w-picture").inner_html().count("spmd-w-device") == 8
    )
    assert len(clean[0]) > 1000
    again.page.get_by_role("button", name="Reset").click()
    assert again.query() == {"other": "1"}


def test_picture_table_and_code_say_what_the_sentence_says(context):
    """A dozen random states, read back from the page as a reader sees it."""
    fits = [c for c in cases(11, 400) if c[0] and "error" not in expected(*c)]
    small = [c for c in fits if max(expected(*c)["grid"] + list(c[0].values())) <= 8]
    for case in small[:12]:
        opened = Opened(context, f"?{urlencode(linked(case))}")
        page, want = opened.page, expected(*case)
        assert opened.said == want["sentence"]
        rows = page.locator(".spmd-w-words tbody tr").evaluate_all(
            "rows => rows.map(r => [...r.cells].map(c => c.textContent))"
        )
        assert rows == [
            [f"[{o['slices']}]", device_list(o["devices"]), str(len(o["devices"]))]
            for o in want["owners"]
        ]
        assert spec_words(map(tuple, want["entries"])) in want["title"]
        code = page.locator(".spmd-w pre code").inner_text().replace('"', "'")
        assert spec_words(case[2]) in code
        slices = {d: o["slices"] for o in want["owners"] for d in o["devices"]}
        for button in page.locator("button.spmd-w-device").all():
            words = re.sub("^▸", "", button.inner_text()).split()
            device = int(words[1].partition("[")[0])
            assert slices[device] in button.inner_text()
        assert opened.errors == []
        page.close()


def linked(case) -> dict[str, str]:
    return {f"se.{key}": text for key, text in typed(*case).items()}


MALFORMED = [
    "?se.nothing=1",
    "?se.dtype=float31",
    "?se.dtype=__proto__",
    "?se.__proto__=1",
    "?se.constructor=x",
    f"?se.mesh={'a' * 300}",
    "?se.mesh=%00",
    "?se.spec=%ud800&se.shape=%ff",
    "?se.=&se",
    "?se.toString=1",
    "?&&&=&=",
    "?se.shape=<img src=x onerror=alert(1)>",
    "?se.mesh=<script>alert(1)</script>",
    "?se.spec=P('data')&se.spec=P('x')",
    "?se.device=-1",
    "?se.device=1e9",
    "?se.shape=99999999999999999999",
    "?se.mesh=data%3D2%0Amodel%3D4",
    "?se.shape=" + "1," * 90,
    "?SE.SHAPE=4",
]


def test_a_malformed_link_does_no_harm(context):
    for query in MALFORMED:
        opened = Opened(context, query)
        page = opened.page
        assert opened.errors == [], query
        assert page.locator(".spmd-w-radios input").count() == 5
        text = page.locator("figure").inner_text()
        assert not re.search("NaN|undefined|Infinity|object Object", text), query
        page.get_by_role("button", name="Reset").click()
        assert "64 B of 512 B" in opened.said
        page.close()
    opened = Opened(context, "?se.nothing=1&se.dtype=float31")
    assert (
        "2 settings in the link were not understood."
        in opened.page.get_by_role("status").inner_text()
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(context, theme):
    opened = Opened(context)
    page = opened.page
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    states = ["Replicated", "Two axes", "Both on one dimension"]
    for name in states:
        page.get_by_label(name).check()
        faults = axe_faults(page)
        if theme == "dark":  # the page itself has no dark ground here
            faults = [one for one in faults if one[0] != "color-contrast"]
        assert faults == []


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_it_fits_and_can_be_touched(context, width):
    opened = Opened(context)
    page = opened.page
    page.set_viewport_size({"width": width, "height": 800})
    page.get_by_label("Mesh", exact=True).fill("expert=2, fsdp=8, model=8")
    page.get_by_label("Shape of the array").fill("64, 64, 64")
    page.get_by_label("PartitionSpec").fill("P('expert', ('fsdp', 'model'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert too_small(page, width) == []


# In a notebook.


def test_the_widget_takes_what_sharding_takes():
    mesh = AbstractMesh((2, 4), ("data", "model"))
    explorer = spmd.ShardingExplorer(
        (6, 8), NamedSharding(mesh, P(None, ("data", "model")))
    )
    assert explorer.state == typed(
        {"data": 2, "model": 4}, (6, 8), ((), ("data", "model")), "float32"
    )
    assert spmd.ShardingExplorer().state == {}
    with pytest.raises(spmd.NotUnderstood, match="1 to 4 dimensions"):
        spmd.ShardingExplorer((), P(), mesh={"x": 2})
    on_mesh = NamedSharding(mesh, P("data"))
    for error, given, its_mesh in (
        (spmd.NotDivisible, ((3,), P("x")), {"x": 2}),
        (spmd.MeshMismatch, ((6, 8), on_mesh), {"x": 2}),
    ):
        with pytest.raises(error) as refused:
            spmd.ShardingExplorer(*given, mesh=its_mesh)
        assert len(refused.traceback) == 2  # this line, and the one that raises


EXPORTED = """async (source) => {
  const url = URL.createObjectURL(new Blob([source], {type: "text/javascript"}));
  return Object.keys(await import(url));
}"""
MODEL = """async (given) => {
  const [source, state] = given;
  const url = URL.createObjectURL(new Blob([source], {type: "text/javascript"}));
  const { default: widget } = await import(url);
  const listeners = [];
  window.model = {
    held: { state },
    get(key) { return this.held[key]; },
    set(key, value) { this.held[key] = value; },
    save_changes() { this.saved = (this.saved || 0) + 1; },
    on(what, f) { listeners.push(f); },
    off() {},
    hear() { listeners.forEach(f => f()); },
  };
  const el = document.createElement("div");
  document.body.append(el);
  widget.render({ model: window.model, el });
}"""


def test_one_module_as_anywidget_takes_it(context):
    page = context.new_page()
    page.goto("about:blank")
    state = {"spec": "P('model', None)"}
    page.evaluate(MODEL, [source.module(NAME), state])
    said = page.locator(".spmd-w-said")
    assert "P('model', None)" in said.inner_text()
    assert page.get_by_role("button", name="Copy link").count() == 0
    page.get_by_label("Replicated").check()
    kept_state = page.evaluate("model.held.state")
    assert kept_state["spec"] == "P(None, None)"
    assert page.evaluate("model.saved") == 1
    page.evaluate(
        "model.held.state = {...model.held.state, shape: '4, 4'}; model.hear()"
    )
    assert "float32[4, 4]" in said.inner_text()
    assert json.loads(json.dumps(kept_state)) == kept_state


@pytest.mark.parametrize("name", source.WIDGETS)
def test_each_widget_is_one_module(context, name):
    module = source.module(name)
    page = context.new_page()
    addresses = []
    page.on("request", lambda request: addresses.append(request.url))
    page.goto("about:blank")
    assert page.evaluate(EXPORTED, module) == ["default"]
    assert all(url.startswith(("about:", "blob:")) for url in addresses)
    page.evaluate(MODEL, [module, {}])
    said = page.locator(".spmd-w-said").inner_text()
    assert len(said) > 40
    page.locator(".spmd-w-radios input").last.check()
    assert page.locator(".spmd-w-said").inner_text() != said
    assert page.evaluate("Object.keys(model.held.state).length") > 3
