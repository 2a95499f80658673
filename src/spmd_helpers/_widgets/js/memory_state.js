import { trainingMemory } from "./training.js";
import {
  makeMlp, makeTransformer, transformerMayLack, transformerSizes, transformerSwitches,
} from "./transformer.js";
import { pyRepr } from "./python_words.js";
import { refuse } from "./words.js";

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
  fsdp: "1",
  model_axis: "1",
  expert: "1",
  context: "1",
  stage: "1",
  interleave: "1",
  batch: "8",
  gradient_accumulation: "1",
  capacity_factor: "",
  zero: "0",
  recompute: "nothing_saveable",
  names_which_can_be_saved: "",
  names_which_can_be_offloaded: "",
  attention: "flash",
  sequence_parallel: "no",
  param_dtype: "float32",
  compute_dtype: "bfloat16",
  grad_dtype: "",
  optimizer: "adam",
  moment_dtype: "",
  mu_dtype: "",
  master_weights: "no",
  lora_rank: "",
  lora_targets: "",
  base_dtype: "",
  offload_optimizer: "no",
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

const memoryFloats = Object.keys(spmdChoices.floats);

/** What a control of words can have: a text that is none of these is refused. */
export const memoryChoices = {
  model: [...Object.keys(spmdModels), "custom", "mlp"],
  chip: Object.keys(spmdHardware),
  zero: ["0", "1", "2", "3"],
  recompute: spmdChoices.recompute,
  attention: ["plain", "flash", "ring"],
  param_dtype: memoryFloats,
  compute_dtype: memoryFloats,
  grad_dtype: ["", ...memoryFloats],
  moment_dtype: ["", ...memoryFloats, "int8"],
  mu_dtype: ["", ...memoryFloats, "int8"],
  base_dtype: ["", ...memoryFloats, "int8"],
  optimizer: Object.keys(spmdChoices.optimizer),
  counting: ["jax", "megatron"],
  positions: ["learned", "rotary", "none"],
  norm: ["layer", "rms"],
};
for (const key of [...transformerSwitches, "sequence_parallel", "master_weights", "offload_optimizer"]) memoryChoices[key] = ["yes", "no"];

/** Several names between commas. */
function memoryNames(typed) {
  return typed.trim() ? typed.split(",").map((name) => name.trim()) : [];
}

/** A number as typed: a whole one as BigInt, one with a point as a number, else the text. */
function memoryNumber(typed) {
  if (/^[0-9]{1,9}$/.test(typed)) return BigInt(typed);
  return /^(?:[0-9]{1,9}\.[0-9]{0,17}|\.[0-9]{1,17})$/.test(typed) ? Number(typed) : typed;
}

/** {model, mesh, how} of a state, with whole numbers as BigInt. */
export function readMemoryState(state) {
  const text = (key) => memoryText(state, key);
  for (const [key, choices] of Object.entries(memoryChoices)) {
    const typed = text(key);
    const several = key === "grad_dtype" && typed.includes(",") ? memoryNames(typed) : [typed];
    const wrong = several.find((one) => !choices.includes(one));
    if (wrong !== undefined) refuse(`${key}=${pyRepr(wrong)} is none of the choices of this page.`);
  }
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
  const yes = (key) => text(key) === "yes";
  const model = memoryModel(text, whole, orNone, yes);
  const isMlp = model.kind === "MLP";
  const isOwn = ["custom", "mlp"].includes(text("model"));
  const grads = orNone(text, "grad_dtype");
  const more = ["fsdp", "expert", "context", "stage"].map((key) => [key, whole(key)]);
  return {
    model,
    mesh: {
      data: whole("data"),
      model: whole("model_axis"),
      ...Object.fromEntries(more.filter(([, size]) => size !== 1n)),
    },
    how: {
      zero: BigInt(text("zero")),
      batch: whole("batch"),
      seq: isOwn ? null : orNone(whole, "seq"),
      gradient_accumulation: whole("gradient_accumulation"),
      capacity_factor: orNone((key) => memoryNumber(text(key).trim()), "capacity_factor"),
      interleave: whole("interleave"),
      param_dtype: text("param_dtype"),
      compute_dtype: text("compute_dtype"),
      grad_dtype: grads?.includes(",") ? memoryNames(grads) : grads,
      optimizer: text("optimizer"),
      moment_dtype: orNone(text, "moment_dtype"),
      mu_dtype: orNone(text, "mu_dtype"),
      master_weights: yes("master_weights"),
      recompute: text("recompute"),
      names_which_can_be_saved: memoryNames(text("names_which_can_be_saved")),
      names_which_can_be_offloaded: memoryNames(text("names_which_can_be_offloaded")),
      attention: isMlp ? "plain" : text("attention"),
      sequence_parallel: !isMlp && yes("sequence_parallel"),
      lora_rank: orNone(whole, "lora_rank"),
      lora_targets: memoryNames(text("lora_targets")),
      base_dtype: orNone(text, "base_dtype"),
      offload_optimizer: yes("offload_optimizer"),
      counting: text("counting"),
      chip: spmdHardware[text("chip")].kind === "gpu" ? text("chip") : null,
    },
  };
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
  const fields = { ...spmdModels[name] };
  for (const key of transformerSizes) if (key in fields) fields[key] = BigInt(fields[key]);
  return makeTransformer({ ...fields, name });
}

/** The chip of a state: its name, what a program can use of it, and may fill. */
export function readMemoryChip(state) {
  const margin = memoryNumber(memoryText(state, "margin").trim());
  if (typeof margin === "string" || !(margin > 0 && margin <= 1)) {
    refuse(
      `margin=${pyRepr(margin)} is not a part of the memory; give a number above 0 and at most 1, ` +
        "such as 0.9.",
    );
  }
  const usable = Number(spmdHardware[state.chip].program_bytes);
  return { name: state.chip, margin, usable: BigInt(usable), allowed: BigInt(Math.floor(Number(margin) * usable)) };
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
  const written = (value) => (typeof value === "string" ? JSON.stringify(value) : pyRepr(value));
  // On one line, or where that is too long with a line for each item.
  const several = (begin, items, end) => {
    const one = begin + items.join(", ") + end;
    if (one.length <= 72) return [one];
    const indent = /^ */.exec(begin)[0];
    return [begin, ...items.map((item) => `${indent}    ${item},`), indent + end];
  };
  const argument = ([key, value]) => {
    if (!Array.isArray(value)) return [`    ${key}=${written(value)},`];
    return several(`    ${key}=(`, value.map(written), value.length === 1 ? ",)," : "),");
  };
  const named = (fields, usual) =>
    Object.entries(fields)
      .filter(([key, value]) => value !== null && value !== usual[key] && value.length !== 0)
      .flatMap(argument);
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
    zero: mesh.fsdp ? 0n : 3n, param_dtype: "float32", compute_dtype: "bfloat16", optimizer: "adam",
    master_weights: false, sequence_parallel: false, offload_optimizer: false, counting: "jax", chip: null, gradient_accumulation: 1n, interleave: 1n,
    ...(isMlp ? { recompute: "everything_saveable", attention: "plain" } : {}),
  };
  return [
    "import spmd_helpers as spmd",
    "",
    `model = ${first}`,
    ...rest,
    ...several("mesh = {", Object.entries(mesh).map(([axis, size]) => `"${axis}": ${size}`), "}"),
    "found = spmd.training_memory(",
    "    model,",
    "    mesh=mesh,",
    ...named(how, usual),
    ")",
    "print(found)",
    `print(found.fits("${chip.name}", margin=${pyRepr(chip.margin)}))`,
  ].join("\n");
}
