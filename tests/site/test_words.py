"""What the built pages say, read as files: links, versions, titles, descriptions."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from .site_reading import CHAPTERS, PAGES, SITE, pages


def test_site_is_built_and_whole():
    assert pages(SITE) == PAGES, "run `make book` first"


def links(name: str, text: str):
    """(address, the file it means, its fragment) of a page's internal links."""
    for address in re.findall(r'(?:href|src)="([^"]+)"', text):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or address.startswith("javascript:"):
            continue
        target = (SITE / name).parent / unquote(parts.path) if parts.path else None
        yield address, target or SITE / name, unquote(parts.fragment)


def dead_links(name: str, text: str) -> list[str]:
    dead = []
    for address, target, fragment in links(name, text):
        if not target.exists():
            dead.append(address)
        elif fragment and target.suffix == ".html":
            there = target.read_text("utf8")
            if f'id="{fragment}"' not in there and fragment != "":
                dead.append(address)
    return dead


@pytest.mark.parametrize("name", PAGES)
def test_no_dead_link(name):
    assert dead_links(name, (SITE / name).read_text("utf8")) == []


def test_a_dead_link_is_seen():
    page = '<a href="nowhere.html">x</a> <a href="#nothing">y</a>'
    assert dead_links("book/index.html", page) == ["nowhere.html", "#nothing"]


@pytest.mark.parametrize("name", [p for p in PAGES if p.startswith("notebooks/")])
def test_notebook_page_says_its_versions(name):
    said = re.findall(
        r"Outputs made with jax [\d.]+(?:, [\w-]+ [\d.]+)*\.",
        (SITE / name).read_text("utf8"),
    )
    assert len(said) == 1


@pytest.mark.parametrize("name", CHAPTERS)
def test_exercises_and_solutions_lead_to_each_other(name):
    file = Path(name).name
    for here, there, line in (
        ("notebooks", "solutions", "Solutions: {}this chapter, solved</a>"),
        ("solutions", "notebooks", "Exercises: {}this chapter, open</a>"),
    ):
        link = f'<a href="../{there}/{file}">'
        text = (SITE / here / file).read_text("utf8")
        assert text.count(line.format(link)) == 1


def test_no_page_says_its_title_twice():
    for name in PAGES:
        text = (SITE / name).read_text("utf8")
        (title,) = re.findall(r"<title>(.*?)</title>", text, re.S)
        parts = [part.strip() for part in title.split("&#8212;")]
        assert len(parts) == len(set(parts)), name
        assert 'class="title logo__title"' in text


# What a page says of itself.


def test_each_page_has_a_description_of_its_own():
    by_description = {}
    for name in PAGES:
        text = (SITE / name).read_text("utf8")
        said = re.findall('<meta name="description" content="([^"]*)">', text)
        assert len(said) == 1, name
        assert 20 < len(unescape(said[0])) <= 200, name
        assert f'<meta property="og:description" content="{said[0]}">' in text
        by_description.setdefault((name.split("/")[0], said[0]), []).append(name)
    assert [names for names in by_description.values() if len(names) > 1] == []


def test_each_chapter_says_how_long_it_takes():
    line = re.compile(
        r"<p class=.spmd-time.>Chapter (\d+) of (\d+) · (\d+) min to read"
        r"(?: · (\d+) min of further sections)?(?: · (\d+) min of exercises)?"
        r"((?: · <a href=.[\w.]+.>(?:previous|next)</a>)*)</p>"
    )
    for number, name in enumerate(CHAPTERS, 1):
        facts = line.search((SITE / name).read_text("utf8")).groups()
        assert [int(n) for n in facts[:2]] == [number, len(CHAPTERS)]
        reading, further, exercises = facts[2:5]
        assert int(reading) >= 5
        has_further = "Further: " in (SITE / name).read_text("utf8")
        assert (further is not None) == has_further
        assert int(exercises) >= 5
        ways = re.findall("previous|next", facts[5])
        assert ways == ["previous"] * (number > 1) + ["next"] * (number < len(CHAPTERS))
    page = (SITE / "book" / "exercises.html").read_text("utf8")
    assert f"points, {exercises} minutes." in page


def test_a_page_outside_the_chapters_says_how_long_it_takes():
    others = [p for p in PAGES if p.startswith("notebooks/") and p not in CHAPTERS]
    assert others
    for name in others:
        text = (SITE / name).read_text("utf8")
        (line,) = re.findall("<p class=.spmd-time.>(.*?)</p>", text)
        assert re.fullmatch(r"\d+ min to read", line)
        assert "spmd-twin" not in text
