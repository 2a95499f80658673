import { planMeshes, planOfBatch, planPolicies, planWaysOn, usefulAxes } from "./plan_candidates.js";
import { planPrices } from "./plan_exchanges.js";
import { planFlops, planLeast, planProducts, planSeconds, planSizes, planStep } from "./plan_seconds.js";
import { planNotes, planNothingDivides, planRemedy, planUnchecked } from "./plan_words.js";
import { trainingMemory } from "./training.js";

// Which mesh for a model on so many chips: mirrors _plan/plan_mesh.py.

const planMemoryUsual = {
  grad_dtype: null, moment_dtype: null, mu_dtype: null, master_weights: false,
  names_which_can_be_saved: [], names_which_can_be_offloaded: [], sequence_parallel: false,
  lora_rank: null, lora_targets: [], base_dtype: null, offload_optimizer: false, counting: "jax",
};

/**
 * Every strategy, those that fit first by their seconds, the others by their memory.
 *
 * `asked`: model (of transformer.js), chips (of plan_cluster.js), batch, seq and capacity as
 * numbers, axes and recompute as arrays or null, attention or null, param_dtype, compute_dtype,
 * optimizer.
 */
export function planMesh(asked) {
  const planner = planPlanner(asked);
  const { chips, model } = planner;
  const axes = asked.axes ?? usefulAxes(model);
  const policies = planPolicies(model).filter((policy) => (asked.recompute ?? spmdPlan.policies).includes(policy));
  const found = planEach(planner, axes, policies);
  if (!found.length) planNothingDivides(planner, axes, policies, (batch) => planEach({ ...planPlanner({ ...asked, batch }) }, axes, policies).length > 0);
  found.sort(planCompared);
  found.forEach((one, i) => (one.rank = i + 1));
  const unchecked = planUnchecked(chips);
  return {
    what: planner.what,
    chips: chips.name,
    strategies: found,
    fitting: found.filter(({ fits }) => fits).length,
    allowed: planner.allowed,
    error: unchecked ? null : spmdPlan.error[chips.kind],
    notes: planNotes(planner, found),
    remedy: planRemedy(asked),
    unchecked,
  };
}

function planPlanner(asked) {
  const { chips, model: exact, batch, seq } = asked;
  const { rates, bf16, margin } = spmdPlan.chips[chips.chip];
  const model = planSizes(exact);
  const planner = {
    ...{ ...asked, exact, model, rates: { ...rates, kind: chips.kind, generation: spmdHardware[chips.chip].generation } },
    ...{ paramDtype: asked.param_dtype, computeDtype: asked.compute_dtype, bf16, far: 0, tooLarge: 0, refused: "" },
    products: new Map(),
  };
  // Whatever does not divide, a single device has all of it.
  const alone = planMemory(planner, {}, { zero: 0, recompute: "nothing_saveable", microbatches: 1, chunks: 1 }, asked.attention === "ring" ? null : asked.attention);
  planner.state = [Number(alone.params_bytes), Number(alone.optimizer_bytes)];
  planner.allowed = Math.floor(margin * Number(spmdHardware[chips.chip].program_bytes));
  planner.prices = planPrices(chips, planner.rates);
  const { forward, again } = planFlops(exact, BigInt(batch), BigInt(seq));
  planner.flops = Number(3n * forward + again);
  planner.what = `${exact.name}, ${batch} ${batch === 1 ? "sequence" : "sequences"} of ${seq} tokens, on ${chips.name}`;
  return planner;
}

function planMemory(planner, mesh, { zero, recompute, microbatches, chunks }, attention) {
  const whole = {};
  for (const axis of Object.keys(mesh)) whole[axis] = BigInt(mesh[axis]);
  const how = {
    zero: BigInt(zero), batch: BigInt(planner.batch), seq: BigInt(planner.seq), recompute,
    gradient_accumulation: BigInt(microbatches), interleave: BigInt(chunks), attention: attention ?? "flash",
    param_dtype: planner.paramDtype, compute_dtype: planner.computeDtype, optimizer: planner.optimizer,
    capacity_factor: null,
    chip: planner.chips.kind === "gpu" ? planner.chips.chip : null,
  };
  return trainingMemory(planner.exact, whole, Object.assign(how, planMemoryUsual));
}

/** What `trainingMemory` says of a strategy. */
export function planCounted(asked, one) {
  const { param_dtype: paramDtype, compute_dtype: computeDtype, model: exact } = asked;
  return planMemory({ ...asked, exact, paramDtype, computeDtype }, one.mesh, one, one.attention);
}

// Every strategy; of many meshes those that take far longer than the best are left out.
function planEach(planner, axes, policies) {
  const every = planMeshes(planner, axes).filter((mesh) => planWaysOn(planner.model, mesh, policies, planner.batch).length);
  const all = (isLeftOut) => every.flatMap((mesh) => planOn(planner, mesh, policies, isLeftOut));
  if (every.length <= spmdPlan.many) return all();
  const bounds = every.map((mesh) => [planBound(planner, mesh, policies[0]), mesh]);
  bounds.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  let best = Infinity;
  const found = [];
  for (const [place, [bound, mesh]] of bounds.entries()) {
    if (bound > spmdPlan.far * best) {
      planner.far = bounds.length - place;
      break;
    }
    for (const one of planOn(planner, mesh, policies, planTooLarge)) {
      if (one.fits && one.total < best) best = one.total;
      found.push(one);
    }
  }
  if (best < Infinity) return found;
  planner.tooLarge = 0; // the nearest may be one of them
  return all();
}

