import { formulaBytes, over } from "./formula.js";
import { pyRepr } from "./python_words.js";
import { overShards } from "./training_setup.js";
import { columnScales, deviceWeights, stateSharded } from "./training_state.js";
import { expertWeights, moeLayers } from "./transformer.js";
import { refuse } from "./words.js";

// What the forward pass keeps for the backward pass: mirrors _training/activations.py.

export const keptPhases = ["forward", "loss", "backward"];
const keptNorm = 3n;
const keptInside = 6n;
const keptJax = "print_saved_residuals of jax 0.10.2";
const keptPaper = "Korthikanti et al. 2022, arXiv:2205.05198, Table 2";
const keptStages = "Narayanan et al. 2021, arXiv:2104.04473, section 2.2";

// The lines of what is kept, for all layers, on one device.
export function kept(made) {
  if (made.stage > 1n) return keptPipeline(made);
  if (made.checkpointed) return [keptStream(made, "inputs of layers"), ...keptResults(made)];
  const { model } = made;
  const moe = moeLayers(model);
  const lines = [];
  if (made.storedBytes !== made.computeBytes) lines.push(keptLine("weights as computed with", [convertedWeights(made)]));
  if (made.lora?.isQuantized) lines.push(keptLine("scales as computed with", [columnScales(made)]));
  if (made.lora && made.paramBytes !== made.computeBytes) {
    // A share of a byte counts as one.
    const formula = stateSharded(made, made.computeBytes, 3);
    lines.push({ ...keptLine("adapters as computed with", [formula]), bytes: formulaBytes(formula, true) });
  }
  if (made.isMlp) return [...lines, keptStream(made, "inputs of layers"), keptRelu(made)];
  const inputs = [made.adapts("query", "key", "value"), made.adapts("gate", "up")].filter(Boolean).length;
  lines.push(keptNorms(made));
  if (inputs) lines.push(keptStream(made, "inputs of matrices", inputs > 1 ? "2" : ""));
  if (made.lora) lines.push(keptNarrow(made));
  if (model.kv_lora_rank !== null) lines.push(...keptLatent(made));
  else lines.push(...keptHeadNorms(made), keptHeads(made));
  if (!made.scores) lines.push(keptSums(made));
  else if (made.recompute === "everything_saveable") lines.push(keptScores(made));
  if (moe < model.layers) lines.push(keptHidden(made, moe));
  return moe ? [...lines, ...keptExperts(made, moe)] : lines;
}

function keptLine(name, factors, source = keptJax) {
  const formula = factors.filter(Boolean).join(" × ");
  return { part: "kept", name, formula, bytes: formulaBytes(formula), when: keptPhases, source };
}

function keptLayers({ model }) {
  return `${model.layers} layers`;
}

function keptTokens({ tokens, isMlp }) {
  return `${tokens} ${isMlp ? "rows" : "tokens"}`;
}

// All layers' weights in the type of the computation, as a formula.
export function convertedWeights(made) {
  const { model, split } = made;
  const experts = expertWeights(model);
  const numbers = deviceWeights(made);
  const [each, replicated] = experts ? numbers : numbers.map((n) => n / model.layers);
  let inside = `${each}${over("model", split)}`;
  if (replicated) inside += ` + ${replicated}`;
  if (experts) inside += ` + ${experts}${over("model", split)}${over("expert", made.expert)}`;
  if (replicated || experts) inside = `(${inside})`;
  return `${experts ? "" : `${keptLayers(made)} × `}${made.computeBytes} B × ${inside}${overShards(made, 3)}`;
}

// What the first matrices of adapters give, which goes into the second ones.
function keptNarrow(made) {
  const each = `${made.computeBytes} B × ${made.lora.targets.length} × ${made.lora.rank}`;
  return keptLine("narrow results of adapters", [keptLayers(made), keptTokens(made), each]);
}

function keptStream(made, name, count = "") {
  const each = `${made.computeBytes} B × ${made.model.d_model}${over("model", made.stream)}`;
  return keptLine(name, [keptLayers(made), count, keptTokens(made), each]);
}

