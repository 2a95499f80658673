import { specWords } from "./sharding_words.js";
import { bytesWords, fixedWords, joinWords, meshWords } from "./words.js";

// What is said of a product of two cut matrices, as _matmul/words.py and _matmul/matmul.py do.

/** What an axis cuts, by its two letters, and the case of chapter 4; 0 is none of them. */
export const MATMUL_KINDS = {
  "--": ["nothing", 0],
  "I-": ["rows of A", 1],
  "-K": ["columns of B", 1],
  JJ: ["J of A and of B", 2],
  "J-": ["J of A only", 3],
  "-J": ["J of B only", 3],
  IJ: ["rows of A and J of B", 3],
  JK: ["J of A and columns of B", 3],
  IK: ["rows of A and columns of B", 4],
};

const mmIdle = (plan) => Object.keys(plan.cuts).filter((x) => plan.cuts[x] === "-");
const mmTimes = (mesh, axes) => mesh.reduce((n, [x, size]) => (axes.includes(x) ? n * size : n), 1);

export function matmulTitle(a, b, wish) {
  const asked = wish ? ` → ${specWords(wish.entries)}` : "";
  const mesh = a.mesh.length ? ` on ${meshWords(a.mesh)}` : " on one device";
  return `${specWords(a.entries)} · ${specWords(b.entries)}${asked}${mesh}`;
}

/** The answer in one sentence. */
export function matmulResult(title, plan, c) {
  if (!c) return `${title}: the rule does not cover it.`;
  const moved = plan.moves.map((m) => `${m.kind} of ${m.of} over ${joinWords(m.axes)}`);
  const idle = mmIdle(plan);
  let waste = "no redundant work";
  if (idle.length) waste = `redundancy ${mmTimes(c.mesh, idle)}: devices along ${joinWords(idle)} do the same work`;
  return `${title}: ${moved.join(", then ") || "no communication"}; C is sharded as ${specWords(c.entries)}; ${waste}.`;
}

/** Before, communicate, multiply, reduce: a sentence or two each. */
export function matmulSteps(a, b, c, plan) {
  const held = (name, lay) => `${lay.shard.join(" × ")} of ${name}, ${bytesWords(lay.bytesPerDevice)}`;
  const before = `Each device has ${held("A", a)}, and ${held("B", b)}.`;
  if (!c) return [before, "", "", ""];
  return [before, mmCommunicate(plan), mmMultiply(plan, c), mmReduce(plan, c)];
}

function mmCommunicate(plan) {
  const words = plan.moves.filter((m) => m.of !== "C").map(matmulMove);
  if (plan.swapped) {
    const [small, large] = plan.swapped;
    words.unshift(`${plan.moves[0].of} is not sharded over ${large}, so its shards are first sent there from ${small}.`);
  }
  const sliced = ["A", "B"].filter((of) => mmSlices(plan, of));
  if (!words.length) {
    words.push("Nothing is communicated.");
    if (!sliced.length) words.push("Each device has what it multiplies.");
  }
  if (sliced.length) {
    const slices = `its slices of ${sliced.join(" and of ")}`;
    words.push(`Each device takes ${slices} from what it has, without exchange.`);
  }
  return words.join(" ");
}

/** Whether the product is cut where this operand is whole. */
function mmSlices(plan, of) {
  const [side, dims] = of === "A" ? [0, "IJ"] : [1, "JK"];
  return Object.entries(plan.kinds).some(
    ([x, kind]) => kind[side] === "-" && dims.includes(plan.cuts[x]) && !plan.swapped?.includes(x),
  );
}

/** One exchange with its bytes. */
export function matmulMove(move) {
  const kind = move.kind[0].toUpperCase() + move.kind.slice(1);
  const [put, sent, got] = [move.put, move.sent, move.got].map(bytesWords);
  return `${kind} of ${move.of} over ${joinWords(move.axes)}: each device puts in ${put}, sends ${sent} and gets ${got}.`;
}

export const matmulFlops = ([i, j, k]) => 2n * BigInt(i) * BigInt(j) * BigInt(k);

function mmMultiply(plan, c) {
  const [i, j, k] = plan.block;
  const words =
    `Each device multiplies ${i} × ${j} by ${j} × ${k}: ` +
    `2 · ${i} · ${j} · ${k} = ${matmulFlops(plan.block)} FLOPs.`;
  const idle = mmIdle(plan);
  if (!idle.length) return `${words} No work is redundant: redundancy 1.`;
  const times = mmTimes(c.mesh, idle);
  return (
    `${words} The product is not sharded over ${joinWords(idle)}, so ${times} devices compute ` +
    `the same: redundancy ${times}.`
  );
}

function mmReduce(plan, c) {
  const words = plan.moves.filter((m) => m.of === "C").map(matmulMove);
  if (!words.length) words.push("There is nothing to reduce.");
  const each = `${c.shard.join(" × ")} per device, ${bytesWords(c.bytesPerDevice)}`;
  return [...words, `C is sharded as ${specWords(c.entries)}: ${each}.`].join(" ");
}

