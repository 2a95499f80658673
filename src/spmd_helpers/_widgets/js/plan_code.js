import { planOrder, planProduct } from "./plan_cluster.js";
import { pyRepr } from "./python_words.js";
import { refuse } from "./words.js";

// The JAX lines of a strategy: mirrors _plan/code.py, without its rehearsal.

/** The lines for a strategy of a plan; refused where there is no reference for the model. */
export function planCode({ model, param_dtype, compute_dtype, optimizer }, { what }, one) {
  codeCheck(model, one, optimizer);
  const has = (axis) => (one.mesh[axis] ?? 1) > 1;
  const axis = (...axes) => {
    const there = axes.filter(has);
    if (there.length < 2) return there.length ? `'${there[0]}'` : "None";
    return `(${there.map((name) => `'${name}'`).join(", ")})`;
  };
  const size = (name) => one.mesh[name] ?? 1;
  const to = {
    model, one, what, has, axis, size, optimizer,
    param: param_dtype,
    compute: compute_dtype,
    isGpt: codeIsGpt(model),
    moe: model.experts !== null,
    rows: axis(...spmdPlan.ofBatch),
    context: axis("context"),
    split: axis("model"),
    cutsKeys: Number(model.kv_heads) % size("model") === 0,
    shards: planProduct(["data", "fsdp", "model"].map(size)),
  };
  to.keys = to.cutsKeys ? to.split : "None";
  to.over = (least) => axis("fsdp", ...(one.zero >= least ? ["data"] : []));
  const parts = [codeHead, codeShapes, codeSpecs, () => codeText("helpers"), codeParts, codeAttention, codeMixture];
  return [...parts, codeLayer, codeLoss, codeTrain, codeRun].map((part) => part(to)).join("");
}

function codeCheck(model, { mesh, words, recompute }, optimizer) {
  if ("stage" in mesh) {
    refuse(
      `${words}, ${recompute} is a pipeline, for which code() prints no lines; take a strategy without stage, ` +
        "or plan with axes=('data', 'fsdp', 'model').",
    );
  }
  for (const [key, usual] of Object.entries(spmdPlan.code.without)) {
    const value = typeof model[key] === "bigint" ? Number(model[key]) : model[key];
    if (value === usual) continue;
    refuse(
      `${model.name} has ${key}=${pyRepr(model[key])}, and code() has reference models like GPT-3, Llama 3, ` +
        "Mixtral and a stack of MLPs only; take the mesh and the specs of a plan for one of those.",
    );
  }
  const isLlama = model.norm === "rms" && model.positions === "rotary" && model.gated && !model.biases;
  if (!isLlama && !(codeIsGpt(model) && model.experts === null)) {
    refuse(
      `${model.name} has norm=${pyRepr(model.norm)}, positions=${pyRepr(model.positions)} and ` +
        `biases=${pyRepr(model.biases)} together, and code() has reference models like GPT-3, Llama 3, Mixtral and ` +
        "a stack of MLPs only; take the specs of one of those.",
    );
  }
  if (!(optimizer in spmdPlan.code.optimizers)) {
    refuse(
      `optimizer=${pyRepr(optimizer)} keeps arrays of other shapes than the parameters, which code() has no ` +
        "specs for; plan with 'adam'.",
    );
  }
}

/** A part of the lines, which Python has, with its words. */
function codeText(name, words = {}) {
  return spmdPlan.code.texts[name].replace(/\$\{(\w+)\}/g, (_, word) => words[word]);
}

function codeIsGpt({ norm, positions, biases, gated }) {
  return norm === "layer" && positions === "learned" && biases && !gated;
}

function codeTuple(items) {
  return `(${items.join(", ")}${items.length === 1 ? "," : ""})`;
}

function codeHead({ one, what, has, size, param, compute }) {
  const there = planOrder.filter(has);
  const names = there.length ? there : ["data"];
  return `# ${what}
# ${one.words}, ${one.recompute}
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh(
    ${codeTuple(names.map(size))}, ${codeTuple(names.map((name) => `'${name}'`))}, axis_types=(AxisType.Auto,) * ${names.length}
)
PARAM, COMPUTE = jnp.${param}, jnp.${compute}
`;
}

function codeTrain({ one, optimizer, has, over }) {
  const why = [
    "as the parameters",
    "the optimizer's state over data too: ZeRO-1",
    "gradients and the optimizer's state over data too: ZeRO-2",
  ][has("data") ? one.zero : 0];
  return codeText("train", {
    optimizer: spmdPlan.code.optimizers[optimizer], why, params: over(3), grads: over(2), state: over(1),
  });
}

// Heads of queries, and of keys and values, of the small model.
function codeHeads({ model, size, cutsKeys }) {
  const split = size("model");
  const [heads, kv] = [Number(model.heads), Number(model.kv_heads)];
  if (kv === heads) return [Math.max(2, split), Math.max(2, split)];
  if (cutsKeys) return [split * Math.max(2, Math.floor(heads / kv)), split];
  // Several that `model` does not divide, if the model has several.
  const few = kv === 1 ? 1 : split === 2 ? 3 : 2;
  let least = split;
  while (least % few) least += split;
  return [2 * least, few];
}

