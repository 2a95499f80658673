import { formulaBytes, over } from "./formula.js";
import { overShards, shards } from "./training_setup.js";
import { expertWeights, moeLayers, parameterCount, parameterParts, transformerWeights } from "./transformer.js";

// Parameters, gradients and optimizer state of one device: mirrors _training/state.py.

export const stepPhases = ["forward", "loss", "backward", "update"];
const stateZero = "ZeRO, arXiv:1910.02054, section 5";
const stateLora = "Hu et al. 2021, arXiv:2106.09685; shapes of the arrays";

export function stateLines(made) {
  const kinds = [made.optimizer];
  if (made.muDtype !== null) kinds.push(`mu in ${made.muDtype}`);
  if (made.masterWeights) kinds.push("master copy");
  const adds = made.parts > 1n || made.stage > 1n;
  const gradients = stateSharded(made, made.gradBytes, 2);
  const line = (part, name, formula, when, source = stateZero) => ({
    part, name, formula, bytes: formulaBytes(formula, true), when, source,
  });
  const later = ["backward", "update"];
  return [
    line("parameters", made.lora ? "adapters" : "parameters", stateSharded(made, made.paramBytes, 3), stepPhases),
    line("gradients", "gradients", gradients, adds ? stepPhases : later),
    line(
      "optimizer",
      `optimizer (${kinds.join(", ")})`,
      stateOptimizer(made),
      made.onHost ? ["update"] : stepPhases,
      `${stateZero}; optax's state`,
    ),
    ...stateFrozen(made).map(([name, formula]) => line("parameters", name, formula, stepPhases, stateLora)),
    ...(adds && made.counting === "jax" ? [line("gradients", "gradients of one part", gradients, ["backward"])] : []),
  ];
}

/** The parameters beside adapters, which are not trained: names and formulas. */
function stateFrozen(made) {
  const { lora } = made;
  if (!lora) return [];
  const what = "frozen parameters";
  const [all, replicated] = stateNumbers(made);
  if (!lora.isQuantized) return [[what, stateOfModel(made, lora.baseBytes, 3, all, replicated)]];
  const [cut, more] = deviceWeights(made);
  return [
    [`${what} in int8`, stateOver(made, 1n, 3, cut, more)],
    ["their scales", columnScales(made)],
    [`${what}, the others`, stateOfModel(made, made.computeBytes, 3, all - cut, replicated - more)],
  ];
}

/** A scale of each column of a layer's matrices, sharded as the columns are. */
export function columnScales(made) {
  const { model, split } = made;
  const columns =
    (model.heads * model.head_dim) / split +
    (2n * model.kv_heads * model.head_dim) / made.keysSplit +
    2n * (model.d_model / shards(made, 3)) +
    ((model.gated ? 2n : 1n) * model.d_ff) / split;
  return `${model.layers} layers × 4 B × ${columns}`;
}

/** Bytes of the optimizer in the host's memory: all but the scalars. */
export function hostOptimizer(made, line) {
  const bytes = line.bytes - BigInt(spmdChoices.optimizer[made.optimizer][1]);
  return made.onHost && bytes > 0n ? [{ name: line.name, bytes }] : [];
}

// The formula of all that the optimizer keeps.
function stateOptimizer(made) {
  const [numbers, more] = spmdChoices.optimizer[made.optimizer];
  const parts = [];
  let each = made.masterWeights ? 4n : 0n;
  if (made.optimizer === "adafactor") {
    parts.push(stateFactored(made));
  } else if (made.optimizer === "muon") {
    parts.push(stateSecondMoments(made));
    each += made.momentBytes;
  } else {
    if (numbers) each += made.muBytes + BigInt(numbers - 1) * made.momentBytes;
    const scales = made.scaled.slice(0, numbers).filter(Boolean).length;
    if (scales) parts.push(stateScales(made, BigInt(scales)));
  }
  if (each || !parts.length) parts.unshift(stateSharded(made, each, 1));
  if (more && made.counting === "jax") parts.push(`${more} B`);
  return parts.join(" + ");
}

// An array, or several of one shape: over how many devices each dimension is sharded.
function stateArray(shape, cuts, count = 1n, isMatrix = false) {
  return { shape, cuts, count, isMatrix };
}

