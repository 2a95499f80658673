import { divisors, pyRepr } from "./python_words.js";
import { joinWords, refuse } from "./words.js";

// The shapes of a model and how many parameters follow: mirrors _training/model.py.

/** The policies of jax.checkpoint: _training/recompute.py. */
export const checkpointed = spmdChoices.recompute.slice(2);

/** Refuses a policy that has to know how a layer's experts are multiplied. */
export function checkProducts(recompute, experts) {
  if (experts === null || recompute === "nothing_saveable" || !checkpointed.includes(recompute)) return;
  refuse(
    `recompute=${pyRepr(recompute)} is not counted for a model with experts=${experts}; give ` +
      "'everything_saveable', 'selective' or 'nothing_saveable'.",
  );
}

/** A whole number in a range, as _core/validate.py has it. */
export function wholeNumber(key, value, what, least = 1n, most = null) {
  if (typeof value === "bigint" && value >= least && (most === null || value <= most)) return value;
  const range = most === null ? `, ${least} or more` : ` from ${least} to ${most}`;
  return refuse(`${key}=${pyRepr(value)} is not ${what}; give an integer${range}.`);
}

export function wholeSize(key, value) {
  return wholeNumber(key, value, "a size");
}

// The fields of spmd.Transformer: whole numbers, those that may be left out, switches.
export const transformerSizes = spmdChoices.transformerSizes;
export const transformerMayLack = transformerSizes.filter(
  (key) => !["layers", "d_model", "heads"].includes(key),
);
export const transformerSwitches = spmdChoices.transformerSwitches;
const TRANSFORMER_USUAL = { vocab: 50257n, seq: 2048n, shared_experts: 0n, dense_layers: 0n, moe_every: 1n };
const TRANSFORMER_LATENT = ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"];

// `given` has fields of spmd.Transformer; sizes that are null or absent take its defaults.
export function makeTransformer(given) {
  const model = { kind: "Transformer", name: "", ...given };
  for (const key of transformerSizes) model[key] ??= TRANSFORMER_USUAL[key] ?? null;
  for (const key of transformerSwitches) model[key] ??= false;
  for (const key of ["layers", "d_model", "heads", "vocab", "seq"]) wholeSize(key, model[key]);
  model.kv_heads ??= model.heads;
  model.d_ff ??= 4n * model.d_model;
  transformerLatent(model);
  model.head_dim ??= transformerHead(model.d_model, model.heads);
  for (const key of ["kv_heads", "d_ff", "head_dim"]) wholeSize(key, model[key]);
  if (model.heads % model.kv_heads) {
    refuse(
      `kv_heads=${model.kv_heads} does not divide heads=${model.heads}; each head of keys and ` +
        `values serves equally many heads of queries, so give one of ` +
        `${joinWords(divisors(model.heads).map(String))}.`,
    );
  }
  transformerWindow(model);
  transformerExperts(model);
  transformerPatches(model);
  return model;
}

/** Checks the widths of latent attention, from which head_dim follows. */
function transformerLatent(model) {
  const rank = model.kv_lora_rank;
  if (rank === null) {
    for (const key of ["q_lora_rank", ...TRANSFORMER_LATENT]) {
      if (model[key] === null) continue;
      refuse(
        `${key}=${pyRepr(model[key])} is a width of latent attention; give kv_lora_rank= with ` +
          `it, or leave ${key} out.`,
      );
    }
    return;
  }
  for (const key of TRANSFORMER_LATENT) {
    if (model[key] !== null) continue;
    refuse(
      `kv_lora_rank=${pyRepr(rank)} is latent attention, which needs ${key} too; give it, or ` +
        "leave kv_lora_rank out.",
    );
  }
  for (const key of ["kv_lora_rank", ...TRANSFORMER_LATENT]) wholeSize(key, model[key]);
  if (model.q_lora_rank !== null) wholeSize("q_lora_rank", model.q_lora_rank);
  for (const key of ["biases", "qkv_biases", "qk_norm", "sinks"]) {
    if (!model[key]) continue;
    refuse(
      `${key}=True does not go with kv_lora_rank=${rank}: latent attention is counted without; ` +
        `give ${key}=False.`,
    );
  }
  const wide = model.qk_nope_head_dim + model.qk_rope_head_dim;
  for (const [key, value] of [["kv_heads", model.heads], ["head_dim", wide]]) {
    if (model[key] === null || model[key] === value) continue;
    refuse(
      `${key}=${pyRepr(model[key])} does not go with kv_lora_rank=${rank}: latent attention ` +
        `makes it ${value}; leave ${key} out.`,
    );
  }
  model.head_dim = wide;
}

function transformerWindow(model) {
  const every = model.global_every;
  if (model.window !== null) {
    wholeSize("window", model.window);
    if (every !== null) wholeNumber("global_every", every, "a period of layers", 2n, model.layers);
  } else if (every !== null) {
    refuse(
      `global_every=${pyRepr(every)} without a window: every layer attends to all tokens; give ` +
        "window= too, or leave global_every out.",
    );
  }
}

