import { keptPhases } from "./activations.js";
import { formulaBytes, over } from "./formula.js";
import { overShards, shards } from "./training_setup.js";
import { deviceWeights, largestMatrix, stateArrays, stateNumbersOf, stateSharded } from "./training_state.js";
import { workLayerScores, workLine, workOrthogonalized, workPass, workRing } from "./training_work.js";
import { expertWeights } from "./transformer.js";

// What a step needs for a while on a GPU: mirrors _training/transients_gpu.py.

export function gpuLines(made) {
  const lines = [...gpuReordered(made), ...gpuBeforeBackward(made), ...gpuUpdated(made), ...gpuMoved(made)];
  if (!made.isMlp) lines.push(...gpuLoss(made));
  if (made.scores) lines.push(...gpuScores(made));
  lines.push(...workPass(made, "forward"), ...workPass(made, "backward"));
  return [...lines, ...workRing(made), ...workOrthogonalized(made)];
}

// The largest matrix of all layers, as a formula.
function gpuStacked(made, stage, each) {
  const [layers, words] = largestMatrix(made);
  return `${layers} layers × ${each} B × ${words}${over("model", made.split)}${stage ? overShards(made, stage) : ""}`;
}

function gpuReordered(made) {
  if (!made.gathers) return [];
  return [workLine(made, "weights reordered for their all-gather", gpuStacked(made, 3, made.storedBytes), ...keptPhases)];
}

// What is made between the loops: gradients that are zero, or transposed scores.
function gpuBeforeBackward(made) {
  const { model, split, tokens, gradBytes: each } = made;
  const cut = over("model", split);
  const numbers = deviceWeights(made).reduce((a, b) => a + b);
  const experts = expertWeights(model);
  const words = experts
    ? `${each} B × (${numbers} + ${experts}${over("expert", made.expert)})`
    : `${model.layers} layers × ${each} B × ${numbers / model.layers}`;
  const sum = made.lora ? stateSharded(made, each, 2) : `${words}${cut}${overShards(made, 2)}`;
  const zeros = workLine(made, "gradients of the layers, zero", sum, "loss");
  if (!made.grouped || !made.keepsScores) return [zeros];
  const formula = `${model.layers} layers × ${tokens} tokens × 4 B × ${model.heads}${cut} × ${made.seq}`;
  const scores = workLine(made, "scores of all layers, transposed", formula, "loss");
  return [scores.bytes <= zeros.bytes ? zeros : scores];
}

function gpuUpdated(made) {
  if (made.data === 1n || ![1, 2].includes(made.zero) || made.lora) return [];
  return [workLine(made, "updated weights, gathered", gpuStacked(made, 0, made.paramBytes), "update")];
}

// The largest array twice, on its way from the host and back.
function gpuMoved(made) {
  if (!made.onHost) return [];
  const each = made.masterWeights ? 4n : made.paramBytes;
  const [layers, words] = largestMatrix(made);
  const devices = made.split * shards(made, 1);
  const sizes = made.lora
    ? stateArrays(made).map((one) => stateNumbersOf(one))
    : [formulaBytes(`${layers} × ${words}`) / devices, made.isMlp ? 0n : (made.rows * made.model.d_model) / devices];
  const most = sizes.reduce((a, b) => (b > a ? b : a));
  return [workLine(made, "moved to the host and back", `2 × ${each} B × ${most}`, "update")];
}

// A head that has no gradient: the logits' gradient is beside them, and gone after the loss.
function gpuLossOfFrozen(made) {
  const { tokens, rows, computeBytes: c } = made;
  const wide = made.model.d_model;
  const cut = over("model", made.split);
  const logits = `${tokens} tokens × 4 B × ${rows}${cut}`;
  const head = `${c} B × ${rows}${cut} × ${wide}`;
  const lines = [workLine(made, "logits", logits, "loss"), workLine(made, "gradient of the logits", logits, "loss")];
  if (made.storedBytes !== c || made.gathers) lines.push(workLine(made, "head as computed with", head, "forward", "loss"));
  else if (!made.scores) lines.push(workLine(made, "head, transposed", head, "forward", "backward"));
  return [...lines, workLine(made, "input of the head", `${tokens} tokens × ${c} B × ${wide}`, "loss")];
}

function gpuLoss(made) {
  if (made.lora) return gpuLossOfFrozen(made);
  const { tokens, rows, split, computeBytes: c } = made;
  const wide = made.model.d_model;
  const cut = over("model", split);
  const several = made.gathers ? "2 × " : "";
  const logits = `${tokens} tokens × 4 B × ${rows}${cut}`;
  const lines = [
    workLine(made, "head as computed with", `${several}${c} B × ${rows}${cut} × ${wide}`, "forward", "loss"),
    workLine(made, "logits", logits, "loss"),
  ];
  if (made.onHost) lines.push(workLine(made, "gradient of the logits, beside them", logits, "loss"));
  if (made.stage > 1n) return lines; // it comes and goes with each microbatch
  const waits = made.data > 1n || made.expert > 1n;
  if (waits && made.context === 1n && made.generation !== "Ampere") {
    lines.push(workLine(made, "gradient of the logits", logits, "backward", "update"));
  } else if (made.gathers) {
    const least = tokens < wide ? tokens : wide;
    const name = `gradient of the ${least === wide ? "head" : "logits"}`;
    lines.push(workLine(made, name, `4 B × ${rows}${cut} × ${least}`, "backward", "update"));
  }
  return lines;
}

function gpuScores(made) {
  const c = made.computeBytes;
  const wide = made.grouped && made.keepsScores;
  const isGone = made.keeps.length || (made.lora && made.checkpointed);
  const mask = workLayerScores(made, "mask of the scores", isGone ? ["forward", "loss"] : keptPhases, [1n]);
  return [
    ...(made.model.sinks ? [] : [mask]),
    workLayerScores(made, "scores of one layer, forward", ["forward"], [4n, 4n, wide ? 4n : c]),
    workLayerScores(made, "scores of one layer, backward", ["backward"], gpuBackward(made)),
  ];
}

// Bytes of each tensor of scores that a backward pass has at once.
function gpuBackward(made) {
  const c = made.computeBytes;
  if (made.recompute === "everything_saveable") return [4n, c, c];
  if (made.generation === "Ampere" || made.model.sinks) return [4n, 4n, c];
  if (made.generation === "Hopper" && made.keepsOut && !made.keepsScores) {
    return made.grouped ? [4n, 4n, c, c, c] : [4n, 4n, c];
  }
  return made.generation === "Blackwell" && !made.grouped ? [4n, c, c] : [4n, 4n, c, c];
}