// The parameters as arrays, with the shards of the optimizer's state.
export function stateArrays(made) {
  if (made.lora) return stateAdapters(made);
  const { model, split } = made;
  const cut = shards(made, 1);
  const { layers, d_model: wide, d_ff: inside } = model;
  if (made.isMlp) {
    return [[wide, inside, cut, split], [inside, wide, split, cut]].map(([rows, columns, ...cuts]) =>
      stateArray([layers, rows, columns], [1n, ...cuts], 1n, true),
    );
  }
  const found = [
    stateArray([made.rows, wide], [split, cut]),
    stateArray([wide], [cut], model.norm === "layer" ? 2n : 1n),
  ];
  if (model.positions === "learned") found.push(stateArray([model.seq, wide], [1n, cut]));
  if (!model.tied) found.push(stateArray([wide, made.rows], [cut, split]));
  const moe = moeLayers(model);
  const dense = layers - moe;
  if (dense) found.push(...stateLayer(made, dense), ...stateMlp(made, dense, inside));
  if (moe) found.push(...stateLayer(made, moe), ...stateExperts(made, moe));
  return found;
}

// Two matrices for each that has adapters: [rows, rank] and [rank, columns].
function stateAdapters(made) {
  const { model, split } = made;
  const cut = shards(made, 1);
  const wide = [model.d_model, 1n];
  const queries = [model.heads * model.head_dim, split];
  const keys = [model.kv_heads * model.head_dim, made.keysSplit];
  const inside = [model.d_ff, split];
  const ends = {
    query: [wide, queries], key: [wide, keys], value: [wide, keys], out: [queries, wide],
    gate: [wide, inside], up: [wide, inside], down: [inside, wide],
  };
  return made.lora.targets.flatMap((name) => {
    const [[rows, first], [columns, second]] = ends[name];
    return [
      stateArray([model.layers, rows, made.lora.rank], [1n, first * cut, 1n], 1n, true),
      stateArray([model.layers, made.lora.rank, columns], [1n, 1n, second * cut], 1n, true),
    ];
  });
}

// Attention and the norms of so many layers.
function stateLayer(made, layers) {
  const { model, split, keysSplit } = made;
  const cut = shards(made, 1);
  const wide = model.d_model;
  const norm = model.norm === "layer" ? 2n : 1n;
  const matrix = (rows, columns, a, b, count) => stateArray([layers, rows, columns], [1n, a, b], count, true);
  const vector = (size, by, count) => stateArray([layers, size], [1n, by], count);
  const heads = model.heads * model.head_dim;
  const found = [vector(wide, cut, (model.post_norms ? 4n : 2n) * norm)];
  const rank = model.kv_lora_rank;
  if (rank !== null) {
    const values = model.heads * model.v_head_dim;
    const narrow = model.q_lora_rank;
    found.push(vector(rank, cut, norm));
    if (narrow) found.push(vector(narrow, cut, norm), matrix(wide, narrow, cut, 1n));
    return [
      ...found,
      matrix(narrow ?? wide, heads, cut, split),
      matrix(wide, rank + model.qk_rope_head_dim, cut, 1n),
      matrix(rank, model.heads * model.qk_nope_head_dim, cut, split),
      matrix(rank, values, cut, split),
      matrix(values, wide, split, cut),
    ];
  }
  const keys = model.kv_heads * model.head_dim;
  found.push(matrix(wide, heads, cut, split), matrix(wide, keys, cut, keysSplit, 2n), matrix(heads, wide, split, cut));
  if (model.qk_norm) found.push(vector(model.head_dim, made.headNormsCut, 2n * norm));
  if (model.biases || model.qkv_biases) found.push(vector(heads, split * cut), vector(keys, keysSplit * cut, 2n));
  if (model.biases) found.push(vector(wide, cut));
  if (model.sinks) found.push(vector(model.heads, split));
  return found;
}

