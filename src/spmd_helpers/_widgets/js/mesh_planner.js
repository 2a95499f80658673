import { memoryBars, memoryShare } from "./memory_picture.js";
import { plannerView } from "./mesh_planner_view.js";
import { usefulAxes } from "./plan_candidates.js";
import { planChips } from "./plan_cluster.js";
import { planCode } from "./plan_code.js";
import { planCounted, planMesh, planShares } from "./plan_mesh.js";
import { planCount, secondsWords } from "./plan_words.js";
import { pyRepr } from "./python_words.js";
import { makeTransformer, moeLayers, transformerSizes, withCommas, wholeNumber } from "./transformer.js";
import { attempt, bytesWords, refuse } from "./words.js";

// Model, chips, batch and sequence → every mesh, the fastest that fits first.

const PLANNER_MORE = "More";
const PLANNER_TOKENS = 2 ** 32;
const PLANNER_OPTIMIZERS = ["adam", "adamw", "lion", "momentum", "sgd", "adafactor"];

const plannerDefaults = {
  model: "llama-3-8b",
  chip: "h100",
  hosts: "2",
  per_host: "8",
  slice: "4x4x4",
  batch: "32",
  seq: "4096",
  recompute: "",
  attention: "",
  param_dtype: "float32",
  optimizer: "adam",
  stage: "yes",
  data: "yes",
  fsdp: "yes",
  expert: "yes",
  context: "yes",
  model_axis: "yes",
  chosen: "1",
  shown: "12",
};

/** The models that a plan times: no latent attention, no images, every layer alike or with experts. */
function plannerModels() {
  const isPlanned = (one) =>
    !one.kv_lora_rank && !one.patch_size && !(one.moe_every > 1) && !(one.biases && one.shared_experts);
  const left = Object.entries(spmdModels);
  return Object.entries(spmdFamilies).flatMap(([family, n]) =>
    left.splice(0, n).filter(([, one]) => isPlanned(one)).map(([name]) => [name, name, family]),
  );
}

function plannerModel(name) {
  const fields = { ...spmdModels[name] };
  for (const key of transformerSizes) if (key in fields) fields[key] = BigInt(fields[key]);
  return makeTransformer({ ...fields, name });
}

// A slice of the chip: the one that is chosen, or where this chip has no such slice its own.
function plannerSlice({ chip, slice }) {
  const { slices, dims } = spmdPlan.chips[chip];
  return slices.includes(slice) ? slice : dims === 2 ? "8x8" : "4x4x4";
}

/** The control of an axis: `model` is the model's. */
function plannerKey(axis) {
  return axis === "model" ? "model_axis" : axis;
}

/** A state as what `planMesh` takes, or refused. */
function readPlanner(state) {
  for (const { key, options } of plannerControls(state)) {
    if (!options || key === "slice" || options.some(([value]) => value === state[key])) continue;
    refuse(`${key}=${pyRepr(state[key])} is none of the choices of this page.`);
  }
  const whole = (key, what, most) => {
    const typed = state[key].trim();
    return Number(wholeNumber(key, /^\d{1,15}$/.test(typed) ? BigInt(typed) : typed, what, 1n, BigInt(most)));
  };
  const model = plannerModel(state.model);
  const { dims, host } = spmdPlan.chips[state.chip];
  const sizes = dims
    ? [0, 0, plannerSlice(state).split("x").map(Number)]
    : [whole("hosts", "a number of hosts", spmdPlan.mostDevices), whole("per_host", "a number of cards of a host", host)];
  const chips = planChips(state.chip, ...sizes);
  if (chips.devices > spmdPlan.mostDevices) {
    refuse(`${chips.name} has ${chips.devices} devices; this page plans for ${spmdPlan.mostDevices} at most, plan_mesh for more.`);
  }
  const batch = whole("batch", "a number of sequences", PLANNER_TOKENS);
  const seq = state.seq.trim() ? whole("seq", "a number of tokens", PLANNER_TOKENS) : Number(model.seq);
  if (batch * seq > PLANNER_TOKENS) {
    refuse(`batch=${batch} of seq=${seq} are more than ${PLANNER_TOKENS} tokens, which this page plans for at most; make it smaller.`);
  }
  const useful = usefulAxes({ moeLayers: Number(moeLayers(model)) });
  const axes = useful.filter((axis) => state[plannerKey(axis)] === "yes");
  if (!axes.length) refuse("axes=() is no tuple of axes; give one such as ('data', 'model').");
  if (`${axes}` === "stage" && !["", "nothing_saveable"].includes(state.recompute)) {
    refuse(
      `recompute=${pyRepr(state.recompute)}: a pipeline over stage is counted with ` +
        "recompute='nothing_saveable' alone; give that, or other axes.",
    );
  }
  return {
    model, chips, batch, seq, capacity: 1,
    axes: axes.length < useful.length ? axes : null,
    recompute: state.recompute ? [state.recompute] : null,
    attention: state.attention || null,
    param_dtype: state.param_dtype,
    compute_dtype: "bfloat16",
    optimizer: state.optimizer,
  };
}

