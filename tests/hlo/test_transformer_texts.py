"""Steps of the transformer that were measured on two cards, read from their texts.

The texts are those that the GPU compiler of jax 0.11.2 gave for rows of
transformer_gpu.json and log_gpu.json (data/hlo/README.md). What the readers must find
in them is worked out here from the sizes of the model, tools/measure/model.py.
"""

import dataclasses
import re
from collections import Counter
from functools import cache
from math import prod

import jax
import pytest

import spmd_helpers as spmd
from spmd_helpers._findings import compiled
from spmd_helpers._findings.evidence import Evidence, Leaf
from spmd_helpers._findings.find import find
from spmd_helpers._hardware.chips import HARDWARE
from spmd_helpers._hlo import parser as hlo_parser
from spmd_helpers._hlo.flops import product
from spmd_helpers._hlo.work import work
from spmd_helpers._shardings.sharding import ShardingInfo
from tests.hlo.texts import BWD, FWD, HLO, RE, archived
from tests.mutants import both_ways
from tools.measure.model import PARTS, Setting, one_step, shapes_of, specs_of
from tools.measure.predict import predictions

(ARCHIVE,) = HLO.glob("transformer.gpu_*.tar.xz")
CARDS = 2
SIZE = {"float32": 4, "bfloat16": 2, "int32": 4}
ROWS = {
    f"{group}/{row['name']}": row
    for group, kind in (("ways", "gpu-transformer"), ("log", "gpu-log"))
    for row in spmd.load_measured(kind)
}


def texts():
    return archived(ARCHIVE.name.removesuffix(".tar.xz"))


NAMES = list(texts())
SETTINGS = {name: Setting(**ROWS[name]["setting"]) for name in NAMES}
COMBINED = [name for name in NAMES if "combine_threshold" in SETTINGS[name].flags]
PLAIN = "ways/fsdp plain"  # laid out by the compiler
PLANNED = [name for name in NAMES if name != PLAIN and name not in COMBINED]


def mesh_of(s):
    if s.strategy == "pmap":
        return {"data": CARDS}
    split = s.strategy == "tensor parallel"
    return {"data": 1, "model": CARDS} if split else {"data": CARDS, "model": 1}


def axis_of(s):
    return "model" if s.strategy == "tensor parallel" else "data"


@cache
def parsed(name):
    return hlo_parser.parse(texts()[name])


@cache
def moved_in(name):
    return spmd.read_hlo(texts()[name], mesh_of(SETTINGS[name]))


# --- What is moved, from the sizes of the model -----------------------------------


class Moves(Counter):
    """(kind, phase, dtype, bytes of the whole array, executions, where) → how many.

    Where: the function of _gpu_model.py whose line it is.
    """

    def add(self, kind, phase, dtype, numbers, where, times=1, copies=1):
        self[kind, phase, dtype, numbers * SIZE[dtype], times, where] += copies


def matrices(s):
    """The numbers of each matrix of one layer."""
    D, F = s.d_model, s.d_ff
    return {**dict.fromkeys(("q", "k", "v", "out"), D * D), "up": D * F, "down": D * F}


def in_each_layer(s):
    """A loop has an exchange once and runs it for each layer; else it stands there."""
    return {"times": s.layers} if s.scan else {"copies": s.layers}


def sum_norms(s, moved):
    """The scales' gradients, and beside the last norm's the sum of the loss."""
    D, L = s.d_model, s.layers
    if s.scan:
        moved.add("all-reduce", BWD, "float32", 2 * D, "norm", times=L)
        moved.add("all-reduce", BWD, "float32", D + 1, "norm")
    else:
        moved.add("all-reduce", BWD, "float32", (2 * L + 1) * D + 1, "norm")


def replicated(s):
    """Nothing is cut, so only gradients are summed: a layer's in its turn of the loop.

    They are summed as the products make them; those of the tables and of the head
    (its product gives float32 scores) are float32.
    """
    moved, D = Moves(), s.d_model
    for numbers in matrices(s).values():
        moved.add("all-reduce", BWD, s.compute, numbers, "times", **in_each_layer(s))
    moved.add("all-reduce", BWD, "float32", s.vocab * D, "look_up")
    moved.add("all-reduce", BWD, "float32", s.seq * D, "forward")
    moved.add("all-reduce", BWD, "float32", D * s.vocab, "summed")
    sum_norms(s, moved)
    return moved


