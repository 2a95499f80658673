import { over } from "./formula.js";
import { divisors, gcd, orWords, pyRepr } from "./python_words.js";
import { checkCounted, checkpointed, checkProducts, moeLayers, wholeNumber, wholeSize } from "./transformer.js";
import { joinWords, meshWords, refuse } from "./words.js";

// The arguments of a training step, checked, as numbers of one device: _training/setup.py.

// The axes of a mesh, in the order in which a formula names them.
export const setupAxes = ["data", "fsdp", "model", "expert", "context", "stage"];

/** The mesh has some of the axes: one that is missing has size 1. */
export function trainingSetup(model, mesh, how) {
  setupMesh(mesh);
  checkCounted(model);
  const isMlp = model.kind === "MLP";
  const axes = Object.fromEntries(setupAxes.map((axis) => [axis, mesh[axis] ?? 1n]));
  const factor = setupExperts(model, axes, mesh, how.capacity_factor);
  setupContext(model, how, axes, mesh);
  checkProducts(how.recompute, model.experts ?? null);
  setupNames(model, how);
  const parts = wholeNumber("gradient_accumulation", how.gradient_accumulation, "a number of parts");
  const [batch, seq] = setupBatch(model, how, axes, parts);
  const interleave = setupStages(model, how, axes, mesh, parts);
  const lora = setupLora(model, how, axes);
  const grads = Array.isArray(how.grad_dtype) ? how.grad_dtype : [how.grad_dtype ?? how.param_dtype];
  setupMoments(model, how);
  const moments = how.moment_dtype ?? (how.master_weights ? "float32" : how.param_dtype);
  if (how.mu_dtype !== null && !spmdChoices.muDtype.includes(how.optimizer)) {
    refuse(
      `mu_dtype=${pyRepr(how.mu_dtype)}: of the optimizers here only ` +
        `${joinWords(spmdChoices.muDtype.map(pyRepr))} take a type for the first moment alone; with ` +
        `optimizer=${pyRepr(how.optimizer)} leave mu_dtype out.`,
    );
  }
  const first = how.mu_dtype ?? moments;
  const made = {
    data: axes.data, fsdp: axes.fsdp, expert: axes.expert, context: axes.context, stage: axes.stage,
    split: axes.model,
    model: axes.stage > 1n ? { ...model, layers: model.layers / axes.stage } : model,
    isMlp,
    zero: Number(how.zero),
    batch,
    seq,
    tokens: (batch * seq) / axes.context,
    parts,
    interleave,
    factor,
    paramBytes: setupBytes(how.param_dtype),
    computeBytes: setupBytes(how.compute_dtype),
    gradBytes: grads.map(setupBytes).reduce((a, b) => a + b),
    momentBytes: setupBytes(moments),
    muBytes: setupBytes(first),
    scaled: [first === "int8", moments === "int8"],
    muDtype: how.mu_dtype,
    optimizer: how.optimizer,
    masterWeights: how.master_weights,
    recompute: how.recompute,
    attention: how.attention,
    sequenceParallel: how.sequence_parallel,
    counting: how.counting,
    scores: !isMlp && how.attention === "plain",
    stream: how.sequence_parallel ? axes.model : 1n,
    checkpointed: checkpointed.includes(how.recompute),
    chip: how.chip,
    gpu: how.chip !== null, // XLA's compiler for GPUs lays out the step, else a TPU's
    lora,
    // Bytes of a number of the layers' matrices, as they are stored.
    storedBytes: lora ? lora.baseBytes : setupBytes(how.param_dtype),
    onHost: setupOffload(how, axes),
    generation: how.chip === null ? "" : spmdHardware[how.chip].generation,
    grouped: !isMlp && model.kv_heads < model.heads,
  };
  made.gathers = shards(made, 3) > 1n;
  [made.saved, made.offloaded] = setupResults(made, how);
  made.keeps = [...made.saved, ...made.offloaded];
  made.keepsOut = made.keeps.includes("out");
  made.keepsScores =
    made.scores && (made.recompute === "everything_saveable" || made.saved.includes("scores"));
  if (!isMlp) {
    made.rows = ((model.vocab + made.split - 1n) / made.split) * made.split;
    made.keysTokens = made.tokens * (how.attention === "ring" ? 1n : axes.context);
  }
  // Which results have a matrix with a gradient.
  made.adapts = (...names) => !lora || names.some((name) => lora.targets.includes(name));
  // Where model has more devices than there are heads of keys, each device has them all.
  made.keysSplit = setupKeys(made, made.split);
  if (made.counting === "jax") setupDivision(made, mesh);
  if (made.onHost && !made.gpu) {
    refuse(
      "offload_optimizer=True is counted for GPUs: a TPU's compiler keeps the optimizer's state on the " +
        "chip; give chip= a GPU, such as 'h100', or leave it out.",
    );
  }
  // Norms of q and k that do not divide are on each device.
  const cut = shards(made, 1);
  made.headNormsCut = !isMlp && model.head_dim % cut ? 1n : cut;
  if (moeLayers(made.model)) {
    const share = Number(made.tokens * model.experts_per_token) / Number(model.experts);
    made.room = BigInt(Math.ceil(factor * share)); // rows for which each expert has room
    made.expertRows = made.room * model.experts;
  }
  return made;
}

