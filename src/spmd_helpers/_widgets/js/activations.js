import { pyRepr } from "./python_words.js";
import { over } from "./training_setup.js";
import { deviceWeights } from "./training_state.js";
import { refuse } from "./words.js";

// What the forward pass keeps for the backward pass: mirrors _training/activations.py.

export const keptPhases = ["forward", "loss", "backward"];
const keptNorm = 3n;
const keptInside = 6n;
const keptJax = "print_saved_residuals of jax 0.10.2";
const keptPaper = "Korthikanti et al. 2022, arXiv:2205.05198, Table 2";

// The lines of what is kept, for all layers, on one device.
export function kept(made) {
  if (made.checkpointed) return [keptStream(made, "inputs of layers", 1n), ...keptResults(made)];
  if (made.isMlp) {
    return [...keptCopies(made), keptStream(made, "inputs of layers", 1n), keptRelu(made)];
  }
  const lines = [...keptCopies(made), keptNorms(made)];
  lines.push(keptStream(made, "inputs of matrices", 2n), ...keptHeadNorms(made), keptHeads(made));
  if (!made.scores) lines.push(keptSums(made));
  else if (made.recompute === "everything_saveable") lines.push(keptScores(made));
  return [...lines, keptHidden(made)];
}

function keptLine(made, name, bytes, factors, source = keptJax) {
  const formula = [`${made.model.layers} layers`, ...factors].join(" × ");
  return { part: "kept", name, formula, bytes, when: keptPhases, source };
}

function keptTokens(made) {
  return `${made.tokens} ${made.isMlp ? "rows" : "tokens"}`;
}

function keptCopies(made) {
  if (made.paramBytes === made.computeBytes) return [];
  const [each, bytes] = convertedWeights(made);
  return [keptLine(made, "weights as computed with", bytes, [each])];
}

// All layers' weights in the type of the computation: what one layer's are, and all bytes.
export function convertedWeights(made) {
  const c = made.computeBytes;
  const data = made.zero >= 3 ? made.data : 1n;
  const [weights, whole] = deviceWeights(made);
  const cut = `${weights}${over("model", made.split)}`;
  const each = `${c} B × ${whole ? `(${cut} + ${whole})` : cut}${over("data", data)}`;
  return [each, (made.model.layers * c * (weights + whole * made.split)) / (made.split * data)];
}

function keptStream(made, name, count) {
  const { model, computeBytes: c } = made;
  const bytes = (model.layers * count * made.tokens * c * model.d_model) / made.stream;
  const each = `${c} B × ${model.d_model}${over("model", made.stream)}`;
  return keptLine(made, name, bytes, [...(count > 1n ? [count] : []), keptTokens(made), each]);
}

function keptRelu(made) {
  const { model, computeBytes: c } = made;
  const bytes = (model.layers * made.tokens * (c + 1n) * model.d_ff) / made.split;
  const each = `(${c} B + 1 B) × ${model.d_ff}${over("model", made.split)}`;
  return keptLine(made, "hidden, and its mask", bytes, [keptTokens(made), each]);
}

function keptNorms(made) {
  const { model, tokens, stream } = made;
  const row = 4n * (keptNorm * model.d_model + 2n);
  const count = model.post_norms ? 4n : 2n;
  const bytes = model.layers * count * ((tokens * row) / stream + 4n * model.d_model);
  const each = `4 B × (${keptNorm} × ${model.d_model} + 2)${over("model", stream)}`;
  return keptLine(made, "norms", bytes, [count, `(${tokens} × ${each} + 4 B × ${model.d_model})`]);
}

/** What the norms of q and k keep, where there are any: the same for each head. */
function keptHeadNorms(made) {
  const { model, tokens, split } = made;
  if (!model.qk_norm) return [];
  const row = 4n * (keptNorm * model.head_dim + 2n);
  const keys = model.kv_heads * (split / made.keysSplit);
  const cut = (tokens * (model.heads + keys) * row) / split;
  const rows = `(${model.heads} + ${keys})${over("model", split)}`;
  const each = `4 B × (${keptNorm} × ${model.head_dim} + 2)`;
  const inside = `(${tokens} × ${rows} × ${each} + 2 × 4 B × ${model.head_dim})`;
  return [keptLine(made, "norms of q and k", model.layers * (cut + 8n * model.head_dim), [inside])];
}

// The results of products that a policy of jax.checkpoint saves, each by its name.
function keptResults(made) {
  return made.saved.map((name) => {
    const each = name === "scores" ? 4n : made.computeBytes;
    const [wide, factor, cut] = keptResult(made, name);
    const bytes = (made.model.layers * made.tokens * each * wide) / cut;
    const formula = `${each} B × ${factor}${over("model", cut)}`;
    return keptLine(made, `saved: ${name}`, bytes, [keptTokens(made), formula]);
  });
}

