"""Shapes of models: counts against papers, against JAX, and against other tools.

Sources of the known answers:
GPT-3: Brown et al. 2020, arXiv:2005.14165, Tables 2.1 and D.1.
Llama, Mistral, GPT-2: the elements of the published checkpoints. (Llama-2 files hold
64 numbers a layer more, 2560 or 5120 in all: the rotary frequencies, which are not
trained.)
Megatron: Narayanan et al. 2021, arXiv:2104.04473, equations 2 and 3, Table 1.
Per layer: jax-ml/scaling-book, transformers.md and applied-training.md @0819a7d.
"""

import dataclasses
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmd_helpers._errors import NotUnderstood
from spmd_helpers._training import model as training_model
from spmd_helpers._training.model import MLP, NORMS, POSITIONS, Transformer
from spmd_helpers._training.models import MODELS
from tests.properties import must_fail, options

# The same model in JAX: its parameters, and a loss to take the gradient of.


def reference(m):
    """Shapes of all parameters, as a model of these shapes has them."""

    def linear(rows, columns):
        bias = {"bias": (columns,)} if m.biases else {}
        return {"kernel": (rows, columns), **bias}

    def norm():
        shift = {"shift": (m.d_model,)} if m.norm == "layer" else {}
        return {"scale": (m.d_model,), **shift}

    def layer():
        gate = {"gate": linear(m.d_model, m.d_ff)} if m.gated else {}
        return {
            "q": linear(m.d_model, m.heads * m.head_dim),
            "k": linear(m.d_model, m.kv_heads * m.head_dim),
            "v": linear(m.d_model, m.kv_heads * m.head_dim),
            "o": linear(m.heads * m.head_dim, m.d_model),
            "up": linear(m.d_model, m.d_ff),
            "down": linear(m.d_ff, m.d_model),
            "norm1": norm(),
            "norm2": norm(),
            **gate,
        }

    tree = {
        "embedding": (m.vocab, m.d_model),
        "layers": [layer() for _ in range(m.layers)],
        "norm": norm(),
    }
    if m.positions == "learned":
        tree["positions"] = (m.seq, m.d_model)
    if not m.tied:
        tree["head"] = (m.d_model, m.vocab)
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        tree,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def apply(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def norm(p, x):
    x = x - (x.mean(-1, keepdims=True) if "shift" in p else 0)
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True)) * p["scale"] + p.get(
        "shift", 0
    )


def scores(m, q, k, v):
    group = m.heads // m.kv_heads
    q = q.reshape(*q.shape[:2], m.kv_heads, group, m.head_dim)
    k, v = (x.reshape(*x.shape[:2], m.kv_heads, m.head_dim) for x in (k, v))
    probabilities = jax.nn.softmax(jnp.einsum("bskgd,btkd->bkgst", q, k))
    mixed = jnp.einsum("bkgst,btkd->bskgd", probabilities, v)
    return mixed.reshape(*mixed.shape[:2], m.heads * m.head_dim)


def block(m, p, h, attention):
    x = norm(p["norm1"], h)
    h = h + apply(p["o"], attention(*(apply(p[name], x) for name in "qkv")))
    x = norm(p["norm2"], h)
    up = apply(p["up"], x)
    up = jax.nn.silu(apply(p["gate"], x)) * up if m.gated else jax.nn.gelu(up)
    return h + apply(p["down"], up)


def loss(m, recompute):
    def attention(*qkv):
        return scores(m, *qkv)

    if recompute == "selective":
        attention = jax.checkpoint(attention)

    def layer(p, h):
        return block(m, p, h, attention)

    layer = jax.checkpoint(layer) if recompute == "nothing_saveable" else layer

    def run(p, tokens):
        h = p["embedding"][tokens]
        if "positions" in p:
            h = h + p["positions"][: tokens.shape[1]]
        for one in p["layers"]:
            h = layer(one, h)
        h = norm(p["norm"], h)
        logits = h @ p["head"] if "head" in p else h @ p["embedding"].T
        return jax.nn.logsumexp(logits, -1).sum() - logits[..., 0].sum()

    return run


