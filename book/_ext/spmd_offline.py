"""The whole site as one file, `offline.zip`, to take where there is no network.

It is packed last, from what was built, and the same site makes the same bytes.
Unpacked, it is one folder with a page to open. A page leads to it with the directive
`offline`; in the copy itself that paragraph is left out.
"""

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive

NAME, FIRST = "offline.zip", "OPEN-ME.html"
FRONT = "index.html"
NOT_PACKED = ("_static/cards",)  # for other sites, which ask this one for them
DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can have
SIZE = "<!-- size of the offline copy -->"
PARAGRAPH = re.compile(r'<p class="spmd-offline">.*?</p>\n?', re.S)


class offline(nodes.General, nodes.Element):
    """The place of a paragraph that leads to the copy."""


class Offline(Directive):
    def run(self):
        return [offline()]


def show(translator, node):
    page = translator.builder.current_docname
    address = "../" * page.count("/") + NAME
    name = folder_name(translator.builder.config.html_title)
    translator.body.append(
        f'<p class="spmd-offline"><a href="{address}" download="{name}.zip">The whole '
        f"book as one file</a>{SIZE}: unpack it, open {FIRST}, and read without a "
        "network.</p>\n"
    )
    raise nodes.SkipNode


def folder_name(title: str) -> str:
    """`sharding-in-jax` of a title such as `Sharding in JAX, and more`."""
    words = re.findall(r"[a-z0-9]+", title.split(",")[0].lower())
    return "-".join(words) or "book"


def contents(site: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of everything that belongs into the copy, in order."""
    for path in sorted(site.rglob("*")):
        name = path.relative_to(site).as_posix()
        hidden = any(part.startswith(".") for part in name.split("/"))
        if path.is_dir() or hidden or name == NAME or name.startswith(NOT_PACKED):
            continue
        data = path.read_bytes()
        if path.suffix == ".html":
            data = PARAGRAPH.sub("", data.decode()).encode()
        if name == FRONT:
            yield FIRST, data
        yield name, data


def pack(site: Path, title: str) -> Path:
    """Write the copy of a site into the site."""
    path, folder = site / NAME, folder_name(title)
    with zipfile.ZipFile(path, "w") as packed:
        for name, data in contents(site):
            entry = zipfile.ZipInfo(f"{folder}/{name}", DATE)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            packed.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return path


def say_size(site: Path, size: int) -> None:
    words = f" ({size / 1e6:.1f} MB)"
    for page in site.rglob("*.html"):
        text = page.read_text("utf8")
        if SIZE in text:
            page.write_text(text.replace(SIZE, words), "utf8")


def pack_site(app, exception):
    """After a build without an error, when nothing is written any more."""
    if exception or app.builder.format != "html":
        return
    site = Path(app.outdir)
    copy = pack(site, app.config.html_title)
    say_size(site, copy.stat().st_size)


def setup(app):
    app.add_node(offline, html=(show, None))
    app.add_directive("offline", Offline)
    app.connect("build-finished", pack_site, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