def pmap(s):
    """The pmean of the gradients: after both passes, so whole stacks, in float32."""
    L, D = s.layers, s.d_model
    stacks = [L * numbers for numbers in matrices(s).values()]
    others = [s.vocab * D, s.seq * D, D * s.vocab, (2 * L + 1) * D + 1]
    moved = Moves()
    for numbers in (*stacks, *others):
        moved.add("all-reduce", None, "float32", numbers, "train")
    return moved


CHEAP = ("q", "k", "v", "up", "down")
HEAD = {"float32": (FWD, BWD), "bfloat16": (FWD,), "chunked": (FWD, RE, BWD)}


def gathered_again(s):
    """The matrices that recomputed parts multiply by."""
    return {
        "everything_saveable": (),
        "cheap": CHEAP,
        "nothing_saveable": (*CHEAP, "out"),
    }[s.recompute]


def fsdp(s):
    """A matrix is gathered for each pass that multiplies by it, its gradient cut again.

    In a loop the backward pass has lost what the forward pass gathered. In a part that
    is recomputed it gathers again; `out` stands in none of the cheap parts, and what
    the loop takes from its stack for it is named after the loop. Without a loop what
    was gathered once is still there, unless it is recomputed.
    """
    moved, D = Moves(), s.d_model
    for name, numbers in matrices(s).items():
        of = (s.compute, numbers)
        moved.add("all-gather", FWD, *of, "times", **in_each_layer(s))
        if name in gathered_again(s):
            moved.add("all-gather", RE, *of, "times", **in_each_layer(s))
        elif s.scan:
            moved.add("all-gather", BWD, *of, "forward", **in_each_layer(s))
        moved.add("reduce-scatter", BWD, *of, "times", **in_each_layer(s))
    sum_norms(s, moved)

    # The head. With float32 scores its backward product is a float32 one, of the same
    # bfloat16 weights gathered once more. In chunks every turn does all of that, and
    # the scores are recomputed.
    head, chunks = D * s.vocab, 8 if s.loss == "chunked" else 1
    for phase in HEAD[s.loss]:
        moved.add("all-gather", phase, s.compute, head, "summed", times=chunks)
    dtype = "bfloat16" if s.loss == "bfloat16" else "float32"
    moved.add("reduce-scatter", BWD, dtype, head, "summed", times=chunks)

    # The tables are float32. Where there are fewer tokens than words, the words' table
    # stays cut: everybody looks up all tokens, finds half, and gets the sum of its own
    # rows; backward all rows go to everybody, who adds up those of its own words.
    moved.add("all-gather", FWD, "float32", s.seq * D, "forward")
    moved.add("reduce-scatter", BWD, "float32", s.seq * D, "forward")
    tokens = s.batch * s.seq
    if tokens < s.vocab:
        moved.add("all-gather", FWD, "int32", tokens, "look_up")
        moved.add("reduce-scatter", FWD, "float32", tokens * D, "look_up")
        moved.add("all-gather", BWD, s.compute, tokens * D, "forward")
    else:
        moved.add("all-gather", FWD, "float32", s.vocab * D, "look_up")
        moved.add("reduce-scatter", BWD, "float32", s.vocab * D, "look_up")
    return moved


def tensor_parallel(s):
    """What cut weights give is summed twice a layer, and so are the gradients.

    Forward after `out` and `down`; backward before q, k and v together, and before
    `up`. So are the looked-up rows (of cut words, as float32) and what the head gives
    back. The loss needs the largest score, then the sum of all and the right one.
    """
    moved, rows = Moves(), s.batch * s.seq
    for phase in (FWD, BWD):
        twice = {"times": s.layers, "copies": 2}
        moved.add("all-reduce", phase, s.compute, rows * s.d_model, "times", **twice)
    moved.add("all-reduce", FWD, "float32", rows * s.d_model, "look_up")
    moved.add("all-reduce", BWD, "float32", rows * s.d_model, "summed")
    moved.add("all-reduce", FWD, "float32", rows, "summed")
    moved.add("all-reduce", FWD, "float32", 2 * rows, "summed")
    return moved


