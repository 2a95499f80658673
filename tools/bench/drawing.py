"""Drawing the same sharding: ours as text and SVG, and what JAX prints."""

import contextlib
import io
import re
from typing import Any

from tools.bench.clock import Part, duration, in_another_python, median_seconds, ratio

GRIDS = {8: (4, 2), 64: (8, 8), 512: (32, 16)}
SPECS = [("data", "model"), ("data", None), (("data", "model"), None)]


def drawing() -> Part:
    rows = [
        ("devices", "spec", "ours, text", "ours, SVG", "JAX", "JAX / text", "JAX / SVG")
        + ("ours says", "JAX says")
    ]
    for devices in GRIDS:
        for timings in in_another_python("drawing", devices):
            text, svg, other = timings["text"], timings["svg"], timings["other"]
            rows.append(
                (devices, timings["spec"], *map(duration, (text, svg, other)))
                + (ratio(other, text), ratio(other, svg))
                + (timings["ours says"], timings["other says"])
            )
    notes = [
        "says: whether the picture names the axes, and the bytes of a block, and how",
        "many of the devices it names. Ours leaves out the middle of many blocks, and",
        "says so; JAX's needs an array that lies on the devices, ours only a shape.",
    ]
    return "drawing, median seconds of a picture", rows, (0, 2, 3, 4, 5, 6), notes


def measure() -> list[dict[str, Any]]:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from spmd_helpers import draw

    devices = jax.devices()
    mesh = Mesh(np.array(devices).reshape(GRIDS[len(devices)]), ("data", "model"))
    shape, results = (1024, 2048), []
    for spec in SPECS:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        x = jax.device_put(np.zeros(shape, np.float32), sharding)
        printed = printed_by_jax(x)
        ours = str(draw(shape, sharding))
        results.append(
            {
                "spec": f"P{spec}".replace("'", ""),
                "text": median_seconds(lambda s=sharding: str(draw(shape, s))),
                "svg": median_seconds(lambda s=sharding: draw(shape, s).svg),
                "other": median_seconds(lambda x=x: printed_by_jax(x)),
                "ours says": says(ours, len(devices)),
                "other says": says(printed, len(devices)),
            }
        )
    return results


def printed_by_jax(x: Any) -> str:
    import jax

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        jax.debug.visualize_array_sharding(x)
    return out.getvalue()


def says(picture: str, devices: int) -> str:
    axes = "axes" if "data" in picture and "model" in picture else "no axes"
    size = "bytes" if re.search(r"\d ([KMG]i)?B\b", picture) else "no bytes"
    cells = picture.partition("columns:")[2].partition("cells:")[0] or picture
    cells = re.sub(r"\d+:\d+|(data|model) \d+|\d+ (more|copies|copy)", "", cells)
    named: set[int] = set()
    for first, last in re.findall(r"\b(\d+)(?:–(\d+))?\b", cells):
        named.update(range(int(first), int(last or first) + 1))
    return f"{axes}, {size}, {len(named & set(range(devices)))} devices"
