import { gridTable } from "./grid.js";
import { ITEM_BYTES, blocksOf, holdersOf, ownersOf, shardingOf } from "./sharding.js";
import { matmulPlan } from "./matmul.js";
import { matmulFollow, sharedPart } from "./matmul_follow.js";
import {
  MATMUL_KINDS, matmulChoice, matmulExplicit, matmulFlops, matmulPitfalls, matmulResult, matmulSteps, matmulTitle,
} from "./matmul_words.js";
import { parseMesh, parseSpec } from "./typed.js";
import { matmulAllSteps, matmulMoves } from "./matmul_moves.js";
import { countWords, deviceList, specWords, tupleWords } from "./sharding_words.js";
import { attempt, bytesWords, joinWords, refuse, unbroken } from "./words.js";

// Two specs → what moves, how the result is sharded, what is repeated. Matrices only.

const MM_LISTED = 64; // blocks in the answer
const MM_STEPS = ["Before", "Communicate", "Multiply", "Reduce"];
const MM_AT = { I: "rows of C", J: "J: partial sums", K: "columns of C", "-": "nothing: all compute the same" };
const MM_DTYPES = ["float32", "bfloat16", "float16"];

function mmSize(text, name) {
  const words = text.trim();
  if (!/^\d{1,7}$/.test(words) || Number(words) < 1 || Number(words) > 1e6) {
    refuse(`${name}: “${text}” is not a size; give an integer from 1 to 1000000.`);
  }
  return Number(words);
}

/** A matrix's sharding; what is wrong with it names the matrix. */
function mmSharding(name, shape, mesh, text, itemBytes) {
  const entries = parseSpec(text, name);
  const found = attempt(() => shardingOf(shape, mesh, entries, itemBytes));
  if (found.error) refuse(`${name}: ${found.error}`);
  return found;
}

function mmRead(state) {
  const mesh = parseMesh(state.mesh);
  const sizes = { I: mmSize(state.i, "I"), J: mmSize(state.j, "J"), K: mmSize(state.k, "K") };
  if (!MM_DTYPES.includes(state.dtype)) {
    refuse(`dtype: “${state.dtype}” is not known here; give one of ${joinWords(MM_DTYPES)}.`);
  }
  const itemBytes = ITEM_BYTES[state.dtype];
  const a = mmSharding("A", [sizes.I, sizes.J], mesh, state.a, itemBytes);
  const b = mmSharding("B", [sizes.J, sizes.K], mesh, state.b, itemBytes);
  const asked = state.c.trim() !== "";
  const wish = asked ? mmSharding("C", [sizes.I, sizes.K], mesh, state.c, itemBytes) : null;
  const plan = matmulPlan(mesh, a.entries, b.entries, sizes, itemBytes, wish?.entries);
  const c = plan.whyNot ? null : wish || shardingOf([sizes.I, sizes.K], mesh, plan.natural, itemBytes);
  return { mesh, a, b, c, wish, plan, itemBytes };
}

/** A matrix as the answer has it. */
function mmSide(name, lay) {
  const { shape, mesh, entries, grid, shard, devices, replicas } = lay;
  return {
    title: `${name} [${shape.join(", ")}]`,
    spec: specWords(entries),
    each: `${shard.join(" × ")} per device, ${bytesWords(lay.bytesPerDevice)}`,
    ...{ shape, mesh, entries, grid, shard, devices, replicas },
    bytesPerDevice: `${lay.bytesPerDevice}`,
    blocks: blocksOf(lay),
    owners: ownersOf(lay, MM_LISTED),
  };
}

/** What one device sends, with the numbers in the formula. */
function mmFormula({ kind, axes, put, got, sent }, mesh) {
  const n = mesh.reduce((all, [x, size]) => (axes.includes(x) ? all * size : all), 1);
  if (kind === "collective-permute") return `${sent} B`;
  const share = `${n - 1}/${n} · ${kind === "all-gather" ? got : put} B`;
  return `${kind === "all-reduce" ? "2 · " : ""}${share} = ${sent} B`;
}

