import { closeName } from "./close_name.js";
import { countWords, specWords, tupleWords } from "./sharding_words.js";
import { bytesWords, joinWords, meshWords, refuse } from "./words.js";

// Where an array's shards are: the arithmetic of _shardings/sharding.py and _drawing/words.py, which the
// tests hold this against.

/** Bytes of one element. */
export const ITEM_BYTES = { float32: 4, bfloat16: 2, float16: 2, float8_e4m3fn: 1, int32: 4, int8: 1, bool: 1 };

/** How one array is sharded: a mirror of ShardingInfo. `mesh` is [[axis, size], ...]. */
export function shardingOf(shape, mesh, given, itemBytes) {
  const sizes = Object.fromEntries(mesh);
  checkAxes(shape, mesh, given);
  const entries = [...given, ...shape.slice(given.length).map(() => [])];
  checkDivision(shape, sizes, entries);
  const grid = entries.map((entry) => entry.reduce((n, axis) => n * sizes[axis], 1));
  const used = new Set(entries.flat());
  const shard = shape.map((size, dim) => size / grid[dim]);
  const count = (of) => of.reduce((n, size) => n * BigInt(size), 1n);
  return {
    shape,
    mesh,
    entries,
    grid,
    shard,
    replicas: mesh.reduce((n, [axis, size]) => (used.has(axis) ? n : n * size), 1),
    replicatedOver: mesh.filter(([a, n]) => n > 1 && !used.has(a)).map(([a]) => a),
    devices: mesh.reduce((n, [, size]) => n * size, 1),
    totalBytes: count(shape) * BigInt(itemBytes),
    bytesPerDevice: count(shard) * BigInt(itemBytes),
  };
}

/** A device's index along each mesh axis; the last axis runs fastest. */
export function coordinates(position, mesh) {
  const found = {};
  for (const [axis, size] of [...mesh].reverse()) {
    found[axis] = position % size;
    position = Math.floor(position / size);
  }
  return found;
}

/** The block that a device holds: its number along each dimension. */
export function blockOf(position, sharding) {
  const where = coordinates(position, sharding.mesh);
  const sizes = Object.fromEntries(sharding.mesh);
  return sharding.entries.map((entry) =>
    entry.reduce((number, axis) => number * sizes[axis] + where[axis], 0),
  );
}

/** The positions of the devices that hold a block, in their order. */
export function holdersOf(block, sharding) {
  const sizes = Object.fromEntries(sharding.mesh);
  const where = {};
  sharding.entries.forEach((entry, dim) => {
    let number = block[dim];
    for (const axis of [...entry].reverse()) {
      where[axis] = number % sizes[axis];
      number = Math.floor(number / sizes[axis]);
    }
  });
  return sharding.mesh.reduce(
    (found, [axis, size]) => {
      const along = Object.hasOwn(where, axis) ? [where[axis]] : [...Array(size).keys()];
      return found.flatMap((position) => along.map((i) => position * size + i));
    },
    [0],
  );
}

/** The first so many blocks and their devices, in the order of the blocks. */
export function ownersOf(sharding, most) {
  const count = Math.min(most, blocksOf(sharding));
  return [...Array(count).keys()].map((n) => {
    const block = [];
    for (const size of [...sharding.grid].reverse()) {
      block.unshift(n % size);
      n = Math.floor(n / size);
    }
    return { block, devices: holdersOf(block, sharding) };
  });
}

/** How many different blocks there are. */
export function blocksOf(sharding) {
  return sharding.grid.reduce((all, n) => all * n, 1);
}

/** First and one-past-last index of a block, as words: "0:4, 4:8". */
export function sliceWords(block, sharding) {
  const step = sharding.shard;
  return block.map((n, i) => `${n * step[i]}:${(n + 1) * step[i]}`).join(", ");
}

