// What the compiler moves for A [I, J] · B [J, K]: the rule of _matmul/rule.py, which
// the tests hold this against. A mesh is [[axis, size], ...].

const mmResult = { "I-": "I", IJ: "I", "-K": "K", JK: "K" };
const mmBesideRows = { JJ: "K", "-K": "-", "--": "K", JK: "-" };
const mmBesideColumns = { JJ: "I", "I-": "-", "--": "I", IJ: "-" };
const MM_CROSSED = ["IK", "IJ", "JK"];
const MM_ONE_SIDED = ["J-", "-J"];

class MmOutside extends Error {}

const mmOutside = (words) => {
  throw new MmOutside(words);
};

/** A dict; an axis may have any name, "constructor" too. */
const mmTable = (pairs = []) => Object.assign(Object.create(null), Object.fromEntries(pairs));

const mmProduct = (numbers) => numbers.reduce((all, n) => all * BigInt(n), 1n);

/** Where an axis cuts: the letter of its dimension, or "-". */
const mmLetter = (axis, entries, dims) => {
  const place = entries.findIndex((entry) => entry.includes(axis));
  return place < 0 ? "-" : dims[place];
};

/** In case 4 the smaller operand is gathered; if they are equal, B. */
const mmGathersA = (sizes) => sizes.I < sizes.K;

/**
 * {kinds, natural, cuts, moves, block, swapped} or {kinds, natural, whyNot}, as Plan.
 * Entries are whole and fit their arrays; sizes are {I, J, K}.
 */
export function matmulPlan(mesh, a, b, sizes, itemBytes, wish) {
  const used = mmTable(mesh.filter(([, size]) => size > 1));
  const inUse = (entries) => entries.map((entry) => entry.filter((axis) => axis in used));
  const work = { mesh: used, a: inUse(a), b: inUse(b), sizes, itemBytes, kinds: mmTable(), cuts: mmTable(), moves: [], lost: new Set() };
  work.names = mesh.map(([axis]) => axis).filter((axis) => axis in used);
  work.now = { A: work.a.map((entry) => [...entry]), B: work.b.map((entry) => [...entry]) };
  [work.summed, work.stages] = [[], []];
  mmNote(work, "before");
  for (const x of work.names) work.kinds[x] = mmLetter(x, work.a, "IJ") + mmLetter(x, work.b, "JK");
  let natural = null;
  try {
    let target = mmNatural(work);
    try {
      mmCheckNatural(work, target);
      natural = [work.a[0].filter((x) => target[x] === "I"), work.b[1].filter((x) => target[x] === "K")];
    } catch (error) {
      if (!wish || !(error instanceof MmOutside)) throw error;
    }
    if (wish && JSON.stringify(inUse(wish)) !== JSON.stringify(natural)) {
      target = mmTable(work.names.map((x) => [x, mmLetter(x, wish, "IK")]));
      mmCheckWish(work, target, natural);
      work.asked = true;
    }
    mmRun(work, target);
  } catch (error) {
    if (!(error instanceof MmOutside)) throw error;
    return { kinds: work.kinds, natural, whyNot: error.message };
  }
  const block = ["I", "J", "K"].map((dim) => sizes[dim] / Number(mmParts(work, dim)));
  const { kinds, cuts, moves, swapped, stages } = work;
  return { kinds, natural, cuts, moves, block, swapped, stages };
}

const mmAxes = (work, ...kinds) => work.names.filter((x) => kinds.includes(work.kinds[x]));
const mmDevices = (work, axes) => mmProduct(axes.map((x) => work.mesh[x]));
const mmParts = (work, dim) => mmDevices(work, work.names.filter((x) => work.cuts[x] === dim));
const mmLocal = (work, dims) =>
  [...dims].reduce((n, dim) => (n * BigInt(work.sizes[dim])) / mmParts(work, dim), 1n);

/** Where C is cut if nothing is asked. An entry keeps its first axes. */
function mmNatural(work) {
  const target = mmTable();
  for (const x of work.names) {
    const kind = work.kinds[x];
    target[x] = kind === "IK" ? (mmGathersA(work.sizes) ? "K" : "I") : mmResult[kind] || "-";
  }
  for (const [dim, entry] of [["I", work.a[0]], ["K", work.b[1]]]) {
    let gone = false;
    for (const x of entry) {
      gone = gone || target[x] !== dim;
      if (gone && target[x] === dim) {
        target[x] = "-";
        work.lost.add(x);
      }
    }
  }
  return target;
}