/** Every spec of a matrix on this mesh: each axis cuts a dimension, or none. */
function mmSpecs(mesh) {
  let found = [[[], []]];
  for (const [axis] of mesh) {
    const put = (entries, dim, at) =>
      entries.map((e, d) => (d === dim ? [...e.slice(0, at), axis, ...e.slice(at)] : e));
    found = found.flatMap((entries) => [
      entries,
      ...entries.flatMap((e, dim) => [...Array(e.length + 1).keys()].map((at) => put(entries, dim, at))),
    ]);
  }
  const used = (entries) => entries.flat().length;
  return found.sort((one, two) => used(one) - used(two)).map(specWords);
}

function mmChoices(state, key, first) {
  const mesh = attempt(() => parseMesh(state.mesh));
  let specs = mesh.error ? [] : mmSpecs(mesh);
  if (key === "c") specs = mmCovered(state, specs);
  const options = [...first, ...specs.map((words) => [words, words])];
  if (options.some(([value]) => value === state[key])) return options;
  return [[state[key], state[key] || "nothing typed"], ...options];
}

/** The wishes for C that the rule covers; all of them while A or B is refused. */
function mmCovered(state, specs) {
  if (attempt(() => mmRead({ ...state, c: "" })).error) return specs;
  return specs.filter((c) => attempt(() => mmRead({ ...state, c })).c);
}

function mmCode(state, { mesh, a, b, wish }) {
  const spec = (lay) => specWords(lay.entries).replaceAll("'", '"');
  const lines = [
    "import jax",
    "import jax.numpy as jnp",
    "from jax.sharding import AxisType, NamedSharding, PartitionSpec as P",
    "import spmd_helpers as spmd",
    "",
  ];
  let place = "";
  let jit = "";
  if (mesh.length) {
    const names = tupleWords(mesh.map(([axis]) => `"${axis}"`));
    const sizes = tupleWords(mesh.map(([, size]) => size));
    place = ", sharding=NamedSharding(mesh, spec)";
    lines.push(
      `devices = spmd.use_devices(${a.devices})`,
      `mesh = jax.make_mesh(`,
      `    ${sizes}, ${names}, devices=devices,`,
      `    axis_types=(AxisType.Auto,) * ${mesh.length})`,
      "",
    );
  }
  lines.push(
    "def on(shape, spec):",
    `    return jax.ShapeDtypeStruct(`,
    `        shape, jnp.${state.dtype}${place})`,
    "",
    `a = on(${tupleWords(a.shape)}, ${spec(a)})`,
    `b = on(${tupleWords(b.shape)}, ${spec(b)})`,
  );
  if (wish && mesh.length) {
    lines.push(`place = NamedSharding(mesh, ${spec(wish)})`);
    jit = ',\n    jit={"out_shardings": place}';
  }
  lines.push(
    `report = spmd.xray(lambda a, b: a @ b, a, b${jit})`,
    "print(report)",
  );
  return lines.join("\n");
}

