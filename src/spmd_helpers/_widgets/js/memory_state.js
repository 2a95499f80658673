import { trainingMemory } from "./training.js";
import {
  makeMlp, makeTransformer, transformerMayLack, transformerSizes, transformerSwitches,
} from "./transformer.js";
import { pyRepr } from "./python_words.js";
import { closeName, joinWords, refuse } from "./words.js";

// The calculator's state, a dict of texts, as the arguments of training_memory.

const MEMORY_LONGEST = 200;
const MEMORY_MOST = 1000000000n;

/** The state that the page begins with: it does not fit. */
export const memoryDefaults = {
  model: "llama-3-8b",
  layers: "32",
  d_model: "4096",
  heads: "32",
  kv_heads: "",
  d_ff: "",
  vocab: "",
  seq: "",
  head_dim: "",
  gated: "no",
  tied: "yes",
  biases: "yes",
  positions: "learned",
  norm: "layer",
  qkv_biases: "no",
  qk_norm: "no",
  post_norms: "no",
  sinks: "no",
  window: "",
  global_every: "",
  experts: "",
  experts_per_token: "",
  shared_experts: "",
  expert_d_ff: "",
  dense_layers: "",
  moe_every: "",
  router_biases: "no",
  q_lora_rank: "",
  kv_lora_rank: "",
  qk_nope_head_dim: "",
  qk_rope_head_dim: "",
  v_head_dim: "",
  patch_size: "",
  chip: "h100",
  data: "8",
  model_axis: "1",
  batch: "8",
  zero: "0",
  recompute: "nothing_saveable",
  attention: "flash",
  sequence_parallel: "no",
  param_dtype: "float32",
  compute_dtype: "bfloat16",
  grad_dtype: "",
  optimizer: "adam",
  moment_dtype: "",
  mu_dtype: "",
  master_weights: "no",
  counting: "jax",
  margin: "0.9",
};

function memoryText(state, key) {
  const typed = `${state[key] ?? ""}`;
  if (typed.length > MEMORY_LONGEST) {
    refuse(`${key} has more than ${MEMORY_LONGEST} characters; give fewer.`);
  }
  return typed;
}

/** {model, mesh, how} of a state, with whole numbers as BigInt. */
export function readMemoryState(state) {
  const text = (key) => memoryText(state, key);
  const whole = (key) => {
    const typed = text(key).trim();
    if (!/^[+-]?[0-9]+$/.test(typed)) return typed;
    const number = BigInt(typed.replace(/^\+/, ""));
    if (number >= MEMORY_MOST) {
      refuse(`${key}=${number} is more than this page counts with; give less than ${MEMORY_MOST}.`);
    }
    return number;
  };
  const orNone = (read, key) => (text(key).trim() ? read(key) : null);
  const yes = (key) => (text(key) === "yes" ? true : text(key) === "no" ? false : text(key));
  const model = memoryModel(text, whole, orNone, yes);
  const isOwn = ["custom", "mlp"].includes(text("model"));
  const grads = orNone(text, "grad_dtype");
  return {
    model,
    mesh: { data: whole("data"), model: whole("model_axis") },
    how: {
      zero: whole("zero"),
      batch: whole("batch"),
      seq: isOwn ? null : orNone(whole, "seq"),
      param_dtype: text("param_dtype"),
      compute_dtype: text("compute_dtype"),
      grad_dtype: grads?.includes(",") ? grads.split(",").map((name) => name.trim()) : grads,
      optimizer: text("optimizer"),
      moment_dtype: orNone(text, "moment_dtype"),
      mu_dtype: orNone(text, "mu_dtype"),
      master_weights: yes("master_weights"),
      recompute: text("recompute"),
      attention: model.kind === "MLP" ? "plain" : text("attention"),
      sequence_parallel: model.kind === "MLP" ? false : yes("sequence_parallel"),
      counting: text("counting"),
      chip: memoryGpu(state),
    },
  };
}

/** The name of the chip that was typed, if there is one. */
function memoryChipName(wanted) {
  const plain = (name) => name.toLowerCase().replace(/^tpu|[\s_-]/g, "");
  return Object.keys(spmdHardware).find(
    (one) => plain(wanted) === plain(one) || wanted === spmdHardware[one].device_kind,
  );
}

/** The chip whose compiler lays out the step, where it is a GPU. */
function memoryGpu(state) {
  const name = memoryChipName(`${state.chip ?? ""}`);
  return name && spmdHardware[name].kind === "gpu" ? name : null;
}

