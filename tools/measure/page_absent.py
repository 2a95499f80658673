"""The section of the page about programs compiled for cards that are not there."""

from tools.measure.page_tables import as_table, card

GIB = 2**30
_TITLES = {
    "mlp": "MLP, float32",
    "transformer_plain": "transformer, nothing recomputed",
    "transformer_remat": "transformer, layers recomputed",
    "transformer_flash": "transformer, cuDNN's attention",
    "mixture_of_experts": "mixture of experts",
    "convnet": "convolutions",
    "recurrent": "recurrent scan, float32",
    "decode": "one token with a cache",
    "embedding": "embedding table",
    "logits": "head and loss",
}


def absent_section(rows: list[dict]) -> str:
    """What was compiled with the cards, without them, and by other versions."""
    by = {(r["how"], r["name"], r["devices"], r["jax"]): r for r in rows}
    real = [row for row in rows if row["how"] == "card"]
    versions = sorted({row["jax"] for row in rows if row["how"] == "here"}, key=_number)
    same = f"jax {real[0]['jax']}"
    head = ["program", "cards", "peak in a run", "with the cards", "without"]
    table = [[*head, *(f"jax {version}, without" for version in versions)]]
    for row in real:
        used = row["allocator_peak_bytes"]
        beside = [by.get(("hidden", row["name"], row["devices"], row["jax"]))]
        beside += [
            by.get(("here", row["name"], row["devices"], version))
            for version in versions
        ]
        table.append(
            [
                _TITLES[row["name"]],
                str(row["devices"]),
                f"{used / GIB:.3f} GiB",
                _ratio(row, used),
                *(_ratio(other, used) for other in beside),
            ]
        )
    return (
        f"## Compiled without the card\n\n{card(real)}\n\n"
        f"Each program was compiled beside the cards and run, then compiled by the "
        f"same {same} with the cards hidden, as `spmd.gpu_mesh` does it. The peak in a "
        "run is the allocator's. All other peaks are the compilers', as the difference "
        f"from it. {_exchanges(rows, real)} Beside a card XLA tries several kernels "
        "for a product and keeps the fastest; without one it takes a default. "
        f"{_untuned(rows)} Between two versions the compiler itself differs too"
        f"{_plugins(rows)}; what it does not compile needs cuDNN, which was not "
        "installed there.\n\n" + as_table(table) + _pool(rows)
    )


def _plugins(rows: list[dict]) -> str:
    """Which CUDA plugins compiled, if not one."""
    used = {
        how: {
            name
            for r in rows
            if r["how"] == how
            for name in r["versions"]
            if "pjrt" in name
        }
        for how in ("card", "here")
    }
    if used["card"] == used["here"]:
        return ""
    with_cards, without = (", ".join(sorted(used[how])) for how in ("card", "here"))
    return f" (beside the cards {with_cards}, elsewhere {without})"


def _untuned(rows: list[dict]) -> str:
    """Whether a compile beside the card that tries nothing is the one without it."""
    hidden = {(r["name"], r["devices"]): r for r in rows if r["how"] == "hidden"}
    chosen = [row for row in rows if row["how"] == "untuned"]
    same = [
        row
        for row in chosen
        if row["peak_bytes"] == hidden[row["name"], row["devices"]]["peak_bytes"]
    ]
    names = "; ".join(_TITLES[row["name"]] for row in same)
    return (
        "For the programs that differ most on one card this is the only cause: "
        "with `--xla_gpu_autotune_level=0` the compile beside the card has the peak of "
        f"the one without it, to the byte ({names})."
        if chosen and len(same) == len(chosen)
        else ""
    )


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _ratio(row: dict | None, used: int) -> str:
    if row is None:
        return "not compiled"
    ratio = row["peak_bytes"] / used - 1
    return "0.0%" if abs(ratio) < 5e-4 else f"{ratio:+.1%}".replace("-", "−")


def _exchanges(rows: list[dict], real: list[dict]) -> str:
    """Whether the exchanges are those of the program with the cards."""
    by = {(r["name"], r["devices"]): r["collectives"] for r in real}
    other = [r for r in rows if r["how"] in ("hidden", "here")]
    unlike = [r for r in other if r["collectives"] != by[r["name"], r["devices"]]]
    if not unlike:
        some = sum(bool(r["collectives"]) for r in other)
        return (
            f"The {some} compiled for several cards have exactly the collectives that "
            "they have beside the cards; one card has none."
        )
    words = sorted({f"jax {r['jax']}" for r in unlike})
    return (
        f"Of {len(other)}, {len(other) - len(unlike)} have exactly the exchanges that "
        f"they have beside the cards, the others ({', '.join(words)}) as many bytes in "
        "other pieces or kinds."
    )


def _pool(rows: list[dict]) -> str:
    """How much of a card programs get."""
    chosen = [row for row in rows if row["how"] == "pool"]
    if not chosen:
        return ""
    pool = chosen[0]["pool_bytes"] / GIB
    words = [
        f"one that needs {row['part']:.0%} of it {'runs' if row['runs'] else 'fails'}"
        for row in chosen
    ]
    return (
        f"\nJAX's allocator takes three quarters of the card, {pool:.2f} GiB. A "
        f"program's peak is compared with that: {', '.join(words)}.\n"
    )