export const matmulExplorer = {
  id: "matmul-explorer",
  prefix: "mm",
  title: "Matmul explorer",
  caption:
    "C = A · B under jit, on Auto axes: A is [I, J], B is [J, K]; J is summed over. Matrices " +
    "only, and nothing around the product: more dimensions, or a program, are for spmd.xray. A cell " +
    "names the devices that have the shard. (On CPU the compiler communicates 16-bit numbers as float32, " +
    "and writes a reduce-scatter as an all-reduce and a slice: twice the bytes each.)",
  defaults: {
    mesh: "data=4, model=2",
    a: "P('data', 'model')",
    b: "P('model', None)",
    c: "",
    i: "48",
    j: "40",
    k: "24",
    dtype: "float32",
    device: "5",
    step: "0",
  },
  beside: { device: mmNews, step: mmNews },
  brief: mmBrief,
  presets: [
    { name: "No communication (case 1)", state: { a: "P('data', None)", b: "P(None, 'model')" } },
    { name: "All-reduce (case 2)", state: {} },
    { name: "All-gather (case 3)", state: { b: "P(None, 'model')" } },
    { name: "All-gather, one axis twice (case 4)", state: { a: "P('data', None)", b: "P(None, 'data')" } },
    { name: "Reduce-scatter", state: { c: "P('data', 'model')" } },
    { name: "Misplaced weight: all-gather", state: { a: "P('data', None)", b: "P('data', None)" } },
    {
      name: "Idle axis: redundant work",
      state: { a: "P('model', None)", b: "P(None, 'model')", i: "192", j: "320", k: "256" },
    },
  ],

  controls(state) {
    const group = "Change it yourself";
    const typed = (key, label) => ({
      key: `${key}Typed`,
      label,
      kind: "text",
      value: state[key],
      change: (words) => ({ [key]: words }),
      group,
    });
    return [
      { key: "mesh", label: "Mesh", kind: "text", hint: "a name and a size for each axis" },
      { key: "a", label: "Sharding of A", kind: "select", options: mmChoices(state, "a", []) },
      { key: "b", label: "Sharding of B", kind: "select", options: mmChoices(state, "b", []) },
      { key: "c", label: "Sharding requested for C", kind: "select", options: mmChoices(state, "c", [["", "left to the compiler"]]) },
      { key: "i", label: "I, rows of A", kind: "number", group },
      { key: "j", label: "J, summed over", kind: "number", group },
      { key: "k", label: "K, columns of B", kind: "number", group },
      { key: "dtype", label: "Element type", kind: "select", options: MM_DTYPES.map((d) => [d, d]), group },
      typed("a", "PartitionSpec of A"),
      typed("b", "PartitionSpec of B"),
      typed("c", "PartitionSpec of C, or nothing"),
    ];
  },

  answer(state) {
    return attempt(() => {
      const read = mmRead(state);
      const { mesh, a, b, c, wish, plan, itemBytes } = read;
      const idle = plan.whyNot ? [] : Object.keys(plan.cuts).filter((x) => plan.cuts[x] === "-");
      const title = matmulTitle(a, b, wish);
      const device = mmNumber(state.device, a.devices, 0);
      const stages = plan.whyNot ? [] : matmulFollow(plan, mesh, { I: a.shape[0], J: a.shape[1], K: b.shape[1] }, device);
      const worked = plan.whyNot
        ? { whyNot: plan.whyNot }
        : {
            device,
            step: Math.min(mmNumber(state.step, 1e6, 0), stages.length - 1),
            stages,
            c: mmSide("C", c),
            block: plan.block,
            flopsPerDevice: `${matmulFlops(plan.block)}`,
            redundancy: mesh.reduce((n, [x, size]) => (idle.includes(x) ? n * size : n), 1),
            idleAxes: idle,
            moves: plan.moves.map((m) => ({
              ...{ kind: m.kind, of: m.of, axes: m.axes },
              ...{ put: `${m.put}`, sent: `${m.sent}`, got: `${m.got}` },
              formula: mmFormula(m, mesh),
            })),
          };
      return {
        title,
        sentence: matmulResult(title, plan, c),
        mesh,
        a: mmSide("A", a),
        b: mmSide("B", b),
        axes: Object.entries(plan.kinds).map(([axis, kind]) => ({
          axis,
          size: mesh.find(([x]) => x === axis)[1],
          cuts: MATMUL_KINDS[kind][0],
          case: MATMUL_KINDS[kind][1],
          at: plan.whyNot ? "" : MM_AT[plan.cuts[axis]],
        })),
        steps: matmulSteps(a, b, c, plan),
        choice: matmulChoice(plan, a, b, wish, itemBytes),
        pitfalls: matmulPitfalls(plan, mesh),
        explicit: matmulExplicit(a, b, wish, plan.natural, state.dtype),
        ...worked,
        code: mmCode(state, read),
      };
    });
  },

  view(answer, ui) {
    const { h } = ui;
    const note = (title, words) => (words ? h("li", {}, title && h("strong", {}, title), words) : null);
    return [
      ...(answer.whyNot ? [h("p", { class: "spmd-mm-uncovered" }, mmUncovered(answer.whyNot))] : matmulMoves(answer, ui)),
      mmMatrices(answer, ui),
      answer.whyNot ? null : matmulAllSteps(answer, ui),
      answer.whyNot ? null : h("p", { class: "spmd-mm-how" }, "The product on all devices, step by step:"),
      h(
        "ol",
        { class: "spmd-mm-steps" },
        answer.steps.map((words, i) =>
          words ? h("li", {}, h("strong", {}, `${MM_STEPS[i]}. `), mmLinked(unbroken(words), ui), mmPlayers(answer, i, ui)) : null,
        ),
      ),
      h(
        "ul",
        { class: "spmd-mm-notes" },
        answer.pitfalls.map((words) => note("Pitfall. ", mmLinked(words, ui))),
        note("A choice. ", answer.choice),
        note("", answer.explicit.sentence),
      ),
      answer.axes.length ? mmAxisTable(answer, ui) : null,
      mmMoveTable(answer, ui),
    ].filter(Boolean);
  },
};