function mmCheckNatural(work, target) {
  if (work.names.length > 2) {
    const moved = work.names.filter((x) => !["I-", "-K"].includes(work.kinds[x]));
    if (moved.length > 1 || mmAxes(work, "--", "IK", ...MM_ONE_SIDED).length) {
      mmOutside(
        "of three axes or more it knows those that shard rows of A or columns of B, and beside " +
          "them one that shards J of both, or two dimensions of which one is J",
      );
    }
  }
  const [small, large] = mmTakenOver(work, target);
  if (!small || work.mesh[large] % work.mesh[small]) return;
  const dim = work.kinds[small].includes("J") ? "J" : target[small] === "I" ? "K" : "I";
  if (work.sizes[dim] % work.mesh[large]) {
    mmOutside(
      `shards along ${small} (${work.mesh[small]}) would be sent to the axis ${large} ` +
        `(${work.mesh[large]}), and would be padded there`,
    );
  }
}

function mmCheckWish(work, target, natural) {
  const { kinds, names } = work;
  if (names.length < 2) return;
  const whole = natural && names.every((x) => target[x] === "-");
  const idleBeside = mmAxes(work, "--").length && mmAxes(work, ...MM_CROSSED).length;
  const bothJ = [["J-", "IJ"], ["-J", "JK"]].some((pair) => pair.every((kind) => mmAxes(work, kind).length));
  if (names.length === 2 && whole && !idleBeside && !bothJ && !mmAxes(work, "IK").length) return;
  if (names.length === 2) {
    for (const [x, y] of [names, [...names].reverse()]) {
      const beside = { I: mmBesideRows, K: mmBesideColumns }[target[x]] || {};
      const stays = kinds[x] === (target[x] === "I" ? "I-" : "-K");
      const kept = mmResult[kinds[x]] === target[x];
      const fits = stays || (kept && ["I-", "-K"].includes(kinds[y]));
      if (fits && beside[kinds[y]] === target[y]) return;
    }
  }
  mmOutside(
    "of shardings requested for C, where more than one axis is in use, it knows a few: C is replicated, " +
      "or one axis stays, and along the other one C is reduce-scattered, or gathered, or sharded along " +
      "its other dimension",
  );
}

function mmRun(work, target) {
  mmPlace(work, target);
  mmUseIdleAxis(work, target);
  mmUseOtherAxis(work);
  mmSameOrder(work);
  const done = work.swapped && work.moves[0].of;
  if (done !== "A") mmBring(work, "A", work.a, "IJ");
  if (done !== "B") mmBring(work, "B", work.b, "JK");
  mmAtMultiply(work);
  mmFinish(work, target);
}

/** Where each axis cuts the product. */
function mmPlace(work, target) {
  const { kinds, cuts } = work;
  for (const x of work.names) {
    if (kinds[x] === "JJ") cuts[x] = "J";
    else if (work.lost.has(x) && !work.asked) cuts[x] = kinds[x].includes("J") ? "J" : "-";
    else if (target[x] !== "-") cuts[x] = target[x];
    else if (kinds[x] === "IK") cuts[x] = mmGathersA(work.sizes) ? "K" : "I";
    else cuts[x] = mmResult[kinds[x]] || "-";
  }
  const undecided = mmAxes(work, ...MM_ONE_SIDED).filter((x) => cuts[x] === "-");
  if (!undecided.length) return;
  if (mmGathersOneSided(work, undecided[0])) for (const x of mmAxes(work, "JJ")) cuts[x] = "-";
  else for (const x of undecided) cuts[x] = "J";
}

/** Gather what is cut, or take slices of the other and add up: the smaller. */
function mmGathersOneSided(work, x) {
  const opposite = work.kinds[x] === "J-" ? ["-J", "JK"] : ["J-", "IJ"];
  if (mmAxes(work, "--", "JJ", ...opposite).length) return true;
  return mmLocal(work, work.kinds[x] === "J-" ? "IJ" : "JK") <= mmLocal(work, "IK");
}

/** An axis with two places, and one that doesn't cut the operand that moves. */
function mmTakenOver(work, target) {
  const crossed = mmAxes(work, ...MM_CROSSED);
  if (work.asked || work.lost.size || crossed.length !== 1) return [];
  const free = mmAxes(work, "--", target[crossed[0]] === "I" ? "J-" : "-J");
  return free.length === 1 ? [crossed[0], free[0]] : [];
}