def planned(s):
    plans = {"pmap": pmap, "replicated": replicated, "tensor parallel": tensor_parallel}
    return plans.get(s.strategy, fsdp)(s)


def function_of(module, source):
    """The function that a line stands in, as the tables of the text have it."""
    file, line = source.split(":")
    functions = set()
    for row in module.tables["FileLocations"].values():
        where = {key: int(n) for key, n in re.findall(r"(\w+)=(\d+)", row)}
        path = module.tables["FileNames"][where["file_name_id"]]
        if (path.rpartition("/")[2], where["line"]) == (file, int(line)):
            functions.add(module.tables["FunctionNames"][where["function_name_id"]])
    (name,) = functions
    return name.rpartition(".")[2]


def array_bytes(c):
    """The bytes of the array that is gathered, or that is summed or exchanged."""
    return c.result_bytes if c.kind == "all-gather" else c.operand_bytes


def moves(collectives, module):
    return Counter(
        (
            c.kind,
            c.phase,
            c.dtype,
            array_bytes(c),
            c.count,
            function_of(module, c.source),
        )
        for c in collectives
    )


@pytest.mark.parametrize("name", PLANNED)
def test_what_is_moved(name):
    assert moves(moved_in(name), parsed(name)) == planned(SETTINGS[name])


def in_all(moved):
    """(kind, phase) → bytes of a step."""
    total = Counter()
    for (kind, phase, _, size, times, _), copies in moved.items():
        total[kind, phase] += size * times * copies
    return total


@pytest.mark.parametrize("name", COMBINED)
def test_combined_collectives_move_the_same(name):
    # Up to 2**30 bytes of results go in one exchange. What is recomputed is not
    # gathered before its layer: q, k and v of one layer together.
    s, collectives = SETTINGS[name], moved_in(name)
    apart, together = planned(s), moves(collectives, parsed(name))
    assert in_all(together) == in_all(apart)
    assert together.total() < apart.total() / 2
    assert max(c.result_bytes for c in collectives) <= 2**30
    three = 3 * s.d_model**2 * SIZE[s.compute]
    assert together["all-gather", RE, s.compute, three, 1, "times"] == s.layers