/** A number as typed, or what it is taken for. */
function mmNumber(text, end, otherwise) {
  return /^\d{1,6}$/.test(text.trim()) && Number(text) < end ? Number(text) : otherwise;
}

/** What is said when only the device or the step has changed. */
function mmNews(answer) {
  if (!answer.stages) return answer.sentence;
  const { heading, sentence } = answer.stages[answer.step];
  return `${heading}. ${sentence}`;
}

/** The result in a few words. */
function mmBrief(answer) {
  if (answer.whyNot) return "Not covered: ask spmd.xray.";
  const kinds = answer.moves.map((move) => `${move.kind} of ${move.of}`);
  return `${kinds.join(", ") || "No communication"} · redundancy ${answer.redundancy}`;
}

/** Links to the players of a step's collectives, where the page has them. */
function mmPlayers(answer, step, ui) {
  if (!ui.linkable || answer.whyNot) return null;
  const moves = answer.moves.filter((move) => (step === 1 && move.of !== "C") || (step === 3 && move.of === "C"));
  return [...new Set(moves.map((move) => move.kind))].map((kind) => [" ", ui.h("a", { href: `#play-${kind}` }, `Play ${kind}`), "."]);
}

/** A · B = C. */
function mmMatrices(answer, ui) {
  const { h } = ui;
  const signed = (sign, name, side) =>
    h(
      "div",
      { class: "spmd-mm-factor" },
      h("span", { class: "spmd-mm-sign", "aria-hidden": "true" }, sign),
      mmPicture(answer, name, side, ui),
    );
  return h(
    "div",
    { class: "spmd-mm-product" },
    mmPicture(answer, "A", answer.a, ui),
    signed("·", "B", answer.b),
    answer.c ? signed("=", "C", answer.c) : null,
  );
}

const mmUncovered = (why) =>
  `This page's rule does not cover it: ${why}. Copy the code below; spmd.xray shows what the compiler does.`;

const MM_CHAPTER = "../notebooks/04_computation_follows_data.html";

/** Where the book says more of these words. */
function mmLinked(words, ui) {
  return words.split(/(Claim \d+|redundancy \d+)/).map((piece, i) => {
    if (i % 2 === 0) return piece;
    const [what, number] = piece.split(" ");
    return ui.link(piece, what === "Claim" ? `claims.html#claim-${number}` : "../notebooks/07_redundant_compute.html");
  });
}

