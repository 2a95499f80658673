"""Accelerators: what one JAX device of each kind has, and where that is written.

Sizes are powers of 1024 where a maker writes GB and the device has GiB: the TPU
compiler starts from 16, 32 and 96 GiB, and an A100 of "80 GB" shows 81920 MiB.
Speeds are powers of 1000. A figure that no source gives is None.
"""

import math
import re
from dataclasses import dataclass, field

from .._core.registry import ByName
from .._errors import NotUnderstood

_GIB = 2**30
_MIB = 2**20


@dataclass(frozen=True)
class Chip:
    """What one accelerator has.

    >>> HARDWARE["v5p"].bf16_flops_per_s
    459000000000000.0
    >>> chip("v5p").usable_bytes / 2**30            # (96 * 1024 - 263) MiB
    95.7431640625

    Attributes:
        name: the key in HARDWARE.
        kind: 'tpu' or 'gpu'.
        device_kind: what JAX calls it, `jax.devices()[0].device_kind`.
        memory_bytes: capacity of its high-bandwidth memory.
        usable_bytes: the most that a program can have: on TPU the limit of its compiler
            (libtpu), on GPU the memory that nvidia-smi shows.
        memory_bytes_per_s: peak bandwidth of that memory.
        bf16_flops_per_s: peak of dense matrix products in bfloat16.
        link_bytes_per_s: one way, over one link to a neighbor (TPU), or over all its
            NVLinks together (GPU, which reaches any other of its host at that rate).
        links: how many of these it has.
        host_devices: JAX devices of one host.
        network_bytes_per_s: one way, what one device has of its host's network, which
            is between hosts (GPU) or between slices (TPU). None where no source says.
        source: where the figures stand.
        network_source: where the network's figure and the host's size stand.
        date: when they were read or measured, year-month.
        note: where sources disagree, and what else to know.
        generation: of a GPU, what NVIDIA calls its architecture: the compiler schedules
            for Hopper and Blackwell by estimated times, for Ampere by memory.
        driver_bytes: of a GPU, the memory that its driver reports to a program, 0.5 to
            1.5 % less than nvidia-smi shows.
        pool_share: the part of `driver_bytes` that JAX gives a program. A TPU's
            compiler has its limit already. On a GPU JAX's allocator takes 75 % at its
            start and does not grow. XLA_CLIENT_MEM_FRACTION sets another part, which
            is not read here: `dataclasses.replace(chip, pool_share=0.95)`.
        library_bytes: what cuBLAS, cuDNN and NCCL take of that pool besides the
            program: at most 0.3 GiB in the stored runs on cards.
        margin: the part of `program_bytes` that a counted step may fill, for
            `TrainingMemory.fits`. The count is within a tenth of the compiler's peak
            for nearly all stored programs, and the buffers have gaps between them, of
            up to 2 % there.
    """

    name: str
    kind: str
    device_kind: str
    memory_bytes: int
    usable_bytes: int | None
    memory_bytes_per_s: float
    bf16_flops_per_s: float
    link_bytes_per_s: float
    links: int
    source: str = field(repr=False)
    date: str = field(repr=False)
    note: str = field(default="", repr=False)
    generation: str = field(default="", repr=False)
    driver_bytes: int = field(default=0, repr=False)
    pool_share: float = field(default=1.0, repr=False)
    library_bytes: int = field(default=0, repr=False)
    margin: float = field(default=0.9, repr=False)
    host_devices: int = field(default=8, repr=False)
    network_bytes_per_s: float | None = field(default=None, repr=False)
    network_source: str = field(default="", repr=False)

    @property
    def program_bytes(self) -> int:
        """Bytes that arrays and temporaries of a program can have together."""
        given = self.driver_bytes or self.usable_bytes or self.memory_bytes
        return math.floor(self.pool_share * given) - self.library_bytes


