// The chips that a plan is for, and where the devices of a mesh stand: mirrors _plan/cluster.py.

/** The axes of a mesh, the outermost first. */
export const planOrder = spmdPlan.order;

export function planProduct(sizes) {
  return sizes.reduce((a, b) => a * b, 1);
}

/** So many chips of one kind: hosts of GPUs, or the chips of a TPU slice in each direction. */
export function planChips(chip, hosts, perHost, slice) {
  const { dims, cores, kind } = spmdPlan.chips[chip];
  if (!dims) {
    return { chip, kind, name: `${chip}:${hosts}x${perHost}`, devices: hosts * perHost, perHost, torus: [] };
  }
  const sizes = [...slice, 1].slice(0, 3);
  return {
    chip, kind, name: `${chip}:${slice.join("x")}`,
    devices: planProduct(slice) * cores,
    perHost: planProduct(slice.slice(0, 2).map((size) => Math.min(size, 2))) * cores,
    torus: cores > 1 ? [...sizes, cores] : sizes,
  };
}

/** The directions of the torus that each axis of a mesh has, or null. */
export function planDirections(torus, shape) {
  let free = torus.map((_, direction) => direction);
  const axes = [];
  for (const size of [...shape].reverse()) {
    const taken = planChosen(torus, free, size);
    if (!taken) return null;
    axes.unshift(taken);
    free = free.filter((direction) => !taken.includes(direction));
  }
  return axes;
}

// As many free directions as will do, the first ones first.
function planChosen(torus, free, size) {
  const some = (count, from) => {
    if (!count) return [[]];
    return free.slice(from).flatMap((direction, i) => some(count - 1, from + i + 1).map((rest) => [direction, ...rest]));
  };
  for (let count = free.length; count > 0; count--) {
    const found = some(count, 0).find((chosen) => planProduct(chosen.map((direction) => torus[direction])) === size);
    if (found) return found;
  }
  return size === 1 ? [] : null;
}

/** How the devices of the groups along some axes (their places in the shape) stand; alike ones are one. */
export function planGroups({ torus, perHost }, shape, axes) {
  if (torus.length) {
    const places = planDirections(torus, shape);
    const directions = [...new Set(axes.flatMap((axis) => places[axis]))].sort();
    return [{ directions, size: planProduct(directions.map((one) => torus[one])), key: `${directions}` }];
  }
  const steps = shape.map((_, axis) => planProduct(shape.slice(axis + 1)));
  const inside = steps.flatMap((step, axis) => (axes.includes(axis) && shape[axis] > 1 ? [[step, shape[axis]]] : []));
  // Where the first device of each group stands in its host.
  let first = [0];
  for (const [axis, step] of steps.entries()) {
    if (axes.includes(axis) || shape[axis] === 1) continue;
    const moved = planMoved(first, step, Math.min(shape[axis], perHost));
    first = [...new Set(moved.map((one) => one % perHost))];
  }
  const key = `${inside} in ${perHost} from ${first.sort((a, b) => a - b)}`;
  if (!planStood.has(key)) planStood.set(key, planStanding(inside, first, perHost));
  return planStood.get(key);
}

const planStood = new Map(); // many meshes have groups that stand alike

function planMoved(places, step, count) {
  return places.flatMap((one) => Array.from({ length: count }, (_, n) => one + n * step));
}

function planStanding(inside, first, perHost) {
  const devices = inside.reduce((places, [step, count]) => planMoved(places, step, count), [0]);
  const groups = new Map();
  for (const one of first) {
    const counts = new Map();
    for (const device of devices) {
      const host = Math.floor((device + one) / perHost);
      counts.set(host, (counts.get(host) ?? 0) + 1);
    }
    const hosts = [...counts.values()].sort((a, b) => a - b);
    groups.set(`${hosts}`, { hosts, size: devices.length, key: `${hosts}` });
  }
  return [...groups.values()];
}