/** A matrix as a picture: each shard and the devices that have it, and what the followed one has now. */
function mmPicture(answer, name, side, ui) {
  const [rows, columns] = side.entries.map((axes, dim) => ({
    axes,
    count: side.grid[dim],
    label: (n) => `${n * side.shard[dim]}:${(n + 1) * side.shard[dim]}`,
  }));
  const cell = (row, column) => {
    const devices = holdersOf([row, column], side);
    const copies = devices.length > 1 ? ui.h("small", {}, countWords(devices.length, "replica")) : null;
    const what = ui.h("span", { class: "spmd-w-long" }, devices.length > 1 ? "devices " : "device ");
    const block = [row, column].map((n, dim) => [n * side.shard[dim], (n + 1) * side.shard[dim]]);
    const fills = answer.stages ? mmFills(answer, name, block, ui) : null;
    return [{ class: "spmd-w-cell" }, fills, ui.h("span", { class: "spmd-mm-who" }, what, deviceList(devices), copies)];
  };
  const caption = [ui.h("strong", {}, side.title), ui.h("br"), side.spec, ui.h("br"), side.each];
  return ui.scrolling(`The shards of ${name}`, gridTable(side, ui, caption, rows, columns, cell));
}

/** What the followed device has of a block: its own part, what came in, a sum or a part of one. */
function mmFills(answer, name, block, ui) {
  const key = name.toLowerCase();
  const [now, before, first] = [answer.step, Math.max(0, answer.step - 1), 0].map((n) => answer.stages[n]);
  const part = now[key].length ? sharedPart(now[key], block) : null;
  if (!part) return null;
  const fill = (region, kind) => {
    const [[top, bottom], [left, right]] = region.map(([from, end], dim) => {
      const [low, high] = block[dim];
      return [(from - low) / (high - low), (high - end) / (high - low)].map((n) => `${(100 * n).toFixed(2)}%`);
    });
    return ui.h("span", { class: `spmd-mm-fill spmd-mm-${kind}`, style: `inset: ${top} ${right} ${bottom} ${left}`, "aria-hidden": "true" });
  };
  const isNew = JSON.stringify(before[key]) !== JSON.stringify(now[key]) || before.sums !== now.sums;
  const fresh = isNew && answer.step > 0 ? " spmd-mm-new" : "";
  if (name === "C") {
    const kind = now.sums > 1 ? "partial" : "own";
    return [fill(part, kind + fresh), now.same.length ? fill(part, "again") : null];
  }
  const own = sharedPart(part, first[key]);
  const isAll = own && JSON.stringify(own) === JSON.stringify(part);
  return [isAll ? null : fill(part, `came${fresh}`), own ? fill(own, "own") : null];
}

/** The hue of an axis as a style: that of its strips. */
function mmHue(answer, axis) {
  const hue = answer.mesh.findIndex(([name]) => name === axis);
  return hue < 4 ? `--hue: var(--axis-${hue})` : null;
}

function mmAxisTable(answer, ui) {
  const rows = answer.axes.map(({ axis, size, cuts, case: number, at }) => [
    ui.h("span", { class: "spmd-mm-axis", style: mmHue(answer, axis) }, `${axis} (${size})`),
    cuts,
    number ? ui.link(`case ${number}`, MM_CHAPTER) : "none",
    ...(at ? [at] : []),
  ]);
  const head = ["mesh axis", "shards", "which is", ...(answer.whyNot ? [] : ["at the multiply it shards"])];
  return ui.wordTable("Axis by axis", head, rows);
}

function mmMoveTable(answer, ui) {
  if (!answer.moves?.length) return null;
  const rows = answer.moves.map((m) => [`${m.kind} of ${m.of}`, joinWords(m.axes), `${m.put} B`, m.formula, `${m.got} B`]);
  const head = ["collective", "over", "puts in", "sends", "gets"];
  const table = ui.wordTable("Bytes of each device, exactly", head, rows, [2, 3, 4]);
  return ui.h("details", { class: "spmd-w-same" }, ui.h("summary", {}, "The communication, as a table"), table);
}
