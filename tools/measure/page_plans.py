"""The section of `book/hardware.md` on plans compared with compiled programs."""

from tools.measure.page_tables import GIB, as_table, ms
from tools.measure.planned import Compared, compared

# Why memory is further off than a tenth, by the name of the row.
MEMORY = {
    "mlp v5e: data 2 × fsdp 4, ZeRO-2, everything_saveable": "0.3 GiB of a small peak,"
    " which the count does not explain",
    "mlp h100: data 2 × model 4, ZeRO-2, dots_with_no_batch_dims_saveable": "within"
    " 4 % of the count of ZeRO-1: the layers' gradients are sharded after the loop",
    "llama-3.2-1b h200: fsdp 4, dots_with_no_batch_dims_saveable": "2.9 GiB more in the"
    " backward pass, which the count does not explain",
    "gpt3-6.7b h200 two hosts: data 2 × context 8, ZeRO-2, "
    "dots_with_no_batch_dims_saveable": "within 5 % of the count of ZeRO-1: the"
    " layers' gradients are sharded after the loop",
    "llama h100: stage 4 × data 2, 8 microbatches, nothing_saveable": "2 GiB more in"
    " the backward pass of a microbatch, which the count does not explain",
    "mlp a100 two hosts: data 2 × fsdp 8, ZeRO-1, "
    "dots_with_no_batch_dims_saveable": "counted in the update, where all new weights"
    " are gathered at once; without them the count is 6 % too high",
}
# Why seconds are, by the beginning of the row's name.
SECONDS = {
    "mlp v5e": "the TPU compiler sends a piece of a matrix while it multiplies with"
    " another, and hides more of it than is planned",
    "llama h100 two hosts: data 2 × context 8": "plain attention over `context` sends"
    " a fifth more than is planned, and little of it is hidden",
    "gpt3-6.7b h200 two hosts: data 2 × context 8": "the same",
    "llama h100: stage": "the reference runs the last layer of a chunk once more, and"
    " `step_time` counts that and a first stage's gradient of the embedding in every"
    " tick",
}


def plans_section(rows: list[dict]) -> str:
    """Each strategy: planned and compiled memory, seconds, and bytes sent."""
    every = compared(rows)
    kept_out = [one for one in every if one.row["kept_out"]]
    near = [
        sum(abs(one.seconds_off) <= 0.1 for one in some) for some in (every, kept_out)
    ]
    fit = sum(abs(one.memory_off) <= 0.1 for one in every)
    plans = len({row["plan"] for row in rows})
    tpus = [one for one in every if "TPU" in one.row["device"]]
    table = [
        [
            "strategy",
            "chips",
            "memory, GiB",
            "memory off",
            "a step, ms",
            "seconds off",
            "sent, GB",
            "sent off",
            "kept out",
        ]
    ]
    table += [_row(one) for one in every]
    versions = " and ".join(sorted({row["jax"] for row in rows}))
    return (
        "## Plans compared with compiled programs\n\n"
        f"jax {versions}, {rows[0]['date']}, compiled without the chips:"
        f" `tools/measure/planned.py`. Of each of {plans} calls of `spmd.plan_mesh` the"
        " first three strategies, and the first that is slower by 30 % and more, where"
        " there is one, as steps of `tools/measure/truth/reference.py`, timed by"
        " `spmd.step_time`. Strategies that an earlier formula had first are listed"
        " too. What did not compile is not, and `llama v5p` has one row.\n\n"
        f"{fit} of {len(every)} peaks are within a tenth of what was planned. The"
        f" seconds of {near[0]} rows are too, and of {near[1]} of the {len(kept_out)}"
        " rows that no number of the formula was chosen with and no comparison written"
        f" with (*kept out*). None of the {len(tpus)} rows of TPUs is kept out. *Off*"
        " is by how much more is planned than was compiled. *Sent* is what one device"
        " sends in a step.\n\n"
        "All are planned and compiled with `attention='plain'`. A plan's"
        " default, 'flash', and 'ring' over `context`, were never compared.\n\n"
        "The reference of a pipeline is one jitted program, whose stages take each tick"
        " together. The two rows of pipelines show another formula, for stages in"
        " lockstep, and both are off by more than a tenth. The seconds that a plan"
        " gives a pipeline were not checked.\n\n"
        + as_table(table)
        + "\nWhy rows are off by more than a tenth, where that was found:\n\n"
        + "\n".join(
            f"- *{one.row['name']}*: {'; '.join(causes)}."
            for one in every
            if (causes := reasons(one))
        )
        + "\n"
    )


def _row(one: Compared) -> list[str]:
    row, sent = one.row, one.exchanged.values()
    planned, compiled = (sum(pair[i] for pair in sent) for i in (0, 1))
    return [
        row["name"],
        f"{row['devices']} × {row['device']}",
        f"{row['peak_bytes'] / GIB:.2f}",
        f"{one.memory_off:+.1%}",
        ms(row["total_s"]),
        f"{one.seconds_off:+.1%}",
        f"{compiled / 1e9:.2f}",
        f"{planned / compiled - 1:+.1%}" if compiled else "",
        "yes" if row["kept_out"] else "",
    ]


def reasons(one: Compared) -> list[str]:
    """Why a row is off by more than a tenth."""
    name = one.row["name"]
    causes = [MEMORY[name]] if name in MEMORY else []
    if abs(one.seconds_off) > 0.1:
        causes += [why for key, why in SECONDS.items() if name.startswith(key)]
    return causes
