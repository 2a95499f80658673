import { kept, published } from "./activations.js";
import { trainingSetup } from "./training_setup.js";
import { stateLines, stepPhases } from "./training_state.js";
import { workLines } from "./training_work.js";
import { gpuLines } from "./training_work_gpu.js";
import { meshWords } from "./words.js";

// The memory of one training step on each device: mirrors _training/training_memory.py.

// Arguments as spmd.training_memory takes them: whole numbers as BigInt, names as text,
// None as null, several types of gradients as an array.
export function trainingMemory(model, mesh, how) {
  const made = trainingSetup(model, mesh, how);
  const held = stateLines(made);
  const [params, grads, optimizer] = held;
  const lines =
    made.counting === "megatron"
      ? [...held, ...published(made)]
      : [...held, trainingBatch(made), ...kept(made), ...(made.gpu ? gpuLines : workLines)(made)];
  const phases = {};
  let peak = stepPhases[0];
  for (const phase of stepPhases) {
    phases[phase] = lines.reduce((n, line) => n + (line.when.includes(phase) ? line.bytes : 0n), 0n);
    if (phases[phase] > phases[peak]) peak = phase;
  }
  const known = params.bytes + optimizer.bytes + (grads.when.includes(peak) ? grads.bytes : 0n);
  return {
    params_bytes: params.bytes,
    grads_bytes: grads.bytes,
    optimizer_bytes: optimizer.bytes,
    activations_bytes: phases[peak] - known,
    total_bytes: phases[peak],
    lines,
    phases,
    peak_phase: peak,
    what: trainingWhat(made),
    notes: trainingNotes(made),
  };
}

function trainingBatch(made) {
  const { model, tokens } = made;
  const rows = { part: "batch", name: "batch", when: stepPhases, source: "the step's arguments" };
  if (made.isMlp) {
    const formula = `2 × 4 B × ${tokens} rows × ${model.d_model}`;
    return { ...rows, bytes: 8n * tokens * model.d_model, formula };
  }
  const formula = `4 B × ${made.batch} × (${made.seq} + 1) tokens`;
  return { ...rows, bytes: 4n * made.batch * (made.seq + 1n), formula };
}

function trainingWhat(made) {
  const { model } = made;
  const name = model.name || `${model.kind} of ${model.layers} layers, d_model ${model.d_model}`;
  const axes = [["data", made.data], ["model", made.split]].filter(([, size]) => size > 1n);
  return `${name} on ${meshWords(axes) || "one device"}`;
}

function trainingNotes(made) {
  if (made.counting === "megatron") {
    return [
      "Counted by published formulas: neither the logits nor what a layer needs while it runs.",
    ];
  }
  const notes = [];
  if (!made.isMlp && made.rows !== made.model.vocab) {
    notes.push(
      `The vocabulary of ${made.model.vocab} is rounded up to ${made.rows}, which divides over the ` +
        `${made.split} devices of model.`,
    );
  }
  if (made.gpu) notes.push(`Counted as the GPU compiler lays out the step for ${made.chip}.`);
  return notes;
}
