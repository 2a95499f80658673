"""The player on a page: it plays when it is asked to, by mouse and by keyboard."""

import contextlib
import io
import json
import re
from html import escape

import pytest
from PIL import Image

from spmd_helpers import MLP, MemoryTimeline, draw_mesh, training_memory
from spmd_helpers._core.palette import DARK, LIGHT
from spmd_helpers._player.frames import FramePlayer
from spmd_helpers._player.player import CollectivePlayer
from tests.widgets.widget_harness import axe_faults, too_small

from .collectives import columns, written

MORE = pytest.mark.long("players in a browser, by other means")
MESH = {"data": 4, "model": 2}
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Players</title>
<body style="background: #fff; margin: 16px"><main><h1>Players</h1>{}</main></html>"""
FLIGHTS = "document.querySelectorAll('.spmd-play-flight use').length"
RUNNING = "document.getAnimations().length"


def player(kind: str) -> str:
    shown = CollectivePlayer(written(kind, columns(2, 4), 60, MESH), mesh=MESH)
    return shown._repr_mimebundle_()["text/html"]


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.format(player("all-gather") + player("all-reduce"))


@pytest.fixture
def opened(browser, text):
    """Opens the page; keyword arguments are those of a browser's context."""
    with contextlib.ExitStack() as stack:

        def open_it(width=1280, **options):
            context = stack.enter_context(
                contextlib.closing(
                    browser.new_context(
                        viewport={"width": width, "height": 844}, **options
                    )
                )
            )
            page = context.new_page()
            page.errors = []
            page.on("pageerror", lambda error: page.errors.append(str(error)))
            page.on("console", lambda said: page.errors.append(said.text))
            page.set_content(text)
            return page

        yield open_it


def now(page) -> str:
    """The words of the only frame that the first player shows."""
    shown = page.locator(".spmd-play").first.locator(".spmd-play-frame:visible p")
    assert shown.count() == 1
    return shown.inner_text()


def press(page, name):
    page.locator(".spmd-play").first.get_by_role("button", name=name).click()


def test_it_waits_until_it_is_asked(opened):
    page = opened()
    assert now(page).startswith("Before.")
    assert page.evaluate(RUNNING) == 0
    page.wait_for_timeout(300)
    assert now(page).startswith("Before.")
    assert page.evaluate(RUNNING) == page.evaluate(FLIGHTS) == 0
    assert page.get_by_role("button", name="Back").first.is_disabled()
    assert page.errors == []


def test_it_plays_to_its_end(opened):
    page = opened()
    press(page, "Play")
    page.wait_for_function(FLIGHTS + " === 8")  # one shard from each device
    assert page.get_by_role("button", name="Pause").count() == 1
    page.wait_for_function("document.querySelector('.spmd-play button')"
                           ".textContent.includes('Again')")  # fmt: skip
    assert now(page).startswith("Hop 3 of 3.")
    assert page.evaluate(FLIGHTS) == 0
    status = page.locator(".spmd-play").first.get_by_role("status")
    assert status.text_content() == now(page)
    other = page.locator(".spmd-play").nth(1).locator(".spmd-play-frame:visible p")
    assert other.inner_text().startswith("Before.")
    press(page, "Again")
    assert now(page).startswith("Before.")
    assert page.errors == []


@MORE
def test_a_pause_and_a_step_back_stop_it(opened):
    page = opened()
    press(page, "Play")
    # In the page: a press from here may come after the flight.
    pause = "document.querySelector('.spmd-play button')"
    page.wait_for_function(
        f"{FLIGHTS} === 8 && {pause}.textContent.includes('Pause')"
        f" && ({pause}.click(), true)"
    )
    assert page.evaluate(FLIGHTS) == 0
    page.wait_for_timeout(900)
    assert now(page).startswith("Before.")
    press(page, "Step")
    page.wait_for_function(
        "document.querySelector('[data-now] p').textContent.startsWith('Hop 1')"
    )
    press(page, "Back")
    assert now(page).startswith("Before.")
    assert page.evaluate("document.activeElement.textContent").endswith("Play")
    hidden = page.locator("use[visibility]").count()
    assert hidden == 0


