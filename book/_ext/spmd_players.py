"""A figure that plays, on a page that is no notebook.

It is the package's own player, of a collective that `read_hlo` reads, or of the memory
of a training step. The glossary has one under each term that is a kind of collective,
other pages where they ask for one. In the words of every player, a chapter's too, a
number stays on the line of its unit.
"""

import re

from docutils import nodes
from docutils.parsers.rst import Directive

MESH = {"x": 4}
RING = "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"
GROUP = "replica_groups={{0,1,2,3}}"
# What four devices put in and get out, in elements, and who exchanges with whom.
PLAYED = {
    "all-gather": (64, 256, GROUP),
    "reduce-scatter": (256, 64, GROUP),
    "all-reduce": (256, 256, GROUP),
    "all-to-all": (256, 256, GROUP),
    "collective-permute": (64, 64, RING),
}
MEMORY = "memory"
# The words of a frame end it, and a number in them stands before its unit.
WORDS = re.compile(r"<p><strong>[^<]*</strong>[^<]*</p>(?=\s*</li>)")
UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]i?B|B|[mµn]?s)\b)")
TEXT = """HloModule jit_f, num_partitions=4

ENTRY main {{
  p = f32[{given}] parameter(0)
  ROOT r = f32[{got}] {kind}(p), {groups}
}}
"""


def player(kind: str):
    """A player of four devices."""
    import spmd_helpers as spmd

    given, got, groups = PLAYED[kind]
    text = TEXT.format(kind=kind, given=given, got=got, groups=groups)
    (collective,) = spmd.read_hlo(text, MESH)
    return spmd.CollectivePlayer(collective, mesh=MESH)


def memory_timeline():
    """A step of Llama 3 8B on eight H100s: replicated, FSDP, and recomputed too."""
    import spmd_helpers as spmd

    model = spmd.MODELS["llama-3-8b"]
    ways = {
        "ZeRO-0": (0, "everything_saveable"),
        "ZeRO-3": (3, "everything_saveable"),
        "ZeRO-3, recomputed": (3, "nothing_saveable"),
    }
    steps = {
        name: spmd.training_memory(
            model, mesh={"data": 8}, batch=8, zero=zero, recompute=recompute,
            attention="flash", chip="h100",
        )
        for name, (zero, recompute) in ways.items()
    }  # fmt: skip
    return spmd.MemoryTimeline(steps, chip="h100")


class Player(Directive):
    """A kind of collective, or 'memory', folded until a reader opens it."""

    required_arguments = 1

    def run(self):
        kind = self.arguments[0]
        if kind == MEMORY:
            return [folded(memory_timeline(), "Play the memory of a training step")]
        if kind not in PLAYED:
            raise self.error(f"{kind} is none of {', '.join([*PLAYED, MEMORY])}")
        return [collective(kind)]


def collective(kind: str):
    """A collective that a reader opens."""
    words = f"Play an {kind}" if kind[0] in "aeiou" else f"Play a {kind}"
    return folded(player(kind), words, f"play-{kind}")


def folded(figure, words: str, name: str = ""):
    """A figure that a reader opens; a link to the name opens it, too."""
    shown = figure._repr_mimebundle_()["text/html"]
    if name:
        shown = f'<div id="{name}">\n{shown}</div>'
    html = f"<details><summary>{words}</summary>\n{shown}</details>"
    return nodes.raw("", html, format="html")


def play_terms(app, doctree):
    """Put a player under each collective of the glossary."""
    if app.env.docname != "book/glossary":
        return
    for item in doctree.findall(nodes.definition_list_item):
        kind = item[0].astext()
        if kind in PLAYED:
            item[-1].append(collective(kind))


def with_units(page: str) -> str:
    """A page whose players keep each number on the line of its unit."""
    return WORDS.sub(lambda words: UNIT.sub("\N{NO-BREAK SPACE}", words[0]), page)


def keep_units(app, name, template, context, doctree):
    """Before a page is written."""
    if "body" in context:
        context["body"] = with_units(context["body"])


def setup(app):
    app.add_directive("player", Player)
    app.connect("doctree-read", play_terms)
    app.connect("html-page-context", keep_units)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