/** An axis that is a multiple takes the blocks of one that must move. */
function mmUseIdleAxis(work, target) {
  const [small, large] = mmTakenOver(work, target);
  if (!small || work.mesh[large] % work.mesh[small]) return;
  const [of, dims] = target[small] === "I" ? ["B", "JK"] : ["A", "IJ"];
  const whole = mmProduct([...dims].map((dim) => work.sizes[dim]));
  const part = whole / BigInt(work.mesh[large]);
  work.swapped = [small, large];
  mmReplace(work, of, small, large);
  mmMove(work, "collective-permute", of, [small, large], part, part);
  const isIdle = work.kinds[large] === "--";
  work.cuts[large] = "-";
  if (work.kinds[small] === "IK" || (isIdle && whole <= mmLocal(work, "IK"))) {
    mmDrop(work, of, [large]);
    mmMove(work, "all-gather", of, [large], part, whole);
  } else work.cuts[large] = "J";
}

/** J of A over one axis, J of B over an equal one: the smaller operand moves. */
function mmUseOtherAxis(work) {
  const [[left], [right]] = [mmAxes(work, "J-"), mmAxes(work, "-J")];
  if (!left || !right || work.mesh[left] !== work.mesh[right]) return;
  const isB = mmLocal(work, "JK") < mmLocal(work, "IJ");
  const [of, dims, from, to] = isB ? ["B", "JK", right, left] : ["A", "IJ", left, right];
  work.swapped = [from, to];
  work.cuts[to] = "J";
  const part = mmLocal(work, dims);
  mmReplace(work, of, from, to);
  mmMove(work, "collective-permute", of, [from, to], part, part);
}

/** Slices of J that are multiplied must be the same ones in A and in B. */
function mmSameOrder(work) {
  const left = work.a[1].filter((x) => work.cuts[x] === "J");
  const right = work.b[0].filter((x) => work.cuts[x] === "J");
  if (left.join() === right.join() || [...left].sort().join() !== [...right].sort().join()) return;
  const [ofA, ofB] = [mmLocal(work, "IJ"), mmLocal(work, "JK")];
  if (ofA < ofB) work.now.A[1] = right;
  else work.now.B[0] = left;
  if (ofA < ofB) mmMove(work, "collective-permute", "A", left, ofA, ofA);
  else mmMove(work, "collective-permute", "B", left, ofB, ofB);
}

/** What one operand has to move, so that it is cut as the product is. */
function mmBring(work, of, entries, dims) {
  const wanted = (x) => (dims.includes(work.cuts[x]) ? work.cuts[x] : "-");
  const held = {};
  [...dims].forEach((dim, i) => (held[dim] = BigInt(work.sizes[dim]) / mmDevices(work, entries[i])));
  const all = () => held[dims[0]] * held[dims[1]];
  for (const x of work.names) {
    const [from, to, size] = [mmLetter(x, entries, dims), wanted(x), BigInt(work.mesh[x])];
    const slicedLast = MM_ONE_SIDED.includes(work.kinds[x]) && mmAxes(work, ...MM_CROSSED).length;
    if (from === "-" && to !== "-" && !slicedLast) {
      held[to] /= size;
      mmSlice(work, of, dims.indexOf(to), x);
    } else if (from !== "-" && to !== "-" && from !== to && !(work.lost.has(x) && !work.asked)) {
      mmDrop(work, of, [x]);
      work.now[of][dims.indexOf(to)].push(x);
      mmMove(work, "all-to-all", of, [x], all(), all());
      held[from] *= size;
      held[to] /= size;
    }
  }
  const isLast = mmAxes(work, ...MM_ONE_SIDED).length && entries[0].some((x) => work.kinds[x] === "IK");
  for (const i of isLast ? [0, 1] : [1, 0]) {
    const entry = entries[i];
    const gone = entry.filter((x) => wanted(x) !== dims[i] && (wanted(x) === "-" || work.lost.has(x)));
    if (!gone.length) continue;
    const [part, times] = [all(), mmDevices(work, gone)];
    const kept = entry.filter((x) => !gone.includes(x));
    if (kept.join() !== entry.slice(0, entry.length - gone.length).join()) {
      work.now[of][i] = [...kept, ...gone];
      mmMove(work, "collective-permute", of, entry, part, part);
    }
    mmDrop(work, of, gone);
    mmMove(work, "all-gather", of, gone, part, part * times);
    held[dims[i]] *= times;
  }
}