/** Checks the experts, and that a layer has them. */
function transformerExperts(model) {
  if (model.experts === null) {
    const usual = {
      experts_per_token: null, shared_experts: 0n, expert_d_ff: null, dense_layers: 0n, moe_every: 1n,
      router_biases: false,
    };
    for (const [key, value] of Object.entries(usual)) {
      if (model[key] === value) continue;
      refuse(
        `${key}=${pyRepr(model[key])} means nothing without experts; give experts= too, or leave ` +
          `${key} out.`,
      );
    }
    return;
  }
  model.expert_d_ff ??= model.d_ff;
  for (const key of ["experts", "expert_d_ff", "moe_every"]) wholeSize(key, model[key]);
  for (const key of ["shared_experts", "dense_layers"]) wholeNumber(key, model[key], "a number", 0n);
  if (model.experts_per_token === null) {
    refuse(
      `experts=${model.experts} needs experts_per_token, how many of them a token uses; give an ` +
        `integer from 1 to ${model.experts}.`,
    );
  }
  wholeNumber("experts_per_token", model.experts_per_token, "a number of experts", 1n, model.experts);
  if (moeLayers(model) < 1n) {
    refuse(
      `dense_layers=${model.dense_layers} and moe_every=${model.moe_every} leave none of the ` +
        `${model.layers} layers to the experts; make them smaller, or leave experts out.`,
    );
  }
}

/** Checks what a model of images can't have. */
function transformerPatches(model) {
  const size = model.patch_size;
  if (size === null) return;
  wholeSize("patch_size", size);
  if (model.tied) {
    refuse(
      `tied=True does not go with patch_size=${size}: patches have no matrix of words that a ` +
        "head could use again; give tied=False.",
    );
  }
  if (model.window !== null) {
    refuse(
      `window=${model.window} does not go with patch_size=${size}: the patches of an image ` +
        "attend to all of them; leave window out.",
    );
  }
  if (model.seq < 2n) {
    refuse(`seq=${model.seq} leaves an image no patch beside the class token; give 2 or more.`);
  }
}

export function makeMlp(given) {
  for (const key of ["layers", "d_model", "d_ff"]) wholeSize(key, given[key]);
  return { kind: "MLP", name: "", ...given };
}

/** How many layers have experts; 0n in a dense model. */
export function moeLayers(model) {
  if (model.kind === "MLP" || model.experts === null) return 0n;
  const after = model.layers - model.dense_layers;
  return after < 0n ? 0n : after / model.moe_every;
}

/** How many layers attend to all tokens; all, where there is no window. */
export function globalLayers(model) {
  if (model.window === null) return model.layers;
  return model.global_every === null ? 0n : model.layers / model.global_every;
}

// Parameters by part; attention, mlp and norms are those of all layers.
export function parameterParts(model) {
  if (model.kind === "MLP") return { mlp: model.layers * 2n * model.d_model * model.d_ff };
  const moe = moeLayers(model);
  const parts = {
    embedding: transformerEmbedding(model),
    positions: model.positions === "learned" ? model.seq * model.d_model : 0n,
    attention: model.layers * transformerAttention(model),
    mlp: (model.layers - moe) * transformerMlp(model, model.d_ff),
    norms: model.layers * transformerNorms(model) + transformerNorm(model, model.d_model),
    head: transformerScores(model),
  };
  if (model.experts === null) return parts;
  const experts = model.experts + model.shared_experts;
  return {
    ...parts,
    experts: moe * experts * expertParameters(model),
    router: moe * model.experts * (model.d_model + (model.biases || model.router_biases ? 1n : 0n)),
  };
}

export function parameterCount(model) {
  return Object.values(parameterParts(model)).reduce((a, b) => a + b);
}

/** The parameters that one token uses: all but those of the experts it is not sent to. */
export function activeParameters(model) {
  if (model.kind === "MLP" || model.experts === null) return parameterCount(model);
  const idle = model.experts - model.experts_per_token;
  return parameterCount(model) - moeLayers(model) * idle * expertParameters(model);
}

/** The parameters of one expert; 0n in a dense model. */
export function expertParameters(model) {
  return model.experts === null ? 0n : transformerMlp(model, model.expert_d_ff);
}

/** Numbers in the matrices of all experts; 0n in a dense model. */
export function expertWeights(model) {
  const moe = moeLayers(model);
  return moe && moe * model.experts * (model.gated ? 3n : 2n) * model.d_model * model.expert_d_ff;
}

/** Bytes of the keys and values of one sequence of `seq` tokens. */
export function cacheBytes(model, seq, bytes) {
  const rank = model.kv_lora_rank;
  const each = rank === null ? 2n * model.kv_heads * model.head_dim : rank + model.qk_rope_head_dim;
  return transformerReaches(model, seq) * each * bytes;
}