/** Over how many devices a part of the state is sharded, from a stage of ZeRO on. */
export function shards({ fsdp, data, zero }, stage) {
  return fsdp * (zero >= stage ? data : 1n);
}

/** The same as a formula writes it. */
export function overShards({ fsdp, data, zero }, stage) {
  return over("fsdp", fsdp) + over("data", zero >= stage ? data : 1n);
}

function setupExperts(model, axes, mesh, factor) {
  const experts = model.experts ?? null;
  if (experts === null) {
    if (factor !== null) {
      refuse(
        `capacity_factor=${pyRepr(factor)} is for a model with experts, which ` +
          `${model.name || "this one"} is not; leave it out.`,
      );
    }
    if (axes.expert > 1n) {
      refuse(
        `mesh=${setupMeshRepr(mesh)}: ${model.name || "this model"} has no experts that the axis expert ` +
          "could shard; leave expert out.",
      );
    }
    return 1;
  }
  if (experts % axes.expert) {
    refuse(
      `mesh=${setupMeshRepr(mesh)}: experts=${experts} does not divide over the ${axes.expert} devices of ` +
        `expert; make expert one of ${joinWords(divisors(experts).map(String))}.`,
    );
  }
  if (factor === null) return 1;
  if (typeof factor === "string" || !(factor > 0)) {
    refuse(`capacity_factor=${pyRepr(factor)} is no share of rows; give a number above 0, such as 1.25.`);
  }
  const used = model.experts_per_token;
  if (Number(factor) > Number(experts) / Number(used)) {
    refuse(
      `capacity_factor=${pyRepr(factor)} makes an expert's room larger than all tokens of a device, each ` +
        `of which uses ${used} of ${experts} experts; give a number up to ${experts} / ${used}.`,
    );
  }
  return Number(factor);
}

// How many chunks of layers each device of stage has; what is not counted there.
function setupStages(model, how, { stage, context }, mesh, parts) {
  const chunks = wholeNumber("interleave", how.interleave, "a number of chunks");
  if (stage === 1n) {
    if (chunks === 1n) return chunks;
    refuse(
      `interleave=${chunks} gives each device of stage so many chunks of layers, and this mesh has no ` +
        "stage; give mesh a 'stage'.",
    );
  }
  let without = "";
  if (model.kind === "MLP") without = "an MLP";
  else if (model.experts !== null) without = `experts=${model.experts}`;
  else if (context > 1n) without = `context=${context}`;
  else if (how.recompute !== "nothing_saveable") without = `recompute=${pyRepr(how.recompute)}`;
  else if (how.counting !== "jax") without = `counting=${pyRepr(how.counting)}`;
  if (without) {
    refuse(
      `mesh=${setupMeshRepr(mesh)}: an axis stage is counted for a transformer under ` +
        `recompute='nothing_saveable', beside data, fsdp and model; not for ${without}.`,
    );
  }
  if (model.layers % (stage * chunks)) {
    const several = chunks > 1n ? ` of ${chunks} chunks each` : "";
    refuse(
      `mesh=${setupMeshRepr(mesh)}: layers=${model.layers} does not divide over the ${stage} devices of ` +
        `stage${several}; make stage times interleave one of ${joinWords(divisors(model.layers).map(String))}.`,
    );
  }
  if (chunks > 1n && parts % stage) {
    refuse(
      `gradient_accumulation=${parts} is the number of microbatches, which an interleaved schedule takes ` +
        `in multiples of stage=${stage}; give one.`,
    );
  }
  return chunks;
}

