"""The site built otherwise: formulas, a known address, without solutions."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tools.book.build_site import build, without_solutions

from .site_reading import ROOT, SITE, pages, reading

pytestmark = pytest.mark.long("the site built in other ways")

# Mathematics, if a page has some.

CONF = """
import sys
sys.path.insert(0, {extensions!r})
extensions = ["myst_parser", "spmd_math"]
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"
"""


def build_formula(folder: Path, text: str) -> subprocess.CompletedProcess:
    extensions = str(ROOT / "book" / "_ext")
    (folder / "conf.py").write_text(CONF.format(extensions=extensions), "utf8")
    (folder / "index.md").write_text(f"# Page\n\n{text}\n", "utf8")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html"]
    return subprocess.run(
        [*command, str(folder), str(folder / "out")], capture_output=True, text=True
    )


def test_formulas_are_mathml_and_need_no_script(tmp_path, browser):
    text = "In a line $6PD$, and\n\n$$\n2\\frac{n-1}{n} V / W\n$$ (ring)\n\n{eq}`ring`"
    done = build_formula(tmp_path, text)
    assert done.returncode == 0, done.stderr
    built = (tmp_path / "out" / "index.html").read_text("utf8")
    assert not re.search("<script[^>]*(mathjax|katex)", built, re.I)
    with reading(browser, (tmp_path / "out").as_uri() + "/") as reader:
        page = reader.go("index.html")
        sizes = "[...document.querySelectorAll('math')].map(m => m.clientHeight)"
        assert len(page.evaluate(sizes)) == 2
        assert min(page.evaluate(sizes)) > 8
        assert page.evaluate("document.querySelector('mfrac').textContent")
        assert "(1)" in page.evaluate("document.querySelector('.spmd-math').innerText")


@pytest.mark.parametrize("formula", ["\\foo{x}", "\\frac{a", "x_1_2", "a & b"])
def test_a_formula_that_cannot_be_read_stops_the_build(tmp_path, formula):
    done = build_formula(tmp_path, f"Here ${formula}$.")
    assert done.returncode
    assert "index: the formula" in done.stderr


# The address in _config.yml.

ADDRESS = "https://github.com/someone/book"
BUTTON = "https://colab.research.google.com/github/someone/book/blob/main/notebooks/"
KAGGLE = f"https://kaggle.com/kernels/welcome?src={ADDRESS}/blob/main/notebooks/"


@pytest.fixture(scope="module")
def addressed(tmp_path_factory):
    """The site once the repository's address is known, and without solutions."""
    folder = tmp_path_factory.mktemp("addressed")
    text = (ROOT / "_config.yml").read_text("utf8")
    text = re.sub(r'(?m)^  url: "[^"]*"', f'  url: "{ADDRESS}"', text)
    text = re.sub(r'(?m)^  baseurl: "[^"]*"', '  baseurl: "https://example.org/"', text)
    text = text.replace("book/_ext", str(ROOT / "book" / "_ext"))
    (folder / "_config.yml").write_text(text, "utf8")
    less = without_solutions(yaml.safe_load((ROOT / "book" / "_toc.yml").read_text()))
    (folder / "_toc.yml").write_text(yaml.safe_dump(less), "utf8")
    assert build(ROOT, folder, folder / "_config.yml", toc=folder / "_toc.yml") == 0
    return folder / "_build" / "html"


def all_text(site: Path) -> dict[str, str]:
    return {name: (site / name).read_text("utf8") for name in pages(site)}


def test_buttons_once_the_address_is_known(addressed):
    for name, text in all_text(addressed).items():
        if name.startswith("notebooks/"):
            for button in BUTTON, KAGGLE:
                assert button + Path(name).with_suffix(".ipynb").name in text
            assert "logo_colab" in text
        if "/" in name:
            assert f'href="{ADDRESS}"' in text
            assert "fa-github" in text
            assert '<link rel="canonical" href="https://example.org/' in text


def test_each_page_has_its_card_once_the_address_is_known(addressed):
    cards = set()
    for name, text in all_text(addressed).items():
        if "/" in name:
            (card,) = re.findall('<meta property="og:image" content="([^"]*)">', text)
            path = addressed / card.removeprefix("https://example.org/")
            assert 5_000 < path.stat().st_size <= 60 * 1024
            cards.add(path)
    assert cards == set((addressed / "_static" / "cards").iterdir())
    assert len({path.read_bytes() for path in cards}) == len(cards)


def test_no_solution_is_in_a_site_without_them(addressed):
    assert list((SITE / "solutions").glob("*.html"))
    assert not (addressed / "solutions").exists()
    assert not list((addressed / "_sources").glob("solutions/*"))
    for name, text in all_text(addressed).items():
        assert 'href="../solutions/' not in text, name
        assert "this chapter, solved" not in text, name
        assert "Exercises and solutions" not in text, name


def test_no_button_while_the_address_is_unknown():
    config = (ROOT / "_config.yml").read_text("utf8")
    if not re.search(r'(?m)^  url: ""', config):
        pytest.skip("the address is known")
    for text in all_text(SITE).values():
        for sign in (
            "logo_colab",
            "kaggle.com/",
            "launch-buttons",
            "fa-github",
            "/issues/new",
        ):
            assert sign not in text
