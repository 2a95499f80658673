import { divisors, gcd, oneOf, pyRepr } from "./python_words.js";
import { checkCounted, checkRecompute, wholeSize } from "./transformer.js";
import { joinWords, meshWords, refuse } from "./words.js";

// The arguments of a training step, checked, as numbers of one device: _training/setup.py.

// Numbers that an optimizer keeps for each parameter, and whether it counts its steps.
export const optimizerChoices = spmdChoices.optimizer;

export function trainingSetup(model, mesh, how) {
  checkCounted(model);
  setupMesh(mesh);
  setupWords(how);
  setupZero(how.zero);
  const isMlp = model.kind === "MLP";
  const [batch, seq] = setupBatch(model, how, mesh);
  const grads = Array.isArray(how.grad_dtype) ? how.grad_dtype : [how.grad_dtype ?? how.param_dtype];
  const moments = how.moment_dtype ?? (how.master_weights ? "float32" : how.param_dtype);
  if (how.mu_dtype !== null && !spmdChoices.muDtype.includes(how.optimizer)) {
    refuse(
      `mu_dtype=${pyRepr(how.mu_dtype)}: of the optimizers here only ` +
        `${joinWords(spmdChoices.muDtype.map(pyRepr))} take a type for the first moment alone; with ` +
        `optimizer=${pyRepr(how.optimizer)} leave mu_dtype out.`,
    );
  }
  const first = how.mu_dtype === null ? ["moment_dtype", moments] : ["mu_dtype", how.mu_dtype];
  const made = {
    model,
    isMlp,
    data: mesh.data,
    split: mesh.model,
    zero: Number(how.zero),
    batch,
    seq,
    tokens: batch * seq,
    paramBytes: setupBytes("param_dtype", how.param_dtype),
    computeBytes: setupBytes("compute_dtype", how.compute_dtype),
    gradBytes: grads.map((name) => setupBytes("grad_dtype", name)).reduce((a, b) => a + b),
    momentBytes: setupBytes("moment_dtype", moments),
    muBytes: setupBytes(...first),
    muDtype: how.mu_dtype,
    optimizer: how.optimizer,
    masterWeights: how.master_weights,
    recompute: how.recompute,
    sequenceParallel: how.sequence_parallel,
    counting: how.counting,
    scores: !isMlp && how.attention === "plain",
    stream: how.sequence_parallel ? mesh.model : 1n,
    full: how.recompute === "nothing_saveable",
    gathers: how.zero >= 3n && mesh.data > 1n,
    chip: how.chip,
    gpu: how.chip !== null, // XLA's compiler for GPUs lays out the step, else a TPU's
    generation: how.chip === null ? "" : spmdHardware[how.chip].generation,
    grouped: !isMlp && model.kv_heads < model.heads,
  };
  if (!isMlp) made.rows = ((model.vocab + mesh.model - 1n) / mesh.model) * mesh.model;
  if (made.counting === "jax") setupDivision(made, mesh);
  return made;
}

export function over(axis, size) {
  return size > 1n ? ` / ${axis} ${size}` : "";
}

function setupMeshRepr(mesh) {
  return `{'data': ${pyRepr(mesh.data)}, 'model': ${pyRepr(mesh.model)}}`;
}

function setupMesh(mesh) {
  for (const [axis, size] of Object.entries(mesh)) {
    if (typeof size === "bigint" && size >= 1n) continue;
    refuse(
      `mesh=${setupMeshRepr(mesh)}: axis '${axis}' has size ${pyRepr(size)}; a mesh gives each ` +
        "axis name a whole number of devices, 1 or more, such as {'data': 4, 'model': 2}.",
    );
  }
}

function setupWords(how) {
  oneOf("optimizer", how.optimizer, Object.keys(optimizerChoices));
  checkRecompute(how.recompute);
  oneOf("attention", how.attention, ["plain", "flash"]);
  oneOf("counting", how.counting, ["jax", "megatron"]);
  for (const key of ["master_weights", "sequence_parallel"]) {
    oneOf(key, how[key], [true, false]);
  }
}