let plannerKnown = ["", null]; // the last plan, which a choice of a strategy asks for again

function plannerPlan(state) {
  const { chosen, shown, ...rest } = state;
  const key = JSON.stringify(rest);
  if (plannerKnown[0] !== key) {
    const asked = readPlanner(state);
    plannerKnown = [key, { asked, plan: planMesh(asked) }];
  }
  return plannerKnown[1];
}

function plannerPercent(share) {
  return `${(100 * share).toFixed(0)}%`;
}

/** A strategy as the list shows it. */
function plannerRow({ rank, words, recompute, bytes, fits, total, tokens, mfu, ...rest }) {
  const memory = bytesWords(bytes);
  const limits = planShares({ total, ...rest }).filter(([, share]) => share >= 0.05).slice(0, 3);
  return {
    rank, words, recompute, fits,
    memory: fits ? memory : `${memory}, too much`,
    seconds: secondsWords(total),
    tokens: withCommas(Math.round(tokens)),
    mfu: plannerPercent(mfu),
    limits: limits.map(([name, share]) => `${name} ${plannerPercent(share)}`).join(", "),
  };
}

function plannerNearest({ what, strategies, allowed }) {
  const [{ words, recompute, bytes, left }] = strategies;
  return (
    `None of ${planCount(strategies.length, "strategy", "strategies")} for ${what} fits: the nearest, ` +
    `${words}, ${recompute}, takes ${bytesWords(bytes)} of ${bytesWords(allowed)}, so that ` +
    `${bytesWords(-left)} are missing.`
  );
}

/** How many of the first ones the formula can't tell apart, as a sentence. */
function plannerTies({ error, unchecked, strategies, fitting }) {
  if (!fitting) return "";
  if (unchecked) return unchecked;
  const most = (1 + error) * strategies[0].total;
  const ties = strategies.filter(({ fits, total }) => fits && total <= most).length;
  if (ties < 2) return "";
  return (
    `The first ${ties} are a tie: they differ by ${plannerPercent(error)} or less, and at least nine of ten ` +
    `formula values were within ${plannerPercent(error)} of step_time, which has an error of its own.`
  );
}

function plannerSentence(plan, row, one) {
  const { what, strategies, fitting } = plan;
  const said = [`${what}: ${fitting} of ${planCount(strategies.length, "strategy", "strategies")} fit.`];
  if (!fitting) said.push(`${plannerNearest(plan)} ${plan.remedy}`);
  if (fitting || one.rank > 1) {
    said.push(
      `${one.rank === 1 ? "The fastest" : `Number ${one.rank}`}, ${row.words}, ${row.recompute}, takes ${row.seconds} ` +
        `a step by formula: ${row.tokens} tokens/s, an MFU of ${row.mfu}. It takes ${bytesWords(one.bytes)} of the ` +
        `${bytesWords(plan.allowed)} that may be filled on each device` +
        `${one.fits ? "" : `, so that ${bytesWords(-one.left)} are missing`}. The time goes to ${row.limits}.`,
    );
  }
  return said.join(" ");
}

