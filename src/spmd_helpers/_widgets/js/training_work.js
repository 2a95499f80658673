import { convertedWeights, keptPhases } from "./activations.js";
import { over } from "./training_setup.js";
import { deviceWeights } from "./training_state.js";

// What a step needs for a while on a TPU, and what both compilers need: _training/transients.py.

// Tensors as wide as d_ff and as d_model that stand in one layer at once: in a forward
// pass, in a backward pass, in one that recomputes, in one that recomputes but has the hidden results.
const workInsideMlp = [[1n, 2n], [1n, 2n], [2n, 2n], [2n, 2n]];
const workInsideLayer = [[1n, 2n], [1n, 4n], [3n, 8n], [1n, 8n]];

export function workLines(made) {
  const lines = workConversion(made);
  if (!made.isMlp) lines.push(...workLoss(made));
  lines.push(...workForward(made), ...workBackward(made));
  return [...lines, ...workCopied(made), ...workOrthogonalized(made)];
}

// The layers' inputs, copied between the loops where other results are offloaded.
function workCopied(made) {
  if (made.recompute !== "offload_dot_with_no_batch_dims") return [];
  const { model, tokens, computeBytes: c, stream } = made;
  const bytes = (model.layers * tokens * c * model.d_model) / stream;
  const formula =
    `${model.layers} layers × ${tokens} tokens × ${c} B × ${model.d_model}` + over("model", stream);
  return [workLine(made, "inputs of layers, copied", bytes, formula, "loss")];
}

// What muon multiplies: the layers' matrices in float32, and two thirds more.
export function workOrthogonalized(made) {
  if (made.optimizer !== "muon") return [];
  const { model, split, gradBytes } = made;
  const [weights, whole] = deviceWeights(made);
  const data = made.zero >= 2 ? made.data : 1n;
  const each = model.layers * (weights + whole * split);
  const bytes = (each * 20n) / (3n * split) - (each * gradBytes) / (split * data);
  const cut = `${weights}${over("model", split)}`;
  const formula =
    `${model.layers} layers × (20 B / 3 - ${gradBytes} B${over("data", data)}) × ` +
    `${whole ? `(${cut} + ${whole})` : cut}`;
  return bytes > 0n ? [workLine(made, "muon's products", bytes, formula, "update")] : [];
}

const workTpu = "TPU compiler's buffers at the peak, data/measured";
const workGpu = "GPU compiler's buffers at the peak, data/measured";

export function workLine(made, name, bytes, formula, ...when) {
  return { part: "work", name, formula, bytes, when, source: made.gpu ? workGpu : workTpu };
}

function workConversion(made) {
  if (made.paramBytes === made.computeBytes) return [];
  const [each, bytes] = convertedWeights(made);
  const formula = `${made.model.layers} layers × ${each}`;
  const when = made.checkpointed ? keptPhases : ["forward"];
  return [workLine(made, "weights converted before the loop", bytes, formula, ...when)];
}

function workLoss(made) {
  const { tokens, rows, split, computeBytes: c, model } = made;
  const cut = over("model", split);
  const logits = (tokens * rows) / split;
  const head = (c * rows * model.d_model) / split;
  const lines = [
    workLine(made, "logits", 4n * logits, `${tokens} tokens × 4 B × ${rows}${cut}`, "loss"),
    workLine(made, "head as computed with", head, `${c} B × ${rows}${cut} × ${model.d_model}`, "loss"),
  ];
  if (made.zero >= 2 && made.data > 1n) {
    const formula = `${tokens} tokens × ${c} B × ${rows}${cut}`;
    lines.push(workLine(made, "gradient of the logits", c * logits, formula, "loss", "backward"));
  }
  return lines;
}

function workForward(made) {
  if (made.scores) return [workScores(made, "forward", 4n, 4n)];
  return [workInside(made, "forward", 0), ...workWhole(made, "forward", 1n), ...workGathered(made, "forward", 2n)];
}

function workBackward(made) {
  const lines = [];
  const c = made.computeBytes;
  if (made.scores) {
    lines.push(workScores(made, "backward", ...(made.recompute === "everything_saveable" ? [c] : [4n, c])));
  }
  lines.push(workInside(made, "backward", workBackwardKind(made)), ...workWhole(made, "backward", 2n));
  return [...lines, ...workGathered(made, "backward", made.checkpointed ? 3n : 2n)];
}

// Which of the sizes inside a layer a backward pass has.
export function workBackwardKind(made) {
  if (!made.checkpointed) return 1;
  return made.keeps.includes("up") && (made.keepsOut || made.isMlp) ? 3 : 2;
}

function workScores(made, when, ...each) {
  return workLayerScores(made, `scores of one layer, ${when}`, [when], each);
}

export function workLayerScores(made, name, when, each) {
  const { tokens, seq, split } = made;
  const { heads } = made.model;
  const bytes = (tokens * each.reduce((a, b) => a + b) * heads * seq) / split;
  const sizes = each.map((n) => `${n} B`).join(" + ");
  const factor = each.length > 1 ? `(${sizes})` : sizes;
  const formula = `${tokens} tokens × ${factor} × ${heads}${over("model", split)} × ${seq}`;
  return workLine(made, name, bytes, formula, ...when);
}

export function workInside(made, when, which) {
  const [hidden, stream] = (made.isMlp ? workInsideMlp : workInsideLayer)[which];
  const { model, tokens, computeBytes: c } = made;
  const bytes =
    (tokens * c * hidden * model.d_ff) / made.split +
    (tokens * c * stream * model.d_model) / made.stream;
  const formula =
    `${tokens} × ${c} B × (${hidden} × ${model.d_ff}${over("model", made.split)} + ` +
    `${stream} × ${model.d_model}${over("model", made.stream)})`;
  return workLine(made, `inside of one layer, ${when}`, bytes, formula, when);
}

export function workWhole(made, when, count) {
  if (made.stream === 1n) return [];
  const { tokens, computeBytes: c } = made;
  const wide = made.model.d_model;
  const formula = `${count} × ${tokens} tokens × ${c} B × ${wide}`;
  return [workLine(made, `gathered sequences, ${when}`, count * tokens * c * wide, formula, when)];
}

export function workGathered(made, when, count) {
  if (!made.gathers) return [];
  const { computeBytes: c, split } = made;
  const { d_model: wide, d_ff: inside } = made.model;
  const formula = `${count} × ${c} B × ${wide} × ${inside}${over("model", split)}`;
  const bytes = (count * c * wide * inside) / split;
  return [workLine(made, `gathered weights, ${when}`, bytes, formula, when)];
}