_TPU_PAGE = "docs.cloud.google.com/tpu/docs/"
_BOOK = "; link: jax-ml/scaling-book tpus.md @54e2c43"
_LIMIT = "; limit: compiled for {} with libtpu 0.0.42.1 (jax 0.10.2)"
_LIMIT_NOTE = (
    "The compiler has {total} GiB and keeps {kept} MiB; libtpu 0.0.50.1 (jax 0.12.0.1) "
    "keeps {newer} MiB."
)
_SMI = (
    "; usable: thundergolfer.com/blog/nvidia-gpu-memory-capacity; driver: openxla/xla, "
    "xla/backends/gpu/target_config/specs/ @4336d12, of the H200 its own"
)
_POOL = (
    "JAX takes 75 % of the memory at its start; XLA_CLIENT_MEM_FRACTION sets another "
    "part (docs.jax.dev, GPU memory allocation)."
)
# Hosts, and what one device has of a host's network.
_DCN = (
    "jax-ml/scaling-book tpus.md @04d8de5: 2.5e10 bytes/s a host, between slices; "
    "chips of a host: docs.cloud.google.com/tpu/docs/"
)
_DGX_A100 = (
    "DGX A100: 8 ConnectX-6 of 200 Gb/s for 8 cards, NVIDIA DGX A100 datasheet; a "
    "cloud's hosts can have less"
)
_DGX_H100 = (
    "DGX H100: 8 ConnectX-7 of 400 Gb/s for 8 cards, by jax-ml/scaling-book gpus.md "
    "@1a55377 (400e9 bytes/s a node); a cloud's hosts can have less"
)
_DGX_B200 = (
    "8 cards and 400e9 bytes/s a node, jax-ml/scaling-book gpus.md @1a55377; a cloud's "
    "hosts can have less"
)
# Of a GPU: the part of its memory that is JAX's pool; what libraries take of it, by the
# most that an allocator had in use above the compiler's peak (memory_gpu.json).
_SHARE, _LIBRARIES = 0.75, 320 * _MIB

