import { divisors, gcd, oneOf, orWords, pyRepr } from "./python_words.js";
import { checkCounted, checkRecompute, wholeSize } from "./transformer.js";
import { closeName, joinWords, meshWords, refuse } from "./words.js";

// The arguments of a training step, checked, as numbers of one device: _training/setup.py.

// Numbers that an optimizer keeps for each parameter, and whether it counts its steps.
export const optimizerChoices = spmdChoices.optimizer;

export function trainingSetup(model, mesh, how) {
  checkCounted(model);
  setupMesh(mesh);
  setupWords(how);
  setupRing(model, how);
  setupNames(model, how);
  setupZero(how.zero);
  const isMlp = model.kind === "MLP";
  const [batch, seq] = setupBatch(model, how, mesh);
  const grads = Array.isArray(how.grad_dtype) ? how.grad_dtype : [how.grad_dtype ?? how.param_dtype];
  const paramBytes = setupFloating("param_dtype", how.param_dtype);
  const computeBytes = setupFloating("compute_dtype", how.compute_dtype);
  const gradBytes = grads.map((name) => setupFloating("grad_dtype", name)).reduce((a, b) => a + b);
  if (how.moment_dtype !== null) setupMoment("moment_dtype", how.moment_dtype);
  if (how.mu_dtype !== null) setupMoment("mu_dtype", how.mu_dtype);
  setupMoments(how);
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
    paramBytes,
    computeBytes,
    gradBytes,
    momentBytes: setupMoment("moment_dtype", moments),
    muBytes: setupMoment(...first),
    scaled: [first[1] === "int8", moments === "int8"],
    muDtype: how.mu_dtype,
    optimizer: how.optimizer,
    masterWeights: how.master_weights,
    recompute: how.recompute,
    sequenceParallel: how.sequence_parallel,
    counting: how.counting,
    scores: !isMlp && how.attention === "plain",
    stream: how.sequence_parallel ? mesh.model : 1n,
    checkpointed: spmdChoices.checkpointed.includes(how.recompute),
    gathers: how.zero >= 3n && mesh.data > 1n,
    chip: how.chip,
    gpu: how.chip !== null, // XLA's compiler for GPUs lays out the step, else a TPU's
    generation: how.chip === null ? "" : spmdHardware[how.chip].generation,
    grouped: !isMlp && model.kv_heads < model.heads,
  };
  made.saved = setupSaved(made);
  made.keeps = setupKeeps(made); // on the device or the host
  made.keepsOut = made.keeps.includes("out");
  made.keepsScores =
    made.scores && (made.recompute === "everything_saveable" || made.saved.includes("scores"));
  if (!isMlp) made.rows = ((model.vocab + mesh.model - 1n) / mesh.model) * mesh.model;
  // Where model has more devices than there are heads of keys, each device has them all.
  made.keysSplit = !isMlp && model.kv_heads % mesh.model ? 1n : mesh.model;
  if (made.counting === "jax") setupDivision(made, mesh);
  return made;
}

function setupMoments(how) {
  if (how.moment_dtype !== null && how.optimizer === "adafactor") {
    refuse(
      `moment_dtype=${pyRepr(how.moment_dtype)}: optax's adafactor keeps its numbers in the type of ` +
        "the parameters; leave moment_dtype out.",
    );
  }
  if (how.moment_dtype === "int8" && how.optimizer === "muon") {
    refuse("moment_dtype='int8' is not counted for optimizer='muon'; give 'bfloat16' or 'float32'.");
  }
}

// Bytes of a number of a type that can be trained.
function setupFloating(key, name) {
  return setupType(key, name, "is no type of floating-point numbers, which training needs", []);
}

// The same for an optimizer's numbers, which may be int8 with their scales.
function setupMoment(key, name) {
  return setupType(key, name, "is not counted for moments", ["int8"]);
}

// Bytes of a type of floating-point numbers, or of one of others: _training/dtypes.py.
function setupType(key, name, what, others) {
  const { floats, usualTypes, otherTypes } = spmdChoices;
  if (Object.hasOwn(floats, name)) return BigInt(floats[name]);
  if (others.includes(name)) return 1n;
  const choices = orWords([...usualTypes, ...others].map(pyRepr));
  if (/^(?:(?:u?int|complex)[0-9]+(?:_[A-Za-z0-9_]+)?|bool|key<(?:fry|rbg|urbg)>)$/.test(name)) {
    refuse(`${key}=${pyRepr(name)} ${what}; give ${choices}.`);
  }
  const word = name.toLowerCase();
  const there = [...Object.keys(floats), ...others];
  const close = Object.hasOwn(otherTypes, word) ? otherTypes[word] : closeName(word, there, 0.8);
  const guess = there.includes(close) ? `. Did you mean ${pyRepr(close)}? Give` : "; give";
  refuse(`${key}=${pyRepr(name)} is not the name of an element type${guess} ${choices}.`);
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
      `mesh=${setupMeshRepr(mesh)}: axis '${axis}' has size ${pyRepr(size)}; a mesh maps each ` +
        "axis name to a number of devices, 1 or more, such as {'data': 4, 'model': 2}.",
    );
  }
}