function setupZero(zero) {
  if ([0n, 1n, 2n, 3n].includes(zero)) return;
  refuse(
    `zero=${pyRepr(zero)} is not a stage of ZeRO; give 0 (the state is whole on every device of ` +
      "data), 1 (the optimizer's is cut), 2 (gradients too) or 3 (parameters too: FSDP).",
  );
}

// Sequences of one device, tokens of a sequence.
function setupBatch(model, how, mesh) {
  let seq = 1n;
  if (model.kind !== "MLP") {
    seq = wholeSize("seq", how.seq ?? model.seq);
    if (model.positions === "learned" && seq > model.seq) {
      refuse(
        `seq=${seq} is more than the ${model.seq} positions that the model has learned; give ` +
          `${model.seq} or less, or a model that has learned ${seq}.`,
      );
    }
  }
  const batch = wholeSize("batch", how.batch);
  if (batch % mesh.data) {
    const less = (batch / mesh.data) * mesh.data;
    const sizes = less ? `${less} or ${less + mesh.data}` : `${mesh.data}`;
    refuse(
      `batch=${batch} does not divide over the ${mesh.data} devices of data; it counts the ` +
        `sequences of all devices together: make it ${sizes}.`,
    );
  }
  return [batch / mesh.data, seq];
}

// Every dimension that an axis cuts has to divide, as JAX asks at its border.
function setupDivision(made, mesh) {
  const { model, isMlp, split } = made;
  const wide = { d_ff: model.d_ff };
  if (!isMlp) Object.assign(wide, { heads: model.heads, kv_heads: model.kv_heads });
  for (const [name, size] of Object.entries(wide)) {
    if (size % split === 0n) continue;
    const sizes = divisors(Object.values(wide).reduce(gcd)).map(String);
    refuse(
      `mesh=${setupMeshRepr(mesh)}: ${name}=${size} does not divide over the ${split} devices of ` +
        `model; make model one of ${joinWords(sizes)}.`,
    );
  }
  if (made.sequenceParallel && made.seq % split) {
    refuse(
      `sequence_parallel=True: seq=${made.seq} does not divide over the ${split} devices of ` +
        "model; give another seq.",
    );
  }
  if (!made.zero) return;
  const cut = [["d_model", model.d_model, made.data]];
  const both = made.data * split; // the longer biases are cut by both axes
  if (!isMlp && (model.biases || model.qkv_biases)) {
    cut.push(
      ["heads * head_dim", model.heads * model.head_dim, both],
      ["kv_heads * head_dim", model.kv_heads * model.head_dim, both],
    );
  }
  if (!isMlp && model.qk_norm) cut.push(["head_dim", model.head_dim, made.data]);
  if (!isMlp && model.biases) cut.push(["d_ff", model.d_ff, both]);
  for (const [name, size, devices] of cut) {
    if (size % devices === 0n) continue;
    refuse(
      `zero=${made.zero} cuts ${name}=${size} over ${devices} devices (${meshWords(Object.entries(mesh))}), ` +
        "which does not divide; make data smaller, or count with zero=0.",
    );
  }
}

function setupBytes(key, name) {
  const bits = /^(?:u?int|b?float|complex)([0-9]+)(?:_[A-Za-z0-9_]+)?$/.exec(name);
  if (name === "bool") return 1n;
  if (name === "key<fry>") return 8n;
  if (name === "key<rbg>" || name === "key<urbg>") return 16n;
  if (!bits) {
    refuse(
      `${key}=${pyRepr(name)} is not the name of an element type; give one such as 'float32', ` +
        "'bfloat16' or 'int8'.",
    );
  }
  return BigInt(bits[1]) / 8n || 1n;
}
