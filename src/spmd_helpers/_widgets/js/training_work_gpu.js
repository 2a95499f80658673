import { keptPhases } from "./activations.js";
import { over } from "./training_setup.js";
import { layerWeights } from "./training_state.js";
import { workBackwardKind, workGathered, workInside, workLayerScores, workLine, workOrthogonalized, workWhole } from "./training_work.js";

// What a step needs for a while on a GPU: mirrors _training/transients_gpu.py.

export function gpuLines(made) {
  const lines = [...gpuReordered(made), gpuBeforeBackward(made), ...gpuUpdated(made)];
  if (!made.isMlp) lines.push(...gpuLoss(made));
  if (made.scores) lines.push(...gpuScores(made));
  lines.push(workInside(made, "forward", 0), ...workWhole(made, "forward", 1n));
  lines.push(...workGathered(made, "forward", 2n), workInside(made, "backward", workBackwardKind(made)));
  lines.push(...workWhole(made, "backward", 2n));
  lines.push(...workGathered(made, "backward", made.checkpointed ? 3n : 2n));
  return [...lines, ...workOrthogonalized(made)];
}

// The bytes and the formula of one matrix of all layers, as wide as d_ff.
function gpuStacked(made, data) {
  const { model, paramBytes: each, split } = made;
  const cut = over("model", split) + over("data", data);
  const formula = `${model.layers} layers × ${each} B × ${model.d_model} × ${model.d_ff}${cut}`;
  return [(model.layers * each * model.d_model * model.d_ff) / (split * data), formula];
}

function gpuReordered(made) {
  if (!made.gathers) return [];
  return [workLine(made, "weights reordered for their all-gather", ...gpuStacked(made, made.data), ...keptPhases)];
}

function gpuBeforeBackward(made) {
  const { model, split, tokens, seq } = made;
  const data = made.zero >= 2 ? made.data : 1n;
  const weights = layerWeights(model);
  const zeros = (model.layers * made.gradBytes * weights) / (split * data);
  const grouped = made.grouped && made.keepsScores;
  const scores = grouped ? (model.layers * tokens * 4n * model.heads * seq) / split : 0n;
  const cut = over("model", split);
  if (scores <= zeros) {
    const formula = `${model.layers} layers × ${made.gradBytes} B × ${weights}${cut}${over("data", data)}`;
    return workLine(made, "gradients of the layers, zero", zeros, formula, "loss");
  }
  const formula = `${model.layers} layers × ${tokens} tokens × 4 B × ${model.heads}${cut} × ${seq}`;
  return workLine(made, "scores of all layers, transposed", scores, formula, "loss");
}

function gpuUpdated(made) {
  if (made.data === 1n || ![1, 2].includes(made.zero)) return [];
  return [workLine(made, "updated weights, gathered", ...gpuStacked(made, 1n), "update")];
}

function gpuLoss(made) {
  const { tokens, rows, split, computeBytes: c, model } = made;
  const cut = over("model", split);
  const times = made.gathers ? 2n : 1n;
  const head = (rows * model.d_model) / split;
  const several = times > 1n ? `${times} × ` : "";
  const formula = `${several}${c} B × ${rows}${cut} × ${model.d_model}`;
  const logits = (4n * tokens * rows) / split;
  const lines = [
    workLine(made, "head as computed with", times * c * head, formula, "forward", "loss"),
    workLine(made, "logits", logits, `${tokens} tokens × 4 B × ${rows}${cut}`, "loss"),
  ];
  if (made.data > 1n && made.generation !== "Ampere") {
    const each = `${tokens} tokens × 4 B × ${rows}${cut}`;
    lines.push(workLine(made, "gradient of the logits", logits, each, "backward", "update"));
  } else if (made.gathers) {
    const least = tokens < model.d_model ? tokens : model.d_model;
    const name = `gradient of the ${least === model.d_model ? "head" : "logits"}`;
    const bytes = (4n * rows * least) / split;
    lines.push(workLine(made, name, bytes, `4 B × ${rows}${cut} × ${least}`, "backward", "update"));
  }
  return lines;
}

function gpuScores(made) {
  const c = made.computeBytes;
  const wide = made.grouped && made.keepsScores;
  const mask = made.keeps.length ? ["forward", "loss"] : keptPhases;
  const forward = [4n, 4n, wide ? 4n : c];
  return [
    workLayerScores(made, "mask of the scores", mask, [1n]),
    workLayerScores(made, "scores of one layer, forward", ["forward"], forward),
    workLayerScores(made, "scores of one layer, backward", ["backward"], gpuBackward(made)),
  ];
}

// Bytes of each tensor of scores that a backward pass has at once.
function gpuBackward(made) {
  const c = made.computeBytes;
  if (made.recompute === "everything_saveable") return [4n, c, c];
  if (made.generation === "Ampere") return [4n, 4n, c];
  if (made.generation === "Hopper" && made.keepsOut && !made.keepsScores) {
    return made.grouped ? [4n, 4n, c, c, c] : [4n, 4n, c];
  }
  return made.generation === "Blackwell" && !made.grouped ? [4n, c, c] : [4n, 4n, c, c];
}