/** Where the compiler could do otherwise: both prices, and which it takes. */
export function matmulChoice(plan, a, b, wish, itemBytes) {
  if (plan.whyNot) return "";
  const free = Object.entries(plan.kinds).filter(([x]) => !wish?.entries.flat().includes(x));
  const crossed = free.filter(([, kind]) => kind === "IK").map(([x]) => x);
  if (crossed.length) {
    return (
      `Along ${joinWords(crossed)} only one of A and B can stay sharded. The compiler gathers the ` +
      `smaller, A of ${bytesWords(a.totalBytes)} or B of ${bytesWords(b.totalBytes)}, and B if they are equal.`
    );
  }
  const sided = free.filter(([, kind]) => kind === "J-" || kind === "-J").map(([x]) => x);
  if (!sided.length) return "";
  if (new Set(sided.map((x) => plan.kinds[x])).size > 1) {
    return (
      "A and B are sharded along J over different axes. If these axes are equally long, the compiler " +
      "sends the shards of the smaller operand to the other axis, of A if they are equal; otherwise it gathers both."
    );
  }
  if (plan.swapped) return "";
  const [of, other] = plan.kinds[sided[0]] === "J-" ? ["A", "B"] : ["B", "A"];
  const ways =
    `Two ways: gather ${of} along ${joinWords(sided)} and repeat the product there, or take ` +
    `slices of ${other} and reduce C.`;
  const opposite = of === "A" ? "JK" : "IJ";
  const beside = Object.keys(plan.kinds).filter((x) => ["--", "JJ", opposite].includes(plan.kinds[x]));
  if (beside.length) return `${ways} Beside ${joinWords(beside)} the compiler gathers.`;
  const parts = (dim) =>
    a.mesh.reduce((n, [x, size]) => (plan.cuts[x] === dim && !sided.includes(x) ? n * size : n), 1);
  const [rows, columns] = [a.shape[0] / parts("I"), b.shape[1] / parts("K")];
  const bytes = (n, m) => bytesWords(BigInt(n) * BigInt(m) * BigInt(itemBytes));
  const gathered = bytes(a.shape[1], of === "A" ? rows : columns);
  return (
    `${ways} That is ${gathered} of ${of} or ${bytes(rows, columns)} of C on each device. ` +
    "The compiler takes what is smaller, and gathers if they are equal."
  );
}

/** Claims 8 and 9 of the book, where they apply. */
export function matmulPitfalls(plan, mesh) {
  const moved = (plan.moves || []).map((m) => m.of);
  const said = [];
  for (const [x, kind] of Object.entries(plan.kinds)) {
    if (kind !== "IJ" && kind !== "-J") continue;
    let price = moved.includes("B") ? "B has to be communicated" : "C has to be reduced";
    if (plan.whyNot) price = "something has to be communicated";
    said.push(
      `Claim 8: ${x} shards J of B and not of A. The numbers are right, and ${price}. ` +
        "On purpose, to save memory, it is called FSDP.",
    );
  }
  const idle = plan.whyNot ? [] : mmIdle(plan);
  if (idle.length) {
    const share = fixedWords(100n, BigInt(mmTimes(mesh, idle)), 1n, true);
    said.push(
      `Claim 9: the product is not sharded over ${joinWords(idle)}, so ${share} % of the devices' ` +
        `work is useful. Shard a dimension over ${joinWords(idle)}.`,
    );
  }
  return said;
}

/** An array's type on an Explicit mesh, as jax.typeof prints it. */
function mmType(dtype, shape, entries) {
  const dims = shape.map((size, dim) => {
    const entry = entries[dim];
    if (!entry.length) return `${size}`;
    return `${size}@${entry.length === 1 ? entry[0] : `(${entry.join(",")})`}`;
  });
  return `${dtype}[${dims.join(",")}]`;
}

/** {type, error, sentence}: the contraction first, then what is left. */
export function matmulExplicit(a, b, wish, natural, dtype) {
  const [rows, left] = a.entries;
  const [right, columns] = b.entries;
  const shape = [a.shape[0], b.shape[1]];
  if (wish) {
    const type = mmType(dtype, shape, wish.entries);
    return { type, error: "", sentence: `In Explicit mode out_sharding=${specWords(wish.entries)} makes it ${type}.` };
  }
  const better = natural ? specWords(natural) : "P(...)";
  const ask = `state the sharding of C: jnp.matmul(a, b, out_sharding=${better})`;
  const refused = (why) => ({
    type: "",
    error: "ShardingTypeError",
    sentence: `Explicit mode raises ShardingTypeError: ${why}; ${ask}.`,
  });
  if (left.length && right.length) {
    return refused(
      `J is sharded over ${joinWords(left)} in A and over ${joinWords(right)} in B, and the partial ` +
        "sums can be reduced in more than one way",
    );
  }
  const twice = rows.filter((x) => columns.includes(x));
  if (twice.length) return refused(`rows and columns of C would both be sharded over ${joinWords(twice)}`);
  const type = mmType(dtype, shape, [rows, columns]);
  return { type, error: "", sentence: `In Explicit mode its type is ${type}.` };
}
