"""Every player of the site: by keyboard, without motion, in words and on paper."""

import contextlib
import math

import pytest

from .site_reading import PAGES, ROOT, SITE, WIDER

QUICK = "notebooks/16_many_hosts.html"  # diagrams of all kinds
MARK = 'class="spmd-play"'
OTHERS = (
    "book/index",
    "book/glossary",
    "book/memory_calculator",
    "book/matmul_explorer",
)


def with_players() -> list[str]:
    """The pages that have some: notebooks store them, other pages are named."""
    stored = [
        name
        for name in PAGES
        if name.startswith(("notebooks/", "solutions/"))
        and MARK.replace('"', r"\"") in (ROOT / name).with_suffix(".ipynb").read_text()
    ]
    return [*(f"{name}.html" for name in OTHERS), *stored]


EVERY = pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n == QUICK else pytest.mark.long("all players"))
        for n in with_players()
        if not n.startswith("solutions/")
    ],
)
# Of each player whose frames are seen now: numbers of those frames, of all, its words.
STATES = """() => [...document.querySelectorAll('.spmd-play')].map(player => {
  const frames = [...player.querySelectorAll('.spmd-play-frame')];
  const isSeen = frame => getComputedStyle(frame).visibility === 'visible';
  return {
    seen: frames.map((frame, k) => isSeen(frame) ? k : -1).filter(k => k >= 0),
    count: frames.length,
    labels: frames.map(frame => frame.querySelector('svg').getAttribute('aria-label')),
    said: frames.map(frame => frame.querySelector(':scope > p').textContent),
    listed: [...player.querySelectorAll('details > ol > li')].map(e => e.textContent),
    open: player.querySelector('details')?.open,
    status: player.querySelector('[role=status]')?.textContent,
    buttons: [...player.querySelectorAll('button, input')]
      .filter(e => e.offsetParent).length,
  };
})"""
UNFOLD = """document.querySelectorAll('details:has(> .spmd-play, .spmd-play)')
  .forEach(e => { e.open = true; })"""
# How long the lists are whose numbers are wider than the room before their words.
CROPPED = """() => {
  const pen = document.createElement('canvas').getContext('2d');
  return [...document.querySelectorAll('.spmd-play details > ol')].filter(list => {
    const style = getComputedStyle(list);
    pen.font = `${style.fontSize} ${style.fontFamily}`;
    const number = pen.measureText(`${list.children.length}. `).width;
    return number > parseFloat(style.paddingInlineStart);
  }).map(list => list.children.length);
}"""
LAID_OUT = "* { content-visibility: visible !important }"


@contextlib.contextmanager
def opened(browser, name, **options):
    """A page of the site with all its players unfolded."""
    with contextlib.closing(browser.new_context(**options)) as context:
        page = context.new_page()
        page.goto(f"{SITE.as_uri()}/{name}")
        page.evaluate(UNFOLD)
        page.add_style_tag(content=LAID_OUT)
        yield page


def moving(states):
    return [one for one in states if one["count"] > 1]


def test_the_pages_with_players_are_known():
    players = {
        path.relative_to(SITE).as_posix()
        for path in SITE.rglob("*.html")
        if MARK in path.read_text("utf8")
    }
    assert players == {*with_players()}
    assert len(players) > 30


@EVERY
def test_without_motion_the_end_is_shown_and_all_steps_are_listed(browser, name):
    with opened(browser, name, reduced_motion="reduce") as page:
        for one in moving(page.evaluate(STATES)):
            last = one["count"] - 1
            assert one["seen"][-1] == last
            assert len(one["seen"]) == 1 or name == "book/index.html"
            assert one["open"]
            assert one["listed"] == one["said"]
        assert page.evaluate(CROPPED) == []


@EVERY
def test_every_frame_has_words(browser, name):
    with opened(browser, name) as page:
        for one in page.evaluate(STATES):
            assert all(len(label) >= 15 for label in one["labels"])
            assert all(said.strip().endswith((".", "?")) for said in one["said"])
            assert len(set(one["said"])) == one["count"]


@EVERY
def test_by_keyboard_alone(browser, name):
    with opened(browser, name, reduced_motion="reduce") as page:
        players = page.locator(".spmd-play:has(button, input)")
        assert players.count() == len(moving(page.evaluate(STATES))) > 0
        for number, player in enumerate(players.all()):
            if player.locator("input").count():
                by_sliders(page, player, number)
                continue
            player.locator("button").first.focus()
            ring = page.evaluate(
                "getComputedStyle(document.activeElement).outlineWidth"
            )
            count = moving(page.evaluate(STATES))[number]["count"]
            steps = {
                "Home": 0,
                "ArrowRight": 1,
                "End": count - 1,
                "ArrowLeft": count - 2,
            }
            for key, frame in steps.items():
                page.keyboard.press(key)
                now = moving(page.evaluate(STATES))[number]
                assert frame in now["seen"], key
                assert now["status"] == now["said"][frame], key
            assert float(ring.removesuffix("px")) >= 2


def by_sliders(page, player, number):
    """Each slider goes through its values; together they reach every frame."""
    counts = [
        int(one.get_attribute("max")) + 1 for one in player.locator("input").all()
    ]
    size = moving(page.evaluate(STATES))[number]["count"]
    assert math.prod(counts) == size
    for one, count in zip(player.locator("input").all(), counts, strict=True):
        one.focus()
        page.keyboard.press("Home")
        size //= count
        for step in range(1, count):
            before = moving(page.evaluate(STATES))[number]["seen"]
            page.keyboard.press("ArrowRight")
            now = moving(page.evaluate(STATES))[number]
            assert now["seen"] == [before[0] + size]
            assert now["status"] == now["said"][now["seen"][0]]
            assert one.get_attribute("aria-valuetext")
            assert one.input_value() == str(step)


@EVERY
def test_on_paper_and_without_a_script_every_frame_is_there(browser, name):
    with opened(browser, name) as page:
        page.emulate_media(media="print")
        for one in page.evaluate(STATES):
            assert one["seen"] == [*range(one["count"])]
            assert one["buttons"] == 0
    with contextlib.closing(browser.new_context(java_script_enabled=False)) as context:
        page = context.new_page()
        page.goto(f"{SITE.as_uri()}/{name}")
        hidden = page.locator(".spmd-play-frame").evaluate_all(
            "frames => frames.filter("
            "e => getComputedStyle(e).visibility !== 'visible').length"
        )
        assert hidden == 0


@EVERY
def test_on_a_phone_it_fits_and_its_words_can_be_read(browser, name):
    """Texts of figures are 8 px or more: capital letters of 2 mm."""
    small = """() => [...document.querySelectorAll('.spmd-play-frame svg')]
      .filter(svg => getComputedStyle(svg).visibility === 'visible')
      .flatMap(svg => {
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        return [...svg.querySelectorAll('text')]
          .map(e => scale * parseFloat(getComputedStyle(e).fontSize))
          .filter(size => size < 8);
      })"""
    with opened(browser, name, viewport={"width": 390, "height": 844}) as page:
        assert page.evaluate(WIDER) == []
        assert page.evaluate(small) == []
