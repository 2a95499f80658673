import { convertedWeights, keptPhases } from "./activations.js";
import { formulaBytes, over } from "./formula.js";
import { overShards, shards } from "./training_setup.js";
import { deviceWeights, largestMatrix } from "./training_state.js";
import { moeLayers } from "./transformer.js";

// What a step needs for a while on a TPU, and what both compilers need: _training/transients.py.

// Tensors as wide as d_ff and as d_model that stand in one layer at once: in a forward
// pass, in a backward pass, in one that recomputes, in one that recomputes but has the hidden results.
const workInsideMlp = [[1n, 2n], [1n, 2n], [2n, 2n], [2n, 2n]];
const workInsideLayer = [[1n, 2n], [1n, 4n], [3n, 8n], [1n, 8n]];
// With experts: their rows as wide as inside of one, and as wide as d_model, and tokens.
const workInsideLora = [[[3n, 1n], [10n, 2n]], [[2n, 8n], [6n, 6n]]]; // of a TPU, of a GPU; with a kernel
const workInsideExperts = [[1n, 2n, 2n], [1n, 2n, 4n], [3n, 2n, 8n], [3n, 2n, 8n]];
const workBuffers = "compiler's buffers at the peak, data/measured";

export function workLine(made, name, formula, ...when) {
  const source = `${made.gpu ? "GPU" : "TPU"} ${workBuffers}`;
  return { part: "work", name, formula, bytes: formulaBytes(formula), when, source };
}

export function workLines(made) {
  const lines = workConversion(made);
  if (!made.isMlp) lines.push(...workLoss(made));
  if (made.scores) {
    const each = made.recompute === "everything_saveable" ? [made.computeBytes] : [4n, made.computeBytes];
    lines.push(workScores(made, "forward", 4n, 4n), workScores(made, "backward", ...each), workInside(made, "backward"));
  } else {
    lines.push(...workPass(made, "forward"), workInside(made, "backward"));
  }
  lines.push(...workGathers(made, "backward"), ...workRing(made), ...workBesideAdapters(made));
  return [...lines, ...workCopied(made), ...workOrthogonalized(made)];
}

function workScores(made, when, ...each) {
  return workLayerScores(made, `scores of one layer, ${when}`, [when], each);
}

/** What one layer has inside of it in a pass, and what is all-gathered for it. */
export function workPass(made, when) {
  return [workInside(made, when), ...workGathers(made, when)];
}

function workGathers(made, when) {
  const back = when === "backward";
  return [
    ...workSequences(made, when, back ? 2 : 1),
    ...workMatrices(made, when, back && made.checkpointed ? 3 : 2),
  ];
}

// What is kept with adapters, beside what JAX keeps: a TPU pads narrow results.
function workBesideAdapters(made) {
  if (!made.lora || made.checkpointed) return [];
  const { model, tokens, computeBytes: c, lora } = made;
  const each = `${model.layers} layers × ${tokens} tokens × ${c} B`;
  const padding = (128n - (lora.rank % 128n)) % 128n;
  const padded = `${each} × ${lora.targets.length} × ${padding}`;
  const lines = [workLine(made, "narrow results, padded", padded, ...keptPhases)];
  if (!made.adapts("gate", "up", "down")) return lines;
  const inside = `${each} × ${model.d_ff}${over("model", made.split)}`;
  return [...lines, workLine(made, "inside of the mlp, once more", inside, ...keptPhases)];
}

// The layers' inputs, copied between the loops where other results are offloaded.
function workCopied(made) {
  if (!made.offloaded.length) return [];
  const { model, tokens, computeBytes: c, stream } = made;
  const formula = `${model.layers} layers × ${tokens} tokens × ${c} B × ${model.d_model}${over("model", stream)}`;
  return [workLine(made, "inputs of layers, copied", formula, "loss")];
}

// What muon multiplies: the layers' matrices in float32, and two thirds more.
export function workOrthogonalized(made) {
  if (made.optimizer !== "muon") return [];
  const { model, split, gradBytes } = made;
  const [each, replicated] = deviceWeights(made).map((n) => n / model.layers);
  const cut = `${each}${over("model", split)}`;
  const formula =
    `${model.layers} layers × (20 B / 3 - ${gradBytes} B${overShards(made, 2)}) × ` +
    `${replicated ? `(${cut} + ${replicated})` : cut}`;
  const line = workLine(made, "muon's products", formula, "update");
  return line.bytes > 0n ? [line] : [];
}

