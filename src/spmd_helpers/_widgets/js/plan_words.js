import { joinWords, refuse } from "./words.js";
import { orWords } from "./python_words.js";

// What a plan says besides its strategies: mirrors _plan/plan_mesh.py and _plan/plan.py.

/** A time with three digits. */
export function secondsWords(seconds) {
  for (const [size, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) {
    if (seconds >= 0.9995 * size) return `${planDigits(seconds / size, 3)} ${unit}`;
  }
  return seconds < 5e-10 ? "0 s" : `${planDigits(seconds / 1e-6, 2)} µs`;
}

// Python's format of so many significant digits, for what is neither tiny nor huge.
function planDigits(value, digits) {
  const power = Number(value.toExponential(digits - 1).split("e")[1]);
  if (power >= digits) {
    const [top, exponent] = value.toExponential(digits - 1).split("e");
    return `${top.includes(".") ? top.replace(/\.?0+$/, "") : top}e+${exponent.slice(1).padStart(2, "0")}`;
  }
  const fixed = value.toFixed(digits - 1 - power);
  return fixed.includes(".") ? fixed.replace(/\.?0+$/, "") : fixed;
}

export function planCount(n, one, many = `${one}s`) {
  return `${n} ${n === 1 ? one : many}`;
}

/** What to change where nothing fits. */
export function planRemedy({ param_dtype, optimizer }) {
  const isAdam = ["adam", "adamw"].includes(optimizer);
  let fewer = "";
  if (spmdChoices.floats[param_dtype] > 2) {
    fewer = "param_dtype='bfloat16'";
    if (isAdam) fewer += ", which makes Adam's moments bfloat16 too";
  } else if (isAdam) fewer = "optimizer='lion'";
  const take = "Take more chips, a smaller batch or shorter sequences";
  return fewer ? `${take}, or state of fewer bytes, such as ${fewer}.` : `${take}.`;
}

/** Why nobody knows how far the formula is off; nothing where it is known. */
export function planUnchecked({ torus, devices, perHost }) {
  const { tpuChips, hosts: most } = spmdPlan;
  if (torus.length) {
    if (devices <= tpuChips) return "";
    return (
      `No plan was compared with a program for more than ${tpuChips} TPUs, and these are ${devices}: how ` +
      "far the formula is off was not checked, and the order may be another."
    );
  }
  const hosts = Math.ceil(devices / perHost);
  if (hosts <= most) return "";
  return (
    `Seconds were compared with compiled programs over up to ${most} hosts; none ran over more than one. ` +
    `Beyond ${most} hosts nothing was timed, and these are ${hosts}: how far the formula is off was not ` +
    "checked, and the order may be another. What a collective waits before it sends grows as in NCCL's " +
    "model of rings and trees."
  );
}

/** What else there is to know, a sentence each. */
export function planNotes({ far, tooLarge, rates, chips }, chosen) {
  const notes = [];
  if (far) {
    notes.push(
      `${far} more ${far === 1 ? "mesh is" : "meshes are"} left out: with any policy a step takes more than ` +
        `${spmdPlan.far} times as long as the best.`,
    );
  }
  if (tooLarge) {
    notes.push(
      `${planCount(tooLarge, "strategy", "strategies")} more ${tooLarge === 1 ? "is" : "are"} left out: ` +
        "parameters and the optimizer's state alone are more than a chip gives.",
    );
  }
  if (!rates.isMeasured) {
    notes.push(`No step was measured on chip ${chips.chip}: its rates are fractions of the published figures.`);
  }
  if (chosen.some(({ attention }) => attention !== "plain")) {
    notes.push("Only attention='plain' was compared with compiled programs: 'flash' and 'ring' were never compared.");
  }
  if (chosen.some(({ mesh }) => "stage" in mesh)) notes.push("The seconds of a pipeline over stage were not checked.");
  return [
    ...notes,
    "Seconds are by formula, with a part of each exchange assumed to be hidden; compile the first few and ask step_time.",
  ];
}

/** Refuses: no mesh of so many devices divides anything. `divides(batch)` says whether another one would. */
export function planNothingDivides({ model, chips, batch, seq, refused }, axes, policies, divides) {
  const has = (...some) => some.some((axis) => axes.includes(axis));
  const sizes = has(...spmdPlan.ofBatch, "stage") ? [["batch", batch]] : [];
  if (has("model")) {
    if (model.moeLayers < model.layers) sizes.push(["d_ff", model.d_ff]);
    sizes.push(["heads", model.heads]);
    if (model.moeLayers) sizes.push(["expert_d_ff", model.expert_d_ff]);
  }
  if (has("context")) sizes.push(["seq", seq]);
  if (has("expert")) sizes.push(["experts", model.experts]);
  if (has("stage")) sizes.push(["layers", model.layers]);
  let words = joinWords(sizes.map(([name, size]) => `${name}=${size}`));
  let why = "";
  if (refused) {
    words = "the model";
    why = `: ${refused.split(";")[0].split(", which")[0]}`;
  } else if (chips.torus.length) words += " and lies on the torus";
  let remedy = "take another number of chips";
  const more = Math.ceil(batch / chips.devices) * chips.devices;
  if (sizes[0]?.[0] === "batch" && more !== batch && divides(more)) remedy = `make batch=${more}, or ${remedy}`;
  refuse(`topology='${chips.name}': no mesh of ${chips.devices} devices over ${joinWords(axes)} divides ${words}${why}; ${remedy}.`);
}
