"""Shapes of models: counts against papers, against JAX, and against other tools.

Sources of the known answers:
GPT-3: Brown et al. 2020, arXiv:2005.14165, Tables 2.1 and D.1.
All others: the elements of the published checkpoints. (Llama-2 files hold 64 numbers a
layer more, 2560 or 5120 in all: the rotary frequencies, which are not trained.)
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
from spmd_helpers._training.models import FAMILIES, MODELS
from spmd_helpers._xray.xray import xray
from tests.properties import must_fail, options

from . import families
from .model_reference import (
    count,
    inputs_of,
    logits,
    measured,
    products,
    reference,
    window_of,
)


def decoders(draw):
    """Fields of a small model, with no two sizes the same by design."""
    small = st.integers(1, 5)
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    head_dim = draw(small)
    given_dim = draw(st.booleans())
    d_model = draw(st.integers(1, 9)) if given_dim else heads * head_dim
    return {
        "layers": draw(st.integers(1, 3)),
        "d_model": d_model,
        "heads": heads,
        "kv_heads": draw(st.sampled_from([None, kv_heads])),
        "d_ff": draw(st.sampled_from([None, 7, 11])),
        "vocab": draw(st.integers(1, 13)),
        "seq": draw(st.integers(2, 6)),
        "head_dim": head_dim if given_dim else None,
        "gated": draw(st.booleans()),
        "tied": draw(st.booleans()),
        "biases": draw(st.booleans()),
        "positions": draw(st.sampled_from(POSITIONS)),
        "norm": draw(st.sampled_from(NORMS)),
        "post_norms": draw(st.booleans()),
    }


def experts(draw, layers):
    top = draw(st.integers(1, 3))
    dense = draw(st.integers(0, layers - 1))
    return {
        "experts": top + draw(st.integers(0, 2)),
        "experts_per_token": top,
        "shared_experts": draw(st.integers(0, 2)),
        "expert_d_ff": draw(st.sampled_from([None, 3, 5])),
        "dense_layers": dense,
        "moe_every": draw(st.integers(1, layers - dense)),
        "router_biases": draw(st.booleans()),
    }


def latent(draw):
    """In place of what latent attention can't have, its own widths."""
    small = st.integers(1, 4)
    widths = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return {
        **{key: draw(small) for key in widths},
        "q_lora_rank": draw(st.sampled_from([None, 3])),
        **{"kv_heads": None, "head_dim": None, "biases": False},
    }


@st.composite
def models(draw):
    """Small models of every form."""
    fields = decoders(draw)
    layers = fields["layers"]
    if draw(st.booleans()):
        fields |= experts(draw, layers)
    if draw(st.booleans()):
        fields |= latent(draw)
    else:
        keys = ("qkv_biases", "qk_norm", "sinks")
        fields |= {key: draw(st.booleans()) for key in keys}
    if draw(st.integers(0, 3)) == 0:
        fields |= {"patch_size": draw(st.integers(1, 2)), "tied": False}
    elif draw(st.booleans()):
        every = st.integers(2, layers) if layers > 1 else st.none()
        fields["window"] = draw(st.integers(1, 7))
        fields["global_every"] = draw(st.one_of(st.none(), every))
    return Transformer(**fields)


def check_parameters(m):
    tree = reference(m)
    layers = tree["layers"]
    norms = [value for one in layers for key, value in one.items() if "norm" in key]
    norms += [
        value
        for one in layers
        for key, value in one["attention"].items()
        if key.endswith("_norm")
    ]
    attention = count([one["attention"] for one in layers])
    inside = count(norms) - m.layers * (4 if m.post_norms else 2) * count(tree["norm"])
    experts = [(one.get("experts"), one.get("shared")) for one in layers]
    parts = {
        "embedding": count(tree["embedding"]),
        "positions": count(tree.get("positions")),
        "attention": attention - inside,  # those of q, k and what is compressed
        "mlp": count([one.get("mlp") for one in layers]),
        "norms": count([norms, tree["norm"]]),
        "head": count(tree.get("head")),
    }
    if m.experts is not None:
        routers = count([one.get("router") for one in layers])
        parts |= {"experts": count(experts), "router": routers}
    assert m.parts == parts
    assert m.parameters == count(tree)
    assert m.layer_parameters == max(map(count, layers))
    assert m.moe_layers == sum("router" in one for one in layers)
    # One token's experts: the first ones, as many as it uses.
    top = m.experts_per_token
    used = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((top, *leaf.shape[1:]), leaf.dtype),
        [one.get("experts") for one in layers],
    )
    routed = count([one.get("experts") for one in layers])
    assert m.active_parameters == count(tree) - routed + count(used)


