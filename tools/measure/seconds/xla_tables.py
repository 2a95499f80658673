"""XLA's own tables of measured collectives and products, reduced to times.

    python -m tools.measure.seconds.xla_tables xla_cuda_plugin.so

XLA's scheduler for GPUs knows how long collectives and products took where its authors
measured them. JAX's CUDA plugin has both tables inside: this finds them there and
stores the times of Hopper and of a B200 in tests/data/xla_tables.json. They are figures
of openxla/xla, `xla/service/gpu/model/default_{collective,matmul}_perf_table.txtpb`
(Apache-2.0). A throughput is the bytes of the full array over the time.
"""

import argparse
import functools
import json
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from spmd_helpers._hlo.ring import SHARE
from tools import ROOT

FILE = ROOT / "tests" / "data" / "xla_tables.json"
CHIPS = {"sm_90": "h100", "sm_100_B200": "b200"}
SOURCE = "jax-cuda12-pjrt 0.12.0.1, xla_cuda_plugin.so, read 2026-11-30"
_HLO_BYTES = 4  # all collectives are of float32


# --- What is stored -------------------------------------------------------------------


@functools.cache
def tables() -> dict:
    """What is stored.

    'collectives': [chip, kind, devices of a group, bytes, seconds], and 'products':
    [chip, type, m, k, n, seconds].
    """
    return json.loads(FILE.read_text("utf8"))


def sent(kind: str, size: int, group: int) -> float:
    """Bytes that one device sends for a full array of `size`, around a ring."""
    return float(size * SHARE[kind](group))


def line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """(start, bytes a second) of the line nearest to points (bytes, seconds).

    Least squares of the relative errors.
    """
    a = sum(1 / s**2 for _, s in points)
    b = sum(sent / s**2 for sent, s in points)
    c = sum((sent / s) ** 2 for sent, s in points)
    d = sum(1 / s for _, s in points)
    e = sum(sent / s for sent, s in points)
    return (d * c - e * b) / (a * c - b * b), (a * c - b * b) / (a * e - b * d)


def lines(least: int = 2**20) -> dict[tuple[str, str, int], tuple[float, float]]:
    """(chip, kind, devices of a group) → line through the sizes from `least` on."""
    points: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for chip, kind, group, size, seconds in tables()["collectives"]:
        if size >= least:
            here = points.setdefault((chip, kind, group), [])
            here.append((sent(kind, size, group), seconds))
    return {key: line(each) for key, each in points.items()}


# --- The plugin -----------------------------------------------------------------------


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message that has numbers and pieces alone."""
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        if tag & 7:
            size, at = _number(data, at)
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            value, at = _number(data, at)
            yield tag >> 3, value


def collectives(data: mmap.mmap, key: str) -> list[list]:
    """The times of a device's collectives: of an entry of a map, key and value."""
    name = b"\n" + bytes([len(key)]) + key.encode() + b"\x12"
    at = data.find(name)
    if at < 0:
        raise SystemExit(f"no table of {key}: this plugin has another form")
    body = at + len(name)
    size, body = _number(data[body : body + 8], 0)[0], body
    start = body + _number(data[body : body + 8], 0)[1]
    rows = []
    for _, entry in _fields(data[start : start + size]):
        assert isinstance(entry, bytes)
        row = _collective(dict(_fields(entry)))
        if row is not None:
            rows.append([CHIPS[key], *row])
    return sorted(rows, key=lambda row: row[1:4])


def _collective(entry: dict) -> tuple[str, int, int, float] | None:
    instruction = list(_fields(entry[1]))
    known = dict(instruction)
    kind, rate = known[2].decode(), entry.get(6)
    if kind == "collective-permute" or not rate:
        return None
    elements, _ = _number(dict(_fields(known[3]))[3], 0)
    group = dict(_fields(known[92]))[2]
    size = elements * _HLO_BYTES * (group if kind == "reduce-scatter" else 1)
    return kind, group, size, round(size / rate, 9)


def products(text: str, key: str) -> list[list]:
    """The times of a device's products, the first that the table lists of a shape."""
    part = text[text.index(f'key: "{key}"') :]
    rows: dict[tuple, float] = {}
    shape: dict[str, int] = {}
    for match in re.finditer(
        r'\b([bmnk]): (\d+)|"(bf16xbf16->bf16|f32xf32->f32)" value: (\d+)|key: "sm',
        part,
    ):
        if match[1]:
            shape[match[1]] = int(match[2])
        elif match[3] and shape["b"] == 1:
            m, k, n = shape["m"], shape["k"], shape["n"]
            name = (CHIPS[key], match[3].partition("x")[0], m, k, n)
            rows.setdefault(name, round(2 * m * k * n / int(match[4]), 9))
        elif match[0].startswith("key") and rows:
            break
    return [[*name, seconds] for name, seconds in rows.items()]


def read(path: Path) -> dict:
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        proto = data.find(b"proto-message: xla.GemmPerfTable")
        text = data[proto : data.find(b"\0", proto)].decode()
        return {
            "source": SOURCE,
            "collectives": [row for key in CHIPS for row in collectives(data, key)],
            "products": [row for key in CHIPS for row in products(text, key)],
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.measure.seconds.xla_tables")
    parser.add_argument("plugin", type=Path)
    match = read(parser.parse_args().plugin)
    parts = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in match[name]) + "\n]"
        for name in ("collectives", "products")
    ]
    source = f'"source": {json.dumps(match["source"])}'
    FILE.write_text("{" + ",\n".join([source, *parts]) + "}\n", "utf8")
    print({name: len(match[name]) for name in ("collectives", "products")})


if __name__ == "__main__":
    main()
