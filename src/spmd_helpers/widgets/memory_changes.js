import { countMemory } from "./memory_state.js";
import { divisors } from "./python_words.js";
import { attempt, bytesWords, meshWords } from "./words.js";

// Which small changes make a step fit: each is tried by the same arithmetic.

const CHANGED_DEVICES = 65536n; // meshes up to here are tried

/** The changes of one thing that make it fit, the smallest first; else of several. */
export function changesThatFit(state, counted) {
  const fits = (set) => {
    const again = attempt(() => countMemory({ ...state, ...set }));
    return !again.error && again.left >= 0n ? { set, again } : null;
  };
  const first = (sets) => {
    for (const set of sets) {
      const found = fits(set);
      if (found) return found;
    }
    return null;
  };
  const kinds = [
    () => first(changedZero(counted)),
    () => first(counted.model.kind === "MLP" ? [] : [{ attention: "flash" }]),
    () => first(changedRecompute(counted)),
    () => first(changedSequence(counted)),
    () => first(changedMesh(counted)),
    () => changedBatch(counted, fits),
    () => first(changedDevices(counted)),
    () => first(changedChip(counted)),
  ];
  const found = kinds.map((kind) => kind()).filter(Boolean);
  const all = found.length ? found : changedTogether(counted, fits);
  return all.map(({ set, again }) => changedWords(set, counted, again));
}

function changedZero({ how }) {
  return [1n, 2n, 3n].filter((stage) => stage > how.zero).map((stage) => ({ zero: `${stage}` }));
}

function changedRecompute({ how }) {
  const choices = ["none", "selective", "full"];
  return choices.slice(choices.indexOf(how.recompute) + 1).map((recompute) => ({ recompute }));
}

function changedSequence({ model, how }) {
  return model.kind === "MLP" || how.sequence_parallel ? [] : [{ sequence_parallel: "yes" }];
}

/** The same devices as another mesh, as little tensor parallelism as possible first. */
function changedMesh({ mesh }) {
  const devices = mesh.data * mesh.model;
  if (devices > CHANGED_DEVICES) return [];
  return divisors(devices)
    .filter((size) => size !== mesh.model)
    .map((size) => ({ data: `${devices / size}`, model_axis: `${size}` }));
}

/** The largest smaller batch that fits. */
function changedBatch({ mesh, how }, fits) {
  const of = (each) => fits({ batch: `${each * mesh.data}` });
  let [low, high] = [0n, how.batch / mesh.data]; // low fits, high does not
  let found = null;
  while (high - low > 1n) {
    const middle = (low + high) / 2n;
    const less = of(middle);
    if (less) [low, found] = [middle, less];
    else high = middle;
  }
  return found;
}

/** Twice as many devices, four times, ...: along data, or else along model. */
function changedDevices({ mesh }) {
  const times = [...Array(10).keys()].map((n) => 2n ** BigInt(n + 1));
  const few = times.filter((n) => n * mesh.data * mesh.model <= CHANGED_DEVICES);
  return [
    ...few.map((n) => ({ data: `${mesh.data * n}` })),
    ...few.map((n) => ({ model_axis: `${mesh.model * n}` })),
  ];
}

function changedChip({ chip }) {
  const usable = (name) => Number(spmdHardware[name].usable_bytes || spmdHardware[name].memory_bytes);
  return Object.keys(spmdHardware)
    .filter((name) => usable(name) > chip.usable)
    .sort((a, b) => usable(a) - usable(b))
    .map((name) => ({ chip: name }));
}

/** Two, three or four changes at once on the same devices: as few as do. */
function changedTogether({ model, how }, fits) {
  const steps = [];
  if (how.zero < 3n) steps.push({ zero: "3" });
  if (model.kind !== "MLP" && how.attention === "plain") steps.push({ attention: "flash" });
  if (how.recompute !== "full") steps.push({ recompute: "full" });
  if (model.kind !== "MLP" && !how.sequence_parallel) steps.push({ sequence_parallel: "yes" });
  for (let count = 2; count <= steps.length; count++) {
    const found = [];
    for (let chosen = 0; chosen < 1 << steps.length; chosen++) {
      const some = steps.filter((_, i) => chosen & (1 << i));
      if (some.length === count) found.push(fits(Object.assign({}, ...some)));
    }
    if (found.some(Boolean)) return found.filter(Boolean);
  }
  return [];
}

function changedWords(set, counted, again) {
  const [before, after] = [counted, again].map(({ found }) => bytesWords(found.total_bytes));
  const change = changedName(set, again);
  const words = set.chip
    ? `${change}: room for ${bytesWords(again.chip.allowed)}`
    : `${change}: ${before} → ${after}`;
  return { change, words, set, bytes: `${again.found.total_bytes}` };
}

function changedName(set, { mesh }) {
  if (set.data || set.model_axis) return meshWords(Object.entries(mesh));
  const name = ([key, value]) => `${key}=${key === "sequence_parallel" ? "True" : value}`;
  return Object.entries(set).map(name).join(", ");
}
