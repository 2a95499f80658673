"""The matmul explorer of the page against `matmul`, state by state, and its page."""

import contextlib
import io
import re
import warnings
from functools import partial
from pathlib import Path

import pytest

import spmd_helpers as spmd
from spmd_helpers._widgets import source
from tests.matmul.matmul_oracle import BAD, DEFAULTS, cases
from tests.matmul.test_matmul import in_use

from . import widget_harness
from .widget_harness import answers, axe_faults, is_clean, is_noticed

pytestmark = pytest.mark.long("widgets in a browser, each in hundreds of states")

ROOT = Path(__file__).resolve().parents[2]
NAME = "matmul_explorer"
CASES = 6000


def differences(browser, given, change=None):
    """The states of which browser and package do not say the same."""
    got = answers(browser, NAME, [state for state, _ in given], change)
    differing = []
    for (state, want), answer in zip(given, got, strict=True):
        answer.pop("code", None)
        if "error" in want:
            same = list(answer) == ["error"] and answer["error"].startswith(
                want["error"]
            )
        else:
            same = answer == want
        if not same:
            differing.append((state, answer, want))
    return differing


def test_it_says_what_the_package_says(browser):
    given = cases(1, CASES)
    wants = [want for _, want in given]
    refused = sum("error" in want for want in wants)
    assert 0.1 < refused / CASES < 0.3
    worked = [want for want in wants if "moves" in want]
    assert len(worked) > CASES / 3
    assert sum(int(w["flopsPerDevice"]) > 2**53 for w in worked) > 20
    assert len({tuple(m["kind"] for m in w["moves"]) for w in worked}) > 10
    differing = differences(browser, given)
    assert differing == [], differing[0]


def test_nothing_odd_is_shown(browser):
    for answer in answers(browser, NAME, [state for state, _ in cases(2, 1500)]):
        assert is_clean(answer), answer


def test_every_key_takes_bad_input(browser):
    texts = sorted({text for _, text, _ in BAD} | {"  ", "__proto__", "<b>", "1" * 200})
    states = [{key: text} for key in DEFAULTS for text in texts]
    for state, answer in zip(states, answers(browser, NAME, states), strict=True):
        assert "stopped" not in answer, (state, answer)
        assert is_clean(answer)
        if "error" in answer:
            assert answer["error"].endswith((".", "?")), answer