// How wide a product's result is for a token, in words too, and what cuts it.
function keptResult(made, name) {
  const { model, split } = made;
  if (name === "up" || name === "gate") return [model.d_ff, `${model.d_ff}`, split];
  if (name === "out" || name === "down") return [model.d_model, `${model.d_model}`, made.stream];
  if (name === "scores") return [model.heads * made.seq, `${model.heads} × ${made.seq}`, split];
  const isKeys = name === "key" || name === "value";
  const heads = isKeys ? model.kv_heads : model.heads;
  const wide = heads * model.head_dim;
  return [wide, `${heads} × ${model.head_dim}`, isKeys ? made.keysSplit : split];
}

function keptHeads(made) {
  const { model, computeBytes: c, split, keysSplit } = made;
  const name = "queries, keys, values, their result";
  const { heads, kv_heads: keys } = model;
  if (keysSplit === split) {
    const wide = 2n * (heads + keys) * model.head_dim;
    const each = `${c} B × 2 × (${heads} + ${keys}) × ${model.head_dim}${over("model", split)}`;
    const bytes = (model.layers * made.tokens * c * wide) / split;
    return keptLine(made, name, bytes, [keptTokens(made), each]);
  }
  const wide = 2n * (heads + keys * split) * model.head_dim;
  const bytes = (model.layers * made.tokens * c * wide) / split;
  const each = `${c} B × 2 × (${heads}${over("model", split)} + ${keys}) × ${model.head_dim}`;
  return keptLine(made, name, bytes, [keptTokens(made), each]);
}

function keptScores(made) {
  const { model, computeBytes: c } = made;
  const row = (4n + c) * made.seq + 8n;
  const bytes = (model.layers * made.tokens * model.heads * row) / made.split;
  const each = `${model.heads}${over("model", made.split)} × ((4 B + ${c} B) × ${made.seq} + 8 B)`;
  return keptLine(made, "scores of attention", bytes, [keptTokens(made), each]);
}

function keptSums(made) {
  const { layers, heads } = made.model;
  const bytes = (layers * made.tokens * 4n * heads) / made.split;
  const each = `4 B × ${heads}${over("model", made.split)}`;
  const source = "Dao et al. 2022, arXiv:2205.14135, algorithm 2";
  return keptLine(made, "sums of the scores' rows", bytes, [keptTokens(made), each], source);
}

function keptHidden(made) {
  const { model, computeBytes: c } = made;
  const count = keptInside - (made.gpu && !model.gated ? 1n : 0n);
  const bytes = (model.layers * made.tokens * count * c * model.d_ff) / made.split;
  const each = `${count} × ${c} B × ${model.d_ff}${over("model", made.split)}`;
  return keptLine(made, "inside of the mlp", bytes, [keptTokens(made), each]);
}

// The published formula, as one line.
export function published(made) {
  const { model, split, stream } = made;
  const kind =
    !made.isMlp &&
    model.kv_heads === model.heads &&
    model.d_ff === 4n * model.d_model &&
    model.heads * model.head_dim === model.d_model &&
    !(model.gated || model.qk_norm || model.post_norms);
  if (!kind || made.computeBytes !== 2n) {
    refuse(
      "counting='megatron' is for a transformer with d_ff = 4 * d_model, without gate, grouped " +
        "queries or further norms, computed in 16 bits, as the paper has it; use counting='jax'.",
    );
  }
  if (!["everything_saveable", "selective", "nothing_saveable"].includes(made.recompute)) {
    refuse(
      `counting='megatron' has no recompute=${pyRepr(made.recompute)}; give 'everything_saveable', ` +
        "'selective' or 'nothing_saveable', or use counting='jax'.",
    );
  }
  const tensor = made.tokens * model.d_model;
  const times = [`${made.tokens} tokens`, model.d_model];
  if (made.recompute === "nothing_saveable") {
    const bytes = (2n * model.layers * tensor) / stream;
    const factors = [...times, `2 B${over("model", stream)}`];
    return [keptLine(made, "inputs of layers", bytes, factors, keptPaper)];
  }
  const [whole, cut] = made.sequenceParallel || split === 1n ? [0n, 34n] : [10n, 24n];
  let bytes = whole * tensor + (cut * tensor) / split;
  let inside = `${whole ? `${whole} B + ` : ""}${cut} B${over("model", split)}`;
  if (made.scores && made.recompute === "everything_saveable") {
    bytes += (5n * made.tokens * model.heads * made.seq) / split;
    inside += ` + 5 B × ${model.heads} × ${made.seq} / ${model.d_model}${over("model", split)}`;
  }
  return [keptLine(made, "activations", model.layers * bytes, [...times, `(${inside})`], keptPaper)];
}