function checkAxes(shape, mesh, entries) {
  const given = `sharding=${specWords(entries)}`;
  if (entries.length > shape.length) {
    refuse(
      `${given} has ${countWords(entries.length, "entry", "entries")}, but the array of ` +
        `shape ${tupleWords(shape)} has ${countWords(shape.length, "dimension")}; give ` +
        "at most one entry a dimension, such as " +
        `${specWords(entries.slice(0, shape.length))}.`,
    );
  }
  const names = mesh.map(([axis]) => axis);
  const seen = Object.create(null);
  entries.forEach((entry, dim) => {
    for (const axis of entry) {
      if (!names.includes(axis)) refuse(`${given}: ${unknownAxis(axis, mesh, entries)}`);
      if (axis in seen) {
        const once = entries.map((e, d) =>
          d > seen[axis] ? e.filter((a) => a !== axis) : [...new Set(e)],
        );
        const where =
          seen[axis] === dim ? `twice for dimension ${dim}` : `for dimension ${seen[axis]} and again for dimension ${dim}`;
        refuse(
          `${given} uses the mesh axis '${axis}' ${where}; an axis can shard only one ` +
            `dimension of an array, so use it once, such as ${specWords(once)}.`,
        );
      }
      seen[axis] = dim;
    }
  });
}

function unknownAxis(axis, mesh, entries) {
  if (!mesh.length) return `there is no axis '${axis}': the mesh has no axes; use P().`;
  const has = joinWords(mesh.map(([name, size]) => `'${name}' (${size})`));
  const one = mesh.length === 1;
  const words = `the mesh has no axis '${axis}'; ${one ? "its only axis is" : "its axes are"} ${has}.`;
  const close = closeName(axis, mesh.map(([name]) => name));
  if (!close) return `${words} Use ${one ? "it" : "one of them"}, or None to leave the dimension unsharded.`;
  const fixed = entries.map((e) => e.map((a) => (a === axis ? close : a)));
  return `${words} Did you mean ${specWords(fixed)}?`;
}

function checkDivision(shape, sizes, entries) {
  entries.forEach((entry, dim) => {
    const [size, blocks] = [shape[dim], entry.reduce((n, axis) => n * sizes[axis], 1)];
    if (size % blocks === 0) return;
    const axes = joinWords(entry.map((axis) => `'${axis}' (${sizes[axis]})`));
    const less = Math.floor(size / blocks) * blocks;
    const better = less ? `${less} or ${less + blocks}` : `${blocks}`;
    const whole = entries.map((e, d) => (d === dim ? [] : e));
    refuse(
      `sharding=${specWords(entries)}: dimension ${dim} of shape ${tupleWords(shape)} has ` +
        `${countWords(size, "element")}, which ${size === 1 ? "does" : "do"} not divide into ${blocks} equal shards ` +
        `over ${axes}; make it ${better}, or leave it unsharded with ${specWords(whole)}.`,
    );
  });
}

// What is said of a sharding.

/** {title, facts, sentence}, as say_sharding has them; no device ids are known here. */
export function saySharding(sharding, dtype) {
  const { mesh, entries, shard, grid, replicatedOver } = sharding;
  const sizes = Object.fromEntries(mesh);
  const total = bytesWords(sharding.totalBytes);
  const how = mesh.length ? `as ${specWords(entries)}` : "on one device";
  const title = `${dtype}[${sharding.shape.join(", ")}] ${how}`;
  if (!mesh.length) return { title, facts: [`all on one device: ${total}`] };
  const facts = [
    `mesh ${meshWords(mesh)}`,
    `per device: ${tupleWords(shard)}, ${bytesWords(sharding.bytesPerDevice)} of ${total}`,
  ];
  const what = grid.every((n) => n === 1) ? "the array" : "each shard";
  const replicas = replicatedOver.reduce((n, axis) => n * sizes[axis], 1);
  facts.push(
    replicatedOver.length
      ? `replicated over ${joinWords(replicatedOver)}: ${replicas} replicas of ${what}`
      : "not replicated",
  );
  return { title, facts };
}
