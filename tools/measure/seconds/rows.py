"""The measured rows by name, and which of them nothing is fitted on."""

import hashlib

from spmd_helpers._hardware.measured import load_measured

_KEPT_OUT = 3  # one row of so many


def rows() -> dict[str, dict]:
    """Name → measured row, of all that have a time: 'steps/fsdp plain 4096'."""
    named = {_name(row): row for row in load_measured("gpu-collectives")}
    for row in load_measured("gpu-attention"):
        named[f"attention/{row['name']} {row['pass']} {row['seq']}"] = row
    for row in load_measured("gpu-steps"):
        named[f"steps/{row['name']} {row['batch']}"] = row
    for group, kind in (("ways", "gpu-transformer"), ("log", "gpu-log")):
        for row in load_measured(kind):
            named[f"{group}/{row['name']}"] = row
    return {name: row for name, row in named.items() if "median_s" in row}


def _name(row: dict) -> str:
    if row["kind"] == "matmul":
        return f"matmul/{row['m']}x{row['k']}x{row['n']}"
    return f"collective/{row['kind']} {row['bytes']}"


def is_kept_out(name: str) -> bool:
    """Whether no rate may be chosen with this row: a third, by the hash of its name."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return int(digest, 16) % _KEPT_OUT == 0