// Whether parameters and the optimizer's state alone are too large.
function planTooLarge(planner, way, mesh) {
  const cut = mesh.fsdp * mesh.model * mesh.expert * mesh.stage;
  const [params, optimizer] = planner.state;
  const isSo = params / cut + optimizer / cut / (way.zero ? mesh.data : 1) > planner.allowed;
  if (isSo) planner.tooLarge += 1;
  return isSo;
}

function planOn(planner, mesh, policies, isLeftOut = () => false) {
  const priced = planner.prices(mesh);
  return planWaysOn(planner.model, mesh, policies, planner.batch)
    .filter((way) => !isLeftOut(planner, way, mesh))
    .map((way) => planStrategy(planner, way, mesh, priced))
    .filter(Boolean);
}

// Seconds that no strategy on a mesh is faster than: with its best schedule.
function planBound(planner, mesh, policy) {
  const priced = planner.prices(mesh);
  const bounds = planWaysOn(planner.model, mesh, [mesh.stage === 1 ? policy : "nothing_saveable"], planner.batch)
    .filter(({ zero }) => zero === 0) // the stages of ZeRO have the same passes
    .map((way) => {
      const step = planStep(planner, mesh, way, planAttention(planner, mesh));
      return planLeast(step, planProductsOf(planner, step), priced, planner.rates);
    });
  return Math.min(...bounds);
}

function planProductsOf(planner, { recompute, attention }) {
  const key = `${recompute} ${attention}`;
  const { products, chips, rates } = planner;
  if (!products.has(key)) products.set(key, planProducts(planner, chips.devices, recompute, attention, rates));
  return products.get(key);
}

function planAttention({ attention }, { context }) {
  if (attention !== null && attention !== "ring") return attention;
  return context === 1 ? "flash" : "ring";
}

function planStrategy(planner, way, mesh, priced) {
  const attention = planAttention(planner, mesh);
  let memory;
  try {
    memory = planMemory(planner, mesh, way, attention);
  } catch (error) {
    if (!error.refused) throw error;
    planner.refused = error.message;
    return null;
  }
  const step = planStep(planner, mesh, way, attention);
  const updated = Number(2n * memory.optimizer_bytes + 2n * memory.params_bytes + memory.grads_bytes);
  const seconds = planSeconds(step, updated, planProductsOf(planner, step), priced, planner.rates);
  const bytes = Number(memory.total_bytes);
  const left = planner.allowed - bytes;
  const sizes = Object.entries(mesh).filter(([, size]) => size > 1);
  const { total, compute, again, memory: moved, exchanges, bubble } = seconds;
  return {
    zero: way.zero, recompute: way.recompute, microbatches: way.microbatches, chunks: way.chunks,
    attention, mesh: sizes.length ? Object.fromEntries(sizes) : { data: 1 },
    words: planWords(sizes, way),
    bytes, left, fits: left >= 0,
    total, compute, again, memory: moved, exchanges, bubble, rank: 0,
    tokens: (planner.batch * planner.seq) / seconds.total,
    mfu: planner.flops / (planner.bf16 * planner.chips.devices) / seconds.total,
  };
}

/** "data 2 × fsdp 4, ZeRO-1". */
function planWords(sizes, { zero, microbatches, chunks }) {
  const words = [sizes.map(([axis, size]) => `${axis} ${size}`).join(" × ") || "data 1"];
  if (zero) words.push(`ZeRO-${zero}`);
  if (sizes.some(([axis]) => axis === "stage")) words.push(`${microbatches} microbatches`);
  if (chunks > 1) words.push(`${chunks} chunks each`);
  return words.join(", ");
}

// Those that fit by their seconds, the others by their memory; ties by name.
function planCompared(a, b) {
  const key = ({ fits, total, bytes, zero, words, recompute }) => [
    !fits, fits ? total : bytes, fits ? bytes : total, zero, `${words}, ${recompute}`,
  ];
  const [one, other] = [key(a), key(b)];
  const at = one.findIndex((part, i) => part !== other[i]);
  return at < 0 ? 0 : one[at] < other[at] ? -1 : 1;
}

/** Where the time goes, and which part of it, the largest first. */
export function planShares({ compute, again, memory, bubble, exchanges, total }) {
  const parts = { compute: compute - again, recomputation: again, "memory traffic": memory };
  if (bubble) parts["pipeline bubble"] = bubble;
  for (const { kind, axes, exposed } of exchanges) {
    const name = `${kind} over ${axes.join(" and ")}`;
    parts[name] = (parts[name] ?? 0) + exposed;
  }
  return Object.entries(parts)
    .map(([name, part]) => [name, part / total])
    .sort(([a, x], [b, y]) => (x !== y ? y - x : a < b ? -1 : 1));
}
