"""The front page's picture: one line of code under two shardings, and what it sends.

Drawn from `spmd.matmul`: who has which shard of w at each stage, and the bytes.
"""

from docutils import nodes
from docutils.parsers.rst import Directive

DEVICES = 4
SIZES = (8192, 4096, 4096)
MESH = {"data": DEVICES}
BOX, GAP, SLOT = 90, 6, 20
ROWS = {"x": 24, "w": 52, "y": 80}  # the upper side of each row in a device
CELL, HEIGHT, BAR = 20, 108, 150
WIDTH = DEVICES * (BOX + GAP) - GAP


def products():
    """The line with w sharded over its rows, and with w replicated."""
    import spmd_helpers as spmd

    return [
        spmd.matmul(SIZES, ("data",), w, mesh=MESH, dtype="float32")
        for w in (("data",), ())
    ]


def shards(product, stage: int) -> list[list[int]]:
    """The shards of w that each device has at a stage."""
    rows = SIZES[1] // DEVICES
    shards_of_all = []
    for device in range(DEVICES):
        first, end = product.follow(device)[stage].b[0]
        shards_of_all.append([*range(first // rows, end // rows)])
    return shards_of_all


def frames() -> list[tuple[str, str, str, str]]:
    """(SVG, heading, sentence, words) of each frame."""
    from spmd_helpers._core.words import bytes_words

    sharded, replicated = products()
    (gather,) = sharded.moves
    sent = bytes_words(gather.wire_bytes)
    part, full = (bytes_words(p.b.bytes_per_device) for p in (sharded, replicated))
    before, gathered = shards(sharded, 0), shards(sharded, 1)
    multiplied, other = shards(sharded, 2), shards(replicated, 1)
    assert not replicated.moves
    return [
        (
            picture(before, "0 B", 0.0, gathered),
            "y = x @ w, with w sharded",
            "Four devices share the line: each has a quarter of the batch x and a "
            f"quarter of the weight w, {part}.",
            words(before, "0 B", False),
        ),
        (
            picture(gathered, sent, 1.0),
            "The compiler adds an all-gather",
            f"To multiply, every device needs all of w. Each sends {sent} to the "
            "others, at every call.",
            words(gathered, sent, False),
        ),
        (
            picture(multiplied, sent, 1.0, is_computed=True),
            "The numbers are right",
            "Every device multiplies its rows. Nothing in the result shows what was "
            "sent.",
            words(multiplied, sent, True),
        ),
        (
            picture(other, "0 B", 0.0, is_computed=True),
            "With w replicated, nothing is sent",
            f"The line and the numbers are the same. Every device stores {full} of w "
            f"instead of {part}.",
            words(other, "0 B", True),
        ),
    ]


def words(shards_of_all: list[list[int]], sent: str, is_computed: bool) -> str:
    """A frame for those who don't see it."""
    lines = [
        f"device {device} has shard {device} of x, "
        + (f"shard {own[0]} of w" if len(own) == 1 else "all shards of w")
        + (f" and shard {device} of y" if is_computed else "")
        for device, own in enumerate(shards_of_all)
    ]
    return f"{'; '.join(lines)}. Sent per device: {sent}."


def picture(shards_of_all, sent, share, after=None, is_computed=False) -> str:
    """The devices with what they have; `after` is what they have in the next frame."""
    lines = []
    for device, own in enumerate(shards_of_all):
        left = device * (BOX + GAP)
        lines.append(
            f'<rect class="spmd-play-device" x="{left}" y="0" width="{BOX}" '
            f'height="{HEIGHT}" rx="5"/>'
        )
        lines.append(_text("name", left + BOX / 2, 15, f"device {device}"))
        for name in "xy":
            if name == "x" or is_computed:
                lines.append(_wide(name, device, left))
            else:
                lines.append(_empty(left + 5, ROWS[name], BOX - 10))
        lines += [_empty(_slot(device, k), ROWS["w"], SLOT) for k in range(DEVICES)]
        lines += [_shard(k, _slot(device, k)) for k in own]
    for device, later in enumerate(after or ()):
        for k in set(later) - set(shards_of_all[device]):
            start, end = _slot(k, k), _slot(device, k)
            lines.append(_shard(k, start, f' data-to="{end - start} 0"'))
    counter = '<rect class="spmd-play-{}" x="0" y="{}" width="{}" height="7" rx="3.5"/>'
    lines.append(_text("head", 0, BAR - 14, "sent per device"))
    lines.append(_text("bytes", WIDTH, BAR - 14, sent))
    lines.append(counter.format("rest", BAR - 7, WIDTH))
    lines.append(counter.format("sent", BAR - 7, WIDTH * share))
    view = f"-1 -1 {WIDTH + 2} {BAR + 4}"
    body = "".join(lines)
    return f'<svg viewBox="{view}" width="{WIDTH + 2}" height="{BAR + 4}">{body}</svg>'


def _slot(device: int, k: int) -> int:
    return device * (BOX + GAP) + 5 + k * SLOT


def _shard(k: int, x: int, more: str = "") -> str:
    from spmd_helpers._core.palette import SHARDS

    fill, ink = SHARDS[k]
    middle = x + SLOT / 2
    label = _text("small-label", middle, ROWS["w"] + 14, f"w{k}", f' fill="{ink}"')
    return (
        f'<g{more}><rect class="spmd-play-cell" x="{x}" y="{ROWS["w"]}" width="{SLOT}" '
        f'height="{CELL}" rx="3" fill="{fill}"/>{label}</g>'
    )


def _wide(name: str, device: int, left: int) -> str:
    top = ROWS[name]
    return (
        f'<rect class="spmd-play-zero" x="{left + 5}" y="{top}" width="{BOX - 10}" '
        f'height="{CELL}" rx="3"/>'
        + _text("name", left + BOX / 2, top + 14, f"{name}{device}")
    )


def _empty(x: int, y: int, width: int) -> str:
    return (
        f'<rect class="spmd-play-slot" x="{x}" y="{y}" width="{width}" '
        f'height="{CELL}" rx="3"/>'
    )


def _text(kind: str, x: float, y: float, text: str, more: str = "") -> str:
    return (
        f'<text class="spmd-play-text spmd-play-{kind}" x="{x}" y="{y}"{more}>'
        f"{text}</text>"
    )


class Front(Directive):
    """The picture, ready to be played."""

    def run(self):
        import spmd_helpers as spmd

        player = spmd.FramePlayer(
            frames(),
            title="One line, two shardings: what is sent?",
            notes="Each shard of w has one color and one name. Drawn by the package, "
            "from the rule that says what a product moves.",
        )
        shown = player._repr_mimebundle_()["text/html"]
        html = f'<div class="spmd-front">\n{shown}</div>'
        return [nodes.raw("", html, format="html")]


def setup(app):
    app.add_directive("front", Front)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
