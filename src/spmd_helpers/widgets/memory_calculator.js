import { changesThatFit } from "./memory_changes.js";
import { countMemory, memoryCode, memoryDefaults } from "./memory_state.js";
import { memoryView } from "./memory_view.js";
import { parameterCount } from "./transformer.js";
import { optimizerChoices } from "./training_setup.js";
import { stepMoments } from "./training_state.js";
import { attempt, bytesWords } from "./words.js";

// Model, mesh and options → what a training step takes on each device, and does it fit.

const MEMORY_PARTS = ["parameters", "optimizer", "gradients", "kept", "work", "batch"];
const MEMORY_OWN = "Change it yourself";
const MEMORY_DTYPES = ["float32", "bfloat16", "float16"];

/** In each moment: the parts, and their shares of the bar in hundredths of a percent. */
function memoryBars(found, scale) {
  return stepMoments.map((moment) => {
    const parts = MEMORY_PARTS.map((part) => {
      const there = found.lines.filter((line) => line.part === part && line.when.includes(moment));
      const bytes = there.reduce((n, line) => n + line.bytes, 0n);
      return { part, bytes: `${bytes}`, words: bytesWords(bytes), share: memoryShare(bytes, scale) };
    });
    return {
      moment,
      bytes: `${found.moments[moment]}`,
      words: bytesWords(found.moments[moment]),
      most: moment === found.peak_moment,
      parts: parts.filter(({ bytes }) => bytes !== "0"),
    };
  });
}

function memoryShare(bytes, scale) {
  return Number((bytes * 10000n) / scale) / 100;
}

function memoryVerdict(left) {
  return left < 0n ? `Does not fit, ${bytesWords(-left)} over` : `Fits, ${bytesWords(left)} free`;
}

function memorySentence({ found, chip, left }, changes) {
  const peak = found.lines.filter((line) => line.when.includes(found.peak_moment));
  const most = peak.reduce((a, b) => (b.bytes > a.bytes ? b : a));
  const said = [
    `${found.what}: ${bytesWords(found.total_bytes)} on each device, most in ${found.peak_moment}`,
    `${memoryVerdict(left)}: a program on ${chip.name} can use ${bytesWords(chip.usable)}, of which ` +
      `${bytesWords(chip.allowed)} may be filled`,
    `The largest part is ${most.name}, ${bytesWords(most.bytes)}`,
  ];
  if (changes.length) said.push(`The smallest change that makes it fit: ${changes[0].words}`);
  else if (left < 0n) {
    said.push("Neither ZeRO, recompute, flash attention, more devices nor another chip makes it fit");
  }
  return `${said.join(". ")}.`;
}

function memorySources({ model, chip }) {
  const { source, date } = spmdHardware[chip.name];
  const shapes = model.source ? `Shapes of ${model.name}: ${model.source}. ` : "";
  return `${shapes}Memory of ${chip.name}: ${source}, ${date}.`;
}

