"""Small scheduled programs, written by hand, whose times can be worked out by hand."""

GPU = 'backend_config={"operation_queue_id":"0"}'
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def module(body, before="", devices=1, scheduled=True):
    head = "HloModule jit_f"
    head += ", is_scheduled=true" * scheduled
    head += f", num_partitions={devices}" * (devices > 1)
    return f"{head}\n{before}\nENTRY %main {{\n{body}\n}}\n"


def product(name="y", n=8192, left="x", right="x", dtype="bf16", root=True):
    """[n, n] @ [n, n]."""
    shape = f"{dtype}[{n},{n}]{{1,0}}"
    return f"  {'ROOT ' * root}%{name} = {shape} dot(%{left}, %{right}), {DOT}, {GPU}"


def argument(name="x", n=8192, dtype="bf16", number=0):
    return f"  %{name} = {dtype}[{n},{n}]{{1,0}} parameter({number})"


ONE_PRODUCT = module(f"{argument()}\n{product()}")
ONE_COPY = module(f"{argument()}\n  ROOT %y = bf16[8192,8192]{{1,0}} copy(%x), {GPU}")


def gathered(between="", groups="{{0,1}}", devices=2, rows=4096):
    """An all-gather of [rows, 8192] that is started, and waited for after something."""
    n = rows * (len(groups.split("}")[0].split(",")) if "{{" in groups else devices)
    return module(
        f"  %p = bf16[{rows},8192]{{1,0}} parameter(0)\n"
        f"{argument(number=1)}\n"
        f"  %start = ((bf16[{rows},8192]{{1,0}}), bf16[{n},8192]{{1,0}}) "
        f"all-gather-start(%p), channel_id=1, replica_groups={groups}, "
        f"dimensions={{0}}, {GPU}\n"
        f"{between}\n"
        f"  ROOT %done = bf16[{n},8192]{{1,0}} all-gather-done(%start)",
        devices=devices,
    )


def looped(trips='"known_trip_count":{"n":"5"}'):
    """A product in a loop, of five trips if it says so."""
    state = "(bf16[8192,8192]{1,0})"
    return module(
        f"{argument('a')}\n"
        f"  %t = {state} tuple(%a)\n"
        f"  ROOT %loop = {state} while(%t), condition=%test, body=%body, "
        f"backend_config={{{trips}}}",
        before=(
            f"%body (p: {state}) -> {state} {{\n"
            f"  %p = {state} parameter(0)\n"
            "  %x = bf16[8192,8192]{1,0} get-tuple-element(%p), index=0\n"
            f"{product(root=False)}\n"
            f"  ROOT %out = {state} tuple(%y)\n}}\n\n"
            f"%test (q: {state}) -> pred[] {{\n"
            f"  %q = {state} parameter(0)\n"
            "  ROOT %on = pred[] custom-call(%q), custom_call_target=\"more\"\n}\n"
        ),
    )  # fmt: skip
