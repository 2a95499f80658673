import { optimizerChoices, over } from "./training_setup.js";
import { parameterCount, parameterParts } from "./transformer.js";

// Parameters, gradients and optimizer state of one device: mirrors _training/state.py.

export const stepPhases = ["forward", "loss", "backward", "update"];
const stateZero = "ZeRO, arXiv:1910.02054, section 5";

export function stateLines(made) {
  const kinds = [made.optimizer];
  if (made.muDtype !== null) kinds.push(`mu in ${made.muDtype}`);
  if (made.masterWeights) kinds.push("master copy");
  return [
    {
      part: "parameters",
      name: "parameters",
      ...stateHeld(made, made.paramBytes, made.zero >= 3),
      when: stepPhases,
      source: stateZero,
    },
    {
      part: "gradients",
      name: "gradients",
      ...stateHeld(made, made.gradBytes, made.zero >= 2),
      when: ["backward", "update"],
      source: stateZero,
    },
    {
      part: "optimizer",
      name: `optimizer (${kinds.join(", ")})`,
      ...stateOptimizer(made),
      when: stepPhases,
      source: `${stateZero}; optax's state`,
    },
  ];
}

// All that the optimizer keeps.
function stateOptimizer(made) {
  const [numbers, more] = optimizerChoices[made.optimizer];
  const master = made.masterWeights ? 4n : 0n;
  const parts = [];
  let each = master;
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
  if (each || !parts.length) parts.unshift(stateHeld(made, each, made.zero >= 1));
  if (more && made.counting === "jax") parts.push({ formula: `${more} B`, bytes: BigInt(more) });
  return {
    formula: parts.map((part) => part.formula).join(" + "),
    bytes: parts.reduce((sum, part) => sum + part.bytes, 0n),
  };
}

// The parameters as arrays: {shape, cuts, count, isMatrix}, as _training/state.py has them.
function stateArrays(made) {
  const { model, split, keysSplit } = made;
  const shards = made.zero >= 1 ? made.data : 1n;
  const { layers, d_model: wide, d_ff: inside } = model;
  const array = (shape, cuts, count = 1n) => ({ shape, cuts, count, isMatrix: false });
  const matrix = (rows, columns, cuts, count = 1n) => ({
    shape: [layers, rows, columns], cuts: [1n, ...cuts], count, isMatrix: true,
  });
  if (made.isMlp) return [matrix(wide, inside, [shards, split]), matrix(inside, wide, [split, shards])];
  const [heads, keys] = [model.heads * model.head_dim, model.kv_heads * model.head_dim];
  const ups = model.gated ? 2n : 1n;
  const norm = model.norm === "layer" ? 2n : 1n;
  const found = [
    array([made.rows, wide], [split, shards]),
    matrix(wide, heads, [shards, split]),
    matrix(wide, keys, [shards, keysSplit], 2n),
    matrix(heads, wide, [split, shards]),
    matrix(wide, inside, [shards, split], ups),
    matrix(inside, wide, [split, shards]),
    array([layers, wide], [1n, shards], (model.post_norms ? 4n : 2n) * norm),
    array([wide], [shards], norm),
  ];
  if (model.positions === "learned") found.push(array([model.seq, wide], [1n, shards]));
  if (!model.tied) found.push(array([wide, made.rows], [shards, split]));
  if (model.qk_norm) found.push(array([layers, model.head_dim], [1n, shards], 2n * norm));
  if (model.biases || model.qkv_biases) {
    found.push(
      array([layers, heads], [1n, split * shards]),
      array([layers, keys], [1n, keysSplit * shards], 2n),
    );
  }
  if (model.biases) {
    found.push(
      array([layers, inside], [1n, split * shards], ups),
      array([layers, wide], [1n, shards], 2n),
    );
  }
  return found;
}

// Numbers on each device, of an array's shape or of it without a dimension.
function stateNumbersOf({ shape, cuts, count }, dropped = null) {
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
  return { formula: `${each} B × ${total} row and column means`, bytes: each * total };
}

function stateSecondMoments(made) {
  const others = stateArrays(made).filter((one) => !one.isMatrix);
  const total = others.reduce((sum, one) => sum + stateNumbersOf(one), 0n);
  return { formula: `${made.momentBytes} B × ${total} of other arrays`, bytes: made.momentBytes * total };
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
  return { formula: `${4n * moments} B × ${total} scales`, bytes: 4n * moments * total };
}

// `each` bytes for every parameter.
function stateHeld(made, each, cut) {
  const [split, whole] = stateNumbers(made);
  const data = cut ? made.data : 1n;
  const devices = made.split * data;
  const bytes = (each * (split + whole * made.split) + devices - 1n) / devices;
  let inside = `${split}${over("model", made.split)}`;
  if (whole) inside += ` + ${whole}`;
  if (whole && (data > 1n || each !== 1n)) inside = `(${inside})`;
  return { formula: `${each} B × ${inside}${over("data", data)}`, bytes };
}

// How many parameters the axis model cuts, and how many it leaves whole.
function stateNumbers(made) {
  const { model } = made;
  if (made.counting === "megatron" || made.isMlp) return [parameterCount(model), 0n];
  const matrices = (model.tied ? 1n : 2n) * made.rows * model.d_model;
  const parts = parameterParts(model);
  let layer = layerWeights(model);
  let whole = parts.positions + parts.norms;
  if (model.biases || model.qkv_biases) layer += (model.heads + 2n * model.kv_heads) * model.head_dim;
  if (model.biases) {
    layer += (model.gated ? 2n : 1n) * model.d_ff;
    whole += model.layers * 2n * model.d_model;
  }
  if (made.keysSplit < made.split) {
    const keys = 2n * model.kv_heads * model.head_dim * (model.d_model + (model.biases || model.qkv_biases ? 1n : 0n));
    layer -= keys;
    whole += model.layers * keys;
  }
  return [matrices + model.layers * layer, whole];
}

// Numbers in the matrices of one layer: q, k, v and o, and those of its mlp.
export function layerWeights(model) {
  const mlp = (model.gated ? 3n : 2n) * model.d_model * model.d_ff;
  if (model.kind === "MLP") return mlp;
  return mlp + 2n * (model.heads + model.kv_heads) * model.head_dim * model.d_model;
}

// Numbers in a layer's matrices: those that model cuts, and those that it replicates.
export function deviceWeights(made) {
  const { model } = made;
  const weights = layerWeights(model);
  if (made.isMlp || made.keysSplit === made.split) return [weights, 0n];
  const keys = 2n * model.kv_heads * model.head_dim * model.d_model;
  return [weights - keys, keys];
}