// The adapters beside frozen parameters, if there are any.
function setupLora(model, how, { stage }) {
  const { lora_rank: typed, lora_targets: targets, base_dtype: base } = how;
  if (typed === null) {
    const given = targets.length ? ["lora_targets", setupTuple(targets)] : base !== null && ["base_dtype", pyRepr(base)];
    if (!given) return null;
    refuse(
      `${given[0]}=${given[1]} is for adapters beside frozen parameters; give lora_rank= too, or leave ` +
        `${given[0]} out.`,
    );
  }
  const rank = wholeNumber("lora_rank", typed, "a rank of adapters");
  const { recompute, optimizer, counting } = how;
  const counted = ["nothing_saveable", "everything_saveable", "selective"];
  let without = "";
  if (model.kind === "MLP") without = "an MLP";
  else if (model.experts !== null) without = `experts=${model.experts}`;
  else if (model.kv_lora_rank !== null) without = `kv_lora_rank=${model.kv_lora_rank}`;
  else if (stage > 1n) without = `stage=${stage}`;
  else if (!counted.includes(recompute)) without = `recompute=${pyRepr(recompute)}`;
  else if (optimizer === "muon") without = "optimizer='muon'";
  else if (counting !== "jax") without = `counting=${pyRepr(counting)}`;
  if (without) {
    refuse(
      `lora_rank=${rank}: adapters are counted for a transformer with one kind of layer, under recompute=` +
        `${orWords(counted.map(pyRepr))}; not for ${without}.`,
    );
  }
  const there = spmdChoices.results.filter((name) => name !== "context" && (name !== "gate" || model.gated));
  const names = targets.length ? targets : there;
  if (!names.every((name) => there.includes(name))) {
    const foreign = names.find((name) => !there.includes(name));
    refuse(
      `lora_targets=${setupTuple(names)}: this model has no matrix of ${pyRepr(foreign)}; give some of ` +
        `${joinWords(there.map(pyRepr))}.`,
    );
  }
  if (new Set(names).size < names.length) refuse(`lora_targets=${setupTuple(names)}: give each name once.`);
  const type = base ?? how.compute_dtype;
  return { rank, targets: names, baseBytes: setupBytes(type), isQuantized: type === "int8" };
}

// Whether the optimizer's state is in the host's memory.
function setupOffload(how, { stage }) {
  let without = "";
  if (["muon", "adafactor"].includes(how.optimizer)) without = `optimizer=${pyRepr(how.optimizer)}`;
  else if (stage > 1n) without = `stage=${stage}`;
  else if (how.counting !== "jax") without = `counting=${pyRepr(how.counting)}`;
  if (how.offload_optimizer && without) {
    refuse(`offload_optimizer=True is not counted for ${without}; leave one of them out.`);
  }
  return how.offload_optimizer;
}

function setupTuple(names) {
  return `(${names.map(pyRepr).join(", ")}${names.length === 1 ? "," : ""})`;
}

function setupMoments(model, how) {
  if (how.moment_dtype !== null && how.optimizer === "adafactor") {
    refuse(
      `moment_dtype=${pyRepr(how.moment_dtype)}: optax's adafactor keeps its numbers in the type of ` +
        "the parameters; leave moment_dtype out.",
    );
  }
  if (how.moment_dtype === "int8" && how.optimizer === "muon") {
    refuse("moment_dtype='int8' is not counted for optimizer='muon'; give 'bfloat16' or 'float32'.");
  }
  if (how.optimizer === "muon" && model.kind !== "MLP" && moeLayers(model)) {
    refuse("optimizer='muon' is not counted for a model with experts; give 'adam' or 'lion'.");
  }
}