/** Each operand is sharded as the product is; each device computes its part. */
function mmAtMultiply(work) {
  const { A: left, B: right } = work.now;
  const before = JSON.stringify([left, right]);
  for (const [dim, places] of [["I", [left[0]]], ["J", [left[1], right[0]]], ["K", [right[1]]]]) {
    const longest = [...places.reduce((one, two) => (two.length > one.length ? two : one))];
    const more = work.names.filter((x) => work.cuts[x] === dim && !longest.includes(x));
    for (const place of places) place.splice(0, place.length, ...longest, ...more);
  }
  if (JSON.stringify([left, right]) !== before) mmNote(work, "slice");
  work.now.C = [[...left[0]], [...right[1]]];
  work.summed = [...left[1]];
  mmNote(work, "multiply");
}

/** What happens to C: sums are added up, what is wanted whole is gathered. */
function mmFinish(work, target) {
  const held = { I: BigInt(work.sizes.I) / mmParts(work, "I"), K: BigInt(work.sizes.K) / mmParts(work, "K") };
  const summed = work.names.filter((x) => work.cuts[x] === "J");
  for (const x of summed.filter((axis) => target[axis] !== "-")) {
    const part = held.I * held.K;
    work.now.C["IK".indexOf(target[x])].push(x);
    work.summed = work.summed.filter((axis) => axis !== x);
    mmMove(work, "reduce-scatter", "C", [x], part, part / BigInt(work.mesh[x]));
    held[target[x]] /= BigInt(work.mesh[x]);
  }
  const added = summed.filter((x) => target[x] === "-");
  if (added.length) {
    work.summed = [];
    mmMove(work, "all-reduce", "C", added, held.I * held.K, held.I * held.K);
  }
  for (const dim of ["K", "I"]) {
    const gone = work.names.filter((x) => work.cuts[x] === dim && target[x] === "-");
    if (!gone.length) continue;
    const [part, times] = [held.I * held.K, mmDevices(work, gone)];
    mmDrop(work, "C", gone);
    mmMove(work, "all-gather", "C", gone, part, part * times);
    held[dim] *= times;
  }
}

/** Devices take slices over one more axis, of J in the other operand's order. */
function mmSlice(work, of, dim, axis) {
  const entry = work.now[of][dim];
  entry.push(axis);
  const other = { A1: work.now.B[0], B0: work.now.A[1] }[`${of}${dim}`];
  if (other && entry.every((x) => other.includes(x))) entry.sort((x, y) => other.indexOf(x) - other.indexOf(y));
  if (work.stages.at(-1).at === "slice") work.stages.pop();
  mmNote(work, "slice");
}

/** An operand is sharded over one axis where it was over another. */
function mmReplace(work, of, from, to) {
  work.now[of] = work.now[of].map((entry) => entry.map((x) => (x === from ? to : x)));
}

/** An operand is no longer sharded over these axes. */
function mmDrop(work, of, axes) {
  work.now[of] = work.now[of].map((entry) => entry.filter((x) => !axes.includes(x)));
}

/** How A, B and C are sharded now, as Stage. */
function mmNote(work, at, move = null) {
  const entries = (of) => work.now[of]?.map((entry) => [...entry]) ?? null;
  work.stages.push({ at, move, a: entries("A"), b: entries("B"), c: entries("C"), summed: [...work.summed] });
}

/** top / bottom as a whole number, a half rounded to even. */
function mmRound(top, bottom) {
  const [whole, twice] = [top / bottom, 2n * (top % bottom)];
  return twice > bottom || (twice === bottom && whole % 2n) ? whole + 1n : whole;
}

function mmMove(work, kind, of, axes, putItems, gotItems) {
  const n = mmDevices(work, axes);
  const [put, got] = [putItems * BigInt(work.itemBytes), gotItems * BigInt(work.itemBytes)];
  let sent = mmRound(put * (n - 1n), n);
  if (kind === "all-gather") sent = mmRound(got * (n - 1n), n);
  if (kind === "all-reduce") sent = mmRound(2n * put * (n - 1n), n);
  if (kind === "collective-permute") sent = put;
  const ordered = work.names.filter((x) => axes.includes(x));
  work.moves.push({ kind, of, axes: ordered, put, got, sent });
  mmNote(work, of, work.moves.length - 1);
}
