import { chunksKept, kept, keptStacked, published } from "./activations.js";
import { formulaBytes } from "./formula.js";
import { pyRepr } from "./python_words.js";
import { setupAxes, trainingSetup } from "./training_setup.js";
import { hostOptimizer, stateLines, stepPhases } from "./training_state.js";
import { workLines } from "./training_work.js";
import { gpuLines } from "./training_work_gpu.js";
import { moeLayers } from "./transformer.js";
import { bytesWords, joinWords, meshWords } from "./words.js";

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
  const fixed = held.filter(({ name }) => /^(frozen|their scales)/.test(name));
  const sum = (some) => some.reduce((n, line) => n + line.bytes, 0n);
  const known = sum([params, grads, optimizer, ...fixed].filter(({ when }) => when.includes(peak)));
  const onHost = [...hostOptimizer(made, optimizer), ...keptStacked(made, "offloaded", made.offloaded)];
  return {
    params_bytes: sum([params, ...fixed]),
    grads_bytes: grads.bytes,
    optimizer_bytes: optimizer.bytes,
    activations_bytes: phases[peak] - known,
    total_bytes: phases[peak],
    host_bytes: sum(onHost),
    lines,
    phases,
    peak_phase: peak,
    what: trainingWhat(made),
    notes: [...trainingNotes(made), ...(made.onHost ? trainingHost(onHost) : [])],
  };
}

function trainingHost(lines) {
  const words = lines.map(({ name, bytes }) => `${name}, ${bytesWords(bytes)}`);
  return [`In the host's memory, for each device: ${joinWords(words)}.`];
}

function trainingBatch(made) {
  const { model, parts } = made;
  const formula = made.isMlp
    ? `2 × 4 B × ${parts * made.tokens} rows × ${model.d_model}`
    : `4 B × ${parts * made.batch} × (${made.seq} + 1) tokens`;
  const bytes = formulaBytes(formula);
  return { part: "batch", name: "batch", formula, bytes, when: stepPhases, source: "the step's arguments" };
}

function trainingWhat(made) {
  const { model } = made;
  const layers = made.stage * model.layers; // of all stages
  const name = model.name || `${model.kind} of ${layers} layers, d_model ${model.d_model}`;
  const axes = setupAxes.map((axis) => [axis, axis === "model" ? made.split : made[axis]]);
  return `${name} on ${meshWords(axes.filter(([, size]) => size > 1n)) || "one device"}`;
}

function trainingNotes(made) {
  const { model } = made;
  const notes = [];
  const isJax = made.counting === "jax";
  if (isJax && !made.isMlp && made.rows !== model.vocab) {
    notes.push(
      `The vocabulary of ${model.vocab} is rounded up to ${made.rows}, which divides over the ` +
        `${made.split} devices of model.`,
    );
  }
  if (isJax && made.gpu) notes.push(`Counted as the GPU compiler lays out the step for ${made.chip}.`);
  if (made.stage > 1n) {
    const what = made.interleave === 1n ? "microbatches" : "chunks of microbatches";
    notes.push(
      `The first stage keeps activations of ${chunksKept(made)} ${what} at once, of ${made.parts} microbatches.`,
    );
  }
  if (moeLayers(model)) {
    notes.push(
      `Each expert has room for ${made.room} rows of one device's tokens (capacity_factor=${pyRepr(made.factor)}).`,
    );
  }
  if (isJax) return notes;
  return [...notes, "Counted by published formulas: neither the logits nor what a layer needs while it runs."];
}
