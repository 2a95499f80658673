import { coordinates } from "./sharding.js";
import { deviceList } from "./sharding_words.js";
import { joinWords } from "./words.js";

// One device through a product of two sharded matrices, as _matmul/follow.py has it.

/** The rows and columns that a device has of a matrix so sharded: [[first, end], [first, end]]. */
export function regionOf(shape, mesh, entries, device) {
  const [where, sizes] = [coordinates(device, mesh), Object.fromEntries(mesh)];
  return shape.map((size, dim) => {
    const number = entries[dim].reduce((n, axis) => n * sizes[axis] + where[axis], 0);
    const part = size / entries[dim].reduce((n, axis) => n * sizes[axis], 1);
    return [number * part, (number + 1) * part];
  });
}

/** The devices that differ from this one along these axes at most. */
export function groupOf(device, mesh, axes) {
  const where = coordinates(device, mesh);
  return mesh.reduce(
    (found, [axis, size]) => {
      const along = axes.includes(axis) ? [...Array(size).keys()] : [where[axis]];
      return found.flatMap((position) => along.map((n) => position * size + n));
    },
    [0],
  );
}

/** The part that two regions share, or null. */
export function sharedPart(one, other) {
  const part = one.map(([first, end], dim) => [Math.max(first, other[dim][0]), Math.min(end, other[dim][1])]);
  return part.every(([first, end]) => first < end) ? part : null;
}

const sameRegion = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const partWords = (of, [rows, columns]) => `${of}[${rows.join(":")}, ${columns.join(":")}]`;

const MM_SUMS = ["all-reduce", "reduce-scatter"];

/** What one device has at each stage: {heading, sentence, a, b, c, sums, sources, same}. */
export function matmulFollow(plan, mesh, { I, J, K }, device) {
  const shapes = { A: [I, J], B: [J, K], C: [I, K] };
  const region = (of, stage, at = device) => regionOf(shapes[of], mesh, stage[of.toLowerCase()], at);
  const part = (of, stage) => partWords(of, region(of, stage));
  const count = (axes) => mesh.reduce((n, [axis, size]) => (axes.includes(axis) ? n * size : n), 1);
  const idle = Object.keys(plan.cuts).filter((x) => plan.cuts[x] === "-");
  const same = groupOf(device, mesh, idle).filter((d) => d !== device);
  const name = `Device ${device}`;

  const heading = ({ at, move }) => {
    if (move === null) return { before: "Before", slice: "Slice" }[at] || "Multiply";
    const { kind, of, axes } = plan.moves[move];
    return `${kind[0].toUpperCase()}${kind.slice(1)} of ${of} over ${joinWords(axes)}`;
  };
  const multiplies = (stage) => {
    const parts = count(stage.summed);
    const made = part("C", stage) + (parts > 1 ? ` as a partial sum, 1 of ${parts}` : "");
    const words = `${name} multiplies ${part("A", stage)} by ${part("B", stage)} and has ${made}.`;
    if (!same.length) return words;
    const who = same.length > 1 ? `Devices ${deviceList(same)} compute` : `Device ${same[0]} computes`;
    return `${words} ${who} the same product.`;
  };
  const sourcesOf = (stage, before) => {
    if (stage.move === null) return [];
    const { kind, of, axes } = plan.moves[stage.move];
    const others = groupOf(device, mesh, axes).filter((d) => d !== device);
    if (MM_SUMS.includes(kind)) return others;
    const now = region(of, stage);
    const kept = sharedPart(now, region(of, before));
    if (kept && sameRegion(kept, now)) return [];
    return others.filter((d) => sharedPart(now, region(of, before, d)));
  };
  const receives = (stage, before) => {
    const { of } = plan.moves[stage.move];
    const [now, own] = [region(of, stage), region(of, before)];
    const words = `${name} now has ${part(of, stage)}`;
    const kept = sharedPart(now, own);
    if (kept && sameRegion(kept, now)) return `${words}, which it had before.`;
    const sources = sourcesOf(stage, before);
    const which = kept ? "the rest" : "all of it";
    return `${words}; ${which} was on ${sources.length > 1 ? "devices" : "device"} ${deviceList(sources)}.`;
  };
  const sentence = (stage, before) => {
    if (stage.at === "before") return `${name} has ${part("A", stage)} and ${part("B", stage)}.`;
    if (stage.at === "slice") {
      const cut = ["A", "B"].filter((of) => !sameRegion(region(of, stage), region(of, before)));
      if (!cut.length) return `${name} needs all that it has of A and of B.`;
      return `${name} needs only ${cut.map((of) => part(of, stage)).join(" and ")} of what it has.`;
    }
    if (stage.at === "multiply") return multiplies(stage);
    const { kind, axes } = plan.moves[stage.move];
    if (!MM_SUMS.includes(kind)) return receives(stage, before);
    const done = stage.summed.length ? "still a partial sum" : "complete";
    return `${name} gets the sum over ${count(axes)} devices: ${part("C", stage)}, ${done}.`;
  };
  const before = (n) => plan.stages[Math.max(0, n - 1)];
  return plan.stages.map((stage, n) => ({
    heading: heading(stage),
    sentence: sentence(stage, before(n)),
    a: region("A", stage),
    b: region("B", stage),
    c: stage.c ? region("C", stage) : [],
    sums: count(stage.summed),
    sources: sourcesOf(stage, before(n)),
    same: stage.c ? same : [],
  }));
}