def test_a_sum_leaves_the_sender_while_it_is_sent(opened):
    page = opened()
    second = page.locator(".spmd-play").nth(1)
    second.get_by_role("button", name="Step").click()
    page.wait_for_function("document.querySelectorAll('use[visibility]').length === 8")
    page.wait_for_function("document.querySelectorAll('use[visibility]').length === 0")
    words = second.locator(".spmd-play-frame:visible p").inner_text()
    assert words.startswith("Hop 1 of 6, reduce-scatter.")


def test_the_keyboard_does_it_all(opened):
    page = opened(reduced_motion="reduce")
    stops = []
    for _ in range(4):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.textContent"))
    assert [stop.split()[-1] for stop in stops[:2]] == ["Again", "Back"]
    page.keyboard.press("Home")  # nothing: the focus is on the list of steps
    page.get_by_role("button", name="Again").first.focus()
    page.keyboard.press("Home")
    assert now(page).startswith("Before.")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert now(page).startswith("Hop 2 of 3.")
    page.keyboard.press("ArrowLeft")
    assert now(page).startswith("Hop 1 of 3.")
    page.keyboard.press("End")
    assert now(page).startswith("Hop 3 of 3.")
    page.keyboard.press("ArrowRight")
    assert now(page).startswith("Hop 3 of 3.")
    ring = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert float(ring.removesuffix("px")) >= 2


def test_reduced_motion_shows_the_end_and_lists_all(opened):
    page = opened(reduced_motion="reduce")
    assert now(page).startswith("Hop 3 of 3.")
    listed = page.locator(".spmd-play").first.locator("details > ol > li")
    assert [item.is_visible() for item in listed.all()] == [True] * 4
    press(page, "Back")
    press(page, "Step")
    assert page.evaluate(RUNNING) == 0
    assert now(page).startswith("Hop 3 of 3.")


