import { planGroups, planOrder } from "./plan_cluster.js";
import { planWays } from "./plan_links.js";

// What the devices of a mesh exchange in one step, and what it costs: mirrors _plan/exchanges.py.

/** Every exchange of a step; those of the passes alone without the gradients' sums. */
export function planExchanges(step, isInPasses = false) {
  const found = [...exchangedWeights(step), ...exchangedActivations(step), ...exchangedKeys(step)];
  found.push(...exchangedTokens(step), ...exchangedStages(step));
  return isInPasses ? found : [...found, ...exchangedGradients(step)];
}

function exchange(what, kind, axes, when, count, nbytes) {
  return { what, kind, axes, when, count, nbytes, seconds: 0, exposed: 0, link: "" };
}

// The matrices of the layers, k and v together.
function exchangedMatrices({ model, layers, moeLayers: moe, attentionNumbers, mlpNumbers, sharedNumbers, expertNumbers }) {
  const wide = model.gated ? 3 : 2;
  const found = [];
  if (layers > moe) found.push({ layers: layers - moe, count: 3 + wide, numbers: attentionNumbers + mlpNumbers });
  if (!moe) return found;
  const count = 3 + (model.shared_experts ? wide : 0);
  return [
    ...found,
    { layers: moe, count, numbers: attentionNumbers + sharedNumbers },
    { layers: moe, count: wide, numbers: expertNumbers, areExperts: true },
  ];
}

function exchangedWeights(step) {
  const { mesh, microbatches: times, each } = step;
  if (mesh.fsdp === 1) return [];
  return ["forward", "backward"].flatMap((when) => [
    ...exchangedMatrices(step).map(({ layers, count, numbers, areExperts }) => {
      const isWide = areExperts && step.recomputes && when === "backward";
      const size = Math.floor(((isWide ? step.eachParam : each) * numbers) / count);
      return exchange("weights", "all-gather", ["fsdp"], when, count * layers * times, size);
    }),
    exchange("head", "all-gather", ["fsdp"], when, times, each * step.headNumbers),
    exchange("embedding", "all-to-all", ["fsdp"], when, times, Math.floor((each * step.tokens * step.model.d_model) / times)),
  ]);
}

function exchangedGradients(step) {
  const { mesh, microbatches: times, each, headNumbers } = step;
  const found = exchangedMatrices(step).flatMap(({ layers, count, numbers, areExperts }) =>
    exchangedSums(step, "gradients", layers * times, each * numbers, areExperts ? count : 2, count, areExperts),
  );
  found.push(...exchangedSums(step, "head", times, 4 * headNumbers));
  found.push(...exchangedSums(step, "embedding", times, each * headNumbers));
  if (mesh.stage > 1) {
    const size = Math.floor((step.eachParam * step.endsNumbers) / mesh.fsdp);
    found.push(exchange("embedding", "all-reduce", ["stage"], "update", 1, size));
  }
  if (step.zero && mesh.data > 1) {
    const size = Math.floor((step.eachParam * (step.numbers + step.endsNumbers)) / mesh.fsdp);
    found.push(exchange("new parameters", "all-gather", ["data"], "update", 1, size));
  }
  return found;
}

function exchangedSums({ mesh, zero }, what, times, size, scatters = 1, reduces = 1, areExperts = false) {
  const several = (axes) => axes.filter((axis) => mesh[axis] > 1);
  const scattered = several(zero === 2 ? ["data", "fsdp"] : ["fsdp"]);
  const others = several(areExperts ? ["data", "context"] : ["data", "expert", "context"]);
  const summed = others.filter((axis) => !scattered.includes(axis));
  const found = [];
  if (scattered.length) {
    found.push(exchange(what, "reduce-scatter", scattered, "backward", scatters * times, Math.floor(size / scatters)));
  }
  if (summed.length) {
    const left = Math.floor(size / scattered.reduce((n, axis) => n * mesh[axis], 1));
    found.push(exchange(what, "all-reduce", summed, "backward", reduces * times, Math.floor(left / reduces)));
  }
  return found;
}

function exchangedActivations(step) {
  const { model, microbatches: times, layers } = step;
  if (step.split === 1) return [];
  const stream = Math.floor((step.each * step.tokens * model.d_model) / times);
  const forward = 2 * layers * times;
  let backward = forward;
  // The second sum of a layer is nothing that the backward pass reads.
  if (step.recompute === "nothing_saveable") backward += layers * times;
  backward += step.moeLayers * times;
  const sum = (what, when, count, size) => exchange(what, "all-reduce", ["model"], when, count, size);
  return [
    sum("activations", "forward", forward, stream),
    sum("activations", "backward", backward, stream),
    sum("embedding", "forward", times, stream),
    sum("head", "backward", times, Math.floor((4 * step.tokens * model.d_model) / times)),
  ];
}

function exchangedKeys(step) {
  const { model, mesh, split, each } = step;
  const size = mesh.context;
  if (size === 1) return [];
  const heads = model.kv_heads % split ? model.kv_heads : model.kv_heads / split;
  const both = 2 * each * step.tokens * heads * model.head_dim;
  const again = step.recomputes ? 1 : 0;
  const keys = (kind, when, count, nbytes) => exchange("keys and values", kind, ["context"], when, count, nbytes);
  if (step.attention !== "ring") {
    return [
      keys("all-gather", "forward", (1 + again) * model.layers, both * size),
      keys("reduce-scatter", "backward", model.layers, both * size),
    ];
  }
  const turns = size * model.layers;
  // Their gradients go around with them, in float32.
  const more = both * (1 + again) + Math.floor((4 * both) / each);
  return [keys("collective-permute", "forward", turns, both), keys("collective-permute", "backward", turns, more)];
}

function exchangedTokens(step) {
  if (step.mesh.expert === 1) return [];
  const size = Math.floor(step.each * step.expertRows * step.model.d_model);
  const count = 2 * step.moeLayers;
  const sent = (when, times) => exchange("tokens", "all-to-all", ["expert"], when, times, size);
  return [sent("forward", count), sent("backward", (step.recomputes ? 2 : 1) * count)];
}

function exchangedStages(step) {
  if (step.mesh.stage === 1) return [];
  const size = Math.floor((step.each * step.tokens * step.model.d_model) / step.microbatches);
  const count = step.microbatches * step.chunks;
  return ["forward", "backward"].map((when) => exchange("activations", "collective-permute", ["stage"], when, count, size));
}

/** What gives the seconds of all runs of an exchange on a mesh, and the link. */
export function planPrices(chips, rates) {
  const known = new Map();
  return (mesh) => {
    const shape = planOrder.map((axis) => mesh[axis]);
    const here = new Map();
    return ({ kind, axes, count, nbytes }) => {
      const asked = `${kind} ${axes}`;
      if (!here.has(asked)) {
        const groups = planGroups(chips, shape, axes.map((axis) => planOrder.indexOf(axis)));
        const lines = groups.map((group) => {
          const key = `${kind} ${group.key}`;
          if (!known.has(key)) known.set(key, planWays(kind, group, chips, rates));
          return known.get(key);
        });
        here.set(asked, lines);
      }
      // The slowest group decides, each by its fastest way.
      let slowest = [-1, ""];
      for (const { lane, ways } of here.get(asked)) {
        const seconds = Math.min(...ways.map(([start, aByte]) => start + nbytes * aByte));
        if (seconds > slowest[0] || (seconds === slowest[0] && lane > slowest[1])) slowest = [seconds, lane];
      }
      return [count * slowest[0], slowest[1]];
    };
  };
}
