"""Products alone: what `step_time` says of a shape, beside what a card's clock says."""

import spmd_helpers as spmd
from tools.measure.seconds.rows import is_kept_out

_DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
CACHE = 50e6  # bytes of weights that an H200 keeps in its cache from call to call


def program(m: int, k: int, n: int, dtype: str = "bf16") -> str:
    """The program of x @ w, as a GPU's compiler schedules it."""
    x, w, y = (f"{dtype}[{a},{b}]{{1,0}}" for a, b in ((m, k), (k, n), (m, n)))
    return (
        "HloModule jit_product, is_scheduled=true\n\n"
        "ENTRY %main {\n"
        f"  %x = {x} parameter(0)\n"
        f"  %w = {w} parameter(1)\n"
        f"  ROOT %y = {y} dot(%x, %w), {_DOT}, "
        'backend_config={"operation_queue_id":"0"}\n'
        "}\n"
    )


def kernel_s(chip: str, m: int, k: int, n: int, dtype: str = "bf16") -> float:
    """Seconds of the product's kernel, on a card that is cool."""
    step = spmd.step_time(program(m, k, n, dtype), chip, sustained=False)
    return step.lanes["kernels"]


def predicted(rows: list[dict]) -> list[dict]:
    """Rows of "gpu-products" as those of "gpu-predicted", with their weights' bytes."""
    return [
        {
            "name": f"product/{row['name']}",
            "m": row["m"],
            "weights": 2 * row["k"] * row["n"],
            "measured_s": row["device_s"],
            "predicted_s": kernel_s("h200", row["m"], row["k"], row["n"]),
            "kept_out": is_kept_out(f"product/{row['name']}"),
        }
        for row in rows
    ]


def by_the_card(rows: list[dict], products: list[dict]) -> list[dict]:
    """Rows of "gpu-predicted", the products by the card's clock where it is stored."""
    own = {
        row["name"].replace("product/", "matmul/"): row for row in predicted(products)
    }
    return [
        row | {key: own[row["name"]][key] for key in ("measured_s", "predicted_s")}
        if row["name"] in own
        else row
        for row in rows
    ]