def test_without_a_script_the_frames_stand_side_by_side(opened):
    page = opened(java_script_enabled=False)
    frames = page.locator(".spmd-play").first.locator(".spmd-play-frame")
    assert [frame.is_visible() for frame in frames.all()] == [True] * 4
    boxes = [frame.bounding_box() for frame in frames.all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    assert page.get_by_role("button").count() == 0


def test_paper_has_every_frame_and_no_button(opened):
    page = opened()
    page.emulate_media(media="print")
    frames = page.locator(".spmd-play").first.locator(".spmd-play-frame")
    assert [frame.is_visible() for frame in frames.all()] == [True] * 4
    assert page.locator("button:visible").count() == 0


def test_axe_finds_nothing(opened):
    for options in ({}, {"reduced_motion": "reduce"}):
        page = opened(**options)
        assert axe_faults(page) == []


@pytest.mark.parametrize(
    "width", [360, pytest.param(390, marks=MORE), pytest.param(1280, marks=MORE)]
)
def test_it_fits_and_can_be_touched(opened, width):
    page = opened(width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert too_small(page, width) == []
    first = page.locator(".spmd-play").first
    first.scroll_into_view_if_needed()
    top = first.bounding_box()["y"]
    bottom = first.get_by_role("button", name="Step").bounding_box()
    assert bottom["y"] + bottom["height"] - top < 700  # all of it on a phone
    before = first.bounding_box()["height"]
    press(page, "Play")
    page.wait_for_function(FLIGHTS + " === 8")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert first.bounding_box()["height"] == before


def test_every_text_is_large_enough_on_a_phone(opened):
    page = opened(width=360)
    sizes = page.evaluate(
        """() => [...document.querySelectorAll('.spmd-play-frame[data-now] > svg')]
        .map(svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"""
    )
    rules = re.findall(r"font-size: ([\d.]+)px", page.content())
    assert min(map(float, rules)) * min(sizes) >= 9


def test_a_notebook_that_shows_it_again_wakes_it_again(opened):
    page = opened()
    assert page.locator(".spmd-play-bar").count() == 2
    page.evaluate(
        """html => {
        const box = document.createElement('div');
        box.innerHTML = html;
        document.querySelector('main').append(box);
        for (const dead of box.querySelectorAll('script')) {
          const script = document.createElement('script');
          script.textContent = dead.textContent;
          dead.replaceWith(script);
        }
        }""",
        player("all-to-all"),
    )
    assert page.locator(".spmd-play-bar").count() == 3
    assert page.locator(".spmd-play-frame:visible").count() == 3
    assert page.errors == []


# A player of other figures: the same buttons and the same script.

SQUARE = (
    '<svg viewBox="0 0 420 90"><title>A square at {}</title>'
    '<rect width="420" height="90" fill="none"/><g data-to="60 0" data-leaves="">'
    '<rect x="{}" width="40" height="40"/></g></svg>'
)


@pytest.fixture(scope="module")
def frames() -> str:
    given = [
        (
            SQUARE.format(x, x),
            f"Step {k}",
            f"The square is at {x}. " * (1 + 9 * (k == 2)),
        )
        for k, x in enumerate((0, 60, 120))
    ]
    shown = FramePlayer(given, title="A square", notes="It moves.")
    return PAGE.format(shown._repr_mimebundle_()["text/html"])


@pytest.fixture
def squares(opened, frames):
    """Opens a page with the player of squares."""

    def open_it(**options):
        page = opened(**options)
        page.set_content(frames)
        return page

    return open_it


@MORE
def test_other_figures_play(squares):
    page = squares()
    assert now(page).startswith("Step 0.")
    assert page.get_by_text("1 of 3").is_visible()
    before = page.locator(".spmd-play").bounding_box()
    press(page, "Step")
    page.wait_for_function("document.querySelectorAll('.spmd-play-flight g').length")
    assert page.locator("g[visibility]").count() == 1
    page.wait_for_function("document.querySelector('[data-now] p').textContent[5] > 0")
    assert page.locator("g[visibility]").count() == 0
    press(page, "Step")
    page.wait_for_function("document.querySelector('[data-now] p').textContent[5] > 1")
    assert now(page).startswith("Step 2.")
    assert page.locator(".spmd-play").bounding_box() == before
    page.get_by_role("button", name="Back").focus()
    page.keyboard.press("Home")
    assert now(page).startswith("Step 0.")
    press(page, "Play")
    page.wait_for_function("document.querySelector('[data-now] p').textContent[5] > 0")
    assert page.get_by_role("button", name="Pause").count() == 1
    assert axe_faults(page) == page.errors == []


@MORE
def test_other_figures_on_paper_on_a_phone_and_without_motion(squares):
    page = squares(width=360, reduced_motion="reduce")
    assert now(page).startswith("Step 2.")
    assert page.locator("details li").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert too_small(page, 360) == axe_faults(page) == []
    assert page.locator(".spmd-play-box").first.get_attribute("tabindex") == "0"
    assert page.locator("[data-now] svg").bounding_box()["width"] == 336  # 0.8 of 420
    page.emulate_media(media="print")
    assert page.locator(".spmd-play-frame:visible").count() == 3
    assert page.locator("button:visible").count() == 0
    still = squares(java_script_enabled=False)
    assert still.locator(".spmd-play-frame:visible").count() == 3


# A player that is set by sliders, and one whose frames are chosen by their names.


@pytest.fixture
def turned(opened):
    """Opens a page whose frames are those of two sliders."""
    given = [
        (SQUARE.format(x, x), f"x = {x}, {word}", f"The square is at {x}, {word}.")
        for x in (0, 60, 120)
        for word in ("early", "late")
    ]
    sliders = {"x": (0, 60, 120), "time": ("early", "late")}
    shown = FramePlayer(given, title="A square", sliders=sliders)

    def open_it(**options):
        page = opened(**options)
        page.set_content(PAGE.format(shown._repr_mimebundle_()["text/html"]))
        return page

    return open_it


def test_sliders_set_the_frame(turned):
    page = turned()
    assert page.locator("button").count() == 0
    assert now(page).startswith("x = 0, early.")
    x, time = page.get_by_role("slider", name="x"), page.get_by_role("slider").nth(1)
    x.focus()
    page.keyboard.press("ArrowRight")
    assert now(page).startswith("x = 60, early.")
    assert x.get_attribute("aria-valuetext") == "60"
    time.focus()
    page.keyboard.press("End")
    assert now(page).startswith("x = 60, late.")
    assert page.get_by_role("status").inner_text() == now(page)
    x.fill("2")
    assert now(page).startswith("x = 120, late.")
    assert page.locator(".spmd-play-bar b").all_inner_texts() == ["120", "late"]
    assert axe_faults(page) == page.errors == []


@MORE
def test_sliders_on_a_phone_on_paper_and_without_motion(turned):
    page = turned(width=360, reduced_motion="reduce")
    assert now(page).startswith("x = 120, late.")
    assert page.locator("details li").count() == 6
    assert page.locator(".spmd-play-bar b").all_inner_texts() == ["120", "late"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert too_small(page, 360) == axe_faults(page) == []
    page.emulate_media(media="print")
    assert page.locator(".spmd-play-frame:visible").count() == 6
    assert page.locator("input:visible").count() == 0
    still = turned(java_script_enabled=False)
    assert still.locator(".spmd-play-frame:visible").count() == 6


def test_a_frame_is_chosen_by_its_name(opened):
    page = opened()
    memory = {
        f"ZeRO-{zero}": training_memory(
            MLP(layers=3, d_model=64, d_ff=160),
            mesh={"data": 4},
            batch=8,
            zero=zero,
            compute_dtype="float32",
        )
        for zero in (0, 2, 3)
    }
    page.set_content(
        PAGE.format(MemoryTimeline(memory)._repr_mimebundle_()["text/html"])
    )
    buttons = page.locator(".spmd-play-bar button")
    assert buttons.all_inner_texts() == ["ZeRO-0", "ZeRO-2", "ZeRO-3"]
    press(page, "ZeRO-3")
    assert now(page).startswith("ZeRO-3.")
    page.keyboard.press("ArrowLeft")
    assert now(page).startswith("ZeRO-2.")
    assert page.evaluate("document.activeElement.textContent") == "ZeRO-2"
    pressed = [one.get_attribute("aria-pressed") for one in buttons.all()]
    assert pressed == ["false", "true", "false"]
    assert page.get_by_role("status").inner_text() == now(page)
    assert axe_faults(page) == page.errors == []


@MORE
def test_long_names_of_frames_fit_their_buttons_on_a_phone(opened):
    frames = [
        (SQUARE.format(x, x), f"ZeRO-3, recomputed {x}", f"It is at {x}.")
        for x in (0, 60, 120)
    ]
    text = FramePlayer(frames, title="A square")._repr_mimebundle_()["text/html"]
    names = escape(json.dumps([heading for _, heading, _ in frames]))
    text = text.replace(' data-pace="', f' data-choices="{names}" data-pace="')
    page = opened(width=360)
    page.set_content(PAGE.format(text))
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    wider = "buttons => buttons.filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert page.locator(".spmd-play-bar button").count() == 3
    assert page.locator(".spmd-play-bar button").evaluate_all(wider) == 0


def test_what_frames_share_is_dark_on_a_dark_page(opened):
    """A part that a player defines has the colors of the axes of its page."""
    drawn = draw_mesh({"data": 4})
    frames = [(drawn, f"Step {k}", f"It is drawn {k + 1} times.") for k in range(2)]
    text = FramePlayer(frames, title="A mesh")._repr_mimebundle_()["text/html"]
    assert text.count("<use ") == 2
    page = opened()
    page.set_content(PAGE.format(text).replace("<html", '<html data-theme="dark"'))
    picture = page.locator("[data-now] svg").screenshot()
    colors = {color for _, color in Image.open(io.BytesIO(picture)).getcolors(10**6)}
    hexes = {f"#{r:02X}{g:02X}{b:02X}" for r, g, b, *_ in colors}
    assert DARK[0] in hexes
    assert LIGHT[0] not in hexes
