import { deviceGrid, gridPanels, gridTable } from "./grid.js";
import { ITEM_BYTES, blockOf, blocksOf, coordinates, holdersOf, ownersOf, saySharding, shardingOf, sliceWords } from "./sharding.js";
import { roving } from "./roving.js";
import { parseMesh, parseShape, parseSpec } from "./typed.js";
import { countWords, deviceList, meshDict, sentences, specWords, tupleWords } from "./sharding_words.js";
import { attempt, bytesWords, refuse } from "./words.js";

// Mesh, shape and spec → who holds what.

const SE_LISTED = 64; // blocks in the table of words

function seRead(state) {
  const mesh = parseMesh(state.mesh);
  const shape = parseShape(state.shape);
  const entries = parseSpec(state.spec);
  const itemBytes = ITEM_BYTES[state.dtype];
  if (!Object.hasOwn(ITEM_BYTES, state.dtype)) refuse(`dtype: “${state.dtype}” is not known; give one such as float32.`);
  return { mesh, shape, entries, sharding: shardingOf(shape, mesh, entries, itemBytes) };
}

function seDevice(text, devices) {
  if (!/^\d{1,6}$/.test(text.trim()) || Number(text) >= devices) {
    refuse(`device: “${text}” is none of the ${devices} devices; give one from 0 to ${devices - 1}.`);
  }
  return Number(text);
}

/** The specs of one dimension: nothing, an axis, or several in an order. */
export function dimensionChoices(mesh) {
  const names = mesh.map(([axis]) => axis);
  const orders = (left) =>
    left.flatMap((axis) => [[axis], ...orders(left.filter((a) => a !== axis)).map((o) => [axis, ...o])]);
  const all = orders(names).sort((a, b) => a.length - b.length);
  return [["", "unsharded"], ...all.map((o) => [o.join(), o.length > 1 ? `(${o.join(", ")})` : o[0]])];
}

/** The chosen block, as the device and those that share it. */
function seChosen(sharding, device) {
  const block = blockOf(device, sharding);
  const where = coordinates(device, sharding.mesh);
  const holders = holdersOf(block, sharding);
  const place = sharding.mesh.map(([axis]) => `${axis} ${where[axis]}`).join(", ");
  const others = holders.filter((d) => d !== device);
  const shared = others.length
    ? `the same shard is on ${others.length > 1 ? "devices" : "device"} ${deviceList(others)}`
    : "no other device has it";
  const held = sharding.shape.length ? `[${sliceWords(block, sharding)}]` : "all of it";
  const sentence = `Device ${device}${place && ` (${place})`} has ${held}; ${shared}.`;
  return { device, block, holders, where, sentence };
}

function seCode(state, { mesh, shape, entries }) {
  const shapeWords = tupleWords(shape);
  const draw = [`spec = ${specWords(entries).replaceAll("'", '"')}`];
  if (mesh.length) {
    const names = tupleWords(mesh.map(([axis]) => `"${axis}"`));
    const sizes = tupleWords(mesh.map(([, size]) => size));
    draw.unshift(
      `devices = spmd.use_devices(${mesh.reduce((n, [, size]) => n * size, 1)})`,
      `mesh = jax.make_mesh(${sizes}, ${names}, devices=devices,`,
      `    axis_types=(AxisType.Auto,) * ${mesh.length})`,
    );
  } else draw.unshift("mesh = {}");
  return [
    "import jax",
    "from jax.sharding import AxisType, PartitionSpec as P",
    "import spmd_helpers as spmd",
    "",
    ...draw,
    `spmd.draw(${shapeWords}, spec, mesh=mesh, dtype="${state.dtype}")`,
  ].join("\n");
}