/** The inputs of a chunk's layers, of as many microbatches as are on their way; what is sent. */
function keptPipeline(made) {
  const { model, interleave, stage } = made;
  const chunk = `${model.layers / interleave} layers`;
  const each = `${made.computeBytes} B × ${model.d_model}${over("model", made.stream)}`;
  const sent = 5n + (interleave === 1n ? 0n : stage / 2n);
  const line = (name, ...factors) => keptLine(name, [...factors, keptTokens(made), each], keptStages);
  return [
    line("inputs of layers", `${chunksKept(made)}`, chunk),
    line("inputs of layers, in one tick", chunk),
    line("sent and received", `${sent}`),
  ];
}

/** Of how many microbatches a device keeps a chunk's activations at most. */
export function chunksKept({ stage, interleave, parts }) {
  const ahead = (interleave > 1n ? 2n : 1n) * (stage - 1n) + (interleave - 1n) * stage + 1n;
  return ahead < parts * interleave ? ahead : parts * interleave;
}

function keptRelu(made) {
  const each = `(${made.computeBytes} B + 1 B) × ${made.model.d_ff}${over("model", made.split)}`;
  return keptLine("hidden, and its mask", [keptLayers(made), keptTokens(made), each]);
}

// Values that a norm keeps: the last is for its scale's gradient alone.
function keptOfNorm({ lora }) {
  return keptNorm - (lora ? 1n : 0n);
}

function keptNorms(made) {
  const { model, tokens, stream } = made;
  const each = `4 B × (${keptOfNorm(made)} × ${model.d_model} + 2)${over("model", stream)}`;
  const inside = `(${tokens} × ${each} + 4 B × ${model.d_model})`;
  return keptLine("norms", [keptLayers(made), model.post_norms ? "4" : "2", inside]);
}

/** What the norms of q and k keep, where there are any: the same for each head. */
function keptHeadNorms(made) {
  const { model, tokens, split } = made;
  if (!model.qk_norm) return [];
  const rows = `(${model.heads} + ${model.kv_heads * (split / made.keysSplit)})${over("model", split)}`;
  const each = `4 B × (${keptOfNorm(made)} × ${model.head_dim} + 2)`;
  const inside = `(${tokens} × ${rows} × ${each} + 2 × 4 B × ${model.head_dim})`;
  return [keptLine("norms of q and k", [keptLayers(made), inside])];
}

// The results of products that a policy of jax.checkpoint saves, each by its name.
function keptResults(made) {
  return keptStacked(made, "saved", made.saved);
}

/** Some results of all layers: those that are saved here, or offloaded to the host. */
export function keptStacked(made, what, names) {
  return names.map((name) => {
    const each = name === "scores" ? 4n : made.computeBytes;
    const formula = `${each} B × ${keptResult(made, name)}`;
    return keptLine(`${what}: ${name}`, [keptLayers(made), keptTokens(made), formula]);
  });
}

// How wide a product's result is for a token on each device.
function keptResult({ model, split, stream, keysSplit, seq }, name) {
  if (name === "up" || name === "gate") return `${model.d_ff}${over("model", split)}`;
  if (name === "out" || name === "down") return `${model.d_model}${over("model", stream)}`;
  if (name === "scores") return `${model.heads} × ${seq}${over("model", split)}`;
  const isKeys = name === "key" || name === "value";
  return `${isKeys ? model.kv_heads : model.heads} × ${model.head_dim}${over("model", isKeys ? keysSplit : split)}`;
}

function keptHeads(made) {
  const { model, computeBytes: c, split, keysSplit } = made;
  const { heads, kv_heads: keys, head_dim: wide } = model;
  const times = made.keysTokens / made.tokens;
  const by = over("model", split);
  if (!made.adapts("out") && made.scores) {
    // No gradient uses attention's result.
    const each = `(${heads / split} + 2 × ${(times * keys) / keysSplit}) × ${wide}`;
    return keptLine("queries, keys, values", [keptLayers(made), keptTokens(made), `${c} B × ${each}`]);
  }
  const several = times > 1n ? `${times} × ` : "";
  const each =
    times === 1n && keysSplit === split
      ? `(${heads} + ${keys}) × ${wide}${by}`
      : `(${heads}${by} + ${several}${keys}${over("model", keysSplit)}) × ${wide}`;
  return keptLine("queries, keys, values, their result", [keptLayers(made), keptTokens(made), `${c} B × 2 × ${each}`]);
}

