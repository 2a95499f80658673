"""One style sheet and one script for all pages, without what no page uses.

After the build the style sheets that every page asks for are joined, less the rules for
classes that no page and no script names. The scripts become one that runs when the page
has been read, so that nothing waits for it. Only the search page asks for the index of
words. Files that nothing asks for any more are removed.

Code has no element around a word that looks like the text beside it: half of all words.

Figures bring their style and their script along. A page has each of them once, the
styles in its head: a style in the middle would make the browser style all elements
again.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import tinycss2

STYLE = re.compile(r'[ \t]*<link [^>]*?href="([^"]+?)(?:\?[^"]*)?"[^>]*>\n?')
SCRIPT = re.compile(
    r'[ \t]*<script([^>]*?) src="([^"]+?)(?:\?[^"]*)?"[^>]*></script>\n?'
)
INLINE = re.compile(r"[ \t]*<script>([^<]*DOCUMENTATION_OPTIONS[^<]*)</script>\n?")
PRELOAD = re.compile(r'[ \t]*<link rel="preload" as="script"[^>]*>\n?')
# A page from a folder may not read the pages that it found.
NO_SNIPPETS = (
    'if (location.protocol === "file:") '
    "DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;"
)
# The theme's script says light or dark only when it runs, after the page was shown.
LATE_THEME = 'dataset.theme = localStorage.getItem("theme") || "auto";'
THEME = (
    "dataset.theme = "
    '{light: "light", dark: "dark"}[localStorage.getItem("mode")] || '
    '(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");'
)
# The theme's script measures a box, changes it, and measures the next: each time the
# browser lays out the page again, and opens what is folded. Here a box is measured when
# the browser has laid it out, and all of them before one is changed. A widget's
# box that scrolls sets its own tabindex.
ONE_BY_ONE = re.compile(
    r"document\.querySelectorAll\((\[[^\]]*\]\.join\([^)]*\))\)"
    r"\.forEach\(e=>\{e\.tabIndex=([^?{};]*)\?0:-1\}\)"
)
WHEN_SHOWN = (
    r"{const o=new IntersectionObserver(l=>l.filter(e=>e.isIntersecting)"
    r".map(({target:e})=>[e,\2?0:-1])"
    r".forEach(([e,t])=>{e.tabIndex=t;o.unobserve(e)}),{rootMargin:'99999px'});"
    r"document.querySelectorAll(\1)"
    r".forEach(e=>e.closest('.spmd-w-scroll')||o.observe(e))}"
)
OWN_STYLE = re.compile(r"<style[^>]*>(.*?)</style>\n?", re.S)
OWN_SCRIPT = re.compile(r"<script>(.*?)</script>\n?", re.S)
# Words that were searched for once would be marked on every page from then on.
MARKS, NO_MARKS = "SPHINX_HIGHLIGHT_ENABLED = true", "SPHINX_HIGHLIGHT_ENABLED = false"
SEARCH = ("searchtools.js", "language_data.js", "searchindex.js")
# Sphinx writes which page this is into each of them; nothing here asks.
PAGE_NAME = re.compile(r"DOCUMENTATION_OPTIONS\.pagename = '[^']*';")
URL = re.compile(r"url\((?!['\"]?(?:data:|#))['\"]?([^'\")]+)['\"]?\)")
IMPORT = re.compile(r"""@import (?:url\()?["']?([^"')]+)["']?\)?;""")
CLASS = re.compile(r"\.(-?[A-Za-z_][\w-]*)")
# Arguments of these may name what is not there, and the rule still counts.
INNER = re.compile(r":(?:not|is|where|has)\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\]]*\]")
# The colors of code: of a theme's text, or of one kind of word.
COLOR = re.compile(r"([^{}]*?)\.highlight( \.\w+)?\{([^}]*)\}")
CODE = re.compile(r'<div class="highlight"><pre>.*?</pre>', re.S)
WORD_OF_CODE = re.compile(r'<span class="(\w+)">([^<]*)</span>')
LICENSE = re.compile(r"/\*!.*?\*/", re.S)
WORD = re.compile(r"[\w-]+")
FILE_NAME = re.compile(r"""(?<=["'/(])[\w.-]+\.\w+(?=["'?)#])""")
KEPT = (".txt",)  # licenses
SOURCE_MAP = re.compile(r"^(?://|/\*)# sourceMappingURL=.*$\n?", re.M)


def words_of(texts: Iterable[str]) -> set[str]:
    """Everything in pages and scripts that could be the name of a class."""
    return {word for text in texts for word in WORD.findall(text)}


def is_used(selector: str, words: set[str]) -> bool:
    """Whether every class that a selector wants is named somewhere."""
    return all(name in words for name in CLASS.findall(INNER.sub("", selector)))


def used_rules(css: str, words: set[str]) -> str:
    """A style sheet less comments and the rules that can apply to nothing."""
    rules = tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True)
    return "\n".join(filter(None, (_used(rule, words) for rule in rules)))


def _used(rule, words: set[str]) -> str:
    if rule.type == "error":
        raise ValueError(f"a style sheet can't be read: {rule.message}")
    body = tinycss2.serialize(rule.content or [])
    if rule.type == "qualified-rule":
        wanted = _selectors(rule.prelude)
        kept = [selector for selector in wanted if is_used(selector, words)]
        return f"{','.join(kept)}{{{_plain(body)}}}" if kept else ""
    head = f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}".rstrip()
    if rule.content is None:
        return "" if rule.lower_at_keyword == "charset" else f"{head};"
    if rule.lower_at_keyword in ("media", "supports", "layer", "container"):
        inner = used_rules(body, words)
        return f"{head}{{{inner}}}" if inner else ""
    return f"{head}{{{_plain(body)}}}"