def test_fsdp_plain_moves_activations():
    # Forward it gathers weights as when it is told how activations lie, and q, k and v
    # are recomputed and given back so.
    s, compiled_moves = SETTINGS[PLAIN], moves(moved_in(PLAIN), parsed(PLAIN))
    planned_moves = fsdp(s)
    D, same = s.d_model, s.compute
    for phase in (FWD, RE):
        of_matrices = ("all-gather", phase, same, D * D * 2, s.layers, "times")
        assert compiled_moves[of_matrices] == planned_moves[of_matrices]
    assert (
        compiled_moves["reduce-scatter", BWD, same, D * D * 2, s.layers, "times"] == 3
    )
    # But up, down and out are never whole in the backward pass, nor are their
    # gradients: what is [b, s, f] or [b, s, d] there goes from rows cut to columns
    # cut, a card's half of it each time, or is gathered.
    backward = [c for c in moved_in(PLAIN) if c.phase == BWD and c.count == s.layers]
    assert sum(c.kind == "reduce-scatter" for c in backward) == 3
    rows = s.batch * s.seq
    wide = {rows * D * 2, rows * s.d_ff * 2}  # bfloat16; and float32, in a norm:
    halves = {size // 2 for size in (*wide, rows * D * 4)}
    exchanged = [c for c in backward if c.kind == "all-to-all"]
    assert {c.operand_bytes for c in exchanged} == halves
    assert all(c.result_bytes == c.operand_bytes for c in exchanged)
    gathered = {array_bytes(c) for c in backward if c.kind == "all-gather"}
    assert gathered == wide
    # That sends four times what gathering the weights would.
    sent = sum(c.total_wire_bytes for c in moved_in(PLAIN))
    assert sent > 4 * sum(in_all(planned_moves).values()) // 2


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_the_text_is_one_collective(name):
    # No computation of these programs is reached twice, and none is left out.
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    lines = re.findall(rf"^ .* (?:{kinds})(?:-start)?\(", texts()[name], re.M)
    assert len(lines) == len(moved_in(name))


@pytest.mark.parametrize("name", NAMES)
def test_axes_groups_and_wire_bytes(name):
    # Of two cards each sends half of what it gathers or scatters (its own half, or
    # the other's), twice that for a sum. The other axis has one device.
    for c in moved_in(name):
        assert (c.axes, c.groups) == ((axis_of(SETTINGS[name]),), ((0, 1),))
        twice = 2 if c.kind == "all-reduce" else 1
        assert c.wire_bytes == twice * array_bytes(c) // 2
        assert (c.lowered_as, c.upper_bound) == (None, False)
        if c.kind in ("all-gather", "reduce-scatter"):
            assert array_bytes(c) == 2 * min(c.operand_bytes, c.result_bytes)


@pytest.mark.parametrize("name", NAMES)
def test_trips_are_found_without_being_told(name):
    # XLA prints them; TPU's texts don't, and there the counter is followed.
    trip_count = r'"known_trip_count":\{"n":"\d+"\},?'
    text, times = re.subn(trip_count, "", texts()[name])
    chunks = SETTINGS[name].loss == "chunked"
    assert times == (2 * (1 + chunks) if SETTINGS[name].scan else 0)
    mesh = mesh_of(SETTINGS[name])
    assert spmd.read_hlo(text, mesh) == moved_in(name)
    assert work(hlo_parser.parse(text), mesh) == work(parsed(name), mesh)


# --- Work -------------------------------------------------------------------------


def flops(s):
    """Of one card: half of chapter 15's formula, and what runs once more.

    The kernel of attention computes its scores again in the backward pass, one product
    more in each layer. What is recomputed in full is a layer without its last product,
    which nothing asks for; norms and GELU are no products. Chunks of the loss make
    their scores again.
    """
    model = spmd.Transformer(
        **{"layers": s.layers, "d_model": s.d_model, "heads": s.heads},
        **{"d_ff": s.d_ff, "vocab": s.vocab, "seq": s.seq, "tied": False},
        **{"biases": False, "positions": "learned", "norm": "rms"},
    )
    tokens, D, F = s.batch * s.seq // CARDS, s.d_model, s.d_ff
    scores = 2 * tokens * s.seq * D
    total = model.flops(s.batch) // CARDS
    total += (s.attention != "plain") * s.layers * scores
    if s.recompute == "nothing_saveable":
        total += s.layers * (2 * scores + 2 * tokens * (4 * D * D + D * F))
    if s.loss == "chunked":
        total += 2 * tokens * D * s.vocab
    return total


@pytest.mark.parametrize("name", NAMES)
def test_flops_of_one_card(name):
    s, counted = SETTINGS[name], work(parsed(name), mesh_of(SETTINGS[name]))
    assert counted.flops == flops(s) == ROWS[name]["flops_per_device"]
    # Each card has its own sequences, or its own half of every matrix.
    assert (counted.redundancy, counted.idle_axes, counted.redundant_over) == (
        1.0,
        (),
        {},
    )
    assert not counted.upper_bound


def kernels(name):
    """The products of the text by what multiplies."""
    module = parsed(name)
    products = [
        i.quoted("custom_call_target") or i.opcode
        for c in module.computations.values()
        for i in c.instructions
        if product(module, c, i) is not None
    ]
    return Counter(re.sub(r"\$.*", "", kind).strip("_") for kind in products)


@pytest.mark.parametrize("name", [n for n in NAMES if not SETTINGS[n].scan])
def test_every_product_is_known(name):
    # In each layer 6 matrices and 2 backward products of each; one kernel of
    # attention a pass. The head has 3. Recomputed in full, 5 and attention again.
    L, again = SETTINGS[name].layers, SETTINGS[name].recompute == "nothing_saveable"
    counts = kernels(name)
    assert counts["cudnn"] == (2 + again) * L
    assert counts["cublas"] + counts["dot"] == (18 + 5 * again) * L + 3
    alone = "--xla_gpu_enable_triton_gemm=false" in SETTINGS[name].flags
    assert (counts["dot"] == 0) == alone


def test_half_as_wide_heads_are_as_many_flops():
    # The width of a head is read off the operands, the scores off the configuration.
    narrow, wide = "log/heads of 64", "log/combined collectives"
    assert SETTINGS[narrow].head_dim * 2 == SETTINGS[wide].head_dim
    (one, other) = (work(parsed(n), {"data": 2}).flops for n in (narrow, wide))
    assert one == other


FED_ALIKE = [
    name
    for name in NAMES
    # These take the rows apart again, so that nobody can tell that they are alike.
    if name not in (PLAIN, "log/fsdp constrained")
    and SETTINGS[name].strategy != "tensor parallel"
]


@pytest.mark.parametrize("name", FED_ALIKE)
def test_the_same_sequences_on_both_cards_would_be_all_work_twice(name):
    module, mesh = parsed(name), mesh_of(SETTINGS[name])
    rows = max(module.entry.parameters)
    # pmap stacks what each card has, so that all of it may differ.
    alike = range(rows + 1) if SETTINGS[name].strategy == "pmap" else [rows]
    counted = work(module, mesh, dict.fromkeys(alike, frozenset()))
    assert (counted.redundancy, counted.idle_axes) == (2.0, ("data",))
    (finding,) = find(evidence(name, done=counted))
    assert finding.code == "idle-axis"
    assert "50% of that work is redundant (redundancy 2)" in finding.sentence


# --- Findings ---------------------------------------------------------------------


def leaves(s, donated=False):
    """The arguments: three times the parameters, in JAX's order, and the sequences."""
    shapes, specs, mesh = shapes_of(s), specs_of(s), mesh_of(s)
    arrays = [
        (f"state['{part}']['{name}']", shapes[name], "float32", specs[name])
        for part in sorted(PARTS)
        for name in sorted(shapes)
    ]
    cut = () if s.strategy == "tensor parallel" else ("data",)
    arrays.append(("rows", (s.batch, s.seq + 1), "int32", cut))
    return tuple(
        Leaf(
            path,
            shape,
            dtype,
            weak_type=False,
            sharding_info=ShardingInfo(
                shape, dtype, mesh_shape=mesh, entries=tuple(spec)
            ),
            sharding=None,
            devices=CARDS,
            donated=donated and path != "rows",
        )
        for path, shape, dtype, spec in arrays
    )


def evidence(name, done=None, inputs=(), outputs=(), jaxpr=None):
    module, mesh = parsed(name), mesh_of(SETTINGS[name])
    return Evidence(
        inputs=inputs,
        outputs=outputs,
        jaxpr=jaxpr,
        module=module,
        collectives=moved_in(name),
        mesh_shape=mesh,
        work=done or work(module, mesh),
        carry=(),
        platform="gpu",
    )


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_text_alone_looks_like_a_mistake(name):
    # No stack is cut along its layers, no loop's condition waits for a card, no work
    # is repeated, and no table is gathered for few rows.
    assert find(evidence(name)) == ()


def traced(s):
    """The step as JAX traces it here, which compiles nothing; and its arguments."""
    step, _, shapes, mesh = one_step(s, jax.devices()[:CARDS])
    with jax.set_mesh(mesh):
        jaxpr = step.trace(*shapes).jaxpr
    state = leaves(s)
    asks = s.strategy not in ("fsdp plain", "fsdp explicit")
    results = [
        dataclasses.replace(
            leaf,
            path=f"result[0]{leaf.path[5:]}",
            sharding=x.sharding if asks else None,
        )
        for leaf, x in zip(state[:-1], jax.tree.leaves(shapes[0]), strict=True)
    ]
    loss = Leaf("result[1]", (), "float32", False, None, None, CARDS)
    return jaxpr, state, (*results, loss)


TRACED = [n for n in NAMES if n.startswith("ways/") and n != "ways/pmap"]


@pytest.mark.parametrize("name", TRACED)  # of pmap JAX gives no trace
def test_only_what_the_compiler_laid_out_is_told(name):
    s = SETTINGS[name]
    jaxpr, inputs, outputs = traced(s)
    findings = find(evidence(name, None, inputs, outputs, jaxpr))
    if name != PLAIN:
        assert findings == ()
        return
    # [b, s, f] has 1 GiB. A card has half of it, and sends half of that in each layer.
    (only,) = findings
    assert only.code == "unrequested-reshard"
    size = s.batch * s.seq * s.d_ff * SIZE[s.compute] // CARDS // 2
    assert f"the biggest sends {size // 2**20} MiB from each device" in only.sentence
    assert f", {s.layers} times." in only.sentence


@pytest.mark.parametrize(
    ("name", "line"), [("ways/fsdp constrained", 208), ("ways/fsdp explicit", 207)]
)
def test_a_table_gathered_for_few_rows_would_be_told(monkeypatch, name, line):
    # It is twice the rows that a card looks up. Told is what is so many times more.
    monkeypatch.setattr(compiled, "_TABLE", 1)
    s = SETTINGS[name]
    (finding,) = find(evidence(name, inputs=leaves(s)))
    assert finding.code == "gathered-embedding"
    table = s.vocab * s.d_model * 4 // 2**20
    rows = s.batch * s.seq * s.d_model * 4 // CARDS // 2**20
    assert finding.sentence == (
        f"state['params']['embed'] (float32[{s.vocab}, {s.d_model}]) is all-gathered "
        f"over data, {table} MiB per device, to look up {rows} MiB of it."
    )
    # Where it is looked up; the whole fusion is named after its end, a conversion.
    assert finding.source == f"_gpu_model.py:{line}"


FSDP = [
    n for n in NAMES if SETTINGS[n].strategy in ("fsdp constrained", "fsdp explicit")
]


@pytest.mark.parametrize("name", FSDP)
def test_what_is_gathered_is_called_by_its_name(name):
    # Through loops, slices of stacks, changes of type, and out of combined gathers.
    # What the forward loop hands to the backward one, and the rows, have no name.
    s = SETTINGS[name]
    facts = evidence(name, inputs=leaves(s))
    named = Counter()
    for each in compiled.gathers_of(facts):
        words = compiled.array_of(facts, each)
        named[words.partition(" (")[0] if words.startswith("state") else ""] += 1
    wanted = Counter({"place": 1, "head": len(HEAD[s.loss])})
    wanted["embed"] = int(s.batch * s.seq >= s.vocab)
    for matrix in matrices(s):
        each = [matrix] if s.scan else [f"{matrix}.{i}" for i in range(s.layers)]
        for one in each:
            wanted[one] = 1 + (matrix in gathered_again(s))
    nameless = named.pop("", 0)
    assert named == {f"state['params']['{n}']": k for n, k in wanted.items() if k}
    handed_on = len(set(matrices(s)) - set(gathered_again(s))) if s.scan else 0
    rows = 0 if s.batch * s.seq >= s.vocab else 2
    assert nameless == handed_on + rows


@pytest.mark.parametrize("name", [n for n in NAMES if SETTINGS[n].strategy != "pmap"])
def test_a_donated_state_is_reused_and_another_is_not(name):
    findings = find(evidence(name, inputs=leaves(SETTINGS[name], donated=True)))
    if SETTINGS[name].donate:
        assert findings == ()
        return
    (only,) = findings
    assert (name, only.code) == ("log/start", "donation-ignored")
    assert "(16.6 GiB per device)" in only.sentence  # 1.48 B · 12 bytes


# --- Memory, and what was stored --------------------------------------------------


def test_every_text_has_its_row():
    assert all(ROWS[name]["jax"] in ARCHIVE.name for name in NAMES)
    assert {name for name in ROWS if name.startswith("ways/")} <= set(NAMES)
    assert len(NAMES) >= 19
    assert not re.search(r'"/(?!home/reader/)[^"]*\.py"', "".join(texts().values()))


@pytest.mark.parametrize("name", NAMES)
def test_arguments_and_results_are_the_state_and_the_sequences(name):
    # Nothing of a peak stands in a text, but what goes in and comes out does.
    s, row, module = SETTINGS[name], ROWS[name], parsed(name)
    given = [i.shapes[0] for _, i in sorted(module.entry.parameters.items())]
    result_shapes = module.entry.root.shapes
    assert sum(x.nbytes for x in given) == row["argument_bytes"]
    # A tuple of results is a table of pointers beside them.
    results = sum(x.nbytes for x in result_shapes) + 8 * len(result_shapes)
    assert results == row["held_bytes"] - row["argument_bytes"]
    assert [x.elements for x in given] == [
        prod(leaf.sharding_info.shard_shape) for leaf in leaves(s)
    ]
    assert [x.elements for x in result_shapes] == [x.elements for x in given[:-1]] + [1]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_card_needed_is_arguments_results_and_temporaries(name):
    # The allocator's own peak, within 0.5 %. XLA's is of what is alive at once; it
    # leaves out the gaps of the one piece that holds all temporaries.
    row = ROWS[name]
    new = 0 if SETTINGS[name].donate else row["held_bytes"] - row["argument_bytes"]
    needed = row["argument_bytes"] + new + row["temp_bytes"]
    assert row["allocator_peak_bytes"] == pytest.approx(needed, rel=5e-3)
    assert row["argument_bytes"] < row["peak_bytes"] <= needed


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_predictions_can_be_made_again(name):
    row = ROWS[name]
    (speeds,) = spmd.load_measured("gpu-speeds")
    (sheet,) = (c for c in HARDWARE.values() if c.device_kind == row["device"])
    again = predictions(row, sheet, speeds)
    assert again.keys() == row["predicted"].keys()
    for by, parts in again.items():
        assert parts == pytest.approx(row["predicted"][by])


# --- Broken readers ---------------------------------------------------------------

TRIED = (
    *("ways/pmap", "ways/fsdp explicit", "ways/tensor parallel", "log/start"),
    *("log/loss in chunks", "log/recompute everything"),
)
READERS = ("_hlo.collectives", "_hlo.work", "_hlo.parser")
MUTANTS = [
    ("_hlo.collectives:_visit", "$i.opcode.removesuffix('-start')", "$i.opcode"),
    ("_hlo.collectives:_visit", "$count * $times", "$count"),
    ("_hlo.collectives:_collective",
     "sum($s.nbytes for $s in $operands), sum($s.nbytes for $s in $results)",
     "$operands[0].nbytes // 2, sum($s.nbytes for $s in $results)"),
    ("_hlo.labels:_users",
     "$found += $where.computation.users.get($parameter.name, [])",
     "$where.computation.users.get($parameter.name, [])"),
    ("_hlo.labels:_users", "$operand == $i.name", "$operand != $i.name"),
    ("_hlo.labels:phase", r"r'\brematted_computation\b|/remat2$'", "'never'"),
    ("_hlo.labels:phase", "'transpose('", "'jvp('"),
    ("_hlo.flops:_custom_call", "'__cudnn$fmha'", "'__cudnn$mha'"),
    ("_hlo.flops:_attention", "3 * $key + 2 * $value", "2 * $key + 2 * $value"),
    ("_hlo.flops:_GEMM", r"r'__cublas\$(gemm|lt\$\w*[mM]atmul)'",
     r"r'__cublas\$(gemm)'"),
    ("_hlo.flops:_custom_call", "contracted($i, 0)", "contracted($i, 1)"),
    ("_hlo.replication:Walk._loop", "$tally.add($done, $times, $loop.name)",
     "$tally.add($done)"),
    ("_hlo.opcodes:OPCODES['fusion']", "Does.CALLS", "Does.CONSTANT"),
    ("_hlo.integers:trips", "return $known", "return $known + 1"),
    ("_hlo.parser:Module._lines", "int($row.get('file_location_id', 0))", "$frame",
     "self.tables['StackFrames'].get($frame, '')"),
    ("_hlo.replica_groups:axes_of_groups", "$wanted == _along($strides, $devices)",
     "$wanted != _along($strides, $devices)"),
]  # fmt: skip


def right(reader, flow, parser):
    """Whether what is read of some of the texts is what they are."""
    for name in TRIED:
        s, text = SETTINGS[name], texts()[name]
        collectives = reader.read_hlo(text, mesh_of(s))
        module = parser.parse(text)
        if not (
            moves(collectives, module) == planned(s)
            and all(c.axes == (axis_of(s),) for c in collectives)
            and flow.work(module, mesh_of(s)).flops == flops(s)
        ):
            return False
    return True


test_the_texts_catch_a_broken_reader, test_an_unbroken_copy_passes = both_ways(
    MUTANTS, right, *READERS
)
