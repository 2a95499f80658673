import { planDirections, planOrder, planProduct } from "./plan_cluster.js";

// Every mesh of so many devices that a model divides into, and every way on it: _plan/candidates.py.

/** The policies that are counted for a model: with experts not by its products. */
export function planPolicies({ moeLayers }) {
  return moeLayers ? [spmdPlan.policies[0], spmdPlan.policies.at(-1)] : spmdPlan.policies;
}

/** The axes that a model has a use for, in the order of a mesh. */
export function usefulAxes({ moeLayers }) {
  return planOrder.filter((axis) => axis !== (moeLayers ? "stage" : "expert"));
}

/** Every mesh of the chips that divides what can be known at once to divide. */
export function planMeshes({ model, chips, batch, seq }, axes) {
  const limits = planLimits(model, batch, seq);
  const sizes = planOrder.map((axis) => (axes.includes(axis) ? limits[axis] : 1));
  return planShapes(chips.devices, sizes)
    .map((shape) => [shape, Object.fromEntries(planOrder.map((axis, i) => [axis, shape[i]]))])
    .filter(
      ([shape, mesh]) =>
        batch % planOfBatch(mesh) === 0 &&
        (mesh.stage === 1 || mesh.context === 1) &&
        (!chips.torus.length || planDirections(chips.torus, shape)),
    )
    .map(([, mesh]) => mesh);
}

/** Over how many devices the batch is divided. */
export function planOfBatch(mesh) {
  return planProduct(spmdPlan.ofBatch.map((axis) => mesh[axis]));
}

/** Every stage of ZeRO × policy × microbatches on a mesh, in a fixed order. */
export function planWaysOn(model, mesh, recompute, batch) {
  const each = batch / planOfBatch(mesh);
  return (mesh.data > 1 ? [0, 1, 2] : [0]).flatMap((zero) =>
    recompute.flatMap((policy) => {
      const way = { zero, recompute: policy, microbatches: 1, chunks: 1 };
      if (mesh.stage === 1) return [way];
      if (policy !== "nothing_saveable") return [];
      return planSchedules(model.layers, mesh.stage, each).map((some) => ({ ...way, ...some }));
    }),
  );
}

// Microbatches and chunks of 1F1B and of its interleaved form.
function planSchedules(layers, stages, each) {
  const counts = spmdPlan.forEachStage.map((n) => n * stages).filter((n) => each % n === 0).slice(0, 2);
  return counts.flatMap((microbatches) =>
    spmdPlan.chunks.filter((chunks) => layers % (stages * chunks) === 0).map((chunks) => ({ microbatches, chunks })),
  );
}

function planGcd(a, b) {
  return b ? planGcd(b, a % b) : a;
}

// What the size of each axis has to divide.
function planLimits(model, batch, seq) {
  const wide = [model.moeLayers < model.layers ? model.d_ff : 0, model.heads];
  if (model.moeLayers) wide.push(model.expert_d_ff);
  return {
    ...Object.fromEntries(spmdPlan.ofBatch.map((axis) => [axis, batch])),
    context: seq,
    model: wide.reduce(planGcd),
    stage: model.layers,
    expert: planGcd(batch, model.experts ?? 1),
  };
}

// All ways to write a number as a product of divisors of the limits, in order.
function planShapes(count, [limit, ...limits]) {
  if (!limits.length) return limit % count ? [] : [[count]];
  const found = [];
  for (let first = 1; first <= count; first++) {
    if (count % first || limit % first) continue;
    for (const rest of planShapes(count / first, limits)) found.push([first, ...rest]);
  }
  return found;
}
