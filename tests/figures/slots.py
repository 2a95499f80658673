"""The slots of a drawing, which are one path."""

import re


def slots(svg: str) -> list[tuple[float, float]]:
    """The upper left corner of each."""
    paths = re.findall(r'<path class="empty" d="([^"]+)"', svg)
    starts = re.findall(r"M(\S+) ([\d.]+)h", "".join(paths))
    return [(float(x), float(y)) for x, y in starts]