function workConversion(made) {
  if (made.storedBytes === made.computeBytes) return [];
  const when = made.checkpointed ? keptPhases : ["forward"];
  return [workLine(made, "weights converted before the loop", convertedWeights(made), ...when)];
}

function workLoss(made) {
  const { tokens, rows, split, computeBytes: c, model } = made;
  const cut = over("model", split);
  const lines = [workLine(made, "logits", `${tokens} tokens × 4 B × ${rows}${cut}`, "loss")];
  if (!made.lora || made.storedBytes !== c) {
    lines.push(workLine(made, "head as computed with", `${c} B × ${rows}${cut} × ${model.d_model}`, "loss"));
  }
  if (made.lora) return lines; // the head has no gradient that could wait for theirs
  if (shards(made, 2) > 1n && made.context === 1n) {
    const when = made.stage > 1n ? ["loss"] : ["loss", "backward"];
    lines.push(workLine(made, "gradient of the logits", `${tokens} tokens × ${c} B × ${rows}${cut}`, ...when));
  }
  return lines;
}

export function workLayerScores(made, name, when, each, wide = made.seq) {
  const sizes = each.map((n) => `${n} B`).join(" + ");
  const factor = each.length > 1 ? `(${sizes})` : sizes;
  const heads = `${made.model.heads}${over("model", made.split)}`;
  return workLine(made, name, `${made.tokens} tokens × ${factor} × ${heads} × ${wide}`, ...when);
}

/** The scores of one block of keys in ring attention. */
export function workRing(made) {
  if (made.attention !== "ring") return [];
  const c = made.computeBytes;
  const block = made.seq / made.context;
  return [["forward", [4n, 4n, c]], ["backward", [4n, 4n, 4n, c]]].map(([when, each]) =>
    workLayerScores(made, `scores of one block, ${when}`, [when], each, block),
  );
}

// Which of the sizes inside a layer a backward pass has.
function workBackwardKind(made) {
  if (!made.checkpointed) return 1;
  return made.keeps.includes("up") && (made.keepsOut || made.isMlp) ? 3 : 2;
}

function workTensors(made, which) {
  if (!made.lora || !made.checkpointed) return (made.isMlp ? workInsideMlp : workInsideLayer)[which];
  if (!made.scores) return workInsideLora[made.gpu ? 1 : 0][which ? 1 : 0];
  if (!which) return workInsideLayer[0];
  return [made.adapts("gate", "up", "down") ? 2n : 0n, 6n];
}

// Of the layers with experts and those without, those that need more.
function workInside(made, when) {
  const which = when === "forward" ? 0 : workBackwardKind(made);
  const [hidden, stream] = workTensors(made, which);
  const { model, tokens, computeBytes: c } = made;
  const name = `inside of one layer, ${when}`;
  const dense = workLine(
    made,
    name,
    `${tokens} × ${c} B × (${hidden} × ${model.d_ff}${over("model", made.split)} + ` +
      `${stream} × ${model.d_model}${over("model", made.stream)})`,
    when,
  );
  const moe = moeLayers(model);
  if (!moe) return dense;
  const routed = workLine(made, name, workRouted(made, which), when);
  return moe < model.layers && dense.bytes > routed.bytes ? dense : routed;
}

// The same of a layer with experts, which have rows in place of tokens.
function workRouted(made, which) {
  const [hidden, wide, stream] = workInsideExperts[which];
  const { model, tokens, expertRows: rows } = made;
  const { shared_experts: shared, d_model } = model;
  const inside = shared ? `(${rows} + ${shared} × ${tokens})` : `${rows}`;
  const streams = which > 1 && made.scores ? 0n : stream; // attention needs most, and has these no more
  return (
    `${made.computeBytes} B × (${inside} × ${hidden} × ${model.expert_d_ff}${over("model", made.split)}` +
    ` + ${rows} × ${wide} × ${d_model} + ${tokens} × ${streams} × ${d_model}${over("model", made.stream)})`
  );
}

// Sequences that are sharded over model are all-gathered before the products.
function workSequences(made, when, count) {
  if (made.stream === 1n) return [];
  const formula = `${count} × ${made.tokens} tokens × ${made.computeBytes} B × ${made.model.d_model}`;
  return [workLine(made, `gathered sequences, ${when}`, formula, when)];
}

// A layer's largest matrices, all-gathered if parameters are sharded.
function workMatrices(made, when, count) {
  if (!made.gathers) return [];
  const formula = `${count} × ${made.computeBytes} B × ${largestMatrix(made)[1]}${over("model", made.split)}`;
  return [workLine(made, `gathered weights, ${when}`, formula, when)];
}
