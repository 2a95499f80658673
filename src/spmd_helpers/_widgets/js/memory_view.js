import { memoryCompared, memoryNear } from "./memory_compared.js";
import { memoryDetails, memoryPhases, memoryPicture, memorySwatch } from "./memory_picture.js";

// The calculator's picture: verdict, changes, the bars, then tables.

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

function memoryChanges(answer, ui) {
  if (!answer.changes.length) return [];
  const items = answer.changes.map(({ words, set }) => ui.h("li", {}, memoryButton(ui, words, set)));
  const id = `${ui.id}-changes`;
  return [
    ui.h("p", { class: "spmd-mc-heading", id }, "Any one of these makes it fit"),
    ui.h("ul", { class: "spmd-mc-changes", "aria-labelledby": id }, items),
  ];
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

function memoryMeasured(ui) {
  const rows = memoryCompared().map(({ name, where, counted, measured, off, verdict, by, set }) => [
    memoryButton(ui, name, set), where, counted, `${measured}, ${verdict}`, off, by,
  ]);
  const head = ["program", "on", "counted here", "compiler", "off by", "measured with"];
  const caption = "Counted, against what compilers needed. Off by: − means that more was needed than is counted here.";
  const table = ui.wordTable(caption, head, rows, [2, 4]);
  return memoryDetails(ui, "measured", "Counted against the compiler", table);
}
