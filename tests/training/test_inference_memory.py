"""`inference_memory`: weights, cache, pages, what is refused, and the report."""

from dataclasses import replace

import pytest

from spmd_helpers import (
    MLP,
    MODELS,
    NotDivisible,
    NotUnderstood,
    Transformer,
    UnknownAxis,
    inference_memory,
)

LLAMA = MODELS["llama-3-8b"]
GPT = MODELS["gpt3-xl"]
LATENT = replace(
    MODELS["deepseek-v3"],
    **{"experts": None, "experts_per_token": None, "shared_experts": 0},
    **{"expert_d_ff": None, "dense_layers": 0, "router_biases": False},
)


def count(model=LLAMA, mesh=None, batch=16, seq=2048, **how):
    return inference_memory(model, mesh=mesh or {}, batch=batch, seq=seq, **how)


DENSE = [m for m in MODELS.values() if not m.experts and not m.patch_size]


@pytest.mark.parametrize("model", [*DENSE, LATENT], ids=lambda model: model.name)
def test_weights_and_cache_are_those_of_the_model(model):
    counted = count(model, seq=1024)
    assert counted.weights_bytes == 2 * model.parameters
    assert counted.cache_bytes == model.kv_cache_bytes(16, 1024)
    assert counted.total_bytes == max(counted.phases.values())


def test_a_model_by_its_name():
    assert count("llama-3-8b") == count(LLAMA)


def test_data_shards_the_cache_and_replicates_the_weights():
    one, two = count(), count(mesh={"data": 2})
    assert two.weights_bytes == one.weights_bytes
    assert two.cache_bytes * 2 == one.cache_bytes


def test_model_shards_both_and_replicates_norms():
    one, four = count(), count(mesh={"model": 4})
    norms = 2 * LLAMA.parts["norms"]
    assert four.weights_bytes == (one.weights_bytes - norms) // 4 + norms
    assert four.cache_bytes * 4 == one.cache_bytes


def test_keys_are_replicated_where_model_is_wider():
    eight, wide = count(mesh={"model": 8}), count(mesh={"model": 16})
    assert wide.cache_bytes == 8 * eight.cache_bytes
    assert "each device has all of them" in wide.notes[0]
    assert not eight.notes
    latent = count(LATENT, mesh={"model": 8})
    assert latent.cache_bytes == count(LATENT).cache_bytes
    assert "one vector for all heads" in latent.notes[0]


def test_int8_has_scales_of_columns():
    model = Transformer(1, 8, 2, d_ff=16, vocab=10, seq=4, norm="rms", biases=False)
    counted = count(model, batch=1, seq=4, param_dtype="int8")
    matrices = 10 * 8 + 4 * 8 * 8 + 2 * 8 * 16
    scales = 10 + 4 * 8 + 16 + 8  # rows of the embedding; columns of the others
    rest = 3 * 8 + 4 * 8  # norms and positions, in bfloat16
    assert counted.weights_bytes == matrices + 4 * scales + 2 * rest


def test_a_window_keeps_its_tokens_and_pages_are_whole():
    near = replace(LLAMA, window=512)
    assert count(near).cache_bytes == count(LLAMA, seq=512).cache_bytes
    paged = count(seq=2000, page_size=64)
    assert paged.cache_bytes == count(seq=2048).cache_bytes
    per_token = LLAMA.kv_cache_bytes_per_token()
    assert paged.unfilled_bytes == 16 * 63 * per_token
    assert count().unfilled_bytes == 0
    assert "at most" in paged.notes[0]


def test_a_cache_of_another_type():
    assert count(cache_dtype="float32").cache_bytes == 2 * count().cache_bytes
    half = count(cache_dtype="float8_e4m3fn").cache_bytes
    assert 2 * half == count().cache_bytes