/** The strategy as the state of the memory calculator, in a link. */
function plannerLink({ model, chips, batch, seq, param_dtype, optimizer }, one) {
  const { data = 1, fsdp = 1, model: split = 1, expert = 1, context = 1, stage = 1 } = one.mesh;
  const state = {
    model: model.name, chip: chips.chip, data, fsdp, model_axis: split, expert, context, stage, batch,
    seq: seq === Number(model.seq) ? "" : seq,
    zero: one.zero, recompute: one.recompute, attention: one.attention, param_dtype, optimizer,
    gradient_accumulation: one.microbatches, interleave: one.chunks, margin: spmdPlan.chips[chips.chip].margin,
  };
  const query = new URLSearchParams(Object.entries(state).map(([key, value]) => [`mc.${key}`, `${value}`]));
  return `memory_calculator.html?${query}`;
}

/** The lanes of a step: what is computed, and what each axis communicates, as shares of the longest. */
function plannerLanes(one) {
  const lanes = [
    {
      name: "computes", axis: "",
      parts: [
        ["products", "products and attention", one.compute - one.again],
        ["again", "recomputation", one.again],
        ["traffic", "memory traffic and the update", one.memory],
      ],
    },
  ];
  for (const { axes, seconds, exposed } of one.exchanges) {
    const name = axes.join(" and ");
    let lane = lanes.find((other) => other.name === name);
    if (!lane) {
      lane = { name, axis: name, parts: [["exposed", "exposed", 0], ["hidden", "hidden", 0]] };
      lanes.push(lane);
    }
    lane.parts[0][2] += exposed;
    lane.parts[1][2] += seconds - exposed;
  }
  const exposed = lanes.slice(1).map(({ name, parts }) => ["exposed", `waits for ${name}`, parts[0][2], name]);
  if (one.bubble) exposed.push(["bubble", "pipeline bubble", one.bubble]);
  const first = { name: "the step", axis: "", parts: [["busy", "computes", one.compute + one.memory], ...exposed] };
  const all = [first, ...lanes];
  const sum = ({ parts }) => parts.reduce((n, [, , seconds]) => n + seconds, 0);
  const most = Math.max(...all.map(sum));
  return all.map((lane) => ({
    name: lane.name, axis: lane.axis,
    words: secondsWords(sum(lane)),
    parts: lane.parts
      .filter(([, , seconds]) => seconds > 0)
      .map(([kind, words, seconds, axis = lane.axis]) => ({
        kind, axis, name: words, words: secondsWords(seconds), share: Math.round((10000 * seconds) / most) / 100,
      })),
  }));
}

/** What the picture of memory needs, as the calculator has it. */
function plannerMemory({ asked, plan }, one) {
  const found = planCounted(asked, one);
  const usable = BigInt(Number(spmdHardware[asked.chips.chip].program_bytes));
  const scale = found.total_bytes > usable ? found.total_bytes : usable;
  return {
    bars: memoryBars(found, scale),
    allowed: bytesWords(plan.allowed),
    allowed_share: memoryShare(BigInt(plan.allowed), scale),
    chip: asked.chips.chip,
  };
}

/** The Python lines that plan the same. */
function plannerCall({ model, chips, batch, seq, axes, recompute, attention, param_dtype, optimizer }, rank) {
  const text = (value) => JSON.stringify(value);
  const named = [`batch=${batch}`, `seq=${seq}`];
  if (axes) named.push(`axes=(${axes.map(text).join(", ")}${axes.length === 1 ? "," : ""})`);
  if (recompute) named.push(`recompute=${text(recompute[0])}`);
  if (attention) named.push(`attention=${text(attention)}`);
  if (param_dtype !== "float32") named.push(`param_dtype=${text(param_dtype)}`);
  if (optimizer !== "adam") named.push(`optimizer=${text(optimizer)}`);
  const lines = [text(model.name), text(chips.name), ...named].map((line) => `    ${line},`);
  return ["import spmd_helpers as spmd", "", "plan = spmd.plan_mesh(", ...lines, ")", "print(plan)", `print(plan.code(${rank}))`].join("\n");
}