export const shardingExplorer = {
  id: "sharding-explorer",
  prefix: "se",
  title: "Sharding explorer",
  caption:
    "Press a device to see which others have the same shard. Devices are counted by their position " +
    "in the mesh, the last axis fastest; a strip names a mesh axis and the index along it.",
  defaults: {
    mesh: "data=2, model=4",
    shape: "8, 16",
    spec: "P('data', 'model')",
    dtype: "float32",
    device: "5",
  },
  beside: { device: (answer) => answer.chosen.sentence },
  brief: ({ shard, bytesPerDevice, replicas }) =>
    `${tupleWords(shard)} per device, ${bytesWords(bytesPerDevice)}; ${replicas > 1 ? countWords(replicas, "replica") : "not replicated"}`,
  presets: [
    { name: "Two axes", state: {} },
    { name: "Data parallel", state: { spec: "P('data', None)" } },
    { name: "Tensor parallel", state: { spec: "P(None, 'model')" } },
    { name: "Both on one dimension", state: { spec: "P(('data', 'model'), None)" } },
    { name: "Replicated", state: { spec: "P(None, None)" } },
  ],

  controls(state) {
    const read = attempt(() => ({
      mesh: parseMesh(state.mesh),
      shape: parseShape(state.shape),
      entries: parseSpec(state.spec),
    }));
    const fits = !read.error && read.entries.length <= read.shape.length;
    const perDimension = fits
      ? read.shape.map((_, dim) => {
          const choices = dimensionChoices(read.mesh);
          const value = (read.entries[dim] || []).join();
          const known = choices.some(([v]) => v === value);
          return {
            key: `dim${dim}`,
            label: `Dimension ${dim} over`,
            kind: "select",
            options: known ? choices : [[value, `(${value})`], ...choices],
            value,
            change: (chosen) => {
              const next = read.shape.map((__, d) => (read.entries[d] || []));
              next[dim] = chosen ? chosen.split(",") : [];
              return { spec: specWords(next) };
            },
          };
        })
      : [];
    return [
      { key: "mesh", label: "Mesh", kind: "text", hint: "a name and a size for each axis" },
      { key: "shape", label: "Shape of the array", kind: "text", hint: "1 to 4 dimensions" },
      {
        key: "dtype",
        label: "Element type",
        kind: "select",
        options: Object.keys(ITEM_BYTES).map((name) => [name, name]),
      },
      ...perDimension,
      { key: "spec", label: "PartitionSpec", kind: "text", hint: "or type it" },
    ];
  },

  answer(state) {
    return attempt(() => {
      const read = seRead(state);
      const { sharding } = read;
      const device = attempt(() => seDevice(state.device, sharding.devices));
      const chosen = seChosen(sharding, device.error ? 0 : device);
      const said = saySharding(sharding, state.dtype);
      const times = sharding.replicas > 1 ? `, ${sharding.replicas} times the array` : "";
      const all = sharding.bytesPerDevice * BigInt(sharding.devices);
      const facts = [...said.facts];
      if (sharding.devices > 1) facts.push(`all devices together have ${bytesWords(all)}${times}`);
      return {
        title: said.title,
        facts,
        sentence: `${said.title}: ${facts.join("; ")}.`,
        mesh: sharding.mesh,
        entries: sharding.entries,
        grid: sharding.grid,
        shape: sharding.shape,
        shard: sharding.shard,
        replicas: sharding.replicas,
        replicatedOver: sharding.replicatedOver,
        devices: sharding.devices,
        bytesPerDevice: `${sharding.bytesPerDevice}`,
        totalBytes: `${sharding.totalBytes}`,
        blocks: blocksOf(sharding),
        owners: ownersOf(sharding, SE_LISTED).map(({ block, devices }) => ({
          block,
          slices: sliceWords(block, sharding),
          devices,
        })),
        chosen,
        code: seCode(state, read),
      };
    });
  },

  view(answer, ui) {
    return [
      ui.h(
        "div",
        { class: "spmd-w-pair" },
        seArray(answer, ui),
        answer.mesh.length ? seMesh(answer, ui) : null,
      ),
      ui.h("p", { class: "spmd-w-chosen" }, answer.chosen.sentence),
      seTable(answer, ui),
    ];
  },
};

// The picture: two tables, the array's and the mesh's.

/** What is chosen is marked, not only outlined. */
const seMark = (ui, mine) => ui.h("span", { class: "spmd-w-mark", "aria-hidden": "true" }, mine ? "▸" : "");

function seArray(answer, ui) {
  const rank = answer.shape.length;
  const edges = answer.shape.map((_, dim) => ({
    axes: answer.entries[dim],
    count: answer.grid[dim],
    label: (n) => `${n * answer.shard[dim]}:${(n + 1) * answer.shard[dim]}`,
  }));
  const [rows, columns] = rank > 1 ? edges.slice(-2) : [null, edges[0]];
  const chosen = answer.chosen.block.join();
  const panel = (front) => {
    const cell = (row, column) => {
      const block = rank > 1 ? [...front, row, column] : [column];
      const devices = holdersOf(block, answer);
      const replicas = devices.length > 1 ? ui.h("small", {}, countWords(devices.length, "replica")) : null;
      const mine = block.join() === chosen;
      const what = ui.h("span", { class: "spmd-w-long" }, devices.length > 1 ? "devices " : "device ");
      const props = { class: mine ? "spmd-w-cell spmd-w-mine" : "spmd-w-cell" };
      return [props, seMark(ui, mine), what, deviceList(devices), replicas];
    };
    const where = front.map((n, dim) => edges[dim].label(n));
    const at = where.length ? `, [${[...where, ":", ":"].join(", ")}]` : "";
    return gridTable(answer, ui, `The array${at}: each shard and the devices that have it`, rows, columns, cell);
  };
  return ui.scrolling("The array, split into shards", gridPanels(edges, panel));
}

function seMesh(answer, ui) {
  const holders = new Set(answer.chosen.holders);
  const box = deviceGrid(answer, ui, "device", ": each device and its shard", (device) => ({
    kind: holders.has(device) ? "spmd-w-mine" : "",
    sign: holders.has(device) ? "▸" : "",
    words: `[${sliceWords(blockOf(device, answer), answer)}]`,
    pressed: device === answer.chosen.device,
  }));
  return roving(box, box.querySelector('[aria-pressed="true"]'));
}

function seTable(answer, ui) {
  const rows = answer.owners.map(({ slices, devices }) => [`[${slices}]`, deviceList(devices), `${devices.length}`]);
  const less = answer.blocks > rows.length ? `, the first ${rows.length} of ${answer.blocks}` : "";
  const caption = `Shards and the devices that have them${less}`;
  const table = ui.wordTable(caption, ["shard", "devices", "replicas"], rows, [2]);
  return ui.h("details", { class: "spmd-w-same" }, ui.h("summary", {}, "The same as a table"), table);
}