def test_scores_of_long_prompts_are_what_plain_attention_adds():
    flash, plain = count(seq=8192), count(seq=8192, attention="plain")
    assert plain.phases["prefill"] > flash.phases["prefill"] + 6 * 32 * 8192**2 * 0.9
    assert plain.phases["decode"] == flash.phases["decode"]
    few = count(seq=8192, prompt=128, attention="plain")
    assert few.phases["prefill"] < flash.phases["prefill"]


def test_more_prompts_at_once_take_more():
    one, many = count(), count(prefill_batch=8)
    inside = [n.bytes for n in one.lines if n.name == "inside of one layer"]
    more = [n.bytes for n in many.lines if n.name == "inside of one layer"]
    assert more == [8 * inside[0]]


def test_fits_counts_for_the_chip():
    counted = count(batch=64, seq=8192, mesh={"model": 4})
    assert counted.fits("h200")
    assert not counted.fits("v5e")
    assert counted.left_bytes("h200", 1.0) > counted.left_bytes("h200")
    there = count(batch=64, seq=8192, mesh={"model": 4}, chip="h200")
    assert there.left_bytes("h200") == counted.left_bytes("h200")
    with pytest.raises(NotUnderstood, match="margin=2"):
        counted.fits("h200", margin=2)


def test_the_report_has_both_phases():
    counted = count(mesh={"data": 2, "model": 4}, page_size=16, chip="h100")
    text = str(counted)
    assert text.startswith("Inference memory of llama-3-8b on data=2 × model=4: ")
    for word in ("weights", "cache", "logits, decode", "always", "Most in each phase"):
        assert word in text
    assert "of inference: prefill" in " ".join(text.split())
    assert "spmd-inference" in counted._repr_html_()
    assert repr(counted).startswith("InferenceMemory(llama-3-8b on data=2 × model=4: ")


REFUSED = {
    "model='lama' is not known": {"model": "lama"},
    "model=None is not a model": {"model": None},
    "does not generate text; give a": {"model": MLP(1, 2, 4)},
    "experts=8: what a layer's": {"model": MODELS["mixtral-8x7b"]},
    "reads images": {"model": MODELS["vit-b-16"]},
    "batch=0": {"batch": 0},
    "prompt=4096 is longer than seq=2048": {"prompt": 4096},
    "prefill_batch=32 is more than batch=16": {"prefill_batch": 32},
    "attention='ring'": {"attention": "ring"},
    "attention='flash' is not counted for latent": {
        "model": LATENT,
        "attention": "flash",
    },
    "param_dtype='int4'": {"param_dtype": "int4"},
    "cache_dtype='int8' is not counted": {"cache_dtype": "int8"},
    "compute_dtype='int8'": {"compute_dtype": "int8"},
    "page_size=0": {"page_size": 0},
    "page_size=16 is not counted with window=4096": {
        "model": MODELS["mistral-7b"],
        "page_size": 16,
    },
    "more than the 2048 positions": {"model": GPT, "seq": 4096},
    "chip=": {"chip": "h1000"},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_counted_is_refused_in_a_sentence(words):
    how = {"model": LLAMA, "batch": 16, "seq": 2048, "mesh": {}} | REFUSED[words]
    with pytest.raises(NotUnderstood) as error:
        inference_memory(how.pop("model"), **how)
    assert words in str(error.value)
    assert str(error.value).endswith(".")


def test_meshes_that_do_not_divide():
    with pytest.raises(NotDivisible, match="batch=16 does not divide over the 3"):
        count(mesh={"data": 3})
    with pytest.raises(NotDivisible, match="prefill_batch=3"):
        count(mesh={"data": 2}, prefill_batch=3)
    with pytest.raises(NotDivisible, match="d_ff=14336 does not divide over the 5"):
        count(mesh={"model": 5})
    with pytest.raises(UnknownAxis, match=r"give \{'data': 8\}"):
        count(mesh={"fsdp": 8})
    with pytest.raises(UnknownAxis, match=r"give \{'model': 8\}"):
        count(mesh={"tp": 8})