function plannerControls(state) {
  const same = (names) => names.map((name) => [name, name]);
  const again = (key) => (typed) => ({ [key]: typed, chosen: "1", shown: "12" });
  const control = (kind, key, label, more) => ({ key, label, kind, change: again(key), ...more });
  const number = (key, label, hint, group) => control("number", key, label, { hint, group });
  const select = (key, label, options, group) => control("select", key, label, { options, group });
  const chips = Object.entries(spmdPlan.chips).map(([name, { kind }]) => [name, `${name}, ${kind.toUpperCase()}`]);
  const { dims, slices, host } = spmdPlan.chips[state.chip] ?? spmdPlan.chips.h100;
  const hasExperts = Boolean(spmdModels[state.model]?.experts);
  const policies = spmdPlan.policies.filter((policy, i) => !hasExperts || i !== 1);
  const axes = usefulAxes({ moeLayers: hasExperts });
  return [
    select("model", "Model", plannerModels()),
    select("chip", "Chip", chips),
    ...(dims
      ? [{ ...select("slice", "Slice, its chips in each direction", same(slices)), value: plannerSlice(state) }]
      : [number("hosts", "Hosts"), number("per_host", "Cards of a host (per_host)", `${host} at most`)]),
    number("batch", "Sequences a step (batch)", "over all devices"),
    number("seq", "Tokens of a sequence (seq)", "empty: the model's own"),
    select("recompute", "Recompute", [["", "all policies"], ...same(policies)], PLANNER_MORE),
    select(
      "attention", "Attention",
      [["", "flash, over context ring"], ["flash", "flash"], ["plain", "plain: writes the scores"]], PLANNER_MORE,
    ),
    select("param_dtype", "Type of the parameters (param_dtype)", same(["float32", "bfloat16"]), PLANNER_MORE),
    select("optimizer", "Optimizer", same(PLANNER_OPTIMIZERS), PLANNER_MORE),
    ...axes.map((axis) => control("check", plannerKey(axis), `Axis ${axis}`, { group: PLANNER_MORE })),
  ];
}

export const meshPlanner = {
  id: "mesh-planner",
  prefix: "mp",
  title: "Mesh planner",
  defaults: plannerDefaults,
  brief: ({ rows, chosen, fits }) => {
    const row = rows.find(({ rank }) => rank === chosen);
    return `${fits ? "✓" : "✕"} ${row.rank}: ${row.words}: ${row.seconds}, ${row.memory}`;
  },
  beside: {
    chosen: (answer) => answer.sentence,
    shown: ({ rows, count }) => `${rows.length} of ${count} strategies are listed.`,
  },
  presets: [
    { name: "Llama 8B, 16 H100", state: {} },
    { name: "Llama 70B, 128 H100", state: { model: "llama-3-70b", hosts: "16", batch: "256" } },
    { name: "Mixtral 8x7B, 64 H100", state: { model: "mixtral-8x7b", hosts: "8", batch: "256" } },
    { name: "Gemma 12B, 64 v5p", state: { model: "gemma-3-12b", chip: "v5p", batch: "64" } },
    { name: "Does not fit", state: { model: "llama-3-70b", hosts: "1" } },
  ],

  controls: plannerControls,

  answer(state) {
    return attempt(() => {
      const { asked, plan } = plannerPlan(state);
      const { strategies, fitting } = plan;
      const count = strategies.length;
      const [rank, most] = [Number(state.chosen), Number(state.shown)];
      const one = strategies[rank - 1] ?? strategies[0];
      const listed = strategies.slice(0, Number.isInteger(most) && most > 0 ? most : 12);
      if (!listed.includes(one)) listed.push(one);
      const rows = listed.map(plannerRow);
      const row = rows.find((other) => other.rank === one.rank);
      const written = attempt(() => ({ code: planCode(asked, plan, one) }));
      const call = plannerCall(asked, one.rank);
      return {
        sentence: plannerSentence(plan, row, one),
        code: written.code ?? call,
        call,
        refused: written.error ?? "",
        what: plan.what, count, fitting, rows,
        left: count - listed.length,
        ties: plannerTies(plan),
        notes: plan.notes,
        chosen: one.rank,
        title: `${row.words}, ${row.recompute}`,
        fits: one.fits,
        link: plannerLink(asked, one),
        ...plannerMemory({ asked, plan }, one),
        total_bytes: one.bytes,
        memory: bytesWords(one.bytes),
        seconds: row.seconds,
        lanes: plannerLanes(one),
        exchanges: one.exchanges.map(({ what, kind, axes, when, count: runs, nbytes, seconds, exposed, link }) => [
          what, `${kind} over ${axes.join(" and ")}`, when, withCommas(runs), bytesWords(nbytes), secondsWords(seconds),
          secondsWords(exposed), link,
        ]),
      };
    });
  },

  view: plannerView,
};