def _selectors(prelude) -> list[str]:
    parts: list[list] = [[]]
    for token in prelude:
        if token == ",":
            parts.append([])
        elif token.type != "comment":
            parts[-1].append(token)
    return [tinycss2.serialize(part).strip() for part in parts]


def _plain(body: str) -> str:
    return re.sub(r"/\*.*?\*/", "", body, flags=re.S).strip()


def with_imports(path: Path, folder: Path) -> str:
    """A style sheet and those that it imports, with addresses meant from `folder`."""
    css = path.read_text("utf8")
    own = moved(IMPORT.sub("", css), path.parent, folder)
    imported = [
        with_imports(path.parent / name, folder) for name in IMPORT.findall(css)
    ]
    return "\n".join([*imported, own])


def moved(css: str, old: Path, new: Path) -> str:
    """A style sheet whose relative addresses are meant from another folder."""

    def rename(match: re.Match) -> str:
        target = (old / match[1]).resolve()
        return f"url({_relative(target, new.resolve())})"

    return URL.sub(rename, css)


def _relative(target: Path, folder: Path) -> str:
    up = 0
    while not target.is_relative_to(folder):
        folder, up = folder.parent, up + 1
    return "../" * up + target.relative_to(folder).as_posix()


def _write(folder: Path, stem: str, suffix: str, text: str) -> Path:
    """A file whose name changes with what is in it: no browser keeps an old one."""
    path = folder / f"{stem}.{hashlib.sha256(text.encode()).hexdigest()[:10]}{suffix}"
    path.write_text(text, "utf8")
    return path


def each_once(text: str) -> str:
    """A page whose body has no style, and no script twice: its head has the styles."""
    head, end, body = text.partition("</head>")
    styles = dict.fromkeys(style.strip() for style in OWN_STYLE.findall(body))
    body = OWN_STYLE.sub("", body)
    last = {match[1]: match.start() for match in OWN_SCRIPT.finditer(body)}
    body = OWN_SCRIPT.sub(
        lambda match: match[0] if match.start() == last[match[1]] else "", body
    )
    styles_once = "\n".join(styles)
    return (
        head
        + (f"<style>\n{styles_once}\n</style>\n" if styles_once else "")
        + end
        + body
    )


def plain_kinds(css: str) -> set[str]:
    """The kinds of words that have their theme's own color of text and nothing else.

    `css` is what `used_rules` writes.
    """
    rules = COLOR.findall(css)
    texts = {theme.strip(): _color(body) for theme, kind, body in rules if not kind}
    styles: dict[str, set[bool]] = {}
    for theme, kind, body in rules:
        if kind:
            text = texts.get(theme.strip())
            is_text = body.strip() == f"color: {text}"
            styles.setdefault(kind.strip(" ."), set()).add(is_text)
    return {kind for kind, same in styles.items() if same == {True}}


def _color(body: str) -> str | None:
    match = re.search(r"(?:^|;)\s*color: ([^;]+)", body)
    return match[1].strip() if match else None


def plain_code(text: str, kinds: set[str]) -> str:
    """A page whose code has no element around words of these kinds."""

    def bare(word: re.Match) -> str:
        return word[2] if word[1] in kinds else word[0]

    return CODE.sub(lambda code: WORD_OF_CODE.sub(bare, code[0]), text)


