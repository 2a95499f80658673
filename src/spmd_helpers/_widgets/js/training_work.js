import { convertedWeights, keptPhases } from "./activations.js";
import { over } from "./training_setup.js";

// What a step needs for a while, the logits and the inside of one layer: _training/transients.py.

// Tensors as wide as d_ff and as d_model that stand in one layer at once: in a forward
// pass, in a backward pass, in one that recomputes.
const workInsideMlp = [[1n, 2n], [1n, 2n], [2n, 2n]];
const workInside = [[1n, 2n], [1n, 4n], [3n, 8n]];

export function workLines(made) {
  const lines = workConversion(made);
  if (!made.isMlp) lines.push(...workLoss(made));
  return [...lines, ...workForward(made), ...workBackward(made)];
}

function workLine(name, bytes, formula, ...when) {
  const source = "TPU compiler's buffers at the peak, data/measured";
  return { part: "work", name, formula, bytes, when, source };
}

function workConversion(made) {
  if (made.paramBytes === made.computeBytes) return [];
  const [each, bytes] = convertedWeights(made);
  const formula = `${made.model.layers} layers × ${each}`;
  const when = made.recompute === "nothing_saveable" ? keptPhases : ["forward"];
  return [workLine("weights converted before the loop", bytes, formula, ...when)];
}

function workLoss(made) {
  const { tokens, rows, split, computeBytes: c, model } = made;
  const cut = over("model", split);
  const logits = (tokens * rows) / split;
  const head = (c * rows * model.d_model) / split;
  const lines = [
    workLine("logits", 4n * logits, `${tokens} tokens × 4 B × ${rows}${cut}`, "loss"),
    workLine("head as computed with", head, `${c} B × ${rows}${cut} × ${model.d_model}`, "loss"),
  ];
  if (made.zero >= 2 && made.data > 1n) {
    const formula = `${tokens} tokens × ${c} B × ${rows}${cut}`;
    lines.push(workLine("gradient of the logits", c * logits, formula, "loss", "backward"));
  }
  return lines;
}

function workForward(made) {
  if (made.scores) return [workScores(made, "forward", 4n, 4n)];
  const tensors = (made.isMlp ? workInsideMlp : workInside)[0];
  return [
    workLayer(made, "forward", ...tensors),
    ...workWhole(made, "forward", 1n),
    ...workGathered(made, "forward", 2n),
  ];
}

function workBackward(made) {
  const lines = [];
  const c = made.computeBytes;
  if (made.scores) {
    lines.push(workScores(made, "backward", ...(made.recompute === "everything_saveable" ? [c] : [4n, c])));
  }
  const full = made.recompute === "nothing_saveable";
  const tensors = (made.isMlp ? workInsideMlp : workInside)[full ? 2 : 1];
  lines.push(workLayer(made, "backward", ...tensors), ...workWhole(made, "backward", 2n));
  return [...lines, ...workGathered(made, "backward", full ? 3n : 2n)];
}

function workScores(made, when, ...each) {
  const { tokens, seq, split } = made;
  const { heads } = made.model;
  const bytes = (tokens * each.reduce((a, b) => a + b) * heads * seq) / split;
  const sizes = each.map((n) => `${n} B`).join(" + ");
  const factor = each.length > 1 ? `(${sizes})` : sizes;
  const formula = `${tokens} tokens × ${factor} × ${heads}${over("model", split)} × ${seq}`;
  return workLine(`scores of one layer, ${when}`, bytes, formula, when);
}

function workLayer(made, when, hidden, stream) {
  const { model, tokens, computeBytes: c } = made;
  const bytes =
    (tokens * c * hidden * model.d_ff) / made.split +
    (tokens * c * stream * model.d_model) / made.stream;
  const formula =
    `${tokens} × ${c} B × (${hidden} × ${model.d_ff}${over("model", made.split)} + ` +
    `${stream} × ${model.d_model}${over("model", made.stream)})`;
  return workLine(`inside of one layer, ${when}`, bytes, formula, when);
}

function workWhole(made, when, count) {
  if (made.stream === 1n) return [];
  const { tokens, computeBytes: c } = made;
  const wide = made.model.d_model;
  const formula = `${count} × ${tokens} tokens × ${c} B × ${wide}`;
  return [workLine(`gathered sequences, ${when}`, count * tokens * c * wide, formula, when)];
}

function workGathered(made, when, count) {
  if (made.zero < 3 || made.data === 1n) return [];
  const { computeBytes: c, split } = made;
  const { d_model: wide, d_ff: inside } = made.model;
  const formula = `${count} × ${c} B × ${wide} × ${inside}${over("model", split)}`;
  const bytes = (count * c * wide * inside) / split;
  return [workLine(`gathered weights, ${when}`, bytes, formula, when)];
}
