import { planExchanges } from "./plan_exchanges.js";
import { expertParameters, forwardFlops, globalLayers, moeLayers } from "./transformer.js";

// How long a step takes by formula: mirrors _plan/step.py and _plan/seconds.py.

/** A transformer's sizes as numbers, for the formulas of seconds. */
export function planSizes(model) {
  const sizes = { moeLayers: Number(moeLayers(model)) };
  for (const [key, value] of Object.entries(model)) sizes[key] = typeof value === "bigint" ? Number(value) : value;
  return sizes;
}

/** The sizes that one device sees of a step. */
export function planStep({ model, batch, seq, paramDtype, computeDtype, capacity }, mesh, way, attention) {
  const { model: split, stage, data, fsdp, expert } = mesh;
  const layers = Math.floor(model.layers / stage);
  const moe = Math.floor(model.moeLayers / stage);
  const rows = Math.ceil(model.vocab / split) * split;
  const keys = 2 * model.kv_heads * model.head_dim * model.d_model;
  const queries = 2 * model.heads * model.head_dim * model.d_model;
  const wide = model.gated ? 3 : 2;
  const experts = model.experts === null ? 0 : wide * model.d_model * (model.expert_d_ff ?? 0);
  const step = {
    zero: way.zero, recompute: way.recompute, microbatches: way.microbatches, chunks: way.chunks,
    model, mesh, attention, split, layers, seq,
    moeLayers: moe,
    recomputes: way.recompute !== "everything_saveable",
    tokens: Math.floor((Math.floor(batch / (data * fsdp * expert)) * seq) / mesh.context),
    each: spmdChoices.floats[computeDtype],
    eachParam: spmdChoices.floats[paramDtype],
    attentionNumbers: (model.kv_heads % split ? keys : Math.floor(keys / split)) + Math.floor(queries / split),
    mlpNumbers: Math.floor((wide * model.d_model * model.d_ff) / split),
    expertNumbers: Math.floor((experts * (model.experts ?? 0)) / (split * expert)),
    sharedNumbers: Math.floor((experts * model.shared_experts) / split),
    headNumbers: Math.floor((rows * model.d_model) / split),
    endsNumbers: 0, expertRows: 0, numbers: 0,
  };
  step.endsNumbers = (model.tied ? 1 : 2) * step.headNumbers;
  step.expertRows = capacity * step.tokens * (model.experts_per_token ?? 0);
  step.numbers = layers * step.attentionNumbers + (layers - moe) * step.mlpNumbers;
  step.numbers += moe * (step.expertNumbers + step.sharedNumbers);
  return step;
}

/** FLOPs of a step's forward pass, of its head, of its scores, and of what runs again. */
export function planFlops(model, batch, seq, recompute = "everything_saveable") {
  const tokens = 2n * batch * seq;
  const head = tokens * model.d_model * model.vocab;
  const forward = batch * forwardFlops(model, seq);
  const everywhere = globalLayers(model);
  const near = model.window === null || seq < model.window ? seq : model.window;
  const reach = everywhere * seq + (model.layers - everywhere) * near;
  const scores = tokens * reach * 2n * model.heads * model.head_dim;
  let again = 0n;
  if (recompute === "nothing_saveable") {
    const moe = moeLayers(model);
    const last = (model.layers - moe) * model.d_ff + moe * model.shared_experts * (model.expert_d_ff ?? 0n);
    again = forward - head - (model.post_norms ? 0n : tokens * model.d_model * last);
  } else if (recompute !== "everything_saveable") again = scores;
  return { forward, head, scores, again };
}

/** Seconds of the layers' products, of what runs again, of the head, as if each device had its part. */
export function planProducts(asked, devices, recompute, attention, rates) {
  const { exact, batch, seq, capacity } = asked;
  const { forward, head: once, scores, again } = planFlops(exact, BigInt(batch), BigInt(seq), recompute);
  const recomputes = recompute !== "everything_saveable";
  const rate = rates.flops[spmdChoices.floats[asked.computeDtype] === 2 ? "bf16" : "f32"];
  const rows = 2n * BigInt(batch) * BigInt(seq) * (exact.experts_per_token ?? 0n) * moeLayers(exact);
  const unused = (capacity - 1) * Number(rows * expertParameters(exact));
  const layers = Number(3n * forward - 3n * once) + 3 * unused;
  const repeated = Number(again) + (recomputes ? unused : 0);
  const head = Number(once) / rate + Number(2n * once) / rates.flops.f32;
  let parts = [layers / rate, repeated / rate, head];
  if (attention === "flash") {
    const forwards = Number(scores) / 2 / rates.attention.forward;
    const backwards = Number(scores) / rates.attention.backward;
    const seconds = (layers - Number(3n * scores)) / rate + forwards + backwards;
    parts = [seconds, recomputes ? (repeated - Number(scores)) / rate + forwards : 0, head];
  }
  return parts.map((part) => part / devices);
}

