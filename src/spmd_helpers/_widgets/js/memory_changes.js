import { countMemory, memoryChoices } from "./memory_state.js";
import { divisors } from "./python_words.js";
import { attempt, bytesWords, meshWords } from "./words.js";

// Which small changes make a step fit: each is tried by the same arithmetic.

const CHANGED_DEVICES = 65536n; // meshes up to here are tried

/**
 * The changes of one thing that make it fit; where no such one does on the same devices,
 * those of several; where nothing does, those of several on more devices or another chip.
 */
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
  ];
  const same = kinds.map((kind) => kind()).filter(Boolean);
  const [data, model, chips] = [...changedDevices(counted), changedChip(counted)];
  const larger = [first([...data, ...model]), first(chips)].filter(Boolean);
  const all = [...(same.length ? same : changedTogether(counted, fits)), ...larger];
  const more = (sets) => first(sets.flatMap((set) => changedSeveral(counted).flat().map((some) => ({ ...set, ...some }))));
  if (!all.length) all.push(...[data, model, chips].map(more).filter(Boolean));
  return all.map(({ set, again }) => changedWords(set, counted, again));
}

function changedZero({ how }) {
  return [1n, 2n, 3n].filter((stage) => stage > how.zero).map((stage) => ({ zero: `${stage}` }));
}

function changedRecompute({ how }) {
  const choices = memoryChoices.recompute;
  return choices.slice(choices.indexOf(how.recompute) + 1).map((recompute) => ({ recompute }));
}

function changedSequence({ model, how }) {
  return model.kind === "MLP" || how.sequence_parallel ? [] : [{ sequence_parallel: "yes" }];
}

function changedProduct(sizes) {
  return sizes.reduce((a, b) => a * b, 1n);
}

/** How many sequences of a batch are counted together: one for each device, and part. */
function changedEach({ mesh, how }) {
  return mesh.data * (mesh.fsdp ?? 1n) * (mesh.expert ?? 1n) * how.gradient_accumulation;
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
function changedBatch(counted, fits) {
  const each = changedEach(counted);
  const of = (times) => fits({ batch: `${times * each}` });
  let [low, high] = [0n, counted.how.batch / each]; // low fits, high does not
  let found = null;
  while (high - low > 1n) {
    const middle = (low + high) / 2n;
    const less = of(middle);
    if (less) [low, found] = [middle, less];
    else high = middle;
  }
  return found;
}

/** Twice as many devices, four times, ...: along data, and along model. */
function changedDevices(counted) {
  const { mesh, how } = counted;
  const devices = changedProduct(Object.values(mesh));
  const few = [...Array(10).keys()].map((n) => 2n ** BigInt(n + 1)).filter((n) => n * devices <= CHANGED_DEVICES);
  const wide = (times) => {
    const each = changedEach(counted) * times;
    const data = `${mesh.data * times}`;
    const batch = (how.batch / each + 1n) * each; // the next that divides
    return how.batch % each ? { data, batch: `${batch}` } : { data };
  };
  return [few.map(wide), few.map((n) => ({ model_axis: `${mesh.model * n}` }))];
}

function changedChip({ chip }) {
  const usable = (name) => Number(spmdHardware[name].program_bytes);
  return Object.keys(spmdHardware)
    .filter((name) => usable(name) > chip.usable)
    .sort((a, b) => usable(a) - usable(b))
    .map((name) => ({ chip: name }));
}

/** Two or more changes at once on the same devices: as few as do. */
function changedTogether(counted, fits) {
  for (const several of changedSeveral(counted).slice(1)) {
    const found = several.map(fits).filter(Boolean);
    if (found.length) return found;
  }
  return [];
}

/** The strongest change of each kind, taken one at a time, two at a time, ... */
function changedSeveral({ model, how }) {
  const steps = [];
  if (how.zero < 3n) steps.push({ zero: "3" });
  if (model.kind !== "MLP" && how.attention === "plain") steps.push({ attention: "flash" });
  if (how.recompute !== "nothing_saveable") steps.push({ recompute: "nothing_saveable" });
  if (model.kind !== "MLP" && !how.sequence_parallel) steps.push({ sequence_parallel: "yes" });
  const made = steps.map(() => []);
  for (let chosen = 1; chosen < 1 << steps.length; chosen++) {
    const some = steps.filter((_, i) => chosen & (1 << i));
    made[some.length - 1].push(Object.assign({}, ...some));
  }
  return made;
}

function changedWords(set, counted, again) {
  const [before, after] = [counted, again].map(({ found }) => bytesWords(found.total_bytes));
  const change = changedName(set, counted.mesh, again.mesh);
  const said = [];
  if (Object.keys(set).some((key) => key !== "chip")) said.push(`${before} → ${after}`);
  if (set.chip) said.push(`room for ${bytesWords(again.chip.allowed)}`);
  return { change, words: `${change}: ${said.join(", ")}`, set, bytes: `${again.found.total_bytes}` };
}

function changedName({ data, model_axis, ...rest }, mesh, after) {
  const name = ([key, value]) => `${key}=${key === "sequence_parallel" ? "True" : value}`;
  const names = Object.entries(rest).map(name);
  if (data || model_axis) names.unshift(meshWords(Object.entries(after)));
  const [old, now] = [mesh, after].map((one) => changedProduct(Object.values(one)));
  return `${names.join(", ")}${now === old ? "" : ` (${now} devices, not ${old})`}`;
}