def check_cache(m):
    """The arrays that generation would keep, of a sequence of every length."""
    if m.patch_size is not None:
        return
    before = 0
    for seq in range(1, m.seq + 1):
        arrays = []
        for layer in range(m.layers):
            window = window_of(m, layer)
            kept = seq if window is None else min(seq, window)
            if m.kv_lora_rank is None:
                arrays += 2 * [np.zeros((3, kept, m.kv_heads, m.head_dim))]
            else:
                latent = (3, kept, m.kv_lora_rank), (3, kept, m.qk_rope_head_dim)
                arrays += [np.zeros(shape) for shape in latent]
        bytes_ = sum(array.astype(jnp.bfloat16).nbytes for array in arrays)
        assert m.kv_cache_bytes(3, seq) == bytes_
        assert 3 * m.kv_cache_bytes_per_token(seq - 1) == bytes_ - before
        before = bytes_


def check_flops(m):
    batch, seq = 2, m.seq
    if m.patch_size is None:
        seq -= 1
    assert m.flops(batch, seq) == measured(m, batch, seq)
    inputs = inputs_of(m, batch, seq)
    forward = products(jax.make_jaxpr(logits(m))(reference(m), inputs).jaxpr)
    assert m.forward_flops(batch, seq) == forward
    if m.patch_size is None:
        assert m.flops_per_token(seq) * batch * seq == forward


@options(120)
@given(models())
def test_parameters_are_those_of_a_tree_in_jax(m):
    check_parameters(m)


@options(60)
@given(models())
def test_cache_is_that_of_arrays(m):
    check_cache(m)


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
    full = m.flops(batch, recompute="nothing_saveable")
    assert measured(m, batch, seq, "nothing_saveable") == full
    selective = m.flops(batch, recompute="selective")
    assert measured(m, batch, seq, "selective") == selective


