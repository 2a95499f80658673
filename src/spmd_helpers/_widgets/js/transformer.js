import { didYouMean, divisors, oneOf, orWords, pyRepr } from "./python_words.js";
import { closeName, joinWords, refuse } from "./words.js";

// The shapes of a model and how many parameters follow: mirrors _training/model.py.

// What a step may recompute. Two are policies of jax.checkpoint, for each layer.
export const recomputeChoices = spmdChoices.recompute;

export function checkRecompute(value) {
  if (Object.hasOwn(recomputeChoices, value)) return;
  const word = value.toLowerCase();
  const meant = new Map(Object.entries(spmdChoices.recomputeMeant));
  const close = meant.get(word) ?? closeName(word, Object.keys(recomputeChoices), 0.8);
  const words = Object.entries(recomputeChoices).map(([name, what]) => `${pyRepr(name)} (${what})`);
  refuse(`recompute=${pyRepr(value)} is not counted here.${didYouMean(close)} Give ${orWords(words)}.`);
}

export function wholeSize(key, value) {
  if (typeof value !== "bigint" || value < 1n) {
    refuse(`${key}=${pyRepr(value)} is not a size; give a whole number, 1 or more.`);
  }
  return value;
}

// `given` has the fields of spmd.Transformer; those that are null take its defaults.
export function makeTransformer(given) {
  const model = { kind: "Transformer", name: "", ...given };
  model.vocab ??= 50257n;
  model.seq ??= 2048n;
  for (const key of ["layers", "d_model", "heads", "vocab", "seq"]) wholeSize(key, model[key]);
  model.kv_heads ??= model.heads;
  model.d_ff ??= 4n * model.d_model;
  model.head_dim ??= transformerHead(model.d_model, model.heads);
  for (const key of ["kv_heads", "d_ff", "head_dim"]) wholeSize(key, model[key]);
  if (model.heads % model.kv_heads) {
    refuse(
      `kv_heads=${model.kv_heads} does not divide heads=${model.heads}; each head of keys and ` +
        `values serves equally many heads of queries, so give one of ` +
        `${joinWords(divisors(model.heads).map(String))}.`,
    );
  }
  for (const key of ["gated", "tied", "biases"]) oneOf(key, model[key], [true, false]);
  oneOf("positions", model.positions, ["learned", "rotary", "none"]);
  oneOf("norm", model.norm, ["layer", "rms"]);
  return model;
}

export function makeMlp(given) {
  for (const key of ["layers", "d_model", "d_ff"]) wholeSize(key, given[key]);
  return { kind: "MLP", name: "", ...given };
}

// Parameters by part; attention, mlp and norms are those of all layers.
export function parameterParts(model) {
  if (model.kind === "MLP") return { mlp: model.layers * 2n * model.d_model * model.d_ff };
  const norm = (model.norm === "layer" ? 2n : 1n) * model.d_model;
  const embedding = model.vocab * model.d_model;
  return {
    embedding,
    positions: model.positions === "learned" ? model.seq * model.d_model : 0n,
    attention: model.layers * transformerAttention(model),
    mlp: model.layers * transformerMlp(model),
    norms: model.layers * 2n * norm + norm,
    head: model.tied ? 0n : embedding,
  };
}

export function parameterCount(model) {
  return Object.values(parameterParts(model)).reduce((a, b) => a + b);
}

function transformerAttention(model) {
  const wide = (2n * model.heads + 2n * model.kv_heads) * model.head_dim;
  const biases = (model.heads + 2n * model.kv_heads) * model.head_dim + model.d_model;
  return model.d_model * wide + (model.biases ? biases : 0n);
}

function transformerMlp(model) {
  const weights = (model.gated ? 3n : 2n) * model.d_model * model.d_ff;
  const biases = (model.gated ? 2n : 1n) * model.d_ff + model.d_model;
  return weights + (model.biases ? biases : 0n);
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