function setupWords(how) {
  oneOf("optimizer", how.optimizer, Object.keys(optimizerChoices));
  checkRecompute(how.recompute);
  oneOf("attention", how.attention, ["plain", "flash", "ring"]);
  oneOf("counting", how.counting, ["jax", "megatron"]);
  for (const key of ["master_weights", "sequence_parallel"]) {
    oneOf(key, how[key], [true, false]);
  }
}

function setupRing(model, how) {
  if (model.kind === "MLP" || how.attention !== "ring") return;
  refuse(
    "attention='ring' sends keys and values around the axis context, which this mesh has not; give " +
      "mesh a 'context', or attention='flash'.",
  );
}

// The names of results are not typed here: a policy that takes them has none.
function setupNames(model, how) {
  if (!spmdChoices.withNames.includes(how.recompute)) return;
  const results = model.kind === "MLP" ? ["up", "down"] : spmdChoices.results;
  const there = results.filter((name) => name !== "gate" || model.gated);
  refuse(
    `recompute=${pyRepr(how.recompute)} has no name; give names_which_can_be_saved some of ` +
      `${joinWords(there.map(pyRepr))}, or recompute='nothing_saveable'.`,
  );
}

// The results of products that a checkpoint keeps on the device, beside the input.
function setupSaved(made) {
  return made.recompute === "offload_dot_with_no_batch_dims" ? [] : setupKeeps(made);
}

function setupKeeps(made) {
  const { model, scores, recompute } = made;
  if (!made.checkpointed || recompute === "nothing_saveable") return [];
  if (model.kind === "MLP") return ["up"];
  const isUsed = { gate: model.gated, down: model.post_norms };
  const names = spmdChoices.withWeights.filter((name) => isUsed[name] ?? true);
  return scores && recompute === "dots_saveable" ? [...names, "scores", "context"] : names;
}

function setupZero(zero) {
  if ([0n, 1n, 2n, 3n].includes(zero)) return;
  refuse(
    `zero=${pyRepr(zero)} is not a stage of ZeRO; give 0 (all state is replicated over data), ` +
      "1 (the optimizer state is sharded), 2 (gradients too) or 3 (parameters too: FSDP).",
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
  const { model, split } = made;
  const wide = setupUneven(model, split);
  if (wide) {
    const cut = model.kind === "MLP" ? model.d_ff : gcd(model.d_ff, model.heads);
    const sizes = divisors(cut).filter((size) => !setupUneven(model, size));
    const fitting = sizes.filter((size) => !setupNotCut(setupSplit(made, size), mesh));
    const choices = (fitting.length ? fitting : sizes).map(String);
    const most = choices.length > 1 ? `one of ${joinWords(choices)}` : "1";
    refuse(
      `mesh=${setupMeshRepr(mesh)}: ${wide[0]}=${wide[1]} does not divide over the ${split} devices of ` +
        `model; make model ${most}.`,
    );
  }
  const words = setupNotCut(made, mesh);
  if (words) refuse(words);
}

// A dimension that the axis model would cut and does not divide. Heads of keys and values are
// replicated where it has a multiple of them.
function setupUneven(model, split) {
  const wide = [["d_ff", model.d_ff]];
  if (model.kind !== "MLP") wide.push(["heads", model.heads]);
  if (model.kind !== "MLP" && split % model.kv_heads) wide.push(["kv_heads", model.kv_heads]);
  return wide.find(([, size]) => size % split);
}

function setupSplit(made, split) {
  return { ...made, split, keysSplit: !made.isMlp && made.model.kv_heads % split ? 1n : split };
}

// What else does not divide, as a sentence.
function setupNotCut(made, mesh) {
  const { model, isMlp, split } = made;
  if (made.sequenceParallel && made.seq % split) {
    return (
      `sequence_parallel=True: seq=${made.seq} does not divide over the ${split} devices of ` +
      "model; give another seq."
    );
  }
  if (!made.zero || made.data === 1n) return "";
  const cut = [["d_model", model.d_model, made.data]];
  const both = made.data * split; // the longer biases are cut by both axes
  if (!isMlp && (model.biases || model.qkv_biases)) {
    cut.push(
      ["heads * head_dim", model.heads * model.head_dim, both],
      ["kv_heads * head_dim", model.kv_heads * model.head_dim, made.data * made.keysSplit],
    );
  }
  if (!isMlp && model.qk_norm) cut.push(["head_dim", model.head_dim, made.data]);
  if (!isMlp && model.biases) cut.push(["d_ff", model.d_ff, both]);
  const uneven = cut.find(([, size, devices]) => size % devices);
  if (!uneven) return "";
  const [name, size, devices] = uneven;
  return (
    `zero=${made.zero} shards ${name}=${size} over ${devices} devices (${meshWords(Object.entries(mesh))}), ` +
    "which does not divide; make data smaller, or count with zero=0."
  );
}