function memoryModel(text, whole, orNone, yes) {
  const name = text("model");
  if (name === "mlp") {
    const [layers, wide] = [whole("layers"), whole("d_model")];
    const inner = orNone(whole, "d_ff") ?? (typeof wide === "bigint" ? 4n * wide : wide);
    return makeMlp({ layers, d_model: wide, d_ff: inner });
  }
  if (name === "custom") {
    const fields = {};
    for (const key of transformerSizes) {
      fields[key] = transformerMayLack.includes(key) ? orNone(whole, key) : whole(key);
    }
    for (const key of transformerSwitches) fields[key] = yes(key);
    return makeTransformer({ ...fields, positions: text("positions"), norm: text("norm") });
  }
  if (!Object.hasOwn(spmdModels, name)) refuse(memoryUnknown("model", name, Object.keys(spmdModels)));
  const fields = { ...spmdModels[name] };
  for (const key of transformerSizes) if (fields[key] !== null) fields[key] = BigInt(fields[key]);
  return makeTransformer(fields);
}

/** The sentence of _core/registry.py about a name that a table lacks. */
function memoryUnknown(kind, name, names) {
  const wanted = name.toLowerCase();
  let close = names.filter((one) => one.startsWith(wanted)).slice(0, 3);
  if (!close.length) close = [closeName(wanted, names)].filter(Boolean);
  const guess = close.length ? ` Did you mean ${close.map(pyRepr).join(" or ")}?` : "";
  return `${kind}=${pyRepr(name)} is not known.${guess} There are ${joinWords(names)}.`;
}

/** The chip of a state: its name, what a program can use of it, and may fill. */
export function readMemoryChip(state) {
  const typed = memoryText(state, "margin").trim();
  const wanted = memoryText(state, "chip");
  const name = memoryChipName(wanted);
  if (!name) refuse(memoryUnknown("chip", wanted, Object.keys(spmdHardware)));
  let margin = typed;
  if (/^[0-9]{1,9}$/.test(typed)) margin = BigInt(typed);
  else if (/^(?:[0-9]{1,9}\.[0-9]{0,9}|\.[0-9]{1,9})$/.test(typed)) margin = Number(typed);
  if (typeof margin === "string" || !(margin > 0 && margin <= 1)) {
    refuse(
      `margin=${pyRepr(margin)} is not a part of the memory; give a number above 0 and at most 1, ` +
        "such as 0.9.",
    );
  }
  const chip = spmdHardware[name];
  const usable = Number(chip.program_bytes);
  return { name, margin, usable: BigInt(usable), allowed: BigInt(Math.floor(Number(margin) * usable)) };
}

/** A state counted: {model, mesh, how, found, chip, left}, or refused. */
export function countMemory(state) {
  const read = readMemoryState(state);
  const found = trainingMemory(read.model, read.mesh, read.how);
  if (found.total_bytes >= 2n ** 70n) {
    refuse(
      `${found.what}: ${found.total_bytes} bytes on each device are more than this page counts ` +
        "with; make it smaller.",
    );
  }
  const chip = readMemoryChip(state);
  return { ...read, found, chip, left: chip.allowed - found.total_bytes };
}

/** The Python lines that count the same. */
export function memoryCode(state, { model, mesh, how, chip }) {
  const written = (value) => {
    if (Array.isArray(value)) return `(${value.map(written).join(", ")})`;
    return typeof value === "string" ? JSON.stringify(value) : pyRepr(value);
  };
  const named = (fields, usual) =>
    Object.entries(fields)
      .filter(([key, value]) => value !== null && value !== usual[key])
      .map(([key, value]) => `    ${key}=${written(value)},`);
  const own = () => {
    const { kind, name, ...fields } = model;
    const usual = {
      ...Object.fromEntries(transformerSwitches.map((key) => [key, false])),
      ...{ tied: true, biases: true, positions: "learned", norm: "layer" },
      ...{ shared_experts: 0n, dense_layers: 0n, moe_every: 1n },
    };
    return [`spmd.${kind}(`, ...named(fields, kind === "MLP" ? {} : usual), ")"];
  };
  const [first, ...rest] = model.name ? [`spmd.MODELS[${written(model.name)}]`] : own();
  const isMlp = model.kind === "MLP";
  const usual = {
    zero: 3n, param_dtype: "float32", compute_dtype: "bfloat16", optimizer: "adam", master_weights: false,
    sequence_parallel: false, counting: "jax", chip: null,
    ...(isMlp ? { recompute: "everything_saveable", attention: "plain" } : {}),
  };
  return [
    "import spmd_helpers as spmd",
    "",
    `model = ${first}`,
    ...rest,
    "found = spmd.training_memory(",
    "    model,",
    `    mesh={"data": ${mesh.data}, "model": ${mesh.model}},`,
    ...named(how, usual),
    ")",
    "print(found)",
    `print(found.fits("${chip.name}", margin=${pyRepr(chip.margin)}))`,
  ].join("\n");
}