/** FLOPs of the forward pass for one sequence, or image: matrix products. */
export function forwardFlops(model, seq) {
  const moe = moeLayers(model);
  const each = (model.gated ? 3n : 2n) * model.d_model;
  let weights = model.layers * transformerWeights(model) + (model.layers - moe) * each * model.d_ff;
  if (model.experts !== null) {
    const experts = model.experts_per_token + model.shared_experts;
    weights += moe * (experts * each * model.expert_d_ff + model.d_model * model.experts);
  }
  const wide = model.heads * (model.head_dim + transformerValues(model));
  const layers = 2n * seq * (weights + transformerReaches(model, seq) * wide);
  const head = 2n * model.d_model * model.vocab;
  if (model.patch_size === null) return layers + seq * head;
  return layers + head + 2n * (seq - 1n) * transformerPixels(model) * model.d_model;
}

/** How many tokens a layer attends to, summed over the layers. */
function transformerReaches(model, seq) {
  const near = model.window === null || seq < model.window ? seq : model.window;
  const everywhere = globalLayers(model);
  return everywhere * seq + (model.layers - everywhere) * near;
}

/** The weights of one layer's attention. */
export function transformerWeights(model) {
  const rank = model.kv_lora_rank;
  if (rank === null) return model.d_model * (2n * model.heads + 2n * model.kv_heads) * model.head_dim;
  const queries = model.heads * model.head_dim;
  const values = model.heads * model.v_head_dim;
  const narrow = model.q_lora_rank;
  const q = narrow === null ? model.d_model * queries : narrow * (model.d_model + queries);
  const up = rank * (model.heads * model.qk_nope_head_dim + values);
  return q + model.d_model * (rank + model.qk_rope_head_dim) + up + values * model.d_model;
}

function transformerValues(model) {
  return model.v_head_dim ?? model.head_dim;
}

function transformerAttention(model) {
  let parameters = transformerWeights(model);
  if (model.biases || model.qkv_biases) parameters += (model.heads + 2n * model.kv_heads) * model.head_dim;
  if (model.biases) parameters += model.d_model;
  return parameters + (model.sinks ? model.heads : 0n);
}

function transformerMlp(model, inner) {
  const weights = (model.gated ? 3n : 2n) * model.d_model * inner;
  const biases = (model.gated ? 2n : 1n) * inner + model.d_model;
  return weights + (model.biases ? biases : 0n);
}

function transformerNorm(model, wide) {
  return (model.norm === "layer" ? 2n : 1n) * wide;
}

/** The parameters of all norms of one layer. */
function transformerNorms(model) {
  let wide = (model.post_norms ? 4n : 2n) * model.d_model;
  if (model.qk_norm) wide += 2n * model.head_dim;
  return transformerNorm(model, wide + (model.q_lora_rank ?? 0n) + (model.kv_lora_rank ?? 0n));
}

function transformerPixels(model) {
  return 3n * model.patch_size * model.patch_size;
}

function transformerEmbedding(model) {
  return (model.patch_size === null ? model.vocab : transformerPixels(model) + 2n) * model.d_model;
}

function transformerScores(model) {
  if (model.tied) return 0n;
  return model.vocab * model.d_model + (model.patch_size === null ? 0n : model.vocab);
}

function transformerHead(wide, heads) {
  if (wide % heads) {
    const less = (wide / heads || 1n) * heads;
    refuse(
      `d_model=${wide} does not divide into heads=${heads}; make it ${less} or ` +
        `${less + heads}, or say how wide a head is with head_dim=.`,
    );
  }
  return wide / heads;
}

/** Refuses a model whose step takes memory that is not counted. */
export function checkCounted(model) {
  if (model.kind === "MLP") return;
  if (model.patch_size !== null) {
    refuse(
      `${model.name || "a model"} with patch_size=${model.patch_size} reads images, which this page ` +
        "does not count; training_memory counts it for GPUs.",
    );
  }
  const reason = transformerNotCounted(model);
  if (!reason) return;
  const [active, parameters] = [activeParameters(model), parameterCount(model)];
  const used = active === parameters ? "" : `, of which a token uses ${withCommas(active)}`;
  refuse(
    `${model.name || "a model"} with ${reason}: training_memory does not count what that takes. ` +
      `The model has ${withCommas(parameters)} parameters${used}.`,
  );
}

function transformerNotCounted(model) {
  if (model.moe_every > 1n) return `moe_every=${model.moe_every}`;
  if (model.biases && model.shared_experts) return `biases=True and shared_experts=${model.shared_experts}`;
  return "";
}

/** A whole number in groups of three digits, as Python's {:,} writes it. */
export function withCommas(n) {
  return `${n}`.replace(/\B(?=(\d{3})+$)/g, ",");
}