_ALL = (
    Chip(
        name="v4",
        kind="tpu",
        device_kind="TPU v4",
        memory_bytes=32 * _GIB,
        usable_bytes=32 * _GIB - 1283 * _MIB,
        memory_bytes_per_s=1.2e12,
        bf16_flops_per_s=2.75e14,
        link_bytes_per_s=4.5e10,
        links=6,
        source=_TPU_PAGE + "v4" + _BOOK + _LIMIT.format("v4:2x2x1, megacore"),
        host_devices=4,
        network_bytes_per_s=6.25e9,
        network_source=_DCN + "v4",
        date="2026-11",
        note=(
            "With megacore, as Cloud TPU runs it: a chip is one device. Without, a "
            "chip is two devices of at most 15614.5 MiB each. Both versions keep "
            "1283 MiB. Memory is said to move 1200 GB/s, elsewhere 1228."
        ),
    ),
    Chip(
        name="v5e",
        kind="tpu",
        device_kind="TPU v5 lite",
        memory_bytes=16 * _GIB,
        usable_bytes=16 * _GIB - 258 * _MIB,
        memory_bytes_per_s=8.19e11,
        bf16_flops_per_s=1.97e14,
        link_bytes_per_s=4.5e10,
        links=4,
        source=_TPU_PAGE + "v5e" + _BOOK + _LIMIT.format("v5e:2x2"),
        network_bytes_per_s=3.125e9,
        network_source=_DCN + "v5e",
        date="2026-11",
        note=(
            _LIMIT_NOTE.format(total=16, kept=258, newer=258) + " The page says 819 "
            "GB/s, an older copy 800; and 400 GB/s in both directions over 4 links, "
            "which is 50 GB/s a link and way, where the scaling book counts 45."
        ),
    ),
    Chip(
        name="v5p",
        kind="tpu",
        device_kind="TPU v5",
        memory_bytes=96 * _GIB,
        usable_bytes=96 * _GIB - 263 * _MIB,
        memory_bytes_per_s=2.765e12,
        bf16_flops_per_s=4.59e14,
        link_bytes_per_s=9e10,
        links=6,
        source=_TPU_PAGE + "v5p" + _BOOK + _LIMIT.format("v5p:2x2x1"),
        host_devices=4,
        network_bytes_per_s=6.25e9,
        network_source=_DCN + "v5p (50 Gb/s a chip)",
        date="2026-11",
        note=(
            "Google's page says 95 GiB (older copies: 95 GB), the scaling book 96 GB. "
            + _LIMIT_NOTE.format(total=96, kept=263, newer=279)
            + " The page says 2765 GB/s, an older copy 2575 GiB/s, which is the same; "
            "and 1200 GB/s in both directions over 6 links, which is 100 GB/s a link "
            "and way, where the scaling book counts 90."
        ),
    ),
    Chip(
        name="v6e",
        kind="tpu",
        device_kind="TPU v6 lite",
        memory_bytes=32 * _GIB,
        usable_bytes=32256 * _MIB - 260 * _MIB,
        memory_bytes_per_s=1.638e12,
        bf16_flops_per_s=9.18e14,
        link_bytes_per_s=9e10,
        links=4,
        source=_TPU_PAGE + "v6e and tpu7x" + _BOOK + _LIMIT.format("v6e:2x2"),
        network_bytes_per_s=1.25e10,
        network_source="docs.cloud.google.com/tpu/docs/v6e: 100 Gb/s a chip",
        date="2026-11",
        note=(
            _LIMIT_NOTE.format(total=31.5, kept=260, newer=264) + " Google's pages say "
            "918 TFLOP/s, the scaling book 920; memory moves 1600, 1638 or 1640 GB/s, "
            "by copy of the page; and 800 GB/s in both directions over 4 links is 100 "
            "GB/s a link and way, where the scaling book counts 90."
        ),
    ),
    Chip(
        name="7x",
        kind="tpu",
        device_kind="TPU7x",
        memory_bytes=96 * _GIB,
        usable_bytes=95 * _GIB - 260 * _MIB,
        memory_bytes_per_s=3.69e12,
        bf16_flops_per_s=1.1535e15,
        link_bytes_per_s=9e10,
        links=6,
        source=_TPU_PAGE
        + "tpu7x; link: jax-ml.github.io/scaling-book/tpus"
        + _LIMIT.format("tpu7x:2x2x1"),
        date="2026-11",
        note=(
            "A chip (Ironwood) is two JAX devices, and this is one of them: half of "
            "192 GiB, 7380 GB/s and 2307 TFLOP/s. The links are the chip's, for both. "
            + _LIMIT_NOTE.format(total=95, kept=260, newer=268)
        ),
    ),
    Chip(
        name="a100-40gb",
        kind="gpu",
        generation="Ampere",
        driver_bytes=42331013120,
        pool_share=_SHARE,
        library_bytes=_LIBRARIES,
        device_kind="NVIDIA A100-SXM4-40GB",
        memory_bytes=40 * _GIB,
        usable_bytes=40960 * _MIB,
        memory_bytes_per_s=1.555e12,
        bf16_flops_per_s=3.12e14,
        link_bytes_per_s=3e11,
        links=1,
        source="NVIDIA A100 datasheet, by glennklockwood.com/garden/processors/A100"
        + _SMI,
        network_bytes_per_s=2.5e10,
        network_source=_DGX_A100,
        date="2026-11",
        note=f"12 NVLinks, 600 GB/s in both directions. {_POOL}",
    ),
    Chip(
        name="a100-80gb",
        kind="gpu",
        generation="Ampere",
        driver_bytes=85100068864,
        pool_share=_SHARE,
        library_bytes=_LIBRARIES,
        device_kind="NVIDIA A100-SXM4-80GB",
        memory_bytes=80 * _GIB,
        usable_bytes=81920 * _MIB,
        memory_bytes_per_s=2.039e12,
        bf16_flops_per_s=3.12e14,
        link_bytes_per_s=3e11,
        links=1,
        source="NVIDIA A100 datasheet, by glennklockwood.com/garden/processors/A100; "
        "cli99/llm-analysis a100-sxm-80gb.json @d841e40" + _SMI,
        network_bytes_per_s=2.5e10,
        network_source=_DGX_A100,
        date="2026-11",
        note=f"12 NVLinks, 600 GB/s in both directions. {_POOL}",
    ),
    Chip(
        name="h100",
        kind="gpu",
        generation="Hopper",
        driver_bytes=84942979072,
        pool_share=_SHARE,
        library_bytes=_LIBRARIES,
        device_kind="NVIDIA H100 80GB HBM3",
        memory_bytes=80 * _GIB,
        usable_bytes=81559 * _MIB,
        memory_bytes_per_s=3.35e12,
        bf16_flops_per_s=9.89e14,
        link_bytes_per_s=4.5e11,
        links=1,
        source="NVIDIA H100 datasheet (SXM5), by "
        "glennklockwood.com/garden/processors/h100; cli99/llm-analysis "
        "h100-sxm-80gb.json @d841e40" + _SMI,
        network_bytes_per_s=5e10,
        network_source=_DGX_H100,
        date="2026-11",
        note=(
            "80 GB in words, 80 GiB of memory, 81559 MiB (79.65 GiB) shown. The "
            "datasheet's 1979 TFLOP/s are with 2:4 sparsity: half is dense. "
            f"18 NVLinks, 900 GB/s in both directions. {_POOL}"
        ),
    ),
    Chip(
        name="h200",
        kind="gpu",
        generation="Hopper",
        driver_bytes=150109880320,
        pool_share=_SHARE,
        library_bytes=_LIBRARIES,
        device_kind="NVIDIA H200",
        memory_bytes=141 * _GIB,
        usable_bytes=143771 * _MIB,
        memory_bytes_per_s=4.8e12,
        bf16_flops_per_s=9.89e14,
        link_bytes_per_s=4.5e11,
        links=1,
        source="nvidia.com/en-us/data-center/h200; "
        "jax-ml/scaling-book gpus.md @1a55377" + _SMI,
        network_bytes_per_s=5e10,
        network_source=_DGX_H100,
        date="2026-11",
        note=(
            "141 GB in words, 143771 MiB (140.40 GiB) shown. Its arithmetic is the "
            "H100's, 1979 TFLOP/s with 2:4 sparsity. 18 NVLinks, 900 GB/s in both "
            f"directions. {_POOL}"
        ),
    ),
    Chip(
        name="b200",
        kind="gpu",
        generation="Blackwell",
        driver_bytes=191514411008,
        pool_share=_SHARE,
        library_bytes=_LIBRARIES,
        device_kind="NVIDIA B200",
        memory_bytes=180 * _GIB,
        usable_bytes=183359 * _MIB,
        memory_bytes_per_s=8e12,
        bf16_flops_per_s=2.25e15,
        link_bytes_per_s=9e11,
        links=1,
        source="DGX B200 (1440 GB and 64 TB/s for 8), as listed by "
        "acecloud.ai/blog/nvidia-b200-vs-h200-h100-a100; "
        "glennklockwood.com/garden/processors/B200 (HGX, 1000 W); "
        "usable: docs.vultr.com/inference-cookbook, nvidia-smi on an HGX B200",
        network_bytes_per_s=5e10,
        network_source=_DGX_B200,
        date="2026-11",
        note=(
            "180 GB in a DGX or HGX, of which 183359 MiB (179.06 GiB) show; pages also "
            "say 192 GB, the stacks' size, and 186 GB, a GB200's. 2250 TFLOP/s are "
            "dense, 4500 with 2:4 sparsity; a GB200's at 1200 W are 2500. The scaling "
            "book has 8 and 9 TB/s. 18 NVLinks, 1.8 TB/s in both directions. "
            f"{_POOL}"
        ),
    ),
)

# Name → Chip.
HARDWARE = ByName("chip", {chip.name: chip for chip in _ALL})


def chip(name: "str | Chip") -> Chip:
    """Find a chip by its name, or by what JAX calls the device.

    >>> chip("TPU v5 lite").name, chip("NVIDIA H100 80GB HBM3").name, chip("H200").name
    ('v5e', 'h100', 'h200')

    Args:
        name: a key of HARDWARE, in any case, with or without 'TPU' before it; what
            `jax.devices()[0].device_kind` says; or a Chip, which is returned.

    Returns:
        The Chip.

    Raises:
        NotUnderstood: there is no such chip; the message names the nearest.

    Used in chapters 09 and 14, and by `training_memory`'s `fits`.
    """
    if isinstance(name, Chip):
        return name
    for one in HARDWARE.values():
        if _plain(name) == _plain(one.name) or name == one.device_kind:
            return one
    raise NotUnderstood(HARDWARE.unknown(name))


def _plain(name: object) -> str:
    return re.sub(r"^tpu|[\s_-]", "", str(name).lower())
