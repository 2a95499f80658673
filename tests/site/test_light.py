"""One style sheet, one script, and nothing that a page does not use."""

import contextlib
import re
import sys

import pytest

from .site_reading import PAGES, ROOT, SITE, reading

sys.path.insert(0, str(ROOT / "book" / "_ext"))

from spmd_light import (
    each_once,
    is_used,
    moved,
    plain_code,
    plain_kinds,
    used_rules,
    with_imports,
    words_of,
)

WORDS = words_of(['<p class="a b-c">', "toggle('shown')"])


@pytest.mark.parametrize("name", PAGES)
def test_page_asks_for_one_style_and_one_script_and_waits_for_none(name):
    text = (SITE / name).read_text("utf8")
    styles = re.findall(r'<link[^>]*rel="stylesheet"[^>]*>', text)
    scripts = re.findall(r"<script[^>]* src=[^>]*>", text)
    # Of a widget: its style, its script, and what it has in common with another one.
    own = [tag for tag in (*styles, *scripts) if "spmd-" in tag]
    words = [tag for tag in scripts if re.search("search|language_data", tag)]
    assert len(styles) + len(scripts) == 2 + len(own) + len(words)
    assert len(own) <= 3
    assert len(words) == (3 if name == "search.html" else 0)
    assert [tag for tag in scripts if " defer" not in tag] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_body_has_no_style_and_no_script_twice(name):
    body = (SITE / name).read_text("utf8").partition("</head>")[2]
    assert "<style" not in body
    scripts = re.findall(r"<script>.*?</script>", body, re.S)
    assert len(scripts) == len(set(scripts))


def test_each_style_and_script_is_kept_once():
    style, script = "<style>\n.{0} {{}}</style>\n", "<script>\n{0}()</script>\n"
    figure = "<p>" + style.format("a") + "</p>" + script.format("wake")
    other = style.format("b") + script.format("other")
    page = f"<head><style>c</style></head><body>{figure}{other}{figure}</body>"
    styles = "<style>\n.a {}\n.b {}\n</style>\n"
    assert each_once(page) == (
        f"<head><style>c</style>{styles}</head><body><p></p>{script.format('other')}"
        f"<p></p>{script.format('wake')}</body>"
    )
    assert each_once("<head></head><p>") == "<head></head><p>"


COLORS_OF_CODE = """
html[data-theme="light"] .highlight{background: #fff; color: #080808}
html[data-theme="light"] .highlight .n{color: #080808}
html[data-theme="light"] .highlight .k{color: #6730C5}
html[data-theme="light"] .highlight .p{color: #080808}
html[data-theme="light"] .highlight .ge{color: #080808; font-style: italic}
html[data-theme="dark"] .highlight{background: #000; color: #F8F8F2}
html[data-theme="dark"] .highlight .n{color: #F8F8F2}
html[data-theme="dark"] .highlight .p{color: #080808}
"""


def test_words_of_code_that_look_like_its_text_have_no_element():
    kinds = plain_kinds(COLORS_OF_CODE)
    assert kinds == {"n"}
    code = '<span class="k">if</span> <span class="n">x</span><span class="p">:</span>'
    box = '<div class="highlight"><pre>{}</pre></div>'
    page = box.format(code) + '<span class="n">x</span>'
    bare = code.replace('<span class="n">x</span>', "x")
    assert plain_code(page, kinds) == box.format(bare) + '<span class="n">x</span>'
    assert plain_kinds(COLORS_OF_CODE.replace("#F8F8F2", "#080808")) == {"n", "p"}


def test_bare_words_of_code_have_its_colors(browser):
    color = "e => getComputedStyle(e).color"
    with reading(browser, SITE.as_uri() + "/") as reader:
        page = reader.go("notebooks/03_mesh_and_partitionspec.html")
        code = page.locator(".highlight").first
        assert not code.locator(".n").count()
        for theme in ("light", "dark"):
            page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            assert code.locator("pre").evaluate(color) == code.evaluate(color)


def test_every_file_is_asked_for():
    static = SITE / "_static"
    texts = [p.read_text("utf8") for p in SITE.rglob("*.html")]
    texts += [
        p.read_text("utf8") for p in static.rglob("*") if p.suffix in (".css", ".js")
    ]
    for path in static.rglob("*"):
        if path.is_file() and path.suffix != ".txt":
            assert any(path.name in text for text in texts), path


def test_boxes_are_measured_when_shown_before_one_is_changed():
    (script,) = (SITE / "_static").glob("site.*.js")
    said = script.read_text("utf8")
    assert not re.search(r"e\.tabIndex=e\.scrollWidth", said)
    assert said.count("forEach(([e,t])=>{e.tabIndex=t;o.unobserve(e)})") == 1
    assert said.count("forEach(e=>e.closest('.spmd-w-scroll')||o.observe(e))") == 1