class Site:
    """The pages of a built site, and what all of them ask for."""

    def __init__(self, root: Path):
        self.root = root
        self.pages = {
            path: text
            for path in sorted(root.rglob("*.html"))
            if "</head>" in (text := path.read_text("utf8"))
            and STYLE.search(text)
            and SCRIPT.search(text)
        }

    def requests(self, pattern: re.Pattern, group: int) -> dict[Path, list[Path]]:
        """The files that each page's tags name, in their order."""
        return {
            page: [
                (page.parent / match[group]).resolve()
                for match in pattern.finditer(text)
                if not match[group].startswith(("http", "//", "data:"))
            ]
            for page, text in self.pages.items()
        }

    def shared(self, requests: dict[Path, list[Path]], suffix: str) -> list[Path]:
        """Those that every page names, in their order."""
        lists = [
            [p for p in files if p.suffix == suffix] for files in requests.values()
        ]
        first = dict.fromkeys(lists[0])
        return [p for p in first if all(p in files for files in lists)]

    def join_styles(self) -> None:
        files = self.shared(self.requests(STYLE, 1), ".css")
        folder = self.root / "_static"
        scripts = [path.read_text("utf8") for path in folder.rglob("*.js")]
        words = words_of([*self.pages.values(), *scripts])
        css = "\n".join(with_imports(f, folder) for f in files)
        licenses = "\n".join(dict.fromkeys(LICENSE.findall(css)))
        rules = used_rules(css, words)
        joined = _write(folder, "site", ".css", f"{licenses}\n{rules}\n")
        plain = plain_kinds(rules)
        for page, text in self.pages.items():
            self.pages[page] = self._replace(
                page,
                plain_code(text, plain),
                STYLE,
                1,
                set(files),
                '<link rel="stylesheet" href="{}">',
                joined,
            )

    def join_scripts(self) -> None:
        requests = self.requests(SCRIPT, 2)
        files = [f for f in self.shared(requests, ".js") if f.name not in SEARCH]
        first = next(iter(self.pages.values()))
        options = dict.fromkeys(PAGE_NAME.sub("", s) for s in INLINE.findall(first))
        parts = []
        for file in files:
            parts.append(SOURCE_MAP.sub("", file.read_text("utf8")))
            if file.name == "documentation_options.js":
                parts += [*options, NO_SNIPPETS]
        script = ONE_BY_ONE.sub(WHEN_SHOWN, "\n;\n".join(parts) + "\n")
        script = script.replace(MARKS, NO_MARKS)
        joined = _write(self.root / "_static", "site", ".js", script)
        for page, text in self.pages.items():
            text = INLINE.sub("", PRELOAD.sub("", text)).replace(LATE_THEME, THEME)
            is_search = page == self.root / "search.html"
            drop = set(files) | (set() if is_search else self._search_files())
            text = self._replace(
                page, text, SCRIPT, 2, drop, '<script defer src="{}"></script>', joined
            )
            self.pages[page] = SCRIPT.sub(_deferred, text)

    def _search_files(self) -> set[Path]:
        static = self.root / "_static"
        return {(self.root / n).resolve() for n in SEARCH} | {
            (static / n).resolve() for n in SEARCH
        }

    def _replace(self, page, text, pattern, group, files, tag, joined) -> str:
        """The first of these tags becomes the new one, the others go."""
        address = _relative(joined.resolve(), page.parent.resolve())
        new = [tag.format(address) + "\n"]

        def change(match: re.Match) -> str:
            path = (page.parent / match[group]).resolve()
            if path not in files:
                return match[0]
            return new.pop() if new else ""

        return pattern.sub(change, text)

    def write(self) -> None:
        for page, text in self.pages.items():
            page.write_text(each_once(text), "utf8")

    def remove_unasked(self) -> None:
        """Files in _static/ that no page, and nothing that a page asks for, names."""
        static = self.root / "_static"
        left = {p for p in static.rglob("*") if p.is_file()}
        texts = [path.read_text("utf8") for path in self.root.rglob("*.html")]
        while texts:
            names = {name for text in texts for name in FILE_NAME.findall(text)}
            named = {path for path in left if path.name in names}
            left -= named
            texts = [p.read_text("utf8") for p in named if p.suffix in (".css", ".js")]
        for path in left:
            if path.suffix not in KEPT:
                path.unlink()
        folders = sorted((p for p in static.rglob("*") if p.is_dir()), reverse=True)
        for folder in folders:
            if not any(folder.iterdir()):
                folder.rmdir()


def _deferred(script: re.Match) -> str:
    return (
        script[0]
        if " defer" in script[1]
        else script[0].replace(" src=", " defer src=")
    )


def lighten(app, exception):
    """After a build without an error."""
    if exception or app.builder.format != "html":
        return
    site = Site(Path(app.outdir))
    site.join_styles()
    site.join_scripts()
    site.write()
    site.remove_unasked()


def setup(app):
    app.connect("build-finished", lighten, priority=700)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