/** The seconds of one step, and of each exchange. */
export function planSeconds(step, stateBytes, [layers, again, head], priced, rates) {
  const numbers = spmdPlan.seconds;
  const compute = layers + again + head * step.mesh.stage;
  const speed = rates.memory / numbers.waited[rates.kind];
  const memory = planMemoryBytes(step) / speed;
  const update = (numbers.updated * stateBytes) / speed;
  // What can hide exchanges in each pass.
  const forward = (layers + head * step.mesh.stage) / 3 + memory / (step.recomputes ? 4 : 3);
  const beside = { forward, backward: compute + memory - forward, update: stateBytes / rates.memory };
  const part = planExposed(rates);
  const hidden = { forward: 0, backward: 0, update: 0 };
  const exchanges = planExchanges(step);
  for (const one of exchanges) {
    [one.seconds, one.link] = priced(one);
    hidden[one.when] += (1 - part[one.kind]) * one.seconds;
  }
  let [waiting, passes] = [0, compute + memory];
  for (const one of exchanges) {
    const { when, kind, seconds } = one;
    // Of the exchanges of one pass no more is hidden than there is work.
    const share = hidden[when] ? Math.min(1, beside[when] / hidden[when]) : 1;
    const behind = share * (1 - part[kind]) * seconds;
    one.exposed = seconds - behind + rates.slowed * behind;
    waiting += one.exposed;
    if (when !== "update") passes += one.exposed;
  }
  const bubble = (passes * (step.mesh.stage - 1)) / (step.microbatches * step.chunks);
  const total = compute + memory + update + waiting + bubble;
  return { total, compute, again, memory: memory + update, exchanges, bubble };
}

/** What no strategy on the mesh of a step is faster than. */
export function planLeast(step, [layers, , head], priced, rates) {
  const part = planExposed(rates);
  // Among the policies there are two ways through memory: to run again, or to stack.
  const both = [step.recomputes, true].map((recomputes) => planMemoryBytes({ ...step, zero: 2, recomputes }));
  const memory = (Math.min(...both) * spmdPlan.seconds.waited[rates.kind]) / rates.memory;
  const least = ({ kind }) => part[kind] + rates.slowed * (1 - part[kind]);
  const waiting = planSum(planExchanges(step, true).map((one) => least(one) * priced(one)[0]));
  const bubble = (step.mesh.stage - 1) / (step.microbatches * step.chunks);
  return (layers + head * step.mesh.stage + memory + waiting) * (1 + bubble);
}

function planSum(numbers) {
  return numbers.reduce((a, b) => a + b, 0);
}

function planExposed({ generation, kind }) {
  return spmdPlan.seconds.exposed[generation] ?? spmdPlan.seconds.exposed[kind];
}

// Bytes that kernels without products read and write in a device's layers.
function planMemoryBytes(step) {
  const { model, each, recomputes, mesh } = step;
  const numbers = spmdPlan.seconds;
  const passes = recomputes ? 4 : 3;
  const hidden = model.gated ? numbers.hidden * 1.5 : numbers.hidden;
  let wide = passes * numbers.stream * model.d_model;
  if (!recomputes) wide += numbers.stacked * model.d_model;
  let widths = (step.layers - step.moeLayers) * model.d_ff;
  if (step.moeLayers) widths += step.moeLayers * model.shared_experts * (model.expert_d_ff ?? 0);
  const inside = (passes * hidden * widths) / step.split;
  let total = step.tokens * each * (step.layers * wide + inside);
  total += each * step.moeLayers * planRowNumbers(step);
  const all = step.numbers * step.microbatches;
  total += (numbers.converted * 4 * all) / mesh.fsdp + numbers.gathered * each * all;
  if (step.microbatches > 1) {
    const shards = mesh.fsdp * (step.zero === 2 ? mesh.data : 1);
    total += step.microbatches * ((3 * step.eachParam * (step.numbers + step.endsNumbers)) / shards);
  }
  if (step.attention === "flash") return total;
  const scores = (step.layers * step.tokens * step.seq * model.heads) / step.split;
  return total + scores * (passes * numbers.scores + (recomputes ? 0 : numbers.scoresStacked));
}

// Numbers that the rows of one layer's experts read and write.
function planRowNumbers({ model, recomputes, split, expertRows }) {
  if (model.expert_d_ff === null) return 0;
  const { rows, hiddenRows, rowsStacked } = spmdPlan.seconds;
  const more = recomputes ? 0 : rowsStacked;
  const passes = recomputes ? 4 : 3;
  const each = (passes * rows + more) * model.d_model + ((passes * hiddenRows + more) * model.expert_d_ff) / split;
  return expertRows * each;
}
