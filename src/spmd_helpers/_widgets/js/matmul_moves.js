import { deviceGrid } from "./grid.js";
import { roving } from "./roving.js";
import { unbroken } from "./words.js";

// The stages of a product, played: one device is followed, shards fly to it on the mesh.

const MM_FLIGHT = 700;
const MM_PAUSE = 1600;

/** Buttons, the mesh with the followed device, and what it has now in words. */
export function matmulMoves(answer, ui) {
  const { h } = ui;
  const { heading, sentence, same } = answer.stages[answer.step];
  return [
    h("div", { class: "spmd-mm-follow" }, "Press a device to follow it, then play: its shards light up, others come in."),
    h("div", { class: "spmd-mm-stage" }, answer.mesh.length ? mmMesh(answer, ui) : null, [
      h(
        "div",
        { class: "spmd-mm-now" },
        mmBar(answer, ui),
        h("p", { class: "spmd-mm-sentence" }, h("strong", {}, `${heading}. `), unbroken(sentence)),
        mmLegend(answer, same, h),
      ),
    ]),
  ];
}

/** The same as a list: the text twin. */
export function matmulAllSteps(answer, ui) {
  const { h } = ui;
  const list = answer.stages.map((stage) => h("li", {}, h("strong", {}, `${stage.heading}. `), unbroken(stage.sentence)));
  const summary = h("summary", {}, `Device ${answer.device}, all steps in words`);
  return h("details", { class: "spmd-w-same" }, summary, h("ol", { class: "spmd-mm-all" }, list));
}

function mmBar(answer, ui) {
  const { h } = ui;
  const last = answer.stages.length - 1;
  const go = (step) => {
    mmStop(ui);
    ui.change({ step: `${Math.max(0, Math.min(last, step))}` });
  };
  const button = (key, words, press, disabled) => {
    const made = h("button", { type: "button", onclick: press, disabled }, words);
    made.dataset.key = `mm-${key}`;
    return made;
  };
  if (ui.playing !== undefined && ui.playing !== answer.step) mmStop(ui);
  const plays = ui.playing !== undefined && answer.step < last;
  const words = plays ? "❚❚ Pause" : answer.step === last ? "↺ Again" : "▶ Play";
  const press = (event) => {
    if (!plays) return mmStart(answer, ui);
    mmStop(ui);
    event.target.textContent = "▶ Play";
  };
  const keys = { ArrowLeft: -1, ArrowRight: 1, Home: -last, End: last };
  const listen = (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(answer.step + keys[event.key]);
  };
  if (plays) mmGoOn(answer, ui, last);
  if (answer.step && answer.step !== ui.shown) requestAnimationFrame(() => mmFly(answer, ui));
  ui.shown = answer.step;
  return h(
    "div",
    { class: "spmd-w-buttons spmd-mm-bar", role: "group", "aria-label": "Play the steps", onkeydown: listen },
    button("play", words, press),
    button("back", "Back", () => go(answer.step - 1), answer.step === 0),
    button("step", "Step", () => go(answer.step + 1), answer.step === last),
    h("span", {}, `${answer.step} of ${last}`),
  );
}

function mmStop(ui) {
  clearTimeout(ui.timer);
  delete ui.playing;
}

function mmStart(answer, ui) {
  const isLast = answer.step === answer.stages.length - 1;
  ui.playing = isLast ? 0 : answer.step + 1;
  ui.change({ step: `${ui.playing}` });
}

/** The next step follows by itself. */
function mmGoOn(answer, ui, last) {
  clearTimeout(ui.timer);
  if (answer.step === last) {
    delete ui.playing;
    return;
  }
  ui.timer = setTimeout(() => {
    ui.playing = answer.step + 1;
    ui.change({ step: `${ui.playing}` });
  }, MM_PAUSE);
}

/** On the mesh: the followed device, who sends to it, who repeats its work. */
function mmMesh(answer, ui) {
  const { sources, same, sums } = answer.stages[answer.step];
  const mark = (device) => {
    if (device === answer.device) return ["spmd-w-mine", "▸", "followed"];
    if (sources.includes(device)) return ["spmd-mm-source", "", "sends"];
    if (same.includes(device) && sums) return ["spmd-mm-again", "", "same work"];
    return ["", "", ""];
  };
  const box = deviceGrid(answer, ui, "device", "", (device) => {
    const [kind, sign, words] = mark(device);
    return { kind, sign, words, pressed: device === answer.device };
  });
  return roving(box, box.querySelector('[aria-pressed="true"]'));
}

/** What is sent flies from the devices that have it to the one that is followed. */
function mmFly(answer, ui) {
  const box = ui.picture.querySelector(".spmd-mm-stage");
  const button = (device) => box?.querySelector(`[data-key="device-${device}"]`);
  const end = button(answer.device);
  if (!end || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const { heading, sources } = answer.stages[answer.step];
  const name = / of ([ABC]) /.exec(`${heading} `)?.[1];
  const at = (element) => {
    const [inner, outer] = [element.getBoundingClientRect(), box.getBoundingClientRect()];
    return [inner.x - outer.x + inner.width / 2, inner.y - outer.y + inner.height / 2];
  };
  for (const source of sources.map(button).filter(Boolean)) {
    const [from, to] = [at(source), at(end)];
    const flying = ui.h("span", { class: "spmd-mm-flying", "aria-hidden": "true", style: `left: ${from[0]}px; top: ${from[1]}px` }, name);
    box.append(flying);
    const path = [{ transform: "translate(-50%, -50%)" }, { transform: `translate(calc(${to[0] - from[0]}px - 50%), calc(${to[1] - from[1]}px - 50%))` }];
    flying.animate(path, { duration: MM_FLIGHT, easing: "ease-in-out" }).finished.then(
      () => flying.remove(),
      () => flying.remove(),
    );
  }
}

function mmLegend(answer, same, h) {
  const kinds = [["own", "its own shard, or complete"], ["came", "from other devices"], ["partial", "a partial sum"]];
  if (same.length) kinds.push(["again", "also computed by others"]);
  const swatch = (kind) => h("span", { class: `spmd-mm-swatch spmd-mm-${kind}`, "aria-hidden": "true" });
  return h("p", { class: "spmd-mm-legend" }, kinds.map(([kind, words]) => h("span", {}, swatch(kind), words)));
}