function codeShapes(to) {
  const { model, size, shards, moe } = to;
  const [heads, kv] = codeHeads(to);
  const wide = 8 * shards;
  const rows = 2 * planProduct(spmdPlan.ofBatch.map(size));
  const experts = `# Experts: yours has experts=${model.experts}, experts_per_token=${model.experts_per_token}, expert_d_ff=${model.expert_d_ff}.
EXPERTS, TOP = ${2 * Math.max(2, size("expert"))}, ${Math.min(2, Number(model.experts_per_token))}
CAPACITY = EXPERTS / TOP  # room for all: none is dropped. The plan counts 1.0
`;
  return `# A small model of the family; yours has layers=${model.layers}, d_model=${model.d_model}, heads=${model.heads},
# kv_heads=${model.kv_heads}, d_ff=${model.d_ff}, vocab=${model.vocab}.
LAYERS, D, HEADS, KV, HEAD_DIM = 2, ${wide}, ${heads}, ${kv}, 8
F, VOCAB, SEQ, BATCH = ${2 * wide}, ${16 * shards}, ${8 * size("context")}, ${rows}
${moe ? experts : ""}`;
}

// Each matrix and vector of the layers: its name, its spec, how it begins.
function codeLeaves({ model, split, keys, isGpt, moe, axis }) {
  const norm = isGpt ? '{"scale": P(None, over), "bias": P(None, over)}' : "P(None, over)";
  const of = moe ? `P(None, ${axis("expert")}, ` : "P(None, ";
  const each = moe ? "EXPERTS, " : "";
  const up = (name) => [name, `${of}over, ${split})`, `weight(LAYERS, ${each}D, F)`];
  return [
    ["q", `P(None, over, ${split})`, "weight(LAYERS, D, HEADS * HEAD_DIM)"],
    ["k", `P(None, over, ${keys})`, "weight(LAYERS, D, KV * HEAD_DIM)"],
    ["v", `P(None, over, ${keys})`, "weight(LAYERS, D, KV * HEAD_DIM)"],
    ["o", `P(None, ${split}, over)`, "weight(LAYERS, HEADS * HEAD_DIM, D)"],
    ...(model.gated ? [up("gate")] : []),
    up("up"),
    ["down", `${of}${split}, over)`, `weight(LAYERS, ${each}F, D)`],
    ["norm1", norm, "norm_of(LAYERS, D)"],
    ["norm2", norm, "norm_of(LAYERS, D)"],
    ...(moe ? [["router", "P(None, over)", "weight(LAYERS, D, EXPERTS)"]] : []),
  ];
}

function codeSpecs(to) {
  const { model, split, keys, isGpt } = to;
  const leaves = codeLeaves(to);
  const lines = leaves.map(([name, spec]) => `        "${name}": ${spec},`);
  const sizes = leaves.map(([name, , begins]) => `        "${name}": ${begins},`);
  if (isGpt) {
    lines.push(
      `        "b_q": P(None, ${split}), "b_k": P(None, ${keys}), "b_v": P(None, ${keys}),`,
      `        "b_up": P(None, ${split}), "b_o": P(None, over), "b_down": P(None, over),`,
    );
    sizes.push(
      '        "b_q": zeros(LAYERS, HEADS * HEAD_DIM), "b_k": zeros(LAYERS, KV * HEAD_DIM),',
      '        "b_v": zeros(LAYERS, KV * HEAD_DIM), "b_up": zeros(LAYERS, F),',
      '        "b_o": zeros(LAYERS, D), "b_down": zeros(LAYERS, D),',
    );
  }
  const ends = [["embed", `P(${split}, over)`, "weight(VOCAB, D)"]];
  if (isGpt) ends.push(["positions", "P(None, over)", "weight(SEQ, D)"]);
  if (!model.tied) ends.push(["head", `P(over, ${split})`, "weight(D, VOCAB)"]);
  ends.push(["norm", isGpt ? '{"scale": P(over), "bias": P(over)}' : "P(over)", "norm_of(D)"]);
  const end = (i) => ends.map((one) => `        "${one[0]}": ${one[i]},`).join("\n");
  const normOf = isGpt
    ? 'return {"scale": jnp.ones(shape, PARAM), "bias": zeros(*shape)}'
    : "return jnp.ones(shape, PARAM)";
  return `

def specs(over):
    """How each parameter is sharded; \`over\` shards its dimension of d_model."""
    layers = {
${lines.join("\n")}
    }
    return {
        "layers": layers,
${end(1)}
    }


def start(key):
    keys = iter(jax.random.split(key, 16))

    def weight(*shape):
        return jax.random.normal(next(keys), shape, PARAM) * shape[-2] ** -0.5

    def zeros(*shape):
        return jnp.zeros(shape, PARAM)

    def norm_of(*shape):
        ${normOf}

    layers = {
${sizes.join("\n")}
    }
    return {
        "layers": layers,
${end(2)}
    }
`;
}

