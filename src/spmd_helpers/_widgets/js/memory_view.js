import { memoryCompared, memoryNear } from "./memory_compared.js";

// The calculator's picture: a bar for each phase of a step, then tables.

const MEMORY_WORDS = {
  parameters: "parameters",
  optimizer: "optimizer",
  gradients: "gradients",
  kept: "kept for backward",
  work: "at work",
  batch: "batch",
};

const MEMORY_STEP = [8, 2, 8, 3]; // how wide the phases are drawn

const MEMORY_NOT_COUNTED =
  "Not counted: gaps between buffers, what libraries and collectives need for themselves, the input " +
  "pipeline, evaluation.";

export function memoryView(answer, ui) {
  const mark = answer.fits ? "✓ " : "✕ ";
  return [
    ui.h("p", { class: "spmd-mc-verdict", id: memoryId(ui), tabindex: "-1" }, mark, answer.verdict),
    ...memoryChanges(answer, ui),
    memoryPicture(answer, ui),
    ...answer.notes.map((note) => ui.h("p", {}, note)),
    ui.h("p", {}, answer.counting === "jax" ? `${MEMORY_NOT_COUNTED} ${memoryNear()}` : MEMORY_NOT_COUNTED),
    memoryLines(answer, ui),
    memoryPhases(answer, ui),
    memoryMeasured(ui),
    answer.facts ? ui.h("p", { class: "spmd-w-hint" }, answer.facts) : "",
    ui.h("p", { class: "spmd-w-hint spmd-mc-sources" }, answer.sources),
  ];
}

function memoryId(ui) {
  return `${ui.id}-verdict`;
}

/** A button that changes the state and leaves the focus on the new verdict. */
function memoryButton(ui, words, set) {
  const press = () => {
    ui.change(set);
    document.getElementById(memoryId(ui))?.focus();
  };
  return ui.h("button", { type: "button", class: "spmd-w-link", onclick: press }, words);
}

/** A table behind a summary, open if it was before. */
function memoryDetails(ui, name, summary, table) {
  const id = `${ui.id}-more-${name}`;
  const open = Boolean(document.getElementById(id)?.open);
  return ui.h("details", { class: "spmd-w-same", id, open }, ui.h("summary", {}, summary), table);
}

function memoryChanges(answer, ui) {
  if (!answer.changes.length) return [];
  const items = answer.changes.map(({ words, set }) => ui.h("li", {}, memoryButton(ui, words, set)));
  const id = `${ui.id}-changes`;
  return [
    ui.h("p", { class: "spmd-mc-heading", id }, "Any one of these makes it fit"),
    ui.h("ul", { class: "spmd-mc-changes", "aria-labelledby": id }, items),
  ];
}

/** The bars, drawn to one scale, and the line of the chip's memory across all of them. */
function memoryPicture(answer, ui) {
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

function memoryPart(h, { part, words, share }) {
  const size = share >= 30 ? "spmd-mc-wide" : share >= 14 ? "spmd-mc-middle" : "spmd-mc-thin";
  const label = h("span", {}, MEMORY_WORDS[part], h("br"), words);
  return h("div", { class: `spmd-mc-part spmd-mc-${part} ${size}`, style: `width: ${share}%` }, label);
}

/** Labels of the parts that are too thin for one. */
function memoryRest(h, parts) {
  const thin = parts.filter(({ share }) => share < 30);
  const kind = thin.some(({ share }) => share < 14) ? "spmd-mc-rest" : "spmd-mc-rest spmd-mc-rest-middle";
  if (!thin.length) return "";
  const label = ({ part, words, share }) =>
    h(
      "span",
      { class: share < 14 ? "" : "spmd-mc-rest-middle" },
      memorySwatch(h, part),
      h("span", { class: "spmd-mc-name" }, `${MEMORY_WORDS[part]} `),
      words,
    );
  return h("div", { class: kind }, thin.map(label));
}

/** What the patterns stand for, once, where there is no room beside the bars. */
function memoryLegend(answer, h) {
  const there = Object.keys(MEMORY_WORDS).filter((part) => answer.bars.some(({ parts }) => parts.some((one) => one.part === part)));
  const item = (part) => h("span", {}, memorySwatch(h, part), MEMORY_WORDS[part]);
  return h("div", { class: "spmd-mc-legend" }, there.map(item));
}

function memorySwatch(h, part) {
  return h("i", { class: `spmd-mc-swatch spmd-mc-${part}`, "aria-hidden": "true" });
}

/** A formula whose mesh axes are underlined in their hues. */
function memoryFormula(h, formula) {
  const axes = ["data", "model", "fsdp", "expert"];
  return formula.split(/\b((?:data|model|fsdp|expert) \d+)/).map((piece, i) => {
    if (i % 2 === 0) return piece;
    const hue = axes.indexOf(piece.split(" ")[0]);
    return h("span", { class: "spmd-mc-axis", style: `--hue: var(--axis-${hue})` }, piece);
  });
}

function memoryLines(answer, ui) {
  const rows = answer.lines.map(({ part, name, words, shown, formula, source }) => [
    [memorySwatch(ui.h, part), name], words, shown, memoryFormula(ui.h, formula), source,
  ]);
  rows.push(["total", answer.total, answer.peak_phase, "what is there in this phase", ""]);
  const parameters = answer.parameters.replace(/\B(?=(\d{3})+$)/g, ",");
  const caption = `Bytes per device for ${parameters} parameters: ${answer.what}`;
  return ui.wordTable(caption, ["part", "bytes", "when", "formula", "source"], rows, [1]);
}

function memoryPhases(answer, ui) {
  const names = Object.keys(MEMORY_WORDS);
  const of = (bar, part) => bar.parts.find((one) => one.part === part)?.words || "–";
  const rows = names.map((part) => [MEMORY_WORDS[part], ...answer.bars.map((bar) => of(bar, part))]);
  rows.push(["together", ...answer.bars.map(({ words }) => words)]);
  const head = ["part", ...answer.bars.map(({ phase }) => phase)];
  const table = ui.wordTable("Bytes of each device in each phase of a step", head, rows, [1, 2, 3, 4]);
  return memoryDetails(ui, "phases", "The bars as a table", table);
}

function memoryMeasured(ui) {
  const rows = memoryCompared().map(({ name, where, counted, measured, off, verdict, by, set }) => [
    memoryButton(ui, name, set), where, counted, `${measured}, ${verdict}`, off, by,
  ]);
  const head = ["program", "on", "counted here", "compiler", "off by", "measured with"];
  const caption = "Counted, against what compilers needed. Off by: − means that more was needed than is counted here.";
  const table = ui.wordTable(caption, head, rows, [2, 4]);
  return memoryDetails(ui, "measured", "Counted against the compiler", table);
}