def products(jaxpr):
    """FLOPs of all matrix products in a jaxpr: 2 for each multiply-add."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            inner = math.prod(eqn.invars[0].aval.shape[d] for d in contracted)
            total += 2 * inner * math.prod(eqn.outvars[0].aval.shape)
        for value in eqn.params.values():
            inside = getattr(value, "jaxpr", value)
            if hasattr(inside, "eqns"):
                total += products(inside)
    return total


def measured(m, batch, seq, recompute="everything_saveable"):
    tokens = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    step = jax.grad(loss(m, recompute))
    return products(jax.make_jaxpr(step)(reference(m), tokens).jaxpr)


@st.composite
def models(draw):
    """Small models of every form, with no two sizes the same by design."""
    small = st.integers(1, 5)
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    head_dim = draw(small)
    given_dim = draw(st.booleans())
    d_model = draw(st.integers(1, 9)) if given_dim else heads * head_dim
    return Transformer(
        layers=draw(st.integers(1, 3)),
        d_model=d_model,
        heads=heads,
        kv_heads=draw(st.sampled_from([None, kv_heads])),
        d_ff=draw(st.sampled_from([None, 7, 11])),
        vocab=draw(st.integers(1, 13)),
        seq=draw(st.integers(2, 6)),
        head_dim=head_dim if given_dim else None,
        gated=draw(st.booleans()),
        tied=draw(st.booleans()),
        biases=draw(st.booleans()),
        positions=draw(st.sampled_from(POSITIONS)),
        norm=draw(st.sampled_from(NORMS)),
    )


def check_parameters(m):
    tree = reference(m)

    def count(part):
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(part))

    attention = [{key: one[key] for key in "qkvo"} for one in tree["layers"]]
    norms = [(one["norm1"], one["norm2"]) for one in tree["layers"]]
    mlp = [
        [value for key, value in one.items() if key in ("gate", "up", "down")]
        for one in tree["layers"]
    ]
    assert m.parts == {
        "embedding": count(tree["embedding"]),
        "positions": count(tree.get("positions")),
        "attention": count(attention),
        "mlp": count(mlp),
        "norms": count([norms, tree["norm"]]),
        "head": count(tree.get("head")),
    }
    assert m.parameters == count(tree)
    assert m.layer_parameters == count(tree["layers"][0])
    cache = np.zeros((2, m.layers, 3, m.seq, m.kv_heads, m.head_dim), jnp.bfloat16)
    assert m.kv_cache_bytes(3) == cache.nbytes


def check_flops(m):
    batch, seq = 2, m.seq - 1
    assert m.flops(batch, seq) == measured(m, batch, seq)


@options(120)
@given(models())
def test_parameters_are_those_of_a_tree_in_jax(m):
    check_parameters(m)


@options(20)
@given(models())
def test_flops_are_the_products_of_a_gradient_in_jax(m):
    check_flops(m)


@options(8)
@given(models())
def test_recompute_without_what_jax_leaves_out(m):
    """A product that the backward pass doesn't need is not run again.

    They are the last one of a layer, and of the scores the one with v.
    """
    batch, seq = 2, m.seq
    down = 2 * batch * seq * m.layers * m.d_ff * m.d_model
    full = m.flops(batch, recompute="nothing_saveable")
    assert measured(m, batch, seq, "nothing_saveable") == full - down
    with_v = 2 * batch * seq**2 * m.layers * m.heads * m.head_dim
    selective = m.flops(batch, recompute="selective")
    assert measured(m, batch, seq, "selective") == selective - with_v


MUTANTS = {
    "k and v as wide as q": (
        "_attention_weights",
        lambda m: 4 * m.d_model * m.heads * m.head_dim,
    ),
    "heads of d_model / heads": (
        "_attention_weights",
        lambda m: 2 * m.d_model**2 * (m.heads + m.kv_heads) // m.heads,
    ),
    "no gate": ("_mlp_weights", lambda m: 2 * m.d_model * m.d_ff),
    "a feed-forward part of 4 * d_model": (
        "_mlp_weights",
        lambda m: (3 if m.gated else 2) * m.d_model * 4 * m.d_model,
    ),
    "biases of k and v as wide as q's": (
        "_attention_parameters",
        lambda m: (
            training_model._attention_weights(m)
            + m.biases * (3 * m.heads * m.head_dim + m.d_model)
        ),
    ),
    "one bias of the gated part": (
        "_mlp_parameters",
        lambda m: training_model._mlp_weights(m) + m.biases * (m.d_ff + m.d_model),
    ),
    "no biases": ("_mlp_parameters", lambda m: training_model._mlp_weights(m)),
    "every norm has a shift": ("_norm_parameters", lambda m: 2 * m.d_model),
    "no norm has a shift": ("_norm_parameters", lambda m: m.d_model),
    "the model's own length": ("_tokens", lambda m, seq: m.seq),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_properties_catch_wrong_arithmetic(mutant, monkeypatch):
    name, wrong = MUTANTS[mutant]
    monkeypatch.setattr(training_model, name, wrong)
    check = check_flops if name == "_tokens" else check_parameters
    must_fail(check, models())


@options(20)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(1, 5))
def test_a_stack_of_layers(layers, d_model, d_ff, rows):
    m = MLP(layers, d_model, d_ff)
    one = {"w1": (d_model, d_ff), "w2": (d_ff, d_model)}
    tree = [{k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in one.items()}] * layers

    def run(p, h):
        for w in p:
            h = h + jax.nn.relu(h @ w["w1"]) @ w["w2"]
        return h.sum()

    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
    assert m.parameters == count == sum(m.parts.values()) == layers * m.layer_parameters
    h = jax.ShapeDtypeStruct((rows, d_model), jnp.float32)
    seen = products(jax.make_jaxpr(jax.grad(run))(tree, h).jaxpr)
    assert m.flops(rows) - 2 * rows * d_model * d_ff == seen  # no gradient of the rows
    assert m.flops(rows) == 6 * m.parameters * rows
    assert m.flops(rows, recompute="nothing_saveable") == 8 * m.parameters * rows
    assert m.flops(rows, recompute="selective") == m.flops(rows)


# Known answers. A new model gets its line in EXACT, from its checkpoint.

GPT3_MILLIONS = {
    "gpt3-small": 125,
    "gpt3-medium": 356,
    "gpt3-large": 760,
    "gpt3-xl": 1320,
    "gpt3-2.7b": 2650,
    "gpt3-6.7b": 6660,
    "gpt3-13b": 12850,
    "gpt3-175b": 174600,
}
EXACT = {
    "gpt2-small": 124439808,
    "gpt2-medium": 354823168,
    "gpt2-large": 774030080,
    "gpt2-xl": 1557611200,
    "gpt3-175b": 174604259328,
    "llama-2-7b": 6738415616,
    "llama-2-13b": 13015864320,
    "llama-2-70b": 68976648192,
    "llama-3-8b": 8030261248,
    "llama-3-70b": 70553706496,
    "llama-3.1-405b": 405853388800,
    "llama-3.2-1b": 1235814400,
    "llama-3.2-3b": 3212749824,
    "mistral-7b": 7241732096,
}


@pytest.mark.parametrize("name", GPT3_MILLIONS)
def test_gpt3_as_published(name):
    m = MODELS[name]
    assert m.parameters / 1e6 == pytest.approx(GPT3_MILLIONS[name], rel=0.005)
    d = m.d_model
    formula = m.layers * (12 * d * d + 13 * d) + (m.vocab + m.seq) * d + 2 * d
    assert m.parameters == formula


def test_gpt3_rows_that_do_not_fit_together():
    """XL has 24 heads of 128 in the paper, 13B a width of 5140; see MODELS."""
    stated = Transformer(24, 2048, 24, head_dim=128)
    assert stated.parameters / 1e6 == pytest.approx(1517.1, abs=0.1)  # not 1320
    assert "24 heads" in MODELS["gpt3-xl"].source
    with pytest.raises(NotUnderstood, match="d_model=5140 does not divide"):
        Transformer(40, 5140, 40)
    stated = Transformer(40, 5140, 40, head_dim=128, d_ff=4 * 5140)
    assert stated.parameters / 1e6 > 1.005 * 12850
    assert "5140" in MODELS["gpt3-13b"].source


@pytest.mark.parametrize("name", EXACT)
def test_checkpoints_to_the_unit(name):
    assert MODELS[name].parameters == EXACT[name]
    assert MODELS[name].name == name


def test_every_model_was_counted_by_others():
    here = "EXACT in tests/training/test_model.py"
    told = [
        f"{name}: add the number of parameters that its makers publish to {here}"
        for name in MODELS
        if name not in EXACT and name not in GPT3_MILLIONS
    ]
    told += [
        f"{name}: MODELS in src/spmd_helpers/_training/models.py has it no longer"
        for name in {**EXACT, **GPT3_MILLIONS}
        if name not in MODELS
    ]
    assert not told, "; ".join(told)


def test_every_model_says_where_its_shapes_stand():
    assert len(MODELS) >= 20
    for name, m in MODELS.items():
        assert m.name == name
        assert len(m.source) > 20, f"{name}: name the paper or file of its shapes"


@pytest.mark.parametrize(
    ("billions", "heads", "width", "layers"),
    [
        (1.7, 24, 2304, 24),
        (7.5, 32, 4096, 36),
        (39.1, 64, 8192, 48),
        (145.6, 96, 12288, 80),
        (529.6, 128, 20480, 105),
    ],
)
def test_megatron_table_1(billions, heads, width, layers):
    m = Transformer(layers, width, heads, vocab=51200)
    assert round(m.parameters / 1e9, 1) == billions
    formula = 12 * layers * width**2 + 13 * layers * width + (m.vocab + m.seq) * width
    assert m.parameters == formula + 2 * width  # theirs leaves out the last norm
    batch, s = 3, m.seq
    full = 96 * batch * s * layers * width**2
    full += 16 * batch * s**2 * layers * width + 6 * batch * s * width * m.vocab
    assert m.flops(batch, recompute="nothing_saveable") == full
    plain = 72 * batch * s * layers * width**2
    plain += 12 * batch * s**2 * layers * width + 6 * batch * s * width * m.vocab
    assert m.flops(batch) == plain


def test_megatron_selective_recompute():
    """The 2.7 % for GPT-3 and 1.6 % for 530B of Korthikanti et al., arXiv:2205.05198.

    That is the whole share of the scores in a step; running their forward part
    once more, a third of it, is what is counted here.
    """
    for m, share in (
        (MODELS["gpt3-175b"], 2.7),
        (Transformer(105, 20480, 128, vocab=51200), 1.6),
    ):
        step = m.flops(1)
        scores = 12 * m.seq**2 * m.layers * m.heads * m.head_dim
        assert 100 * scores / step == pytest.approx(share, abs=0.1)
        assert m.flops(1, recompute="selective") - step == scores // 3


def test_scaling_book_counts():
    m = MODELS["llama-3-70b"]
    assert m.parts["mlp"] == pytest.approx(56.3e9, rel=2e-3)
    assert m.parts["attention"] == pytest.approx(12e9, rel=1e-2)
    assert m.parts["embedding"] + m.parts["head"] == pytest.approx(2.1e9, rel=2e-3)
    assert m.parameters == pytest.approx(70.4e9, rel=3e-3)
    shapes = Transformer(5, 24, 4, d_ff=80, vocab=7, seq=32, gated=True, biases=False)
    b, t, d, f, n, h = 3, 32, 24, 80, 4, 6
    layer = 18 * b * t * d * f + 24 * b * t * d * n * h + 12 * b * t * t * n * h
    # Its table has 12 B T D V for the vocabulary; one product is 6 with its gradients.
    assert shapes.flops(b) == 5 * layer + 6 * b * t * d * 7


def test_training_flops_of_gpt3():
    """Table D.1: 3.14e23 for 300 B tokens, which is 6 N D."""
    m = MODELS["gpt3-175b"]
    rule = 6 * m.parameters * 300e9
    assert rule == pytest.approx(3.14e23, rel=1e-3)
    assert 1 < m.flops(1) / m.seq * 300e9 / rule < 1.03  # the scores of attention


def test_six_n_d():
    """Hoffmann et al. 2022, arXiv:2203.15556: C = 6 N D, N without the embedding."""
    for name, m in MODELS.items():
        products = m.parts["attention"] + m.parts["mlp"] + m.vocab * m.d_model
        assert m.flops(1, 1) / (6 * products) == pytest.approx(1, rel=0.003), name
    chinchilla = Transformer(80, 8192, 64, vocab=32000)
    assert chinchilla.flops(1) / 2048 * 1.4e12 == pytest.approx(5.76e23, rel=0.06)


@pytest.mark.parametrize(
    ("name", "each"),
    [("llama-2-7b", 524288), ("llama-2-70b", 327680), ("llama-3-8b", 131072)],
)
def test_cache_of_keys_and_values(name, each):
    m = MODELS[name]
    assert m.kv_cache_bytes(1, 1) == each
    assert m.kv_cache_bytes(16, 8192, "int8") == 16 * 8192 * each // 2
    assert m.kv_cache_bytes() == m.seq * each


def test_what_is_not_given():
    m = Transformer(2, 12, 3)
    assert (m.kv_heads, m.d_ff, m.head_dim) == (3, 48, 4)
    assert (m.vocab, m.seq) == (50257, 2048)
    assert m == Transformer(2, 12, 3, name="x", source="y")
    assert dataclasses.replace(m, layers=5).layers == 5
    assert Transformer(np.int64(2), 12, 3) == m
    assert type(Transformer(np.int64(2), 12, 3).layers) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        m.layers = 3


# What it refuses.


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"layers": 0}, "layers=0 is not a size; give a whole number, 1 or more."),
        ({"seq": 2.5}, "seq=2.5 is not a size; give a whole number, 1 or more."),
        ({"vocab": "9"}, "vocab='9' is not a size; give a whole number, 1 or more."),
        ({"heads": True}, "heads=True is not a size; give a whole number, 1 or more."),
        ({"d_ff": -4}, "d_ff=-4 is not a size; give a whole number, 1 or more."),
        (
            {"d_model": 50},
            "d_model=50 does not divide into heads=6; make it 48 or 54, or say how "
            "wide a head is with head_dim=.",
        ),
        (
            {"d_model": 4},
            "d_model=4 does not divide into heads=6; make it 6 or 12, or say how wide "
            "a head is with head_dim=.",
        ),
        (
            {"kv_heads": 4},
            "kv_heads=4 does not divide heads=6; each head of keys and values serves "
            "equally many heads of queries, so give one of 1, 2, 3 and 6.",
        ),
        (
            {"positions": "rope"},
            "positions='rope' is not known. Give 'learned', 'rotary' or 'none'.",
        ),
        ({"norm": "batch"}, "norm='batch' is not known. Give 'layer' or 'rms'."),
        ({"gated": 1}, "gated=1 is not known. Give True or False."),
    ],
)
def test_shapes_that_are_none(change, text):
    with pytest.raises(NotUnderstood) as caught:
        Transformer(**({"layers": 2, "d_model": 48, "heads": 6} | change))
    assert str(caught.value) == text


def test_questions_that_are_none():
    m = Transformer(2, 48, 6)
    with pytest.raises(NotUnderstood, match=r"^batch=0 is not a size; give a whole"):
        m.flops(0)
    with pytest.raises(
        NotUnderstood,
        match=r"^seq=4096 is more than the 2048 positions that the model has learned; "
        r"give 2048 or less, or make the model with seq=4096\.$",
    ):
        m.kv_cache_bytes(1, 4096)
    with pytest.raises(
        NotUnderstood,
        match=r"^recompute='all' is not counted here\. Give 'everything_saveable' "
        r"\(recompute nothing\), 'selective' \(recompute the scores of attention\) or "
        r"'nothing_saveable' \(recompute every layer\)\.$",
    ):
        m.flops(1, recompute="all")
    with pytest.raises(NotUnderstood, match="dtype='bf16' is not the name"):
        m.kv_cache_bytes(1, dtype="bf16")
    with pytest.raises(NotUnderstood, match="recompute='all' is not counted here"):
        MLP(1, 2, 3).flops(1, recompute="all")
    with pytest.raises(NotUnderstood, match="d_ff=0 is not a size"):
        MLP(1, 2, 0)
    with pytest.raises(
        NotUnderstood,
        match=r"^model='llama3-8b' is not known\. Did you mean 'llama-3-8b'\? There ",
    ):
        MODELS["llama3-8b"]
    assert MODELS.get("llama3-8b") is None
    assert "llama3-8b" not in MODELS


# What other tools print for the same models.

PEERS = json.loads(
    (Path(__file__).parents[1] / "data" / "peers.json").read_text("utf8")
)
SIZE = {"GiB": 2**30, "MiB": 2**20}


def activations(mode, m, batch, t):
    """Bytes a device, all layers; Korthikanti et al. 2022, Table 2."""
    scores = 5 * m.heads * m.seq / m.d_model
    factor = {
        "TP": 10 + 24 / t + scores / t,
        "TP+SP+selective": 34 / t,
        "full": 2,
    }[mode]
    return m.seq * batch * m.d_model * m.layers * factor


@pytest.mark.parametrize("row", PEERS["rows"], ids=lambda r: f"{r['case']}-{r['peer']}")
def test_the_truth_beside_what_others_print(row):
    case = PEERS["cases"][row["case"]]
    model = MODELS[case["model"]] if case["model"] else None
    assert model is None or model.parameters == case["parameters"]
    n = case["parameters"]
    if "states" in row or "activations" in row:
        truth = sum(n * size / shared for size, shared in row.get("states", []))
        if "activations" in row:
            each = case["batch"] // case["mesh"]["data"]
            model_axis = case["mesh"]["model"]
            truth += activations(row["activations"], model, each, model_axis)
        assert row["truth"] == round(truth / SIZE[row["unit"]], 2)
    elif row["quantity"] == "parameters":
        assert row["truth"] == n
    elif row["quantity"] == "KV cache":
        assert row["truth"] == model.kv_cache_bytes(16, 8192) / SIZE[row["unit"]]
    elif row["quantity"] == "training FLOPs":
        plain = "no checkpointing" in row["setting"]
        again = "everything_saveable" if plain else "nothing_saveable"
        truth = model.flops(1, recompute=again) / model.seq * 300e9
        assert row["truth"] == round(truth / 1e21, 2)
    elif row["quantity"].startswith("FLOPs per device"):
        tokens = case["batch"] * case["seq"]
        assert row["truth"] == round(6 * n * tokens / 64 / 1e12, 2)
    else:
        assert row["truth"] is None
    assert row["peer"] in PEERS["peers"]


def test_verdicts_follow_from_the_figures():
    for row in PEERS["rows"]:
        if row["truth"] is None:
            assert row["verdict"] == "no single truth"
            continue
        right = abs(row["printed"] / row["truth"] - 1) <= 0.01
        assert right == (row["verdict"] == "right"), row
        assert row["verdict"] in (
            "right",
            "wrong",
            "other convention",
            "no such setting",
        )
        assert row["why"] or row["verdict"] == "right"
