"""Sections of `book/hardware.md`: products by the card's clock, and XLA's tables."""

import functools

from spmd_helpers._hardware.chips import HARDWARE
from spmd_helpers._hardware.positions import Positions
from spmd_helpers._hlo.collectives import Collective
from spmd_helpers._time.links import price
from spmd_helpers._time.rates import rates_of
from tools.measure.page_tables import as_table, card
from tools.measure.seconds.predict import spread
from tools.measure.seconds.products import CACHE, kernel_s, predicted
from tools.measure.seconds.xla_tables import sent

MIB = 2**20
_ROWS = ((1, 32), (64, 256), (384, 1024), (2048, 4096))


def products_section(rows: list[dict]) -> str:
    """Products of few and of many rows, on the device alone."""
    every = predicted(rows)
    large = [row for row in every if row["weights"] > CACHE]
    out = [row for row in large if row["kept_out"]]
    median, nine, most = spread(out)
    table = [["rows of x", *["how many", "median", "nine of ten", "most"] * 2]]
    table[0][5] = "from the cache"
    for least, last in _ROWS:
        cells = [f"{least} to {last}"]
        for is_large in (True, False):
            some = [
                row
                for row in every
                if least <= row["m"] <= last and (row["weights"] > CACHE) is is_large
            ]
            cells += [str(len(some)), *(f"{share:.1%}" for share in spread(some))]
        table.append(cells)
    return (
        "## Products by the card's own clock\n\n"
        f"{card(rows)}. {len(rows)} products in bfloat16, each 12 times: the seconds "
        "of their kernels in a trace. A product of few rows takes less than the 45 to "
        "65 µs that the host needs to start a call. The clock of the host, which the "
        "sections above use, then measures the host: 32 × 8192 × 8192 is there 74 µs, "
        f"on the card {_device(rows, '32x8192x8192')}. The programs that the "
        "compiler chose beside the card are not stored. `step_time` is given the shape "
        "alone.\n\n"
        f"Kept out by the hash of their names, with weights of more than 50 MB: "
        f"{len(out)} products, median error {median:.1%}, nine of ten within "
        f"{nine:.1%}, most {most:.1%}. Smaller weights stay in the card's cache from "
        "call to call and are read faster than from memory, which `step_time` does not "
        "count, because a step reads other arrays between. All errors:\n\n"
        + as_table(table)
    )


def _device(rows: list[dict], name: str) -> str:
    seconds = next(row["device_s"] for row in rows if row["name"] == name)
    return f"{seconds * 1e6:.0f} µs"


def xla_section(tables: dict) -> str:
    """Our formulas against times that others measured."""
    return (
        "## Against XLA's own tables\n\n"
        "XLA's scheduler carries times that its authors measured on eight cards of a "
        "host (openxla/xla, `default_collective_perf_table.txtpb` and "
        f"`default_matmul_perf_table.txtpb`; here from {tables['source']}; the key "
        "`sm_90` is set beside an H100). Errors of what `step_time` divides by, "
        "predicted over listed, less one: the median, and the largest.\n\n"
        "Collectives, by the devices of a group. The rates of groups of four and eight "
        "are lines through these rows; those of two, and every start, were chosen on "
        "two H200s: a start has 50 µs there, because it contains what one card waits "
        "for the other. XLA's rows are of the kernel alone, 20 to 50 µs.\n\n"
        f"{as_table(_collectives(tables))}\n"
        "Products, by their FLOPs. The 4 µs that a product takes besides its FLOPs "
        "were chosen with the rows of the H100 in bfloat16; the others were not looked "
        "at for it. float32 is TF32. The table lists up to three times for a shape "
        "under `sm_90`, with a third of 1240 TFLOP/s, more than the sheet of any such "
        "card: the first is used.\n\n"
        f"{as_table(_products(tables))}"
    )


_SIZES = (
    ("1 to 8 MiB", MIB, 8 * MIB),
    ("16 to 64 MiB", 16 * MIB, 64 * MIB),
    ("128 MiB and more", 128 * MIB, 2**60),
)


def _collectives(tables: dict) -> list[list[str]]:
    table = [["card", "collective", "devices", *(name for name, *_ in _SIZES)]]
    groups = dict.fromkeys((c, k, n) for c, k, n, *_ in tables["collectives"])
    for chip, kind, devices in groups:
        cells = [chip, kind, str(devices)]
        for _, least, most in _SIZES:
            off = [
                collective_s(chip, kind, devices, size) / seconds - 1
                for c, k, n, size, seconds in tables["collectives"]
                if (c, k, n) == (chip, kind, devices) and least <= size <= most
            ]
            cells.append(_figures(off))
        table.append(cells)
    return table


@functools.cache
def _rates(chip: str):
    return rates_of(HARDWARE[chip])


def collective_s(chip: str, kind: str, devices: int, size: int) -> float:
    """Seconds of a collective within a host, by the formula."""
    moved = round(sent(kind, size, devices))
    one = Collective(
        *(kind, ("data",), 1, "float32", size, size, moved, None, None),
        groups=(tuple(range(devices)),),
    )
    hosts = (0,) * devices
    return price(one, _rates(chip), Positions(chip, hosts, hosts)).seconds


def _products(tables: dict) -> list[list[str]]:
    sizes = (("to 1 GFLOP", 0, 1e9), ("to 10", 1e9, 1e10), ("above", 1e10, 1e30))
    table = [["card", "type", *(name for name, *_ in sizes)]]
    types = {"bf16": "bfloat16", "f32": "float32"}
    for chip, dtype in dict.fromkeys((c, t) for c, t, *_ in tables["products"]):
        cells = [chip, types[dtype]]
        for _, least, most in sizes:
            off = [
                kernel_s(chip, m, k, n, dtype) / seconds - 1
                for c, t, m, k, n, seconds in tables["products"]
                if (c, t) == (chip, dtype) and least < 2 * m * k * n <= most
            ]
            cells.append(_figures(off))
        table.append(cells)
    return table


def _figures(off: list[float]) -> str:
    middle, most = sorted(off)[len(off) // 2], max(off, key=abs)
    return f"{middle:+.0%}, {most:+.0%}".replace("-", "−")