MUTANTS = {
    "the larger is gathered": ("mmGathersA", "<", ">"),
    "a tie gathers A": ("mmGathersA", "<", "<="),
    "a tie adds up": ("mmGathersOneSided", "<=", "<"),
    "an all-reduce sends once": ("mmMove", "mmRound(2n * $put", "mmRound($put"),
    "a gather sends all": (
        "mmMove",
        '"all-gather") $sent = mmRound($got * ($n - 1n), $n);',
        '"all-gather") $sent = $got;',
    ),
    "an idle axis takes nothing": (
        "mmUseIdleAxis",
        "$work.mesh[$large] % $work.mesh[$small]",
        "!($work.mesh[$large] % $work.mesh[$small])",
    ),
    "sums always stay in parts": (
        "mmFinish",
        '($axis) => $target[$axis] !== "-"',
        '($axis) => $target[$axis] === "-"',
    ),
    "gathers forget what follows": ("mmBring", "$held[$dims[$i]] *= $times;", ""),
    "an entry keeps its last axes": ("mmNatural", "$gone = $gone ||", "$gone ="),
    "two FLOPs are one": ("matmulFlops", "2n", "1n"),
    "a wish for anything is known": ("mmCheckWish", "$names.length < 2", "true"),
    "regions always meet": ("sharedPart", "$first < $end", "true"),
    "a slice is no stage": (
        "mmAtMultiply",
        '!== $before) mmNote($work, "slice");',
        "!== $before) ;",
    ),
    "a gathered axis stays": ("mmDrop", "!$axes.includes($x)", "true"),
    "all devices send": (
        "groupOf",
        "$axes.includes($axis) ? [",
        "true ? [",
    ),
    "the order of J is free": ("mmSameOrder", "$left.join() === $right.join()", "true"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_module_is_noticed(browser, mutant):
    differ = partial(differences, browser, change=MUTANTS[mutant])
    assert is_noticed(differ, cases(3, 1200))


def test_the_code_shows_the_same(browser):
    """A few states on eight devices, compiled by the code as it stands."""
    given = [
        (state, want)
        for state, want in cases(4, 1500)
        if "moves" in want
        and want["a"]["devices"] == 8
        and all(n > 1 for n in want["block"])
        and state["dtype"] == "float32"
    ][:24]
    assert len(given) == 24
    got = answers(browser, NAME, [state for state, _ in given])
    for (state, _), answer in zip(given, got, strict=True):
        assert max(map(len, answer["code"].splitlines())) <= 72
        names: dict = {}
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(answer["code"], names)
        report, mesh = names["report"], dict(answer["mesh"])
        compiled = [(c.kind, list(c.axes), c.result_bytes) for c in report.collectives]
        predicted = [(m["kind"], m["axes"], int(m["got"])) for m in answer["moves"]]
        assert sorted(compiled) == sorted(predicted), state
        assert list(report.idle_axes) == answer["idleAxes"]
        assert report.redundancy == answer["redundancy"]
        assert report.flops_per_device == int(answer["flopsPerDevice"])
        predicted = tuple(tuple(entry) for entry in answer["c"]["entries"])
        compiled = report.output_shardings.entries
        assert in_use(compiled, mesh) == in_use(predicted, mesh)


def test_the_first_picture_and_the_presets(browser):
    presets = {
        "No communication (case 1)": [],
        "All-reduce (case 2)": ["all-reduce"],
        "All-gather (case 3)": ["all-gather"],
        "All-gather, one axis twice (case 4)": ["all-gather"],
        "Reduce-scatter": ["reduce-scatter"],
        "Misplaced weight: all-gather": ["all-gather"],
        "Idle axis: redundant work": ["collective-permute", "all-gather"],
    }
    with shown(browser) as page:
        for name, kinds in presets.items():
            page.get_by_label(name, exact=True).check()
            said = page.locator(".spmd-w-said").inner_text()
            for kind in kinds or ["no communication"]:
                assert kind in said
            assert page.locator(".spmd-mm-steps li").count() == 4
            assert page.locator(".spmd-mm-how + .spmd-mm-steps").count() == 1
        notes = page.locator(".spmd-mm-notes").inner_text()
        assert "Claim 9: the product is not sharded over data, so 25 %" in notes
        page.get_by_label("Misplaced weight").check()
        assert "Claim 8" in page.locator(".spmd-mm-notes").inner_text()
        page.get_by_role("button", name="Reset").click()
        assert "all-reduce of C over model" in page.locator(".spmd-w-said").inner_text()
        assert page.locator(".spmd-mm-product table.spmd-w-grid").count() == 3


def menu(page, key):
    options = page.locator(f"[data-key={key}] option")
    return options.evaluate_all("all => all.map(one => one.value)")


def test_the_menu_of_c_has_what_is_covered(browser):
    with shown(browser) as page:
        offered = menu(page, "c")
        assert set(offered) > {"", "P('data', 'model')"}
        everything = menu(page, "a")
        mesh = {"data": 4, "model": 2}
        covered = [""]
        for text in everything:
            out = eval(text, {"P": lambda *entries: entries})
            try:
                product = spmd.matmul(
                    (48, 40, 24), ("data", "model"), ("model",), mesh=mesh, out=out
                )
            except spmd.NotDivisible:
                continue
            covered += [] if product.why_not else [text]
        assert sorted(offered) == sorted(covered)
        assert len(covered) < len(everything)
        for text in covered:
            page.locator("[data-key=c]").select_option(text)
            assert page.locator(".spmd-mm-steps li").count() == 4
            assert page.locator(".spmd-mm-uncovered").count() == 0


def test_what_is_not_covered_is_one_paragraph(browser):
    query = "?mm.mesh=x=2,y=2,z=2&mm.a=P(None,'x')&mm.b=P('y',None)"
    with shown(browser, query) as page:
        assert page.locator(".spmd-mm-steps li").count() == 1
        assert page.locator(".spmd-mm-bar").count() == 0
        words = page.locator(".spmd-mm-uncovered").inner_text()
        assert words == (
            "This page's rule does not cover it: of three axes or more it knows those "
            "that shard rows of A or columns of B, and beside them one that shards J "
            "of both, or two dimensions of which one is J. Copy the code below; "
            "spmd.xray shows what the compiler does."
        )
        assert page.get_by_role("button", name="Copy code").is_enabled()
        assert "not worked out" not in page.inner_text("figure")
        assert page.locator("thead th", has_text="at the multiply").count() == 0


def test_what_is_named_is_linked(browser):
    with shown(browser) as page:
        page.get_by_label("Misplaced weight").check()
        links = "all => all.map(a => [a.textContent, a.getAttribute('href')])"
        links = page.locator("figure a").evaluate_all(links)
    assert ["Claim 8", "claims.html#claim-8"] in links
    for words, address in links:
        page, _, anchor = address.partition("#")
        if not page:  # a player further down
            target = (ROOT / "book" / "matmul_explorer.md").read_text("utf8")
            assert f"{{player}} {anchor.removeprefix('play-')}\n" in target
            continue
        kind = ".ipynb" if page.startswith("../notebooks/") else ".md"
        target = ROOT / "book" / page.replace(".html", kind)
        assert target.exists(), words
        assert not anchor or f"(#{anchor})" in target.read_text("utf8")


class Opened(widget_harness.Opened):
    name = NAME


@contextlib.contextmanager
def shown(browser, query="", **options):
    """A page with the explorer, which must not complain."""
    with contextlib.closing(browser.new_context(**options)) as context:
        opened = Opened(context, query)
        yield opened.page
        assert opened.errors == []
        body = opened.page.inner_text("body")
        assert not re.search(r"NaN|undefined|Infinity|\bnull\b", body)


def test_bad_input_gets_a_sentence_and_the_picture_stays(browser):
    with shown(browser) as page:
        page.get_by_text("Change it yourself").click()
        for label, text, words in [
            ("I, rows of A", "50", "make it 48 or 52"),
            ("J, summed over", "-4", "J: “-4” is not a size"),
            ("PartitionSpec of A", "P('data', 'data')", "A: sharding="),
            ("PartitionSpec of B", "P('modle')", "Did you mean"),
            ("Mesh", "data=x", "mesh: the size of data"),
        ]:
            field = page.get_by_label(label, exact=True)
            before = field.input_value()
            field.fill(text)
            assert words in page.locator(".spmd-w-error").inner_text()
            assert page.locator(".spmd-mm-product table.spmd-w-grid").count() == 3
            assert "spmd-w-refused" in page.locator("figure").get_attribute("class")
            field.fill(before)
            assert page.locator(".spmd-w-error").is_hidden()


def test_by_keyboard_only(browser):
    with shown(browser) as page:
        reached = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            focus = page.evaluate(
                "() => { const e = document.activeElement; return [e.tagName,"
                " e.dataset.key || e.textContent.slice(0, 20),"
                " parseFloat(getComputedStyle(e).outlineWidth)]; }"
            )
            if focus[0] == "BODY":
                break
            reached.add(focus[1])
            assert focus[2] >= 2, focus
        assert reached >= {"mesh", "a", "b", "c", "Reset", "Copy link", "Copy code"}
        page.keyboard.press("Tab")
        page.locator("input[type=radio]:checked").focus()
        page.keyboard.press("ArrowLeft")
        assert "no communication" in page.locator(".spmd-w-said").inner_text()
        page.locator("[data-key=c]").focus()
        page.keyboard.type("P(None, None)")
        assert "all-gather of C" in page.locator(".spmd-w-said").inner_text()
        page.wait_for_timeout(500)
        status = page.locator("[role=status]").inner_text()
        assert status == page.locator(".spmd-w-said").inner_text().replace("\xa0", " ")


def colored(page, name):
    """The devices whose shards of a matrix are lit, by what is said of the light."""
    return (
        page.locator(".spmd-mm-product table")
        .nth("ABC".index(name))
        .evaluate(
            """table => [...table.querySelectorAll('.spmd-w-cell')].flatMap(cell => [
          ...cell.querySelectorAll('.spmd-mm-fill')].map(fill => [
            cell.querySelector('.spmd-mm-who').innerText.split('\\n')[0],
            fill.className.match(/spmd-mm-(own|came|partial|again)/)[1]]))"""
        )
    )


def test_a_device_is_followed(browser):
    with shown(browser, "?mm.a=P('data',None)&mm.b=P('data',None)") as page:
        words = page.locator(".spmd-mm-sentence")
        assert words.inner_text() == (
            "Before. Device 5 has A[24:36, 0:40] and B[20:30, 0:24]."
        )
        assert colored(page, "A") == colored(page, "B") == [["4, 5", "own"]]
        assert colored(page, "C") == []
        page.locator("[data-key=device-2]").click()
        assert colored(page, "A") == [["2, 3", "own"]]
        page.get_by_role("button", name="Step").click()
        assert "All-gather of B over data" in words.inner_text()
        assert colored(page, "B") == [
            ["0, 1", "came"],
            ["2, 3", "own"],
            ["4, 5", "came"],
            ["6, 7", "came"],
        ]
        sends = page.locator(".spmd-mm-source").all_inner_texts()
        assert [text.split()[1] for text in sends] == ["0", "4", "6"]
        page.get_by_role("button", name="Step").click()
        assert colored(page, "C") == [["2, 3", "own"], ["2, 3", "again"]]
        assert page.get_by_role("button", name="Step").is_disabled()
        assert page.locator(".spmd-mm-bar").inner_text().endswith("2 of 2")
        assert page.locator(".spmd-mm-all li").count() == 3
        page.wait_for_timeout(500)
        assert page.locator("[role=status]").inner_text() == words.inner_text()
        page.get_by_label("All-reduce (case 2)").check()
        assert page.locator(".spmd-mm-bar").inner_text().endswith("0 of 2")
        page.get_by_role("button", name="Step").click()
        assert colored(page, "C") == [["4, 5", "partial"]]
        page.get_by_role("button", name="Step").click()
        assert colored(page, "C") == [["4, 5", "own"]]


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_it_plays_to_the_end(browser, motion):
    with shown(browser, "?mm.c=P(None,None)", reduced_motion=motion) as page:
        bar = page.locator(".spmd-mm-bar")
        play = bar.locator("button").first
        page.clock.install(time=0)
        page.clock.pause_at(1)
        play.click()
        for at in (1, 2, 3):
            assert bar.inner_text().endswith(f"{at} of 3")
            assert (play.inner_text() == "❚❚ Pause") == (at < 3)
            page.clock.run_for(1700)
        assert play.inner_text() == "↺ Again"
        assert page.evaluate("document.activeElement.dataset.key") == "mm-play"
        assert page.locator(".spmd-mm-flying").count() == 0 or motion != "reduce"
        play.press("Home")
        assert bar.inner_text().endswith("0 of 3")
        for key, at in [("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)]:
            page.keyboard.press(key)
            assert bar.inner_text().endswith(f"{at} of 3")
        page.keyboard.press("End")
        assert bar.inner_text().endswith("3 of 3")
        play.click()  # again, from the beginning
        assert bar.inner_text().endswith("0 of 3")
        page.clock.run_for(1700)
        assert bar.inner_text().endswith("1 of 3")
        play.click()
        assert play.inner_text() == "▶ Play"
        page.clock.run_for(5000)
        assert bar.inner_text().endswith("1 of 3")


@pytest.mark.parametrize("name", list(source.WIDGETS))
def test_on_a_phone_a_line_of_the_result_stays_in_sight(browser, name):
    with contextlib.closing(browser.new_context()) as context:
        place = type("Any", (widget_harness.Opened,), {"name": name})(context, "", 390)
        page, brief = place.page, place.page.locator(".spmd-w-brief")
        for key in page.locator("[data-key]:visible").all()[:3]:
            key.scroll_into_view_if_needed()
            box = brief.bounding_box()
            assert box["y"] + box["height"] <= 901
            assert box["y"] >= 0
        before = brief.inner_text()
        assert before
        assert brief.evaluate("e => e.scrollWidth <= e.clientWidth")
        page.locator("input[type=radio]").last.check()
        assert brief.inner_text() != before
        page.set_viewport_size({"width": 1280, "height": 900})
        assert brief.is_hidden()
        assert place.errors == []


def test_a_link_holds_the_state(browser):
    for state, want in [c for c in cases(6, 60) if "moves" in c[1]][:3]:
        with shown(browser) as page:
            page.get_by_text("Change it yourself").click()
            for key in ("mesh", "i", "j", "k"):
                page.locator(f"[data-key={key}]").fill(state[key])
            for key in "abc":
                page.locator(f"[data-key={key}Typed]").fill(state[key])
            page.locator("[data-key=dtype]").select_option(state["dtype"])
            page.wait_for_timeout(400)
            query = page.evaluate("location.search")
            said = page.locator(".spmd-w-said").inner_text()
            assert page.evaluate("history.length") <= 2 + 8  # one for each control
        with shown(browser, query) as page:
            assert page.locator(".spmd-w-said").inner_text() == said
            assert said.replace("\xa0", " ") == want["sentence"]


ODD_LINKS = [
    "?mm.mesh=",
    "?mm.mesh=%00",
    "?mm.a=P(",
    "?mm.a=%E2%98%83",
    "?mm.b=" + "x" * 300,
    "?mm.c=P(None,None,None,None)",
    "?mm.i=-1",
    "?mm.i=nan&mm.j=inf",
    "?mm.k=9999999999999999999999",
    "?mm.dtype=complex128",
    "?mm.dtype=__proto__",
    "?mm.__proto__=1",
    "?mm.constructor=1",
    "?mm.=",
    "?mm.nothing=5",
    "?mm.mesh=a=2,a=2",
    "?mm.mesh=constructor=2&mm.a=P('constructor')",
    "?mm",
    "?%ZZ",
    "?mm.a=<script>alert(1)</script>",
]


@pytest.mark.parametrize("query", ODD_LINKS)
def test_an_odd_link_does_no_harm(browser, query):
    with shown(browser, query) as page:
        error = page.locator(".spmd-w-error")
        said = page.locator(".spmd-w-said").inner_text()
        assert said or error.inner_text()
        if error.is_visible():
            assert error.inner_text().endswith((".", "?"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_everyone_can_read_it(browser, scheme, width):
    size = {"width": width, "height": 900}
    with shown(browser, viewport=size, color_scheme=scheme) as page:
        page.evaluate(f"document.documentElement.dataset.theme = '{scheme}'")
        if scheme == "dark":
            page.add_style_tag(
                content="body { background: #14181e !important; color: #f0f2f4 }"
                ".spmd-w { --pst-color-text-base: #f0f2f4; --pst-color-text-muted:"
                " #9ca4af; --pst-color-surface: #1f242b; --pst-color-background:"
                " #14181e; --pst-color-primary: #3fb1c5 }"
            )
        for name in ("All-reduce (case 2)", "Idle axis: redundant work"):
            page.get_by_label(name, exact=True).check()
            assert axe_faults(page) == []
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width
        assert page.evaluate("document.getAnimations().length") == 0


def test_the_notebooks_explorer_takes_what_matmul_takes():
    mesh = {"data": 4, "model": 2}
    shown = spmd.MatmulExplorer(
        (48, 40, 24), ("data", "model"), ("model",), mesh=mesh, out=("data", "model")
    )
    assert shown.state == {
        "mesh": "data=4, model=2",
        **{"i": "48", "j": "40", "k": "24"},
        "a": "P('data', 'model')",
        "b": "P('model', None)",
        "c": "P('data', 'model')",
        "dtype": "float32",
    }
    assert spmd.MatmulExplorer().state == {}
    with pytest.raises(spmd.NotDivisible):
        spmd.MatmulExplorer((3, 4, 4), ("data",), (), mesh=mesh)
