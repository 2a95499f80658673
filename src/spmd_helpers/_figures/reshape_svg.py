"""Reshapes into heads, drawn: a line of features for each device, a color a head."""

from dataclasses import dataclass

from .._core.palette import SHARDS
from .._core.words import count_words, join_words, table
from .._core.words import number as _n
from .._player.page import FramePage, Page, Slider, View
from .._shardings.sharding import ShardingInfo, mesh_words, spec_words
from .elements import rect, text
from .reshapes import Piece, Reshape

_LEFT, _WIDE = 60.0, 296.0
_WIDTH = _LEFT + _WIDE
_LABEL, _CELL, _GAP, _AFTER, _BETWEEN = 15.0, 22.0, 4.0, 8.0, 11.0
_LINE = _LABEL + _CELL + _GAP + _AFTER + _BETWEEN
_EDGE = 4.0  # px; of a boundary inside a head
_LETTER = 6.2  # px
_RULES = """
.spmd-heads-side.spmd-heads-side { font-size: 11.5px; text-anchor: start; }
.spmd-heads-small.spmd-heads-small { font-size: 10px; text-anchor: start; }
.spmd-heads-name.spmd-heads-name { font-size: 10.5px; }
.spmd-heads-ticks.spmd-heads-ticks { fill: none; stroke: var(--paper); \
stroke-width: 0.9; }
.spmd-heads-box.spmd-heads-box { fill: none; stroke: currentColor; stroke-width: 1.25; }
.spmd-heads-part.spmd-heads-part { fill: none; stroke: currentColor; \
stroke-width: 1.25; \
stroke-dasharray: 4 3; }
.spmd-heads-edge.spmd-heads-edge { fill: currentColor; }
.spmd-heads-room.spmd-heads-room { fill: none; stroke: currentColor; \
stroke-opacity: 0.35; }
"""