MOE = {"experts": 8, "experts_per_token": 2}
MLA = {
    **{"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4},
    **{"v_head_dim": 8, "biases": False},
}
VIT = {"patch_size": 16, "seq": 197, "tied": False}

FORMS = {
    "grouped queries": {"kv_heads": 2},
    "experts": MOE | {"shared_experts": 1, "expert_d_ff": 24, "dense_layers": 1},
    "latent attention": MLA | {"q_lora_rank": 20},
    "windows": {"window": 5, "global_every": 3},
    "images": VIT | {"patch_size": 2, "seq": 10},
}


@pytest.mark.parametrize("form", FORMS)
def test_flops_are_those_of_a_compiled_program(form):
    """Forward, as the X-ray counts the products that the compiler made."""
    fields = {"layers": 3, "d_model": 48, "heads": 6, "vocab": 40, "seq": 12}
    m = Transformer(**(fields | FORMS[form]))
    report = xray(jax.jit(logits(m)), reference(m), inputs_of(m, 2, m.seq))
    assert report.flops_per_device == m.forward_flops(2)


MUTANTS = {
    "k and v as wide as q": (
        "_attention",
        lambda m: dict.fromkeys("qkvo", m.d_model * m.heads * m.head_dim),
    ),
    "heads of d_model / heads": (
        "_attention",
        lambda m: {"": 2 * m.d_model**2 * (m.heads + m.kv_heads) // m.heads},
    ),
    "no gate": (
        "_mlp_weights",
        lambda m, width=None: 2 * m.d_model * (width or m.d_ff),
    ),
    "a feed-forward part of 4 * d_model": (
        "_mlp_weights",
        lambda m, width=None: (3 if m.gated else 2) * m.d_model * 4 * m.d_model,
    ),
    "biases of k and v as wide as q's": (
        "_attention_parameters",
        lambda m: (
            training_model._attention_weights(m)
            + (m.biases or m.qkv_biases) * 3 * m.heads * m.head_dim
            + m.biases * m.d_model
            + m.sinks * m.heads
        ),
    ),
    "one bias of the gated part": (
        "_mlp_parameters",
        lambda m, width=None: (
            training_model._mlp_weights(m, width)
            + m.biases * ((width or m.d_ff) + m.d_model)
        ),
    ),
    "no biases": ("_mlp_parameters", training_model._mlp_weights),
    "every norm has a shift": (
        "_norm_parameters",
        lambda m, width=None: 2 * (width or m.d_model),
    ),
    "no norm has a shift": (
        "_norm_parameters",
        lambda m, width=None: width or m.d_model,
    ),
    "norms of heads as wide as the model": (
        "_norm_parameters",
        lambda m, width=None: (2 if m.norm == "layer" else 1) * m.d_model,
    ),
    "two norms in every layer": (
        "_layer_norms",
        lambda m: 2 * training_model._norm_parameters(m),
    ),
    "a router without its numbers": (
        "_router_parameters",
        lambda m: m.d_model * m.experts,
    ),
    "an embedding without a class token": (
        "_embedding_parameters",
        lambda m: (
            (m.vocab if m.patch_size is None else 3 * m.patch_size**2) * m.d_model
        ),
    ),
    "a head without a bias": (
        "_head_parameters",
        lambda m: 0 if m.tied else m.vocab * m.d_model,
    ),
    "the window is for parameters alone": (
        "_reaches",
        lambda m, seq: m.layers * seq,
    ),
    "every layer has the window": (
        "_reaches",
        lambda m, seq: m.layers * min(seq, m.window or seq),
    ),
    "a cache of heads that are compressed": (
        "_cache_width",
        lambda m: 2 * m.kv_heads * m.head_dim,
    ),
    "values as wide as keys": ("_v_head_dim", lambda m: m.head_dim),
    "the model's own length": ("_tokens", lambda m, seq: m.seq),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_properties_catch_wrong_arithmetic(mutant, monkeypatch):
    name, wrong = MUTANTS[mutant]
    monkeypatch.setattr(training_model, name, wrong)
    check = {
        "_tokens": check_flops,
        "_reaches": check_flops,
        "_cache_width": check_cache,
    }.get(name, check_parameters)
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
    traced_flops = products(jax.make_jaxpr(jax.grad(run))(tree, h).jaxpr)
    assert (
        m.flops(rows) - 2 * rows * d_model * d_ff == traced_flops
    )  # no gradient of the rows
    assert m.flops(rows) == 6 * m.parameters * rows
    assert m.flops(rows, recompute="nothing_saveable") == 7 * m.parameters * rows
    assert m.flops(rows, recompute="selective") == m.flops(rows)


# Known answers. A new model gets its line in EXACT, from its checkpoint, and may get
# its config.json in families.py.

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
    "gpt-oss-20b": 20914757184,
    "gpt-oss-120b": 116829156672,
    "llama-2-7b": 6738415616,
    "llama-2-13b": 13015864320,
    "llama-2-70b": 68976648192,
    "llama-3-8b": 8030261248,
    "llama-3-70b": 70553706496,
    "llama-3.1-8b": 8030261248,
    "llama-3.1-70b": 70553706496,
    "llama-3.1-405b": 405853388800,
    "llama-3.2-1b": 1235814400,
    "llama-3.2-3b": 3212749824,
    "mistral-7b": 7241732096,
    "mixtral-8x7b": 46702792704,
    "mixtral-8x22b": 140620634112,
    "qwen2.5-0.5b": 494032768,
    "qwen2.5-1.5b": 1543714304,
    "qwen2.5-3b": 3085938688,
    "qwen2.5-7b": 7615616512,
    "qwen2.5-14b": 14770033664,
    "qwen2.5-32b": 32763876352,
    "qwen2.5-72b": 72706203648,
    "qwen3-0.6b": 596049920,
    "qwen3-1.7b": 1720574976,
    "qwen3-4b": 4022468096,
    "qwen3-8b": 8190735360,
    "qwen3-14b": 14768307200,
    "qwen3-32b": 32762123264,
    "qwen3-30b-a3b": 30532122624,
    "qwen3-235b-a22b": 235093634560,
    "gemma-2-2b": 2614341888,
    "gemma-2-9b": 9241705984,
    "gemma-2-27b": 27227128320,
    "gemma-3-1b": 999885952,
    "deepseek-v3": 671026419200,
    "vit-b-16": 86567656,
    "vit-l-16": 304326632,
}
# Checkpoints that also hold a tower of images and what joins it to the text model.
WITH_IMAGES = {
    "gemma-3-4b": 4300079472,
    "gemma-3-12b": 12187325040,
    "gemma-3-27b": 27432406640,
    "llama-4-scout": 108641793536,
    "llama-4-maverick": 401583781376,
}


def encoder(layers, wide, inner):
    """Parameters of a tower's layers: q, k, v, o, two matrices, biases, two norms."""
    return layers * (4 * (wide + 1) * wide + 2 * wide * inner + inner + wide + 4 * wide)


def tower(m):
    """Parameters of the tower of images, by its config.json."""
    if m.name.startswith("gemma"):  # SigLIP: 4096 patches of 14 * 14; a norm, a matrix
        wide = 1152
        ends = (3 * 14**2 + 1) * wide + 4096 * wide + 2 * wide
        return encoder(27, wide, 4304) + ends + wide * m.d_model + wide
    wide = 1408  # 576 patches of 14 * 14 and a class token; three matrices
    ends = 3 * 14**2 * wide + wide + 577 * wide + 4 * wide
    joined = 5632 * 4096 + 4096 * 4096 + 4096 * m.d_model
    return encoder(34, wide, 5632) + ends + joined


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


@pytest.mark.parametrize("name", WITH_IMAGES)
def test_checkpoints_with_a_tower_of_images_to_the_unit(name):
    m = MODELS[name]
    assert m.parameters + tower(m) == WITH_IMAGES[name]


def test_every_model_was_counted_by_others():
    here = "EXACT in tests/training/test_model.py"
    counted = {**EXACT, **GPT3_MILLIONS, **WITH_IMAGES}
    complaints = [
        f"{name}: add the number of parameters that its makers publish to {here}"
        for name in MODELS
        if name not in counted
    ]
    complaints += [
        f"{name}: MODELS in src/spmd_helpers/_training/models.py has it no longer"
        for name in counted
        if name not in MODELS
    ]
    assert not complaints, "; ".join(complaints)


def test_every_model_is_in_one_family():
    listed = [name for names in FAMILIES.values() for name in names]
    assert listed == list(MODELS)


KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)


def initialized(config):
    """Parameters of the reference in JAX, of which only the shapes are computed."""
    return count(jax.eval_shape(lambda key: families.init(config, key), KEY))


@pytest.mark.parametrize("name", families.NAMES)
def test_a_config_json_in_jax(name):
    """The shapes are those of config.json, and so is the number of parameters."""
    config = families.config(name)
    assert MODELS[name] == families.transformer(config)
    assert MODELS[name].parameters == initialized(config)
    for number in range(3):
        config = families.small(name, number)
        assert families.transformer(config).parameters == initialized(config)


def test_active_parameters_as_published():
    """In billions; gpt-oss counts them without the embedding, which is looked up."""
    published = {
        "qwen3-30b-a3b": 3.3,
        "qwen3-235b-a22b": 22,
        "mixtral-8x7b": 13,
        "mixtral-8x22b": 39,
        "llama-4-scout": 17,
        "llama-4-maverick": 17,
        "deepseek-v3": 37,
        "gpt-oss-20b": 3.61,
        "gpt-oss-120b": 5.13,
    }
    for name, m in MODELS.items():
        used = m.active_parameters
        if m.experts is None:
            assert used == m.parameters
            continue
        if name.startswith("gpt-oss"):
            used -= m.parts["embedding"]
        assert used / 1e9 == pytest.approx(published[name], rel=0.02), name


def test_parameters_by_part_as_published():
    """In millions: Gemma's tables; gpt-oss in billions, of a model card's table."""
    for name, embedding, rest in (
        ("gemma-2-2b", 590, 2024),
        ("gemma-2-9b", 918, 8324),
        ("gemma-2-27b", 1180, 26047),
        ("gemma-3-1b", 302, 698),
        ("gemma-3-12b", 1012, 10759),
        ("gemma-3-27b", 1416, 25600),
    ):
        m = MODELS[name]
        assert m.parts["embedding"] / 1e6 == pytest.approx(embedding, rel=0.006)
        others = m.parameters - m.parts["embedding"]
        assert others / 1e6 == pytest.approx(rest, rel=0.001)
    for name, mlp, attention in (
        ("gpt-oss-20b", 19.12, 0.64),
        ("gpt-oss-120b", 114.71, 0.96),
    ):
        parts = MODELS[name].parts
        inside = parts["experts"] + parts["router"]
        assert inside / 1e9 == pytest.approx(mlp, abs=0.005)
        assert parts["attention"] / 1e9 == pytest.approx(attention, abs=0.005)
        ends = parts["embedding"] + parts["head"]
        assert ends / 1e9 == pytest.approx(1.16, abs=0.005)


def test_layers_with_a_window_as_published():
    """Local and global layers of each model that has both, and their caches."""
    for name, window, everywhere in (
        ("gemma-2-27b", 4096, 23),
        ("gemma-3-1b", 512, 4),
        ("gemma-3-27b", 1024, 10),
        ("gpt-oss-20b", 128, 12),
        ("gpt-oss-120b", 128, 18),
        ("llama-4-scout", 8192, 12),
        ("mistral-7b", 4096, 0),
    ):
        m = MODELS[name]
        assert (m.window, m.global_layers) == (window, everywhere)
        each = 2 * m.kv_heads * m.head_dim * 2
        assert m.kv_cache_bytes_per_token(window - 1) == m.layers * each
        assert m.kv_cache_bytes_per_token(window) == everywhere * each
    # DeepSeek-V3 keeps 512 + 64 numbers of a token in each of 61 layers.
    assert MODELS["deepseek-v3"].kv_cache_bytes_per_token() == 61 * 576 * 2


def test_flops_of_an_image_as_published():
    """Torchvision's multiply-adds of one image, in billions."""
    for name, published in (("vit-b-16", 17.6), ("vit-l-16", 61.6)):
        half = MODELS[name].forward_flops() / 2
        assert half / 1e9 == pytest.approx(published, abs=0.07)


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
    down = 8 * batch * s * layers * width**2  # theirs runs this product again too
    assert m.flops(batch, recompute="nothing_saveable") == full - down
    plain = 72 * batch * s * layers * width**2
    plain += 12 * batch * s**2 * layers * width + 6 * batch * s * width * m.vocab
    assert m.flops(batch) == plain


def test_megatron_selective_recompute():
    """The 2.7 % for GPT-3 and 1.6 % for 530B of Korthikanti et al., arXiv:2205.05198.

    That is the whole share of the scores in a step; one of their two forward products
    once more, a sixth of it, is what is counted here.
    """
    for m, share in (
        (MODELS["gpt3-175b"], 2.7),
        (Transformer(105, 20480, 128, vocab=51200), 1.6),
    ):
        step = m.flops(1)
        scores = 12 * m.seq**2 * m.layers * m.heads * m.head_dim
        assert 100 * scores / step == pytest.approx(share, abs=0.1)
        assert m.flops(1, recompute="selective") - step == scores // 6


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
        if m.patch_size is not None:
            continue
        looked_up = 0 if m.tied else m.parts["embedding"]
        added = m.parts["positions"] + m.parts["norms"] + looked_up
        products = m.active_parameters - added
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
        ({"layers": 0}, "layers=0 is not a size; give an integer, 1 or more."),
        ({"seq": 2.5}, "seq=2.5 is not a size; give an integer, 1 or more."),
        ({"vocab": "9"}, "vocab='9' is not a size; give an integer, 1 or more."),
        ({"heads": True}, "heads=True is not a size; give an integer, 1 or more."),
        ({"d_ff": -4}, "d_ff=-4 is not a size; give an integer, 1 or more."),
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


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"global_every": 2},
            "global_every=2 without a window: every layer attends to all tokens; give "
            "window= too, or leave global_every out.",
        ),
        ({"window": 0}, "window=0 is not a size; give an integer, 1 or more."),
        (
            {"window": 4, "global_every": 1},
            "global_every=1 is not a period of layers; give an integer from 2 to 6.",
        ),
        (
            {"window": 4, "global_every": 7},
            "global_every=7 is not a period of layers; give an integer from 2 to 6.",
        ),
        (
            {"experts_per_token": 2},
            "experts_per_token=2 means nothing without experts; give experts= too, or "
            "leave experts_per_token out.",
        ),
        (
            {"shared_experts": 1},
            "shared_experts=1 means nothing without experts; give experts= too, or "
            "leave shared_experts out.",
        ),
        (
            {"router_biases": True},
            "router_biases=True means nothing without experts; give experts= too, or "
            "leave router_biases out.",
        ),
        ({"experts": 0}, "experts=0 is not a size; give an integer, 1 or more."),
        (
            {"experts": 8},
            "experts=8 needs experts_per_token, how many of them a token uses; give "
            "an integer from 1 to 8.",
        ),
        (
            {"experts": 8, "experts_per_token": 9},
            "experts_per_token=9 is not a number of experts; give an integer from 1 "
            "to 8.",
        ),
        (
            MOE | {"shared_experts": -1},
            "shared_experts=-1 is not a number; give an integer, 0 or more.",
        ),
        (
            MOE | {"dense_layers": 6},
            "dense_layers=6 and moe_every=1 leave none of the 6 layers to the experts; "
            "make them smaller, or leave experts out.",
        ),
        (
            MOE | {"dense_layers": 7},
            "dense_layers=7 and moe_every=1 leave none of the 6 layers to the experts; "
            "make them smaller, or leave experts out.",
        ),
        (
            MOE | {"dense_layers": 3, "moe_every": 4},
            "dense_layers=3 and moe_every=4 leave none of the 6 layers to the experts; "
            "make them smaller, or leave experts out.",
        ),
        (
            {"q_lora_rank": 8},
            "q_lora_rank=8 is a width of latent attention; give kv_lora_rank= with it, "
            "or leave q_lora_rank out.",
        ),
        (
            {"v_head_dim": 8},
            "v_head_dim=8 is a width of latent attention; give kv_lora_rank= with it, "
            "or leave v_head_dim out.",
        ),
        (
            {"kv_lora_rank": 16},
            "kv_lora_rank=16 is latent attention, which needs qk_nope_head_dim too; "
            "give it, or leave kv_lora_rank out.",
        ),
        (
            MLA | {"qk_rope_head_dim": 0},
            "qk_rope_head_dim=0 is not a size; give an integer, 1 or more.",
        ),
        (
            MLA | {"biases": True},
            "biases=True does not go with kv_lora_rank=16: latent attention is counted "
            "without; give biases=False.",
        ),
        (
            MLA | {"qk_norm": True},
            "qk_norm=True does not go with kv_lora_rank=16: latent attention is "
            "counted without; give qk_norm=False.",
        ),
        (
            MLA | {"kv_heads": 2},
            "kv_heads=2 does not go with kv_lora_rank=16: latent attention makes it 6; "
            "leave kv_heads out.",
        ),
        (
            MLA | {"head_dim": 8},
            "head_dim=8 does not go with kv_lora_rank=16: latent attention makes it "
            "12; leave head_dim out.",
        ),
        (
            VIT | {"tied": True},
            "tied=True does not go with patch_size=16: patches have no matrix of words "
            "that a head could use again; give tied=False.",
        ),
        (
            VIT | {"window": 8},
            "window=8 does not go with patch_size=16: the patches of an image attend "
            "to all of them; leave window out.",
        ),
        (
            VIT | {"seq": 1},
            "seq=1 leaves an image no patch beside the class token; give 2 or more.",
        ),
    ],
)
def test_fields_that_do_not_go_together(fields, text):
    with pytest.raises(NotUnderstood) as caught:
        Transformer(**({"layers": 6, "d_model": 48, "heads": 6} | fields))
    assert str(caught.value) == text


def test_what_a_model_of_images_has_not():
    image = Transformer(6, 48, 6, **VIT, name="tiny-vit")
    for question, text in (
        (image.kv_cache_bytes, "reads images and has no cache."),
        (image.kv_cache_bytes_per_token, "reads images and has no cache."),
        (
            image.flops_per_token,
            "reads images and is counted per image: use forward_flops.",
        ),
    ):
        with pytest.raises(NotUnderstood) as caught:
            question()
        assert str(caught.value) == f"tiny-vit with patch_size=16 {text}"
    with pytest.raises(NotUnderstood, match="cached=-1 is not a number of tokens"):
        Transformer(6, 48, 6).kv_cache_bytes_per_token(-1)


def test_questions_that_are_none():
    m = Transformer(2, 48, 6)
    with pytest.raises(NotUnderstood, match=r"^batch=0 is not a size; give an integer"):
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
        r"\(recompute nothing\), 'selective' \(recompute the scores of attention\), "
        r"'dots_saveable' .*'nothing_saveable' \(recompute every layer\)\.$",
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