function keptScores(made) {
  const { model, computeBytes: c } = made;
  const row = `((4 B + ${c} B) × ${made.seq} + ${model.sinks ? 12 : 8} B)`;
  const each = `${model.heads}${over("model", made.split)} × ${row}`;
  return keptLine("scores of attention", [keptLayers(made), keptTokens(made), each]);
}

function keptSums(made) {
  const each = `4 B × ${made.model.heads}${over("model", made.split)}`;
  const source = "Dao et al. 2022, arXiv:2205.14135, algorithm 2";
  return keptLine("sums of the scores' rows", [keptLayers(made), keptTokens(made), each], source);
}

function keptOfHidden({ gpu, model, computeBytes, split }, wide, fewer = 0n) {
  return `${keptInside - (gpu && !model.gated ? 1n : 0n) - fewer} × ${computeBytes} B × ${wide}${over("model", split)}`;
}

function keptHidden(made, moe) {
  const { layers, d_ff } = made.model;
  const fewer = made.adapts("down") ? 0n : 1n; // which uses the result
  return keptLine("inside of the mlp", [`${layers - moe} layers`, keptTokens(made), keptOfHidden(made, d_ff, fewer)]);
}

// What layers with experts keep in place of a feed-forward part.
function keptExperts(made, moe) {
  const { model, computeBytes: c, tokens, expertRows: rows } = made;
  const { experts_per_token: top, shared_experts: shared, d_model: wide } = model;
  const layers = `${moe} layers`;
  const choice = `(${tokens} × (${12n + c} B × ${top} + 8 B) + 4 B × ${rows})`;
  const every = shared ? `(${rows} rows + ${shared} × ${tokens} tokens)` : `${rows} rows`;
  const lines = [
    keptLine("choice of experts", [layers, choice]),
    keptLine("rows of the experts", [layers, `(${rows} + ${top} × ${tokens} tokens)`, `${c} B × ${wide}`]),
    keptLine("inside of the experts", [layers, every, keptOfHidden(made, model.expert_d_ff)]),
  ];
  if (made.stream === 1n && !shared) return lines;
  return [...lines, keptLine("inputs of the experts", [layers, `${tokens} tokens`, `${c} B × ${wide}`])];
}

/** Latent attention: narrow results and their norms, and what is made of them. */
function keptLatent(made) {
  const { model, computeBytes: c } = made;
  const ranks = [model.q_lora_rank, model.kv_lora_rank].filter((rank) => rank !== null);
  const total = ranks.reduce((a, b) => a + b);
  const row = `(4 B × (${keptNorm} × ${total} + ${2 * ranks.length}) + ${c} B × ${total})`;
  const heads = `${c} B × 2 × ${model.heads}${over("model", made.split)}`;
  const widths = `(${model.head_dim} + ${model.v_head_dim})`;
  return [
    keptLine("narrow results, and their norms", [keptLayers(made), `(${made.tokens} × ${row} + 4 B × ${total})`]),
    keptLine("queries, keys, values, their result", [keptLayers(made), keptTokens(made), heads, widths]),
  ];
}

// The published formula, as one line.
export function published(made) {
  const { model, split } = made;
  const kind =
    !made.isMlp &&
    model.kv_heads === model.heads &&
    model.d_ff === 4n * model.d_model &&
    model.heads * model.head_dim === model.d_model &&
    !(model.gated || model.qk_norm || model.post_norms) &&
    model.experts === null &&
    model.kv_lora_rank === null;
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
  const times = [keptLayers(made), `${made.tokens} tokens`, `${model.d_model}`];
  if (made.recompute === "nothing_saveable") {
    return [keptLine("inputs of layers", [...times, `2 B${over("model", made.stream)}`], keptPaper)];
  }
  const [replicated, cut] = made.sequenceParallel || split === 1n ? [0n, 34n] : [10n, 24n];
  const tensor = made.tokens * model.d_model;
  let bytes = replicated * tensor + (cut * tensor) / split; // each is rounded down for itself
  let inside = `${replicated ? `${replicated} B + ` : ""}${cut} B${over("model", split)}`;
  if (made.scores && made.recompute === "everything_saveable") {
    bytes += (5n * made.tokens * model.heads * made.seq) / split;
    inside += ` + 5 B × ${model.heads} × ${made.seq} / ${model.d_model}${over("model", split)}`;
  }
  const line = keptLine("activations", [...times, `(${inside})`], keptPaper);
  return [{ ...line, bytes: model.layers * bytes }];
}
