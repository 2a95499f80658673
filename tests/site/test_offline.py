"""The site as one file: whole, quiet and searchable where there is no network."""

import os
import re
import shutil
import sys
import zipfile

import pytest

from .site_reading import PAGES, ROOT, SITE, pages, reading, serving

sys.path.insert(0, str(ROOT / "book" / "_ext"))

from spmd_offline import FIRST, NAME, folder_name, pack

FOUND = "#search-results a"


def search(reader, word: str, expected: int = 1) -> list[str]:
    """Type a word into the search page; the titles that come."""
    page = reader.go("search.html")
    field = page.locator("main form.bd-search input")
    field.fill(word)
    field.press("Enter")
    page.wait_for_url(f"**q={word}*")
    page.get_by_text(re.compile("Search finished|did not match")).wait_for()
    if expected:
        page.locator(FOUND).nth(expected - 1).wait_for()
    page.wait_for_load_state("networkidle")
    return page.locator(FOUND).all_inner_texts()


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The copy's only folder, alone in an empty one."""
    place = tmp_path_factory.mktemp("copy")
    with zipfile.ZipFile(SITE / NAME) as packed:
        packed.extractall(place)
    (folder,) = place.iterdir()
    return folder


def test_the_copy_is_one_folder_with_every_page(unpacked):
    assert unpacked.name == "sharding-in-jax"
    assert [name for name in pages(unpacked) if name != FIRST] == PAGES
    assert (unpacked / FIRST).read_bytes() == (unpacked / "index.html").read_bytes()
    assert (SITE / NAME).stat().st_size < 5e6


def test_the_copy_is_the_site(unpacked):
    for path in SITE.rglob("*"):
        name = path.relative_to(SITE)
        if path.is_file() and name.parts[0] != NAME and not name.name.startswith("."):
            same = (unpacked / name).read_bytes() == path.read_bytes()
            assert same or b"spmd-offline" in path.read_bytes(), name


def test_the_front_page_leads_to_the_copy_and_the_copy_does_not(unpacked):
    page = (SITE / "book" / "index.html").read_text("utf8")
    size = (SITE / NAME).stat().st_size / 1e6
    assert page.count('<a href="../offline.zip" download="sharding-in-jax.zip">') == 1
    assert f"</a> ({size:.1f} MB): unpack it" in page
    for path in unpacked.rglob("*.html"):
        assert f'{NAME}"' not in path.read_text("utf8"), path.name


def test_the_copy_opens_and_is_quiet(browser, unpacked):
    with reading(browser, unpacked.as_uri() + "/") as reader:
        page = reader.page
        page.goto(reader.base + FIRST, wait_until="commit")
        page.wait_for_url("**/book/index.html")
        page.locator("article a[href$='/01_pmap_mnist.html']").first.click()
        page.wait_for_url("**/notebooks/01*.html")
        page.wait_for_load_state("networkidle")
        assert reader.errors == []


def test_the_copy_can_be_searched(browser, unpacked):
    with reading(browser, unpacked.as_uri() + "/") as reader:
        titles = search(reader, "replicated")
        assert any("pmap" in title for title in titles)
        assert search(reader, "zzzznothing", expected=0) == []
        assert reader.errors == []


@pytest.mark.long("the search and the way around, in a browser, once more")
def test_the_site_can_be_searched_and_shows_where(browser):
    with serving(SITE) as address, reading(browser, address) as reader:
        titles = search(reader, "replicated")
        assert any("pmap" in title for title in titles)
        said = reader.page.locator("#search-results .context").first
        said.wait_for()
        assert "replicate" in said.inner_text().lower()
        assert reader.errors == []


def test_a_copy_without_its_index_of_words_finds_nothing(browser, unpacked, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(unpacked, broken)
    (broken / "searchindex.js").unlink()
    with reading(browser, broken.as_uri() + "/") as reader:
        page = reader.go("search.html?q=replicated")
        page.wait_for_load_state("networkidle")
        assert reader.errors != []
        assert page.locator(FOUND).count() == 0


def small_site(folder, order):
    for number, name in enumerate(order):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<p>{name}</p>")
        os.utime(path, (1e9 + number, 1e9 + number))
        path.chmod(0o600 + 0o44 * (number % 2))
    return folder


def test_the_same_site_makes_the_same_bytes(tmp_path):
    names = ["index.html", "a/b.html", "a.html", ".hidden", "_static/cards/a.png"]
    archives = [
        pack(small_site(tmp_path / str(number), order), "A book, and more")
        for number, order in enumerate((names, names[::-1]))
    ]
    assert archives[0].read_bytes() == archives[1].read_bytes()
    again = pack(
        archives[0].parent, "A book, and more"
    )  # with the first copy in the site
    assert again.read_bytes() == archives[1].read_bytes()
    with zipfile.ZipFile(again) as packed:
        assert packed.testzip() is None
        listed = packed.namelist()
    assert listed == [
        f"a-book/{n}" for n in ("a/b.html", "a.html", FIRST, "index.html")
    ]


def test_a_paragraph_that_leads_to_the_copy_is_left_out_of_it(tmp_path):
    text = '<p>a</p><p class="spmd-offline"><a href="offline.zip">x</a></p><p>b</p>'
    (tmp_path / "x.html").write_text(text)
    with zipfile.ZipFile(pack(tmp_path, "B")) as packed:
        assert packed.read("b/x.html") == b"<p>a</p><p>b</p>"


def test_folder_names():
    assert folder_name("Sharding in JAX, and more") == "sharding-in-jax"
    assert folder_name("…") == "book"