// A feed-forward part of that width in so many layers.
function stateMlp(made, layers, inside) {
  const { model, split } = made;
  const cut = shards(made, 1);
  const wide = model.d_model;
  const ups = model.gated ? 2n : 1n;
  const found = [
    stateArray([layers, wide, inside], [1n, cut, split], ups, true),
    stateArray([layers, inside, wide], [1n, split, cut], 1n, true),
  ];
  if (!model.biases) return found;
  return [...found, stateArray([layers, inside], [1n, split * cut], ups), stateArray([layers, wide], [1n, cut])];
}

// Routers, experts, and the shared ones as one part.
function stateExperts(made, layers) {
  const { model } = made;
  const { experts, expert_d_ff: wide, shared_experts: shared } = model;
  const found = [stateArray([layers, model.d_model, experts], [1n, shards(made, 1), 1n], 1n, true)];
  if (model.biases || model.router_biases) found.push(stateArray([layers, experts], [1n, 1n]));
  for (const { shape, cuts, count } of stateMlp(made, layers, wide)) {
    found.push(stateArray([layers, experts, ...shape.slice(1)], [1n, made.expert, ...cuts.slice(1)], count));
  }
  return shared ? [...found, ...stateMlp(made, layers, shared * wide)] : found;
}

// Numbers on each device, of an array's shape or of it without a dimension.
export function stateNumbersOf({ shape, cuts, count }, dropped = null) {
  const sizes = shape.map((size, i) => (i === dropped ? 1n : (size + cuts[i] - 1n) / cuts[i]));
  return count * sizes.reduce((a, b) => a * b);
}

function stateFactored(made) {
  const each = made.masterWeights ? 4n : made.paramBytes;
  let total = 0n;
  for (const one of stateArrays(made)) {
    const order = one.shape.map((_, i) => i);
    order.sort((a, b) => (one.shape[a] < one.shape[b] ? -1 : one.shape[a] > one.shape[b] ? 1 : a - b));
    const [second, first] = order.slice(-2);
    if (order.length > 1 && one.shape[second] >= 128n) {
      total += stateNumbersOf(one, first) + stateNumbersOf(one, second) + one.count;
    } else {
      total += stateNumbersOf(one) + 2n * one.count;
    }
  }
  return `${each} B × ${total} row and column means`;
}

function stateSecondMoments(made) {
  const others = stateArrays(made).filter((one) => !one.isMatrix);
  const total = others.reduce((sum, one) => sum + stateNumbersOf(one), 0n);
  return `${made.momentBytes} B × ${total} of other arrays`;
}

// A scale in float32 for each 256 numbers along an array's last dimension.
function stateScales(made, moments) {
  let total = 0n;
  for (const one of stateArrays(made)) {
    const blocks = (one.shape.at(-1) + 255n) / 256n;
    const cut = blocks % one.cuts.at(-1) ? 1n : one.cuts.at(-1);
    const shape = [...one.shape.slice(0, -1), blocks];
    total += stateNumbersOf({ ...one, shape, cuts: [...one.cuts.slice(0, -1), cut] });
  }
  return `${4n * moments} B × ${total} scales`;
}

// The formula of `each` bytes for every parameter, sharded from a stage of ZeRO on.
export function stateSharded(made, each, stage) {
  if (!made.lora) return stateOfModel(made, each, stage, ...stateNumbers(made));
  const sums = [0n, 0n]; // what model shards of the adapters, and what it replicates
  for (const { shape, cuts } of stateAdapters(made)) {
    const isCut = cuts.reduce((a, b) => a * b) > shards(made, 1);
    sums[isCut ? 0 : 1] += shape.reduce((a, b) => a * b);
  }
  return stateOver(made, each, stage, ...sums);
}

function stateOfModel(made, each, stage, cut, replicated) {
  const more = stateUnsharded(made);
  if (!moeLayers(made.model) && !more.length) return stateOver(made, each, stage, cut, replicated);
  return stateWithExperts(made, each, overShards(made, stage), cut, replicated, more);
}

function stateOver(made, each, stage, cut, replicated) {
  const by = overShards(made, stage);
  const words = [cut && `${cut}${over("model", made.split)}`, replicated && `${replicated}`].filter(Boolean);
  const inside = words.join(" + ");
  return `${each} B × ${words.length > 1 && (by || each !== 1n) ? `(${inside})` : inside}${by}`;
}