@dataclass(frozen=True)
class ReshapePicture:
    """Reshapes of one array, as the frames of a player."""

    info: ShardingInfo
    reshapes: tuple[Reshape, ...]

    @property
    def title(self) -> str:
        """The heading."""
        shape = ", ".join(map(str, self.info.shape))
        return f"Heads of {self.info.dtype}[{shape}]"

    @property
    def facts(self) -> str:
        """The sharding."""
        mesh = mesh_words(dict(self.info.axes))
        return f"sharded as {spec_words(self.info.entries)} over {mesh}"

    @property
    def notes(self) -> str:
        """What the lines, colors and marks mean."""
        return (
            "The wide line of a device is the features of its shard, the narrow line "
            "all features that it has after the reshape. A color is a head. A head "
            "that is divided between two devices has a dashed outline, and a thick "
            "bar where the boundary is."
        )

    def heading(self, one: Reshape) -> str:
        """'8 heads of 12 features'."""
        heads = count_words(one.heads, "head")
        return f"{heads} of {count_words(one.size, 'feature')}"

    def sentence(self, one: Reshape) -> str:
        """Which boundaries are inside heads, what it costs, and the result."""
        parts = [_say_boundaries(one)] if one.heads > 1 else []
        spec = spec_words(one.result.entries)
        if one.collectives:
            kinds = list(dict.fromkeys(c.kind for c in one.collectives))
            parts.append(
                f"Each device sends {one.wire_bytes:,} B ({join_words(kinds)}), and "
                f"the result is {spec}: {_say_after(one)}."
            )
        else:
            parts.append(f"Nothing is sent, and the result is {spec}.")
        if one.heads == 1:
            parts.insert(0, "The reshape only adds a dimension of size 1.")
        return " ".join(parts)

    def state(self, one: Reshape) -> str:
        """What each device has before and after, as a table."""
        rows = [("device", "features", "heads", "features after the reshape")]
        for device, (low, high) in enumerate(one.before):
            heads = ", ".join(_words(piece, one) for piece in one.pieces(device))
            after = ", ".join(_said(run) for run in one.after[device])
            rows.append((str(device), _said((low, high)), heads, after))
        return table(rows)

    def label(self, one: Reshape) -> str:
        """The same in sentences, for a reader who does not see it."""
        return " ".join(
            f"Device {device} has features {_said(run)}, heads "
            f"{', '.join(_words(piece, one) for piece in one.pieces(device))}, and "
            f"after the reshape features {', '.join(map(_said, one.after[device]))}."
            for device, run in enumerate(one.before)
        )

    # --- SVG --------------------------------------------------------------------------

    def page(self, name: str) -> Page:
        """The player's page; its ids start with `name`."""
        height = _LINE * len(self.reshapes[0].before) - _BETWEEN
        return Page(
            self.title,
            self.facts,
            self.notes,
            (self._base(name),),
            tuple(self._frame(one, name) for one in self.reshapes),
            View(-1, -1, _WIDTH + 3, height + 2),
            rules=_RULES,
            group="Set the number of heads",
            pace="read",
            sliders=self._sliders,
        )

    @property
    def _sliders(self) -> tuple[Slider, ...]:
        counts = tuple(str(one.heads) for one in self.reshapes)
        return (Slider("heads", counts),) if len(counts) > 1 else ()

    def _base(self, name: str) -> str:
        lines = [f'<g id="{name}-base">']
        for device in range(len(self.reshapes[0].before)):
            y = device * _LINE
            lines.append(text("heads-side", 0, y + _LABEL + 15.5, f"device {device}"))
            lines.append(text("heads-small", 0, y + _LABEL + _CELL + _GAP + 8, "after"))
            room = 'class="spmd-heads-room"'
            y += _LABEL + _CELL + _GAP
            lines.append(rect(_LEFT, y, _WIDE, _AFTER, room))
        return "\n".join([*lines, "</g>"])

    def _frame(self, one: Reshape, name: str) -> FramePage:
        items = [f'<use href="#{name}-base"/>']
        for device in range(len(one.before)):
            items += self._device(one, device)
        return FramePage(
            tuple(items), self.label(one), self.heading(one), self.sentence(one)
        )

    def _device(self, one: Reshape, device: int) -> list[str]:
        y = device * _LINE + _LABEL
        low, high = one.before[device]
        each = _WIDE / (high - low)
        items = []
        for piece in one.pieces(device):
            x, width = (
                _LEFT + each * (piece.start - low),
                each * (piece.stop - piece.start),
            )
            items.append(rect(x, y, width, _CELL, f'fill="{_fill(piece.head)}"'))
            words = _label(piece, one, width)
            if words:
                items.append(text("heads-name", x + width / 2, y - 3.5, words))
        ticks = "".join(
            f"M{_n(_LEFT + each * k)} {_n(y)}v{_n(_CELL)}" for k in range(1, high - low)
        )
        items.append(f'<path class="spmd-heads-ticks" d="{ticks}"/>')
        for piece in one.pieces(device):
            x, width = (
                _LEFT + each * (piece.start - low),
                each * (piece.stop - piece.start),
            )
            kind = "box" if piece.complete else "part"
            items.append(rect(x, y, width, _CELL, f'class="spmd-heads-{kind}"'))
        if one.heads > 1:
            items += [
                rect(x, y - 3, _EDGE, _CELL + 6, 'class="spmd-heads-edge"', 1)
                for edge, x in ((low, _LEFT - _EDGE), (high, _WIDTH))
                if edge in one.inside
            ]
        return [*items, *self._after(one, device)]

    def _after(self, one: Reshape, device: int) -> list[str]:
        """What a device has of the result, head by head."""
        y = device * _LINE + _LABEL + _CELL + _GAP
        each = _WIDE / self.info.shape[-1]
        items = []
        for low, high in one.after[device]:
            start = low
            while start < high:
                head = start // one.size
                stop = min(high, (head + 1) * one.size)
                x, width = _LEFT + each * start, each * (stop - start)
                items.append(rect(x, y, width, _AFTER, f'fill="{_fill(head)}"'))
                start = stop
        return items


def _fill(head: int) -> str:
    return SHARDS[head % len(SHARDS)][0]


def _label(piece: Piece, one: Reshape, width: float) -> str:
    """The name of a head, as long as there is room for it."""
    for words in (
        f"head {piece.head}"
        if piece.complete
        else f"head {piece.head}: {piece.stop - piece.start} of {one.size}",
        f"head {piece.head}" if piece.complete else f"{piece.head}: part",
        f"{piece.head}",
    ):
        if len(words) * _LETTER <= width + 4:
            return words
    return ""


def _words(piece: Piece, one: Reshape) -> str:
    if piece.complete:
        return str(piece.head)
    return f"{piece.head} ({piece.stop - piece.start} of {one.size})"


def _said(run: tuple[int, int]) -> str:
    return f"{run[0]} to {run[1] - 1}"


def _say_boundaries(one: Reshape) -> str:
    inside = one.inside
    if not inside:
        return "Every boundary between two shards is also one between two heads."
    several = len(inside) > 1
    edges = join_words([str(edge) for edge in inside])
    heads = join_words(list(dict.fromkeys(map(str, inside.values()))))
    return (
        f"The shard {'boundaries' if several else 'boundary'} at "
        f"{'features' if several else 'feature'} {edges} {'are' if several else 'is'} "
        f"inside {'heads' if len(set(inside.values())) > 1 else 'head'} {heads}."
    )


def _say_after(one: Reshape) -> str:
    features = one.heads * one.size
    full = all(runs == ((0, features),) for runs in one.after)
    if full:
        return f"each device has all {count_words(one.heads, 'head')}"
    most = max(sum(high - low for low, high in runs) for runs in one.after)
    return f"each device has {most} of {features} features"