function codeParts({ isGpt }) {
  return codeText(isGpt ? "gpt_parts" : "llama_parts");
}

function codeAttention(to) {
  const { has, one, rows, context, split, keys: cut, cutsKeys } = to;
  if (!has("context") || one.attention !== "ring") return codeKernel(to);
  const queries = `P(${rows}, ${context}, ${split})`;
  const keys = `P(${rows}, ${context}, ${cut})`;
  // A device that has all heads of keys: for each of its queries one of them.
  const own = cutsKeys
    ? "    q = q.reshape(*q.shape[:2], k.shape[2], -1, HEAD_DIM)\n"
    : `    # Every device of \`model\` has all heads of keys; its queries want these of them.
    mine = lax.axis_index("model") * q.shape[2] + jnp.arange(q.shape[2])
    mine, q = mine // (HEADS // KV), q[:, :, :, None]
`;
  const these = cutsKeys ? "" : "[:, :, mine]";
  return codeText("ring", { own, these, queries, keys });
}

/** Attention of the whole sequence, by a kernel or with its scores written. */
function codeKernel({ one, has, compute, cutsKeys, rows, split }) {
  let [why, which, shared] = ["", "None", ""];
  if (one.attention === "plain") [why, which] = ["Plain: the scores are written, on every chip.", '"xla"'];
  else if (has("context")) why = "cuDNN has no kernel for a sharded sequence.";
  else if (compute === "float32") why = "cuDNN has no kernel for float32.";
  else {
    why = "CPUs and TPUs write the scores; on a TPU put a kernel of Pallas here.";
    which = '"cudnn" if jax.default_backend() == "gpu" else None';
    if (!cutsKeys) {
      shared = `    # cuDNN wants q, k and v sharded alike: a head of keys for each of the queries.
    k, v = (jnp.repeat(y, HEADS // KV, 2) for y in (k, v))
    k, v = (put(y, ${rows}, None, ${split}) for y in (k, v))
`;
    }
  }
  return `

def attention(q, k, v):
${shared}    # ${why}
    how = ${which}
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=how)
`;
}

function codeMixture({ moe, has, rows, context, split, axis }) {
  if (!moe) return "";
  const expert = axis("expert");
  const send = has("expert") ? '    rows = lax.all_to_all(rows, "expert", 0, 1, tiled=True)\n' : "";
  const back = has("expert") ? '    rows = lax.all_to_all(rows, "expert", 1, 0, tiled=True)\n' : "";
  const summed = has("model") ? 'lax.psum(out, "model")' : "out";
  return codeText("mixture", { send, back, summed, rows, context, expert, split });
}

function codeLayer({ isGpt, moe, one, rows, context, split, keys }) {
  const product = (x, name) => `times(${x}, w["${name}"])${isGpt ? ` + w["b_${name}"].astype(COMPUTE)` : ""}`;
  const hidden = isGpt
    ? `jax.nn.gelu(${product("h", "up")})`
    : `jax.nn.silu(${product("h", "gate")}) * ${product("h", "up")}`;
  const last = moe
    ? `    experts = {name: w[name].astype(COMPUTE) for name in ("gate", "up", "down")}
    y = mixture(h, w["router"].astype(COMPUTE), experts)
    return put(x + y, ${rows}, ${context}), None`
    : `    hidden = ${hidden}
    hidden = put(hidden, ${rows}, ${context}, ${split})
    return put(x + ${product("hidden", "down")}, ${rows}, ${context}), None`;
  const remat = `
layer = jax.checkpoint(  # in a scan nothing is merged
    layer, prevent_cse=False,
    policy=jax.checkpoint_policies.${one.recompute},
)
`;
  return `

def layer(x, w):
    b, s, _ = x.shape
    h = norm(x, w["norm1"])
    q = (${product("h", "q")}).reshape(b, s, HEADS, HEAD_DIM)
    k = (${product("h", "k")}).reshape(b, s, KV, HEAD_DIM)
    v = (${product("h", "v")}).reshape(b, s, KV, HEAD_DIM)
    q = put(q, ${rows}, ${context}, ${split})
    k, v = (put(y, ${rows}, ${context}, ${keys}) for y in (k, v))
${isGpt ? "" : "    q, k = rotate(q), rotate(k)\n"}    y = put(attention(q, k, v), ${rows}, ${context}, ${split}).reshape(b, s, -1)
    x = put(x + ${product("y", "o")}, ${rows}, ${context})
    h = norm(x, w["norm2"])
${last}

${one.recompute === "everything_saveable" ? "" : remat}`;
}

function codeLoss({ model, isGpt, rows, context, split }) {
  const learned = isGpt ? '    x = x + params["positions"].astype(COMPUTE)\n' : "";
  const head = model.tied ? 'params["embed"].T' : 'params["head"]';
  return codeText("loss", { learned, rows, context, head, split });
}

function codeRun({ rows }) {
  return codeText("run", { rows });
}