// Few numbers that neither fsdp nor data shards: a router's biases, norms of q and k; and sinks.
function stateUnsharded(made) {
  const { model } = made;
  if (made.isMlp || made.counting === "megatron") return [];
  const moe = moeLayers(model);
  const routers = moe && (model.biases || model.router_biases) ? moe * model.experts : 0n;
  const all = routers + unshardedNorms(made);
  return [all && `${all}`, model.sinks && `${model.layers * model.heads}${over("model", made.split)}`].filter(Boolean);
}

function unshardedNorms({ model, fsdp, data, zero }) {
  if (!model.qk_norm || model.head_dim % shards({ fsdp, data, zero }, 1) === 0n) return 0n;
  return model.layers * 2n * (model.norm === "layer" ? 2n : 1n) * model.head_dim;
}

// The same, where expert shards some of them, and others are not sharded.
function stateWithExperts(made, each, by, cut, replicated, more) {
  const { model, split, expert } = made;
  const moe = moeLayers(model);
  const inside = [`${cut}${over("model", split)}`, replicated ? `${replicated}` : ""];
  if (moe) {
    const count = moe * model.experts;
    const biases = model.biases ? count * (model.gated ? 2n : 1n) * model.expert_d_ff : 0n;
    let words = `${expertWeights(model) + biases}${over("model", split)}`;
    if (model.biases) words += ` + ${count * model.d_model}`;
    inside.push(`${model.biases && expert > 1n ? `(${words})` : words}${over("expert", expert)}`);
  }
  const formula = `${each} B × (${inside.filter(Boolean).join(" + ")})${by}`;
  return more.length ? `${formula} + ${each} B × (${more.join(" + ")})` : formula;
}

// How many parameters the axis model shards, and how many it replicates, experts apart.
function stateNumbers(made) {
  const { model } = made;
  if (made.counting === "megatron" || made.isMlp) return [parameterCount(model), 0n];
  const parts = parameterParts(model);
  let [cut, replicated] = deviceWeights(made);
  cut += (model.tied ? 1n : 2n) * made.rows * model.d_model;
  replicated += parts.positions + parts.norms - unshardedNorms(made);
  if (model.biases || model.qkv_biases) {
    cut += model.layers * model.heads * model.head_dim;
    const keys = 2n * model.layers * model.kv_heads * model.head_dim;
    if (made.keysSplit < made.split) replicated += keys;
    else cut += keys;
  }
  if (model.biases) {
    const dense = model.layers - moeLayers(model);
    replicated += (model.layers + dense) * model.d_model;
    cut += dense * (model.gated ? 2n : 1n) * model.d_ff;
  }
  return [cut, replicated];
}

/** The largest matrix of a layer: how many layers have it, and its numbers as a formula. */
export function largestMatrix({ model, expert }) {
  const moe = moeLayers(model);
  const { layers, d_model: wide, d_ff: inside } = model;
  const here = moe ? model.experts / expert : 0n;
  const dense = moe < layers && wide * inside > here * wide * (model.expert_d_ff ?? 0n);
  if (!moe || dense) return [layers - moe, `${wide} × ${inside}`];
  return [moe, `${here} × ${wide} × ${model.expert_d_ff}`];
}

// Numbers in the matrices of all layers: those that model shards, those it replicates.
export function deviceWeights(made) {
  const { model, isMlp } = made;
  const { layers, d_model: wide } = model;
  const each = (isMlp || !model.gated ? 2n : 3n) * wide;
  if (isMlp) return [layers * each * model.d_ff, 0n];
  const moe = moeLayers(model);
  let replicated = 0n;
  if (made.keysSplit < made.split) replicated = 2n * model.kv_heads * model.head_dim * wide;
  if (model.kv_lora_rank !== null) {
    replicated = wide * ((model.q_lora_rank ?? 0n) + model.kv_lora_rank + model.qk_rope_head_dim);
  }
  const cut = layers * (transformerWeights(model) - replicated) + (layers - moe) * each * model.d_ff;
  if (!moe) return [cut, layers * replicated];
  const shared = moe * each * model.shared_experts * model.expert_d_ff;
  return [cut + shared, layers * replicated + moe * wide * model.experts];
}