def test_licenses_stay_with_what_they_are_of():
    (style,) = (SITE / "_static").glob("site.*.css")
    (script,) = (SITE / "_static").glob("site.*.js")
    assert "Bootstrap" in style.read_text("utf8")
    assert "Font Awesome" in style.read_text("utf8")
    assert "clipboard.js" in script.read_text("utf8")
    kept = [path.name for path in (SITE / "_static").rglob("*.txt")]
    assert "bootstrap.js.LICENSE.txt" in kept


def test_what_only_scripts_show_keeps_its_style(browser):
    """The search field is a dialog that a script opens."""
    with reading(browser, SITE.as_uri() + "/") as reader:
        page = reader.go("book/index.html")
        page.keyboard.press("Control+k")
        field = page.locator("dialog[open] form.bd-search")
        field.wait_for()
        assert field.evaluate("e => getComputedStyle(e).display") == "flex"
        page.keyboard.press("Escape")
        page.locator(".dropdown-download-buttons button").first.click()
        page.locator(".dropdown-menu.show").wait_for()
        assert reader.errors == []


@pytest.mark.parametrize(
    ("scheme", "mode", "theme"),
    [
        ("light", None, "light"),
        ("dark", None, "dark"),
        ("dark", "auto", "dark"),
        ("dark", "light", "light"),
        ("light", "dark", "dark"),
    ],
)
def test_the_colors_are_there_before_any_other_script(browser, scheme, mode, theme):
    with contextlib.closing(browser.new_context(color_scheme=scheme)) as context:
        page = context.new_page()
        page.route("**/site.*.js", lambda route: route.abort())
        if mode:
            context.add_init_script(f"localStorage.setItem('mode', '{mode}')")
        page.goto((SITE / "book" / "index.html").as_uri())
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        assert page.evaluate("document.documentElement.dataset.mode") == (
            mode or "auto"
        )


@pytest.mark.parametrize(
    ("selector", "used"),
    [
        ("p", True),
        (".a", True),
        (".a.shown > .b-c:hover::before", True),
        (".a .gone", False),
        (".b", False),
        (".a:not(.gone)", True),
        (":is(.gone, .a) p", True),
        ("p:not(:is(.gone, .lost))", True),
        (".gone:not(.a)", False),
        (".a[href$='.gone']", True),
    ],
)
def test_which_rules_are_used(selector, used):
    assert is_used(selector, WORDS) == used


def test_used_rules_of_a_style_sheet():
    css = """@charset "utf-8"; /* said */ :root{--x:1;--y:{a:b}}
    .a,.gone{color:red;/* why */} .gone{b:c} @media (min-width:1px){.gone{b:c}}
    @media print{.a{b:url("data:image/svg+xml,<svg>{}</svg>")}.gone{b:c}}
    @font-face{font-family:"F";src:url(f.woff2)} @keyframes k{from{b:c}to{b:d}}
    @supports (a:b){@media print{.gone{b:c}}} .a{&:hover{b:c} .gone &{b:d}}"""
    assert used_rules(css, WORDS).splitlines() == [
        ":root{--x:1;--y:{a:b}}",
        ".a{color:red;}",
        '@media print{.a{b:url("data:image/svg+xml,<svg>{}</svg>")}}',
        '@font-face{font-family:"F";src:url(f.woff2)}',
        "@keyframes k{from{b:c}to{b:d}}",
        ".a{&:hover{b:c} .gone &{b:d}}",
    ]


def test_a_style_sheet_that_cannot_be_read_stops_the_build():
    with pytest.raises(ValueError, match="can't be read"):
        used_rules(".a { b: c } .b-c", WORDS)


def test_addresses_are_meant_from_the_new_folder(tmp_path):
    old = tmp_path / "styles"
    css = 'a{b:url(../f.woff2)} c{d:url("g.png")} e{f:url(data:x)} g{h:url("#i")}'
    assert moved(css, old, tmp_path) == (
        'a{b:url(f.woff2)} c{d:url(styles/g.png)} e{f:url(data:x)} g{h:url("#i")}'
    )


def test_what_a_style_sheet_imports_is_in_it(tmp_path):
    (tmp_path / "styles").mkdir()
    (tmp_path / "basic.css").write_text("a{b:url(file.png)}")
    (tmp_path / "styles" / "theme.css").write_text('@import "../basic.css";\nc{d:e}')
    joined = with_imports(tmp_path / "styles" / "theme.css", tmp_path)
    assert joined.split() == ["a{b:url(file.png)}", "c{d:e}"]