// Bytes of a number of a type; int8, of moments alone, has its scales beside it.
function setupBytes(name) {
  return name === "int8" ? 1n : BigInt(spmdChoices.floats[name]);
}

function setupMeshRepr(mesh) {
  return `{${Object.entries(mesh).map(([axis, size]) => `'${axis}': ${pyRepr(size)}`).join(", ")}}`;
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

function setupContext(model, how, { context }, mesh) {
  if (model.kind === "MLP") {
    if (context === 1n) return;
    refuse(`mesh=${setupMeshRepr(mesh)}: an MLP has no sequences that context could shard; leave context out.`);
  }
  if (how.attention !== "ring" || context > 1n) return;
  refuse(
    "attention='ring' sends keys and values around the axis context, which this mesh has not; give " +
      "mesh a 'context', or attention='flash'.",
  );
}

// The names that a policy saves and offloads: _training/recompute.py.
function setupNames(model, how) {
  const results = model.kind === "MLP" ? ["up", "down"] : spmdChoices.results;
  const there = results.filter((name) => name !== "gate" || model.gated);
  const [saved, offloaded] = [how.names_which_can_be_saved, how.names_which_can_be_offloaded];
  const takes = spmdChoices.withNames.slice(offloaded.length ? 1 : 0);
  for (const [end, names] of [["saved", saved], ["offloaded", offloaded]]) {
    const key = `names_which_can_be_${end}`;
    if (names.length && !takes.includes(how.recompute)) {
      refuse(
        `${key}=${setupTuple(names)} is for recompute=${orWords(takes.map(pyRepr))}, and ` +
          `recompute=${pyRepr(how.recompute)} takes no such names; leave ${key} out.`,
      );
    }
    const foreign = names.find((name) => !there.includes(name));
    if (foreign === undefined) continue;
    refuse(
      `${key}=${setupTuple(names)}: this model has no result ${pyRepr(foreign)}; give some of ` +
        `${joinWords(there.map(pyRepr))}.`,
    );
  }
  const both = [...saved, ...offloaded];
  if (new Set(both).size < both.length) {
    refuse(
      `names_which_can_be_saved and names_which_can_be_offloaded give ${joinWords(both.map(pyRepr))}; ` +
        "give each name once.",
    );
  }
  if (both.length || !spmdChoices.withNames.includes(how.recompute)) return;
  refuse(
    `recompute=${pyRepr(how.recompute)} has no name; give names_which_can_be_saved some of ` +
      `${joinWords(there.map(pyRepr))}, or recompute='nothing_saveable'.`,
  );
}

// The results that a checkpoint keeps on the device, and those that it sends to the host.
function setupResults({ model, isMlp, scores, recompute, checkpointed }, how) {
  if (!checkpointed || recompute === "nothing_saveable") return [[], []];
  const isThere = {
    gate: model.gated,
    down: !isMlp && model.post_norms, // else no derivative uses it
    scores,
    context: scores || recompute !== "dots_saveable", // a kernel's result is no product
  };
  const ofMlp = (name) => !isMlp || ["up", "down"].includes(name);
  const those = (names) => names.filter((name) => ofMlp(name) && (isThere[name] ?? true));
  if (spmdChoices.withNames.includes(recompute)) {
    return [those(how.names_which_can_be_saved), those(how.names_which_can_be_offloaded)];
  }
  const names = those([...spmdChoices.withWeights, ...(recompute === "dots_saveable" ? ["scores", "context"] : [])]);
  return recompute === "offload_dot_with_no_batch_dims" ? [[], names] : [names, []];
}

// Sequences of one device in one part of the batch, tokens of a sequence.
function setupBatch(model, how, axes, parts) {
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
  const devices = axes.data * axes.fsdp * axes.expert;
  const each = devices * parts;
  if (batch % each) {
    const less = (batch / each) * each;
    const sizes = less ? `${less} or ${less + each}` : `${each}`;
    const several = ["data", "fsdp", "expert"].filter((axis) => axes[axis] > 1n);
    const where = parts > 1n ? [`${parts} parts`] : [];
    if (several.length) where.push(`the ${devices} devices of ${joinWords(several)}`);
    refuse(
      `batch=${batch} does not divide over ${where.join(", each over ")}; it counts the ` +
        `sequences of all devices together: make it ${sizes}.`,
    );
  }
  return [batch / each, seq];
}

// Every dimension that an axis cuts has to divide, as JAX asks at its border.
function setupDivision(made, mesh) {
  const { model, split } = made;
  const wide = setupUneven(model, split);
  if (wide) {
    const common = setupWide(model).map(([, size]) => size).reduce(gcd);
    const sizes = divisors(common).filter((size) => !setupUneven(model, size));
    const fitting = sizes.filter((size) => !setupNotCut({ ...made, split: size, keysSplit: setupKeys(made, size) }, mesh));
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

function setupWide(model) {
  if (model.kind === "MLP") return [["d_ff", model.d_ff]];
  const moe = moeLayers(model);
  const wide = moe < model.layers ? [["d_ff", model.d_ff]] : [];
  if (moe) wide.push(["expert_d_ff", model.expert_d_ff]);
  return [...wide, ["heads", model.heads]];
}

// A dimension that the axis model would cut and does not divide. Heads of keys and values are
// replicated where it has a multiple of them.
function setupUneven(model, split) {
  const wide = setupWide(model);
  if (model.kind !== "MLP" && split % model.kv_heads) wide.push(["kv_heads", model.kv_heads]);
  return wide.find(([, size]) => size % split);
}

function setupKeys({ isMlp, model }, split) {
  return !isMlp && model.kv_heads % split ? 1n : split;
}

// What else does not divide, as a sentence.
function setupNotCut(made, mesh) {
  const { model, isMlp, split, seq, context, fsdp } = made;
  if (seq % context) {
    return `seq=${seq} does not divide over the ${context} devices of context; give another seq.`;
  }
  if (made.sequenceParallel && (seq / context) % split) {
    return (
      `sequence_parallel=True: seq=${seq} does not divide over the ${split * context} devices of ` +
      `${context > 1n ? "context and model" : "model"}; give another seq.`
    );
  }
  const by = shards(made, 1);
  if (by === 1n) return "";
  const cut = [["d_model", model.d_model, by]];
  const both = by * split; // the longer biases are cut by both axes
  if (!isMlp) {
    if (model.biases || model.qkv_biases) {
      cut.push(
        ["heads * head_dim", model.heads * model.head_dim, both],
        ["kv_heads * head_dim", model.kv_heads * model.head_dim, by * made.keysSplit],
      );
    }
    if (model.biases) {
      const moe = moeLayers(model);
      if (moe < model.layers) cut.push(["d_ff", model.d_ff, both]);
      if (moe) cut.push(["expert_d_ff", model.expert_d_ff, both]);
    }
    for (const key of ["q_lora_rank", "kv_lora_rank"]) if (model[key] !== null) cut.push([key, model[key], by]);
    if (made.lora) setupCutAdapters(made, cut, by);
  }
  const uneven = cut.find(([, size, devices]) => size % devices);
  if (!uneven) return "";
  const [name, size, devices] = uneven;
  const where = `${name}=${size} over ${devices} devices (${meshWords(Object.entries(mesh))})`;
  if (fsdp === 1n) {
    return (
      `zero=${made.zero} shards ${where}, which does not divide; make data smaller, or count with zero=0.`
    );
  }
  return `fsdp shards ${where}, which does not divide; make ${by > fsdp ? "fsdp or data" : "fsdp"} smaller.`;
}

// What model shards of a matrix with an adapter, both axes shard; a dimension stands once.
function setupCutAdapters({ model, split, keysSplit, lora }, cut, by) {
  const adapts = (...names) => names.some((name) => lora.targets.includes(name));
  const more = [
    [adapts("query", "out"), "heads * head_dim", model.heads * model.head_dim, split],
    [adapts("key", "value"), "kv_heads * head_dim", model.kv_heads * model.head_dim, keysSplit],
    [adapts("gate", "up", "down"), "d_ff", model.d_ff, split],
  ];
  for (const [isThere, name, size, devices] of more) {
    if (isThere && !cut.some(([other]) => other === name)) cut.push([name, size, by * devices]);
  }
}
