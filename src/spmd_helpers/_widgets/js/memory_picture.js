import { stepPhases } from "./training_state.js";
import { bytesWords } from "./words.js";

// A bar for each phase of a step, and the same over the step.

const MEMORY_WORDS = {
  parameters: "parameters",
  optimizer: "optimizer",
  gradients: "gradients",
  kept: "kept for backward",
  work: "at work",
  batch: "batch",
};

const MEMORY_STEP = [8, 2, 8, 3]; // how wide the phases are drawn

/** In each phase: the parts, and their shares of the bar in hundredths of a percent. */
export function memoryBars(found, scale) {
  return stepPhases.map((phase) => {
    const parts = Object.keys(MEMORY_WORDS).map((part) => {
      const there = found.lines.filter((line) => line.part === part && line.when.includes(phase));
      const bytes = there.reduce((n, line) => n + line.bytes, 0n);
      return { part, bytes: `${bytes}`, words: bytesWords(bytes), share: memoryShare(bytes, scale) };
    });
    return {
      phase,
      bytes: `${found.phases[phase]}`,
      words: bytesWords(found.phases[phase]),
      most: phase === found.peak_phase,
      parts: parts.filter(({ bytes }) => bytes !== "0"),
    };
  });
}

export function memoryShare(bytes, scale) {
  return Number((bytes * 10000n) / scale) / 100;
}

/** The bars, drawn to one scale, and the line of the chip's memory across all of them. */
export function memoryPicture(answer, ui) {
  const { h } = ui;
  const title = ({ phase, words, most }) =>
    most ? h("b", {}, `${phase} ${words}, the most`) : [h("b", {}, phase), ` ${words}`];
  const bar = ({ parts, ...head }) => [
    h("div", { class: "spmd-mc-phase" }, title(head)),
    h(
      "div",
      { class: "spmd-mc-bar" },
      h("div", { class: "spmd-mc-parts" }, parts.map((part) => memoryPart(h, part))),
      h("div", { class: "spmd-mc-line", style: `left: ${answer.allowed_share}%` }),
    ),
    memoryRest(h, parts),
  ];
  const edge = `left: ${answer.allowed_share}%`;
  const side = answer.allowed_share > 60 ? "spmd-mc-left" : "";
  const room = h("span", { class: side }, `${answer.allowed} of ${answer.chip}`);
  return h(
    "div",
    { class: "spmd-mc-picture", "aria-hidden": "true" },
    h("div", { class: "spmd-mc-room", style: edge }, room),
    answer.bars.map(bar),
    memoryCourse(answer, h),
    memoryLegend(answer, h),
  );
}

/** The same over a step: what is kept rises in the forward pass and falls in the backward pass. */
function memoryCourse({ bars, allowed_share }, h) {
  const names = Object.keys(MEMORY_WORDS);
  const whole = MEMORY_STEP.reduce((a, b) => a + b);
  const points = bars.flatMap(({ phase, parts }, i) =>
    [0, 1].map((end) => {
      const isEmpty = (end ? "backward" : "forward") === phase;
      const share = (name) => (isEmpty && name === "kept" ? 0 : (parts.find(({ part }) => part === name)?.share ?? 0));
      const before = MEMORY_STEP.slice(0, i + end).reduce((a, b) => a + b, 0);
      return { x: (100 * before) / whole, shares: names.map(share) };
    }),
  );
  const edge = (count) =>
    points.map(({ x, shares }) => `${x}% ${100 - shares.slice(0, count).reduce((a, b) => a + b, 0)}%`);
  const area = (name, i) => {
    const shape = [...edge(i + 1), ...edge(i).reverse()].join(", ");
    return h("div", { class: `spmd-mc-${name}`, style: `clip-path: polygon(${shape})` });
  };
  const line = h("div", { class: "spmd-mc-limit", style: `bottom: ${allowed_share}%` });
  const phases = bars.map(({ phase }, i) => h("span", { style: `flex-grow: ${MEMORY_STEP[i]}` }, phase));
  return [
    h("div", { class: "spmd-mc-phase" }, h("b", {}, "Over the step")),
    h("div", { class: "spmd-mc-course" }, names.map(area), line),
    h("div", { class: "spmd-mc-times" }, phases),
  ];
}

// Where there is room for a part's label: in every bar, in that of a wide page, or in none.
function memoryRoom({ part, words, share }) {
  const pixels = 18 + 7.2 * Math.max(MEMORY_WORDS[part].length, words.length);
  return share > pixels / 2.6 ? "wide" : share > pixels / 5.7 ? "middle" : "thin"; // percent of 260 and 570
}

function memoryPart(h, one) {
  const { part, words, share } = one;
  const label = h("span", {}, MEMORY_WORDS[part], h("br"), words);
  return h("div", { class: `spmd-mc-part spmd-mc-${part} spmd-mc-${memoryRoom(one)}`, style: `width: ${share}%` }, label);
}

/** Labels of the parts that are too thin for one. */
function memoryRest(h, parts) {
  const few = parts.filter((one) => memoryRoom(one) !== "wide");
  const isThin = (one) => memoryRoom(one) === "thin";
  const kind = few.some(isThin) ? "spmd-mc-rest" : "spmd-mc-rest spmd-mc-rest-middle";
  if (!few.length) return "";
  const label = (one) =>
    h(
      "span",
      { class: isThin(one) ? "" : "spmd-mc-rest-middle" },
      memorySwatch(h, one.part),
      h("span", { class: "spmd-mc-name" }, `${MEMORY_WORDS[one.part]} `),
      one.words,
    );
  return h("div", { class: kind }, few.map(label));
}

/** What the patterns stand for, once, where there is no room beside the bars. */
function memoryLegend(answer, h) {
  const there = Object.keys(MEMORY_WORDS).filter((part) => answer.bars.some(({ parts }) => parts.some((one) => one.part === part)));
  const item = (part) => h("span", {}, memorySwatch(h, part), MEMORY_WORDS[part]);
  return h("div", { class: "spmd-mc-legend" }, there.map(item));
}

export function memorySwatch(h, part) {
  return h("i", { class: `spmd-mc-swatch spmd-mc-${part}`, "aria-hidden": "true" });
}

/** A table behind a summary, open if it was before. */
export function memoryDetails(ui, name, summary, table) {
  const id = `${ui.id}-more-${name}`;
  const open = Boolean(document.getElementById(id)?.open);
  return ui.h("details", { class: "spmd-w-same", id, open }, ui.h("summary", {}, summary), table);
}

/** The bars as a table. */
export function memoryPhases(answer, ui) {
  const names = Object.keys(MEMORY_WORDS);
  const of = (bar, part) => bar.parts.find((one) => one.part === part)?.words || "–";
  const rows = names.map((part) => [MEMORY_WORDS[part], ...answer.bars.map((bar) => of(bar, part))]);
  rows.push(["together", ...answer.bars.map(({ words }) => words)]);
  const head = ["part", ...answer.bars.map(({ phase }) => phase)];
  const table = ui.wordTable("Bytes of each device in each phase of a step", head, rows, [1, 2, 3, 4]);
  return memoryDetails(ui, "phases", "The bars as a table", table);
}
