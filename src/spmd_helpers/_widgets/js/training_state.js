import { optimizerChoices, over } from "./training_setup.js";
import { parameterCount, parameterParts } from "./transformer.js";

// Parameters, gradients and optimizer state of one device: mirrors _training/state.py.

export const stepPhases = ["forward", "loss", "backward", "update"];
const stateZero = "ZeRO, arXiv:1910.02054, section 5";

export function stateLines(made) {
  const [numbers, counts] = optimizerChoices[made.optimizer];
  let each = numbers ? made.muBytes + BigInt(numbers - 1) * made.momentBytes : 0n;
  if (made.masterWeights) each += 4n;
  const optimizer = stateHeld(made, each, made.zero >= 1);
  const kinds = [made.optimizer];
  if (made.muDtype !== null) kinds.push(`mu in ${made.muDtype}`);
  if (made.masterWeights) kinds.push("master copy");
  if (counts && made.counting === "jax") {
    optimizer.formula += " + 4 B";
    optimizer.bytes += 4n;
  }
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
      ...optimizer,
      when: stepPhases,
      source: `${stateZero}; optax's state`,
    },
  ];
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
  return [matrices + model.layers * layer, whole];
}

// Numbers in the matrices of one layer: q, k, v and o, and those of its mlp.
export function layerWeights(model) {
  const mlp = (model.gated ? 3n : 2n) * model.d_model * model.d_ff;
  if (model.kind === "MLP") return mlp;
  return mlp + 2n * (model.heads + model.kv_heads) * model.head_dim * model.d_model;
}
