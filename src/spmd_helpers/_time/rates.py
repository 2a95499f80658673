"""Sustained rates of a chip: what the seconds of a step are divided by.

Of an H200 they were measured (`load_measured("gpu-speeds")`), or chosen so that stored
rows come out right, of which a third was kept out. Of other chips they are stated
fractions of the sheet: of GPUs the H200's fractions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from numbers import Real
from typing import Any

from .._core.validate import did_you_mean
from .._errors import NotUnderstood
from .._hardware.chips import HARDWARE, Chip
from .._hardware.measured import load_measured

_MEASURED = "h200"
# NVLink: of pairs and threes, and of larger groups.
NEAR = ("nvlink", "nvlink of 4 or more", "nvlink of 8 or more")
_SPEEDS = 'spmd.load_measured("gpu-speeds"), {device}, {date}'
_CHOSEN = (
    "chosen on two thirds of the stored rows (hardware.md, predicted and measured)"
)
# Within what nine of ten stored rows are, of those that take less than LONG_S, a kernel
# or a collective or a few, and of longer ones, which are training steps.
ERRORS, LONG_S = (0.2, 0.08), 0.01

# Of cuDNN's attention: the share of a product's rate, FLOPs that a causal mask hides
# not counted, and seconds before it.
_ATTENTION, _ATTENTION_BACKWARD, _ATTENTION_S = 0.75, 0.55, 5e-5
# Of a kernel that Triton makes and that reduces rows: the share of the memory's speed.
# 15.4 ms of a profile for 25.8 GB, a softmax over rows of 8192.
_ROWS = 0.45
# Of the time that a collective runs beside kernels: what these lose by it. In the
# stored traces an elementwise kernel takes 1.20 to 1.33 times as long beside one.
_SLOWED = 0.2
_TRACED = 'spmd.load_measured("gpu-traced"): kernels beside collectives, and alone'
# Seconds: before a kernel, and of the host for a program on one device and on more.
_KERNEL_S, _CALL_S, _CALLS_S = 2e-6, 4.5e-5, 1.57e-4
# Until all processors multiply, and until the last ones have stored what they have:
# chosen with XLA's table of products on Hopper, not with rows of this package.
_PRODUCT_S = 4e-6
# Of a link: seconds before a collective sends, and bytes a second, by kind.
_NVLINK_START_S = 5e-5
_NVLINK = {
    "all-gather": 2.62e11,
    "reduce-scatter": 2.55e11,
    "all-reduce": 3.25e11,
    "all-to-all": 2.75e11,
    "collective-permute": 3.3e11,
}
# Groups of 4 and of 8 on a switch: lines through XLA's table of collectives, which
# `tools.measure.seconds.xla_tables` draws.
_SWITCHED: Mapping[str, Mapping[int, Mapping[str, float]]] = {
    "Hopper": {
        4: {
            **{"all-gather": 3.07e11, "reduce-scatter": 2.67e11},
            **{"all-reduce": 2.90e11, "all-to-all": 3.13e11},
        },
        8: {
            **{"all-gather": 3.31e11, "reduce-scatter": 3.02e11},
            **{"all-reduce": 3.79e11, "all-to-all": 3.14e11},
        },
    },
    "Blackwell": {
        4: {
            **{"all-gather": 5.16e11, "reduce-scatter": 5.49e11},
            **{"all-reduce": 5.24e11, "all-to-all": 5.09e11},
        },
        8: {
            **{"all-gather": 5.94e11, "reduce-scatter": 5.88e11},
            **{"all-reduce": 5.71e11, "all-to-all": 5.59e11},
        },
    },
}
_TABLED = {"Hopper": "h200", "Blackwell": "b200"}
_XLA_TABLES = "XLA's tables of measured {}, jax-cuda12-pjrt 0.12.0.1, {}"
# XLA's own model of collectives between hosts: 2.5 % are headers, and the time from one
# host to the next and back, 68.89 µs (B200: 46.67 µs) times its coefficient of 0.45.
_HEADERS = 0.025
_ROUND_TRIP_S, _ROUND_TRIPS_S = 3.1e-5, {"Blackwell": 2.1e-5}
_XLA = (
    "openxla/xla sol_gpu_cost_model.cc @3e1a45f, with the coefficient of "
    "collective_utils.h @9b2cf8e"
)
# Of a TPU's sheet, where no row was measured.
_TPU_SHARES = {"products": 0.9, "memory": 0.9, "links": 0.9}
_TPU = "a fraction of the sheet, {:.0%}, which nobody measured for this package"
_HOP_S = 1e-6


@dataclass(frozen=True)
class Rates:
    """What one chip keeps up, with where each figure comes from.

    Attributes:
        chip: the chip that they are of.
        flops_per_s: type of a product's operands ('bf16', 'f32' as JAX multiplies it
            by default, 'f32 highest', 'f8', 's8') → FLOPs a second.
        attention_per_s: 'forward' and 'backward' → FLOPs a second of an attention
            kernel, those that a causal mask hides not counted.
        memory_bytes_per_s: bytes read and written a second.
        rows_bytes_per_s: the same of a kernel that Triton makes and that reduces rows,
            such as a softmax.
        kernel_s: seconds before a kernel does anything.
        product_s: seconds that a product takes besides its FLOPs, until all processors
            multiply and the last ones have stored what they have. Meanwhile bytes
            are read.
        attention_s: seconds that an attention kernel takes besides its FLOPs.
        slowed: of the time that a collective runs beside kernels, the share that these
            lose, because it takes some of the card's processors and memory traffic.
        call_s: seconds that the host needs to start a program, on one device and on
            more: a shorter program waits for it.
        start_s: link → seconds before a collective sends; of 'network' those of one
            round trip between hosts, which come on top.
        link_bytes_per_s: (link, kind of collective) → bytes that one device sends a
            second; of a TPU's links, over one link and one way.
        sources: name → where its figure comes from.
        error: within what nine of ten predictions were of measured rows, of those
            shorter than LONG_S and of the others; None where no row of this chip was
            measured.
    """

    chip: Chip
    flops_per_s: Mapping[str, float]
    attention_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    rows_bytes_per_s: float
    kernel_s: float
    product_s: float
    attention_s: float
    slowed: float
    call_s: tuple[float, float]
    start_s: Mapping[str, float]
    link_bytes_per_s: Mapping[tuple[str, str], float]
    sources: Mapping[str, str] = field(repr=False)
    error: tuple[float, float] | None = None

    def of_link(self, link: str, kind: str) -> float:
        """Bytes that one device sends a second over a link."""
        rates = self.link_bytes_per_s
        return rates.get((link, kind), rates.get((link, ""), 0.0))

    def listed(self) -> dict[str, tuple[float, str, str]]:
        """Name → (value, unit, source), as `StepTime.rates` has them."""
        rows = {f"products {t}": (r, "FLOP/s") for t, r in self.flops_per_s.items()}
        each = self.attention_per_s.items()
        rows |= {f"attention {way}": (r, "FLOP/s") for way, r in each}
        rows["memory"] = (self.memory_bytes_per_s, "bytes/s")
        rows["rows"] = (self.rows_bytes_per_s, "bytes/s")
        rows["kernel start"] = (self.kernel_s, "s")
        rows["attention start"] = (self.attention_s, "s")
        rows["product start"] = (self.product_s, "s")
        rows["slowed by a collective"] = (self.slowed, "s/s")
        rows |= {f"{link} start": (s, "s") for link, s in self.start_s.items()}
        for (link, kind), rate in self.link_bytes_per_s.items():
            rows[f"{link} {kind}".strip()] = (rate, "bytes/s")
        return {
            name: (value, unit, self._source(name))
            for name, (value, unit) in rows.items()
        }

    def _source(self, name: str) -> str:
        """The source of a rate, or of the longest beginning of its name that has one.

        'nvlink of 4 or more all-gather' has that of 'nvlink of 4 or more'.
        """
        words = name.split()
        parts = (" ".join(words[:n]) for n in range(len(words), 0, -1))
        return next((self.sources[p] for p in parts if p in self.sources), "")


def rates_of(chip: Chip, sustained: bool = True) -> Rates:
    """The rates of a chip in HARDWARE.

    Args:
        chip: one of HARDWARE.
        sustained: of a card that works all the time; otherwise those of a cool card,
            which are higher by a tenth for a moment.
    """
    return _of_gpu(chip, sustained) if chip.kind == "gpu" else _of_tpu(chip)


def _speeds() -> dict[str, Any]:
    (row,) = load_measured("gpu-speeds")
    return row


def _of_gpu(chip: Chip, sustained: bool) -> Rates:
    row, sheet = _speeds(), HARDWARE[_MEASURED]
    end = "" if sustained else "_at_first"
    at = _SPEEDS.format(**row)
    is_measured = chip.name == _MEASURED
    products = chip.bf16_flops_per_s / sheet.bf16_flops_per_s
    memory = chip.memory_bytes_per_s / sheet.memory_bytes_per_s
    links = chip.link_bytes_per_s / sheet.link_bytes_per_s
    bf16 = row[f"bf16_flops_per_s{end}"] * products
    f32 = row[f"f32_flops_per_s{end}"] * products
    share = f"the H200's fraction of its sheet, by {at}"
    chosen = _CHOSEN if is_measured else f"the H200's fraction of its sheet, {_CHOSEN}"
    rates = {("nvlink", kind): rate * links for kind, rate in _NVLINK.items()}
    rates["nvlink", ""] = _NVLINK["all-gather"] * links
    rates |= _switched(chip)
    if chip.network_bytes_per_s:
        rates["network", ""] = chip.network_bytes_per_s / (1 + _HEADERS)
    return Rates(
        chip=chip,
        flops_per_s={
            **{"bf16": bf16, "f32": f32, "f8": 2 * bf16, "s8": 2 * bf16},
            "f32 highest": f32 / 8,
        },
        attention_per_s={
            "forward": _ATTENTION * bf16,
            "backward": _ATTENTION_BACKWARD * bf16,
        },
        memory_bytes_per_s=row["memory_bytes_per_s"] * memory,
        rows_bytes_per_s=_ROWS * row["memory_bytes_per_s"] * memory,
        kernel_s=_KERNEL_S,
        product_s=_PRODUCT_S,
        attention_s=_ATTENTION_S,
        slowed=_SLOWED,
        call_s=(_CALL_S, _CALLS_S),
        start_s={
            **dict.fromkeys(NEAR, _NVLINK_START_S),
            "network": _ROUND_TRIPS_S.get(chip.generation, _ROUND_TRIP_S),
        },
        link_bytes_per_s=rates,
        sources={
            **{"products": at if is_measured else share, "attention": chosen},
            **{"memory": at if is_measured else share, "kernel": chosen},
            **{"rows": chosen, "slowed": _TRACED},
            "product start": _XLA_TABLES.format("products", "sm_90"),
            **{"nvlink": chosen, **dict.fromkeys(NEAR[1:], _switch_source(chip))},
            **{f"{link} start": chosen for link in NEAR[1:]},
            "network": f"{chip.network_source}; headers: {_XLA}",
            "network start": _XLA,
        },
        error=ERRORS if is_measured else None,
    )


def _switched(chip: Chip) -> dict[tuple[str, str], float]:
    """Rates of larger groups on a switch; of a kind that no table has, the lowest."""
    generation = chip.generation if chip.generation in _SWITCHED else "Hopper"
    share = chip.link_bytes_per_s / HARDWARE[_TABLED[generation]].link_bytes_per_s
    rates: dict[tuple[str, str], float] = {}
    for link, kinds in zip(NEAR[1:], _SWITCHED[generation].values(), strict=True):
        rates |= {(link, kind): rate * share for kind, rate in kinds.items()}
        rates[link, ""] = min(kinds.values()) * share
    return rates


def _switch_source(chip: Chip) -> str:
    if chip.generation in _SWITCHED:
        key = {"Hopper": "sm_90", "Blackwell": "sm_100_B200"}[chip.generation]
        return _XLA_TABLES.format("collectives", key)
    return (
        f"Hopper's fraction of its sheet, {_XLA_TABLES.format('collectives', 'sm_90')}"
    )


def _of_tpu(chip: Chip) -> Rates:
    shares = _TPU_SHARES
    bf16 = chip.bf16_flops_per_s * shares["products"]
    rates = {("ici", ""): chip.link_bytes_per_s * shares["links"]}
    if chip.network_bytes_per_s:
        rates["dcn", ""] = chip.network_bytes_per_s * shares["links"]
    return Rates(
        chip=chip,
        flops_per_s={
            # A product of float32 is one of bfloat16 there, "highest" is six.
            **{"bf16": bf16, "f32": bf16, "f32 highest": bf16 / 6},
            **{"f8": bf16, "s8": 2 * bf16},
        },
        attention_per_s={"forward": bf16, "backward": bf16},
        memory_bytes_per_s=chip.memory_bytes_per_s * shares["memory"],
        rows_bytes_per_s=chip.memory_bytes_per_s * shares["memory"],
        kernel_s=0.0,
        product_s=0.0,
        attention_s=0.0,
        slowed=0.0,
        call_s=(0.0, 0.0),
        start_s={"ici": _HOP_S, "dcn": 1e-4},
        link_bytes_per_s=rates,
        sources={
            "products": _TPU.format(shares["products"]),
            "attention": _TPU.format(shares["products"]),
            "memory": _TPU.format(shares["memory"]),
            "rows": _TPU.format(shares["memory"]),
            "slowed": "a TPU sends without its units",
            "product": "its programs are one kernel",
            "kernel": "its programs are one kernel",
            "ici": _TPU.format(shares["links"]),
            "ici start": "jax-ml/scaling-book: about 1 µs a hop",
            "dcn": f"{_TPU.format(shares['links'])}; {chip.network_source}",
            "dcn start": "an assumption",
        },
    )


# What a user can give: the names of a row of load_measured("gpu-speeds").
_OWN = ("bf16_flops_per_s", "f32_flops_per_s", "memory_bytes_per_s", "kernel_s")
# What such a row has besides, which is not read.
_BESIDE = (
    *("bf16_flops_per_s_at_first", "f32_flops_per_s_at_first", "name", "device"),
    *("devices", "jax", "driver", "machine", "date", "command"),
)


def with_own(rates: Rates, own: Mapping[str, Any]) -> Rates:
    """Rates with a user's own in place of some.

    Args:
        rates: those of the chip.
        own: 'bf16_flops_per_s', 'f32_flops_per_s', 'memory_bytes_per_s', 'kernel_s',
            and 'collectives': kind → {'start_s': …, 'bytes_per_s': …}, over the link
            within a host, or {'network': {…}} between hosts. A row that `make
            hardware` measured has these names; its other fields are not read.

    Raises:
        NotUnderstood: none of these names is there, or another that such a row has
            not, or a figure is not positive.
    """
    if not isinstance(own, Mapping) or not ({*_OWN, "collectives"} & own.keys()):
        raise NotUnderstood(
            f"rates={own!r:.60} has none of {', '.join(_OWN)} or collectives: give a "
            "dict of those that you measured"
        )
    names = (*_OWN, "collectives")
    for name in own:
        if name not in (*names, *_BESIDE):
            raise NotUnderstood(
                f"rates has {name!r}, which is no rate that can be given."
                f"{did_you_mean(name, names)} Give some of {', '.join(_OWN)} and "
                "collectives"
            )
    for name in _OWN:
        if name in own:
            _check(name, own[name])
    own = {name: float(x) if name in _OWN else x for name, x in own.items()}
    flops = dict(rates.flops_per_s)
    ratio = own.get("bf16_flops_per_s", flops["bf16"]) / flops["bf16"]
    flops = {name: rate * ratio for name, rate in flops.items()}
    if "f32_flops_per_s" in own:
        flops["f32 highest"] *= own["f32_flops_per_s"] / flops["f32"]
        flops["f32"] = own["f32_flops_per_s"]
    memory = own.get("memory_bytes_per_s", rates.memory_bytes_per_s)
    links, starts = _own_links(rates, own.get("collectives", {}))
    yours = "yours"
    return replace(
        rates,
        flops_per_s=flops,
        attention_per_s={k: v * ratio for k, v in rates.attention_per_s.items()},
        memory_bytes_per_s=memory,
        rows_bytes_per_s=rates.rows_bytes_per_s * memory / rates.memory_bytes_per_s,
        kernel_s=own.get("kernel_s", rates.kernel_s),
        link_bytes_per_s={**rates.link_bytes_per_s, **links},
        start_s={**rates.start_s, **starts},
        sources={
            **rates.sources,
            **({"products": yours} if {*_OWN[:2]} & own.keys() else {}),
            **({"memory": yours} if "memory_bytes_per_s" in own else {}),
            **({"kernel": yours} if "kernel_s" in own else {}),
            **{f"{link} {kind}".strip(): yours for link, kind in links},
        },
    )


# Kinds of collectives that own rates can be given of.
_KINDS = (*_NVLINK, "ragged-all-to-all", "collective-broadcast")


def _own_links(
    rates: Rates, own: object
) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    near, far = (NEAR, "network") if rates.chip.kind == "gpu" else (("ici",), "dcn")
    links: dict[tuple[str, str], float] = {}
    starts: dict[str, float] = {}
    for kind, line in _lines(own, far).items():
        is_far = kind in (far, "network")
        for link in (far,) if is_far else near:
            links[link, "" if is_far else kind] = line["bytes_per_s"]
            if line.get("start_s") is not None:
                starts[link] = max(starts.get(link, 0.0), line["start_s"])
    return links, starts


def _lines(own: object, far: str) -> dict[str, dict[str, float]]:
    """The rates of collectives that were given, each as it should be."""
    form = "{'all-gather': {'start_s': 5e-5, 'bytes_per_s': 2.6e11}}"
    if not isinstance(own, Mapping):
        raise NotUnderstood(f"rates: collectives={own!r:.60} is no dict: give {form}")
    for kind, line in own.items():
        if kind not in (*_KINDS, far, "network"):
            names = ", ".join((*_KINDS, far))
            raise NotUnderstood(
                f"rates: collectives has {kind!r}, which is no kind of collective and "
                f"no link: give one of {names}"
            )
        if not isinstance(line, Mapping):
            raise NotUnderstood(
                f"rates: collectives[{kind!r}]={line!r:.60} is no dict: give {form}"
            )
        _check(f"collectives[{kind!r}]['bytes_per_s']", line.get("bytes_per_s"))
        if line.get("start_s"):
            _check(f"collectives[{kind!r}]['start_s']", line["start_s"])
    given: dict[str, Mapping[str, Any]] = dict(own)
    return {
        kind: {
            key: float(one[key])
            for key in ("bytes_per_s", "start_s")
            if one.get(key) is not None
        }
        for kind, one in given.items()
    }


def _check(name: str, value: object) -> None:
    if not is_positive(value):
        raise NotUnderstood(
            f"rates: {name}={value!r} is not a positive number: give it in FLOPs, "
            "bytes or seconds, without a prefix"
        )


def is_positive(value: object) -> bool:
    """Whether a figure is a number above 0 that is not infinite."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return 0 < float(value) < inf
    except OverflowError:  # an integer that no float holds
        return False
