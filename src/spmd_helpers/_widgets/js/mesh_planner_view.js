import { memoryDetails, memoryPhases, memoryPicture } from "./memory_picture.js";

// The planner's list of strategies, and of the chosen one its memory and its time.

const PLANNER_HEAD = ["no.", "mesh and policy", "a step", "memory", "MFU", "tokens/s", "time goes to"];

export function plannerView(answer, ui) {
  const { h } = ui;
  const note = (words) => h("p", { class: "spmd-w-hint" }, words);
  const more = answer.left > 0 && answer.count > answer.rows.length;
  return [
    plannerList(answer, ui),
    more ? h("div", { class: "spmd-mp-more" }, plannerMore(answer, ui)) : "",
    answer.ties ? h("p", {}, answer.ties) : "",
    h("p", { class: "spmd-mp-title" }, plannerBreaks(`${answer.chosen}: ${answer.title}`, ui)),
    h("p", { class: "spmd-mc-heading" }, `Memory on each device: ${answer.memory}, ${answer.fits ? "fits" : "too much"}`),
    memoryPicture(answer, ui),
    memoryPhases(answer, ui),
    ui.linkable
      ? h("p", {}, ui.link("Open this strategy in the memory calculator", answer.link), ", which shows each part with its formula.")
      : "",
    h("p", { class: "spmd-mc-heading" }, `Time of a step: ${answer.seconds} by formula`),
    plannerTime(answer, ui),
    plannerTimeTable(answer, ui),
    plannerExchanges(answer, ui),
    ...answer.notes.map(note),
    plannerCodeWords(answer, ui),
  ];
}

/** Every row is chosen by its button. */
function plannerList(answer, ui) {
  const rows = answer.rows.map(({ rank, words, recompute, memory, seconds, tokens, mfu, limits }) => [
    `${rank}`,
    plannerChoice(`${rank}`, words, recompute, answer, ui),
    seconds, memory.replace(/(?<!,) /g, "\u00a0"), mfu, tokens, limits,
  ]);
  const caption = `${answer.fitting} of ${answer.count} fit. Press one to see it below.`;
  const table = ui.wordTable(caption, PLANNER_HEAD, rows, [2, 4, 5]);
  table.classList.add("spmd-mp-list");
  return table;
}

function plannerChoice(rank, words, recompute, { chosen }, ui) {
  const isChosen = rank === `${chosen}`;
  const button = ui.h(
    "button",
    {
      type: "button", class: "spmd-w-link", "aria-pressed": `${isChosen}`,
      onclick: () => ui.change({ chosen: rank }),
    },
    words,
    ui.h("small", {}, plannerBreaks(recompute, ui)),
  );
  button.dataset.key = `chosen-${rank}`;
  return button;
}

/** Words that a narrow column breaks after an underscore. */
function plannerBreaks(words, { h }) {
  return words.split(/(?<=_)/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));
}

function plannerMore({ rows, left }, ui) {
  const next = Math.min(left, 24);
  const button = ui.h(
    "button",
    { type: "button", class: "spmd-w-link", onclick: () => ui.change({ shown: `${rows.length + next}` }) },
    `Show ${next} more of ${left}`,
  );
  button.dataset.key = "more";
  return button;
}

/** A bar for each lane, to one scale: how long it is busy, not when. */
function plannerTime({ lanes }, ui) {
  const { h } = ui;
  const axes = lanes.map(({ axis }) => axis).filter(Boolean);
  // The first four have the hues of axes.
  const hue = (axis) => (axes.slice(0, 4).includes(axis) ? `--hue: var(--axis-${axes.indexOf(axis)});` : "");
  const part = ({ kind, axis, share }) =>
    h("div", { class: `spmd-mp-part spmd-mp-${kind}`, style: `${hue(axis)} width: ${share}%` });
  const label = ({ kind, axis, name, words }) =>
    h("span", {}, h("i", { class: `spmd-mc-swatch spmd-mp-${kind}`, style: hue(axis) || null }), `${name} ${words}`);
  const lane = ({ name, axis, words, parts }) => [
    h("div", { class: "spmd-mc-phase" }, h("b", {}, axis ? `over ${name}` : name), ` ${words}`),
    h("div", { class: "spmd-mp-bar" }, parts.map(part)),
    h("div", { class: "spmd-mp-labels" }, parts.map(label)),
  ];
  return h("div", { class: "spmd-mp-time", "aria-hidden": "true" }, lanes.map(lane));
}

function plannerTimeTable({ lanes }, ui) {
  const rows = lanes.flatMap(({ name, axis, words, parts }) =>
    [{ name: "together", words }, ...parts].map((part) => [axis ? `over ${name}` : name, part.name, part.words]),
  );
  const table = ui.wordTable("How long each lane is busy in a step, not when", ["lane", "part", "time"], rows, [2]);
  return memoryDetails(ui, "lanes", "The lanes as a table", table);
}

function plannerExchanges({ exchanges }, ui) {
  if (!exchanges.length) return ui.h("p", {}, "The devices exchange nothing but the loss.");
  const head = ["what", "collective", "when", "runs", "bytes of one", "time", "exposed", "over"];
  const table = ui.wordTable("What the devices exchange in one step", head, exchanges, [3, 4, 5, 6]);
  return memoryDetails(ui, "exchanges", "Every exchange of the step", table);
}

function plannerCodeWords({ refused, call, chosen }, ui) {
  const { h } = ui;
  if (refused) return h("p", {}, `${refused} The Python below plans the same.`);
  const lines = h("pre", {}, h("code", {}, call));
  return [
    memoryDetails(ui, "call", "The same plan in Python", ui.scrolling("The plan in Python", lines)),
    h("p", {}, `The JAX lines of number ${chosen}: a small model of the family, sharded so, and one step.`),
  ];
}
