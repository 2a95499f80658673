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
  return { kinds: work.kinds, natural, cuts: work.cuts, moves: work.moves, block, swapped: work.swapped };
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
  const crossed = mmAxes(work, ...MM_CROSSED);
  if (work.names.length > 2) {
    const moved = work.names.filter((x) => !["I-", "-K"].includes(work.kinds[x]));
    if (moved.length > 1 || mmAxes(work, "--", "IK", ...MM_ONE_SIDED).length) {
      mmOutside(
        "of three axes or more it knows those that cut rows of A or columns of B, and beside " +
          "them one that cuts J of both, or two places of which one is J",
      );
    }
  }
  if (mmAxes(work, "J-").length && mmAxes(work, "-J").length) {
    mmOutside("one axis cuts J of A only, and another one J of B only");
  }
  for (const x of mmAxes(work, ...MM_ONE_SIDED)) {
    const clash = mmAxes(work, "IK", work.kinds[x] === "J-" ? "IJ" : "JK");
    if (clash.length) mmOutside(`${x} cuts J of one operand only, and ${clash[0]} has two places`);
  }
  const idle = mmAxes(work, "--");
  if (!idle.length || !crossed.length || work.lost.size) return;
  const [small, large] = [work.mesh[crossed[0]], work.mesh[idle[0]]];
  const dim = work.kinds[crossed[0]].includes("J") ? "J" : target[crossed[0]] === "I" ? "K" : "I";
  if (large > small && (large % small || work.sizes[dim] % large)) {
    mmOutside(`blocks along ${crossed[0]} (${small}) would go to the idle axis ${idle[0]} (${large}), and don't fit there`);
  }
}

function mmCheckWish(work, target, natural) {
  const { kinds, names } = work;
  if (names.length < 2) return;
  const whole = natural && names.every((x) => target[x] === "-");
  const idleBeside = mmAxes(work, "--").length && mmAxes(work, ...MM_CROSSED).length;
  if (names.length === 2 && whole && !idleBeside && !mmAxes(work, "IK").length) return;
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
    "of wishes for C, where more than one axis is in use, it knows a few: C is whole, or one axis " +
      "stays, and along the other one C is added up into parts, or is gathered, or is cut along its " +
      "other dimension",
  );
}

function mmRun(work, target) {
  mmPlace(work, target);
  mmUseIdleAxis(work, target);
  mmSameOrder(work);
  const done = work.swapped && work.moves[0].of;
  if (done !== "A") mmBring(work, "A", work.a, "IJ");
  if (done !== "B") mmBring(work, "B", work.b, "JK");
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
  if (mmAxes(work, "--", "JJ", "IJ", "JK").length) return true;
  return mmLocal(work, work.kinds[x] === "J-" ? "IJ" : "JK") <= mmLocal(work, "IK");
}

/** An idle axis that is no smaller takes the blocks of one that must move. */
function mmUseIdleAxis(work, target) {
  const [idle, crossed] = [mmAxes(work, "--"), mmAxes(work, ...MM_CROSSED)];
  if (work.asked || work.lost.size || idle.length !== 1 || crossed.length !== 1) return;
  const [small, large] = [crossed[0], idle[0]];
  if (work.mesh[large] < work.mesh[small]) return;
  const [of, dims] = target[small] === "I" ? ["B", "JK"] : ["A", "IJ"];
  const whole = mmProduct([...dims].map((dim) => work.sizes[dim]));
  const part = whole / BigInt(work.mesh[large]);
  work.swapped = [small, large];
  mmMove(work, "collective-permute", of, [small, large], part, part);
  if (work.kinds[small] === "IK" || whole <= mmLocal(work, "IK")) {
    mmMove(work, "all-gather", of, [large], part, whole);
  } else work.cuts[large] = "J";
}

/** Slices of J that are multiplied must be the same ones in A and in B. */
function mmSameOrder(work) {
  const left = work.a[1].filter((x) => work.cuts[x] === "J");
  const right = work.b[0].filter((x) => work.cuts[x] === "J");
  if (left.join() === right.join() || [...left].sort().join() !== [...right].sort().join()) return;
  const [ofA, ofB] = [mmLocal(work, "IJ"), mmLocal(work, "JK")];
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
    if (from === "-" && to !== "-") held[to] /= size;
    else if (from !== "-" && to !== "-" && from !== to && !(work.lost.has(x) && !work.asked)) {
      mmMove(work, "all-to-all", of, [x], all(), all());
      held[from] *= size;
      held[to] /= size;
    }
  }
  for (const i of [1, 0]) {
    const entry = entries[i];
    const gone = entry.filter((x) => wanted(x) !== dims[i] && (wanted(x) === "-" || work.lost.has(x)));
    if (!gone.length) continue;
    const [part, times] = [all(), mmDevices(work, gone)];
    const kept = entry.filter((x) => !gone.includes(x));
    if (kept.join() !== entry.slice(0, entry.length - gone.length).join()) {
      mmMove(work, "collective-permute", of, entry, part, part);
    }
    mmMove(work, "all-gather", of, gone, part, part * times);
    held[dims[i]] *= times;
  }
}

/** What happens to C: sums are added up, what is wanted whole is gathered. */
function mmFinish(work, target) {
  const held = { I: BigInt(work.sizes.I) / mmParts(work, "I"), K: BigInt(work.sizes.K) / mmParts(work, "K") };
  const summed = work.names.filter((x) => work.cuts[x] === "J");
  for (const x of summed.filter((axis) => target[axis] !== "-")) {
    const part = held.I * held.K;
    mmMove(work, "reduce-scatter", "C", [x], part, part / BigInt(work.mesh[x]));
    held[target[x]] /= BigInt(work.mesh[x]);
  }
  const added = summed.filter((x) => target[x] === "-");
  if (added.length) mmMove(work, "all-reduce", "C", added, held.I * held.K, held.I * held.K);
  for (const dim of ["K", "I"]) {
    const gone = work.names.filter((x) => work.cuts[x] === dim && target[x] === "-");
    if (!gone.length) continue;
    const [part, times] = [held.I * held.K, mmDevices(work, gone)];
    mmMove(work, "all-gather", "C", gone, part, part * times);
    held[dim] *= times;
  }
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
}