export const memoryCalculator = {
  id: "memory-calculator",
  prefix: "mc",
  title: "Memory calculator",
  defaults: memoryDefaults,
  presets: [
    { name: "Data parallel", state: {} },
    { name: "FSDP", state: { zero: "3" } },
    { name: "Tensor parallel", state: { data: "1", model_axis: "8" } },
    { name: "FSDP × tensor parallel", state: { data: "2", model_axis: "4", zero: "3" } },
    {
      name: "GPT-3 on 64 A100",
      state: { model: "gpt3-175b", chip: "a100-80gb", data: "8", model_axis: "8", batch: "64", zero: "3" },
    },
    {
      name: "As Megatron-LM counts",
      state: {
        model: "gpt3-175b",
        chip: "a100-80gb",
        data: "8",
        model_axis: "8",
        batch: "64",
        zero: "1",
        params: "bfloat16",
        grads: "float32",
        master: "yes",
        recompute: "selective",
        sequence_parallel: "yes",
        counting: "megatron",
      },
    },
  ],

  controls(state) {
    const same = (names) => names.map((name) => [name, name]);
    const isMlp = state.model === "mlp";
    const number = (key, label, hint, group) => ({ key, label, kind: "number", hint, group });
    const select = (key, label, options, group) => ({ key, label, kind: "select", options, group });
    const check = (key, label, group) => ({ key, label, kind: "check", group });
    const shapes = [number("layers", "Layers"), number("d_model", "d_model, the width")];
    if (isMlp) shapes.push(number("d_ff", "d_ff, the inner width"));
    if (state.model === "custom") {
      shapes.push(
        number("heads", "Heads"),
        number("kv_heads", "Heads of keys and values", "empty: as many as heads"),
        number("d_ff", "d_ff, the inner width", "empty: 4 × d_model"),
        number("vocab", "Vocabulary", "empty: 50257"),
        number("head_dim", "Width of a head", "empty: d_model / heads"),
        select("positions", "Positions", same(["learned", "rotary", "none"])),
        select("norm", "Norm", same(["layer", "rms"])),
        check("gated", "Gated feed-forward part"),
        check("tied", "Head uses the embedding again"),
        check("biases", "Biases"),
      );
    }
    const attention = [
      number("seq", "Tokens of a sequence", "empty: the model's own", MEMORY_OWN),
      select(
        "attention",
        "Attention",
        [["plain", "plain: writes the scores"], ["flash", "flash: does not"]],
        MEMORY_OWN,
      ),
      check("sequence_parallel", "model cuts the sequence between the layers", MEMORY_OWN),
    ];
    const own = [["custom", "a transformer of your own"], ["mlp", "an MLP of your own"]];
    return [
      select("model", "Model", [...same(Object.keys(spmdModels)), ...own]),
      select("chip", "Chip", same(Object.keys(spmdHardware))),
      ...(isMlp || state.model === "custom" ? shapes : []),
      number("data", "Mesh axis data", "cuts the batch"),
      number("model_axis", "Mesh axis model", "cuts heads, d_ff, vocabulary"),
      number("batch", isMlp ? "Rows a step" : "Sequences a step", "over all devices"),
      select("zero", "data also cuts (ZeRO)", [
        ["0", "0: nothing"],
        ["1", "1: the optimizer's state"],
        ["2", "2: gradients too"],
        ["3", "3: parameters too (FSDP)"],
      ]),
      select("recompute", "Recompute", [
        ["none", "none"],
        ["selective", "selective: attention's scores"],
        ["full", "full: each layer"],
      ]),
      ...(isMlp ? [] : attention),
      select("params", "Type of the parameters", same(MEMORY_DTYPES), MEMORY_OWN),
      select("compute", "Type of the computation", same(MEMORY_DTYPES), MEMORY_OWN),
      select(
        "grads",
        "Type of the gradients",
        [["", "as the parameters"], ...same(MEMORY_DTYPES), ["bfloat16, float32", "bfloat16 and float32"]],
        MEMORY_OWN,
      ),
      select("optimizer", "Optimizer", same(Object.keys(optimizerChoices)), MEMORY_OWN),
      select("moments", "Type of its numbers", [["", "as optax has it"], ...same(MEMORY_DTYPES)], MEMORY_OWN),
      check("master", "Keeps a copy of the parameters in float32", MEMORY_OWN),
      select(
        "counting",
        "Counting",
        [["jax", "as JAX lays it out"], ["megatron", "as Megatron-LM publishes"]],
        MEMORY_OWN,
      ),
      { key: "margin", label: "Part of the memory that may be filled", kind: "text", group: MEMORY_OWN },
    ];
  },

  answer(state) {
    return attempt(() => {
      const counted = countMemory(state);
      const { found, chip, left, model } = counted;
      const changes = left < 0n ? changesThatFit(state, counted) : [];
      const scale = found.total_bytes > chip.usable ? found.total_bytes : chip.usable;
      const text = (key) => `${found[key]}`;
      return {
        sentence: memorySentence(counted, changes),
        code: memoryCode(state, counted),
        what: found.what,
        parameters: `${parameterCount(model)}`,
        sources: memorySources(counted),
        params_bytes: text("params_bytes"),
        grads_bytes: text("grads_bytes"),
        optimizer_bytes: text("optimizer_bytes"),
        activations_bytes: text("activations_bytes"),
        total_bytes: text("total_bytes"),
        total: bytesWords(found.total_bytes),
        lines: found.lines.map((line) => ({
          ...line,
          bytes: `${line.bytes}`,
          words: bytesWords(line.bytes),
          shown: line.when.length === stepMoments.length ? "always" : line.when.join(", "),
        })),
        bars: memoryBars(found, scale),
        peak_moment: found.peak_moment,
        notes: found.notes,
        chip: chip.name,
        usable_bytes: `${chip.usable}`,
        usable: bytesWords(chip.usable),
        usable_share: memoryShare(chip.usable, scale),
        allowed_bytes: `${chip.allowed}`,
        allowed: bytesWords(chip.allowed),
        allowed_share: memoryShare(chip.allowed, scale),
        left_bytes: `${left}`,
        fits: left >= 0n,
        verdict: memoryVerdict(left),
        changes,
      };
    });
  },

  view: memoryView,
};
