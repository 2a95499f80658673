"""Cards as XLA's compiler describes them: the figures of each, and their text for it.

XLA's public repository has a description of each card, which was read off a real one or
off its maker's pages (`xla/backends/gpu/target_config/specs/` of openxla/xla). The
figures here are those, with the commit that they were read at. The text that is made
of them has only fields that the compilers of jax 0.10.2 and of 0.12 both know.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from .._core.words import join_words
from .._hardware.chips import HARDWARE


@dataclass(frozen=True)
class Architecture:
    """What cards of one generation have in common.

    Attributes:
        name: as NVIDIA calls it.
        capability: CUDA's compute capability, major and minor.
        accelerated: whether the compiler may use what this generation alone has.
        threads: that a multiprocessor holds at once.
        shared_bytes: the memory that the threads of a multiprocessor share.
        shared_per_block: how much of it one block of threads may ask for.
        lanes: float32 units of a multiprocessor.
        scalar: (XLA's number of a type, units of a multiprocessor, operations that
            one does in a clock). Empty where XLA's description has none.
        matrix: (XLA's number of a type, operations of one tensor core in a clock).
    """

    name: str
    capability: tuple[int, int]
    accelerated: bool
    threads: int
    shared_bytes: int
    shared_per_block: int
    lanes: int
    scalar: tuple[tuple[int, int, int], ...] = ()
    matrix: tuple[tuple[int, int], ...] = ()


# XLA's numbers of types: s8 2, s32 4, u8 6, u32 8, f16 10, f32 11, f64 12, bf16 16, the
# kinds of f8 from 19 on, f4 32.
_F64 = 12
_F8 = (19, 20, 23, 24, 25, 28, 29, 33, 35, 36)
_CORES = 4  # tensor cores of a multiprocessor


def _scalar(fused: int) -> tuple[tuple[int, int, int], ...]:
    """Units and operations of the types; `fused` is what f16 and bf16 do in a clock."""
    full_rate = ((4, 64, 1), (8, 64, 1))
    return (*full_rate, (10, 128, fused), (11, 128, 1), (12, 64, 1), (16, 128, fused))


def _matrix(bf16: int, f64: int, *more: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Operations of the tensor cores: f8 and s8 do twice bf16's, f32 half of them."""
    types = ((2, 2), (6, 2), (10, 1), (11, 0.5), (16, 1), *((t, 2) for t in _F8))
    rates = [(number, int(bf16 * times)) for number, times in types]
    return tuple(sorted([*rates, (_F64, f64), *more]))


AMPERE = Architecture("Ampere", (8, 0), False, 2048, 167936, 166912, 64)
HOPPER = Architecture(
    "Hopper", (9, 0), True, 2048, 233472, 232448, 128, _scalar(2), _matrix(512, 32)
)
BLACKWELL = Architecture(
    *("Blackwell", (10, 0), True, 2048, 233472, 232448, 128),
    _scalar(1),
    _matrix(1024, 16, (32, 4096)),
)
WORKSTATION = Architecture(
    "Blackwell, workstation", (12, 0), False, 1536, 131072, 101376, 128
)


@dataclass(frozen=True)
class Card:
    """One kind of GPU, as the compiler is told of it.

    Attributes:
        name: as `gpu_mesh` takes it, and the key in HARDWARE where it has one.
        device_kind: what JAX calls it.
        architecture: its generation.
        multiprocessors: how many it has.
        memory_bytes: what the driver reports as the card's memory.
        bytes_per_s: of that memory.
        cache_bytes: of the second level.
        clock_ghz: of its multiprocessors.
        matrix_clock_ghz: of its tensor cores under load; None where XLA gives none.
        host: the most of them that stand in one host.
        source: where the figures stand.
        date: when they were read, year-month.
        dnn: the version of cuDNN that is assumed.
        other_names: spellings that people try.
        note: what else to know.
    """

    name: str
    device_kind: str
    architecture: Architecture
    multiprocessors: int
    memory_bytes: int
    bytes_per_s: int
    cache_bytes: int
    clock_ghz: float
    matrix_clock_ghz: float | None
    host: int
    source: str = field(repr=False)
    date: str = field(repr=False)
    dnn: tuple[int, int, int] = (9, 10, 0)
    other_names: tuple[str, ...] = ()
    note: str = field(default="", repr=False)


_SPECS = "openxla/xla, xla/backends/gpu/target_config/specs/"
_ALL = (
    Card(
        *("a100-40gb", "NVIDIA A100-SXM4-40GB", AMPERE, 108),
        memory_bytes=HARDWARE["a100-40gb"].driver_bytes,
        bytes_per_s=1_555_200_000_000,
        cache_bytes=41943040,
        clock_ghz=1.41,
        matrix_clock_ghz=None,
        host=16,
        source=_SPECS + "a100_sxm_40.txtpb @4336d12",
        date="2026-11",
    ),
    Card(
        *("a100-80gb", "NVIDIA A100-SXM4-80GB", AMPERE, 108),
        memory_bytes=HARDWARE["a100-80gb"].driver_bytes,
        bytes_per_s=2_039_040_000_000,
        cache_bytes=41943040,
        clock_ghz=1.41,
        matrix_clock_ghz=None,
        host=8,
        source=_SPECS + "a100_sxm_80.txtpb @4336d12",
        date="2026-11",
        dnn=(8, 9, 4),
    ),
    Card(
        *("h100", "NVIDIA H100 80GB HBM3", HOPPER, 132),
        memory_bytes=HARDWARE["h100"].driver_bytes,
        bytes_per_s=3_352_320_000_000,
        cache_bytes=52428800,
        clock_ghz=1.98,
        matrix_clock_ghz=1.8295201,
        host=8,
        source=_SPECS + "h100_sxm.txtpb @0774019",
        date="2026-11",
        other_names=("h100-sxm", "h100-80gb", "h100-sxm-80gb"),
    ),
    Card(
        *("h100-pcie", "NVIDIA H100 PCIe", HOPPER, 114),
        memory_bytes=84942979072,
        bytes_per_s=2_039_040_000_000,
        cache_bytes=52428800,
        clock_ghz=1.755,
        matrix_clock_ghz=1.62162,
        host=8,
        source=_SPECS + "h100_pcie.txtpb @4336d12",
        date="2026-11",
        dnn=(8, 9, 2),
    ),
    Card(
        *("h200", "NVIDIA H200", HOPPER, 132),
        memory_bytes=HARDWARE["h200"].driver_bytes,
        bytes_per_s=4_814_304_000_000,
        cache_bytes=62914560,
        clock_ghz=1.98,
        matrix_clock_ghz=1.82952011,
        host=8,
        source="dumped by jax 0.11.2 from an H200 (driver 580.159.04, CUDA 13.0)",
        date="2026-11",
        dnn=(9, 19, 0),
        other_names=("h200-sxm", "h200-141gb"),
        note=(
            "XLA's own description, h200.txtpb @4336d12, has 151397597184 bytes (141 "
            "GiB), 4800 GB/s and a cache of 52428800 bytes: an H200's driver reports "
            "139.8 GiB."
        ),
    ),
    Card(
        *("b200", "NVIDIA B200", BLACKWELL, 148),
        memory_bytes=HARDWARE["b200"].driver_bytes,
        bytes_per_s=7_672_320_000_000,
        cache_bytes=132644864,
        clock_ghz=1.965,
        matrix_clock_ghz=1.8353101,
        host=8,
        source=_SPECS + "b200.txtpb @300ec95",
        date="2026-11",
        other_names=("b200-sxm", "b200-180gb"),
    ),
    Card(
        *("gb200", "NVIDIA GB200", BLACKWELL, 152),
        memory_bytes=197897748480,
        bytes_per_s=7_928_064_000_000,
        cache_bytes=135528448,
        clock_ghz=2.062,
        matrix_clock_ghz=1.9259081,
        host=4,
        source=_SPECS + "gb200.txtpb @300ec95",
        date="2026-11",
        dnn=(9, 15, 0),
        other_names=("gb200-nvl72",),
        note="A host, a tray of an NVL72, has four; NVLink between hosts is not told.",
    ),
    Card(
        *("rtx6000pro", "NVIDIA RTX PRO 6000 Blackwell", WORKSTATION, 188),
        memory_bytes=103079215104,
        bytes_per_s=1_792_000_000_000,
        cache_bytes=134217728,
        clock_ghz=2.6,
        matrix_clock_ghz=None,
        host=8,
        source=_SPECS + "rtx6000pro.txtpb @4336d12",
        date="2026-11",
        dnn=(9, 1, 0),
        other_names=("rtx-6000-pro", "rtx-pro-6000", "rtxpro6000"),
        note="XLA has the 96 GiB of its maker's pages; a driver reports a little less.",
    ),
)

CARDS = {card.name: card for card in _ALL}
BY_NAME = {
    name: card for card in CARDS.values() for name in (card.name, *card.other_names)
}


def target_config(card: Card) -> str:
    """The text from which XLA's compiler knows a card, a GpuTargetConfigProto."""
    kind = card.architecture
    numbers = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": kind.shared_bytes,
        "shared_memory_per_block_optin": kind.shared_per_block,
        "threads_per_core_limit": kind.threads,
        "core_count": card.multiprocessors,
        "fpus_per_core": kind.lanes,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "memory_bandwidth": card.bytes_per_s,
        "l2_cache_size": card.cache_bytes,
        "clock_rate_ghz": card.clock_ghz,
        "device_memory_size": card.memory_bytes,
    }
    major, minor = kind.capability
    versions = {
        "driver_version": "13.0.0",
        "runtime_version": "12.8.0",
        "compile_time_toolkit_version": "12.8.0",
        "dnn_version": ".".join(map(str, card.dnn)),
    }
    extension = "ACCELERATED_FEATURES" if kind.accelerated else "NONE"
    lines = [
        "gpu_device_info {",
        *(f"  {name}: {value}" for name, value in numbers.items()),
        "  cuda_compute_capability {",
        f"    major: {major} minor: {minor} feature_extension: {extension}",
        "  }",
        *_rates(card),
        *(f'  {name}: "{value}"' for name, value in versions.items()),
        f'  name: "{card.device_kind}"',
        "}",
        'platform_name: "CUDA"',
        "dnn_version_info {{ major: {} minor: {} patch: {} }}".format(*card.dnn),
        f'device_description_str: "{card.device_kind}"',
    ]
    return "\n".join(lines) + "\n"


def _rates(card: Card) -> Iterator[str]:
    """What a multiprocessor does in a clock, type by type."""
    kind = card.architecture
    scalar = [(n, card.clock_ghz, units, rate) for n, units, rate in kind.scalar]
    # XLA has the full clock for f64, which the tensor cores keep.
    matrix = [
        (n, card.clock_ghz if n == _F64 else card.matrix_clock_ghz, _CORES, rate)
        for n, rate in kind.matrix
    ]
    for unit, rates in (("scalar", scalar), ("matrix", matrix)):
        if rates:
            yield f"  {unit}_unit_description {{"
            for number, clock, units, rate in rates:
                yield (
                    f"    rate_infos {{ key: {number} value {{ clock_rate_ghz: {clock} "
                    f"units_per_core: {units} ops_per_clock: {rate} }} }}"
                )
            yield "  }"


def names_words() -> str:
    """The cards that there are, as a sentence names them."""
    return join_words(list(CARDS))
