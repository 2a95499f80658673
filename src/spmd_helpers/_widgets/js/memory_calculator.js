import { changesThatFit } from "./memory_changes.js";
import { countMemory, memoryChoices, memoryCode, memoryDefaults } from "./memory_state.js";
import { memoryBars, memoryShare } from "./memory_picture.js";
import { memoryView } from "./memory_view.js";
import { activeParameters, cacheBytes, checkpointed, forwardFlops, parameterCount, withCommas } from "./transformer.js";
import { stepPhases } from "./training_state.js";
import { attempt, bytesWords } from "./words.js";

// Model, mesh and options → what a training step takes on each device, and does it fit.

const MEMORY_MORE = "More";
const MEMORY_SHAPE = "Experts, windows, latent attention, images";
const MEMORY_DTYPES = ["float32", "bfloat16", "float16"];

function memoryVerdict(left, short) {
  if (left < 0n) return `Does not fit, ${bytesWords(-left)} over`;
  return `Fits${short ? " by this count" : ""}, ${bytesWords(left)} free`;
}

/** Said where the count was seen to be short by more than is left free. */
function memoryShort({ found, chip, left, how }) {
  const { kind } = spmdHardware[chip.name];
  const { short, why } = spmdMeasured.near[kind];
  const free = found.total_bytes * 100n <= chip.usable * BigInt(100 - short);
  if (left < 0n || free || how.counting !== "jax") return "";
  return `On ${kind.toUpperCase()}s it was up to ${short} % short${why && ` (${why})`}, more than the part left free`;
}

function memorySentence(counted, changes) {
  const { found, chip, left } = counted;
  const short = memoryShort(counted);
  const peak = found.lines.filter((line) => line.when.includes(found.peak_phase));
  const most = peak.reduce((a, b) => (b.bytes > a.bytes ? b : a));
  const said = [
    `${found.what}: ${bytesWords(found.total_bytes)} on each device, most in ${found.peak_phase}`,
    `${memoryVerdict(left, short)}: a program on ${chip.name} can use ${bytesWords(chip.usable)}, of which ` +
      `${bytesWords(chip.allowed)} may be filled`,
    `The largest part is ${most.name}, ${bytesWords(most.bytes)}`,
  ];
  if (short) said.splice(2, 0, short);
  if (changes.length) said.push(`One way to make it fit: ${changes[0].words}`);
  else if (left < 0n) {
    said.push(
      "Nothing tried here makes it fit: ZeRO, recompute and flash attention together, on more devices, or on another chip",
    );
  }
  return `${said.join(". ")}.`;
}

function memorySources({ model, chip }) {
  const [source, date] = spmdSources[chip.name];
  const shapes = model.name ? `Shapes of ${model.name}: ${spmdSources[model.name]}. ` : "";
  return `${shapes}Memory of ${chip.name}: ${source}, ${date}.`;
}

/** What one token, or one image, takes of a transformer, whatever the mesh. */
function memoryFacts({ model, how }) {
  if (model.kind === "MLP") return "";
  const seq = how.seq ?? model.seq;
  const flops = forwardFlops(model, seq);
  if (model.patch_size !== null) return `An image takes ${withCommas(flops)} FLOPs forward.`;
  return (
    `A token uses ${withCommas(activeParameters(model))} parameters and takes ${withCommas(flops / seq)} FLOPs ` +
    `forward in a sequence of ${withCommas(seq)}; its keys and values take ${withCommas(cacheBytes(model, 1n, 2n))} B ` +
    "in bfloat16."
  );
}

/** What a model on a mesh can take: choices of words, and the controls that mean nothing. */
function memoryTakes(state) {
  const isMlp = state.model === "mlp";
  const hasExperts = state.model === "custom" ? state.experts !== "" : Boolean(spmdModels[state.model]?.experts);
  const isStaged = state.stage !== "1";
  const withNames = spmdChoices.withNames.indexOf(state.recompute);
  const isCounted = (recompute) => {
    if (recompute === "nothing_saveable") return true;
    if (isStaged || (isMlp && recompute === "selective")) return false;
    return !hasExperts || !checkpointed.includes(recompute);
  };
  return {
    recompute: memoryChoices.recompute.filter(isCounted),
    attention: ["plain", "flash", ...(state.context === "1" ? [] : ["ring"])],
    optimizer: memoryChoices.optimizer.filter((name) => !(hasExperts && name === "muon")),
    never: isMlp ? ["seq", "attention", "sequence_parallel"] : [],
    without: [
      ...(isMlp ? ["context", "stage", "counting"] : []),
      ...(isMlp || hasExperts || isStaged || state.optimizer === "muon" ? ["lora_rank"] : []),
      ...(state.lora_rank === "" ? ["lora_targets", "base_dtype"] : []),
      ...(spmdHardware[state.chip]?.kind === "gpu" && !isStaged && !["muon", "adafactor"].includes(state.optimizer) ? [] : ["offload_optimizer"]),
      ...(hasExperts ? ["stage"] : ["expert", "capacity_factor"]),
      ...(isStaged ? ["context"] : ["interleave"]),
      ...(withNames < 0 ? ["names_which_can_be_saved"] : []),
      ...(withNames < 1 ? ["names_which_can_be_offloaded"] : []),
      ...(spmdChoices.muDtype.includes(state.optimizer) ? [] : ["mu_dtype"]),
      ...(["adafactor", "sgd"].includes(state.optimizer) ? ["moment_dtype"] : []),
    ],
  };
}

export const memoryCalculator = {
  id: "memory-calculator",
  prefix: "mc",
  title: "Memory calculator",
  defaults: memoryDefaults,
  brief: (answer) => `${answer.fits ? "✓" : "✕"} ${answer.verdict}`,
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
        param_dtype: "bfloat16",
        grad_dtype: "float32",
        master_weights: "yes",
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
    const select = (key, label, options, group, hint) => ({ key, label, kind: "select", options, group, hint });
    const check = (key, label, group) => ({ key, label, kind: "check", group });
    const shapes = [number("layers", "Layers"), number("d_model", "d_model, the width")];
    if (isMlp) shapes.push(number("d_ff", "d_ff, the inner width", "empty: 4 × d_model"));
    if (state.model === "custom") {
      shapes.push(
        number("heads", "Heads"),
        number("kv_heads", "kv_heads, of keys and values", "empty: as many as heads"),
        number("d_ff", "d_ff, the inner width", "empty: 4 × d_model"),
        number("vocab", "Vocabulary (vocab)", "empty: 50257"),
        number("head_dim", "head_dim, a head's width", "empty: d_model / heads"),
        select("positions", "Positions", same(["learned", "rotary", "none"])),
        select("norm", "Norm", same(["layer", "rms"])),
        check("gated", "Gated feed-forward part"),
        check("tied", "Head uses the embedding again (tied)"),
        check("biases", "Biases"),
        check("qkv_biases", "Biases of q, k, v alone (qkv_biases)", MEMORY_SHAPE),
        check("qk_norm", "Norms of q and k (qk_norm)", MEMORY_SHAPE),
        check("post_norms", "Norms after each part too (post_norms)", MEMORY_SHAPE),
        check("sinks", "A number beside the scores (sinks)", MEMORY_SHAPE),
        number("window", "Window of attention (window)", "empty: all tokens", MEMORY_SHAPE),
        number("global_every", "Without it, every n-th layer (global_every)", "empty: none", MEMORY_SHAPE),
        number("experts", "Experts of a layer (experts)", "empty: none", MEMORY_SHAPE),
        number("experts_per_token", "Used by a token (experts_per_token)", "top-k", MEMORY_SHAPE),
        number("shared_experts", "Used by all (shared_experts)", "empty: 0", MEMORY_SHAPE),
        number("expert_d_ff", "Inner width of one (expert_d_ff)", "empty: d_ff", MEMORY_SHAPE),
        number("dense_layers", "First layers without (dense_layers)", "empty: 0", MEMORY_SHAPE),
        number("moe_every", "Of the rest, every n-th has (moe_every)", "empty: 1", MEMORY_SHAPE),
        check("router_biases", "Biases of the router (router_biases)", MEMORY_SHAPE),
        number("kv_lora_rank", "MLA: width of k and v (kv_lora_rank)", "empty: no MLA", MEMORY_SHAPE),
        number("q_lora_rank", "MLA: width of q (q_lora_rank)", "empty: not compressed", MEMORY_SHAPE),
        number("qk_nope_head_dim", "MLA: qk_nope_head_dim", "", MEMORY_SHAPE),
        number("qk_rope_head_dim", "MLA: qk_rope_head_dim", "", MEMORY_SHAPE),
        number("v_head_dim", "MLA: v_head_dim", "", MEMORY_SHAPE),
        number("patch_size", "Side of a patch (patch_size)", "of images; empty: text", MEMORY_SHAPE),
      );
    }
    const own = [["custom", "your own", "Your own"], ["mlp", "your own MLP", "Your own"]];
    const left = Object.keys(spmdModels);
    const models = Object.entries(spmdFamilies).flatMap(([family, n]) => left.splice(0, n).map((name) => [name, name, family]));
    const chips = Object.keys(spmdHardware).map((name) => [name, `${name}, ${spmdHardware[name].kind.toUpperCase()}`]);
    // What the model and the mesh can take; and what was chosen before, which the error names.
    const takes = memoryTakes(state);
    const offered = (key, names) => same(memoryChoices[key].filter((name) => names.includes(name) || name === state[key]));
    const types = (key, empty, more = []) => [["", empty], ...offered(key, [...MEMORY_DTYPES, ...more]).filter(([name]) => name)];
    const names = (key, label) => ({ key, label, kind: "text", hint: "such as query, up" });
    const more = [
      number("expert", "Mesh axis expert", "shards the batch and the experts", MEMORY_MORE),
      number("capacity_factor", "Room of an expert (capacity_factor)", "by an even share; empty: 1.0", MEMORY_MORE),
      number("context", "Mesh axis context", "shards the tokens of a sequence", MEMORY_MORE),
      number("stage", "Mesh axis stage", "pipeline: shards the layers", MEMORY_MORE),
      number("interleave", "Chunks of layers of a device (interleave)", "1: 1F1B", MEMORY_MORE),
      {
        ...number("gradient_accumulation", "Parts of the batch (gradient_accumulation)", "one after another; in a pipeline its microbatches", MEMORY_MORE),
        wide: true,
      },
      select("attention", "Attention", offered("attention", takes.attention), MEMORY_MORE, "plain writes the scores"),
      check("sequence_parallel", "model shards the sequence between the layers (sequence_parallel)", MEMORY_MORE),
      select("optimizer", "Optimizer", offered("optimizer", takes.optimizer), MEMORY_MORE),
      select("param_dtype", "Type of the parameters (param_dtype)", offered("param_dtype", MEMORY_DTYPES), MEMORY_MORE),
      select("compute_dtype", "Type of the computation (compute_dtype)", offered("compute_dtype", MEMORY_DTYPES), MEMORY_MORE),
      select(
        "grad_dtype",
        "Type of the gradients (grad_dtype)",
        [...types("grad_dtype", "as parameters"), ["bfloat16, float32", "both of these"]],
        MEMORY_MORE,
        "both: bfloat16 and float32",
      ),
      select("moment_dtype", "Type of its numbers (moment_dtype)", types("moment_dtype", "as optax", ["int8"]), MEMORY_MORE, "int8: with scales"),
      select("mu_dtype", "Type of its first moment (mu_dtype)", types("mu_dtype", "as the others"), MEMORY_MORE),
      number("lora_rank", "Rank of adapters (lora_rank)", "empty: all parameters are trained", MEMORY_MORE),
      { ...names("lora_targets", "Matrices with adapters (lora_targets)"), group: MEMORY_MORE },
      select("base_dtype", "Type of the frozen parameters (base_dtype)", types("base_dtype", "as computed", ["int8"]), MEMORY_MORE, "int8: with scales"),
      check("offload_optimizer", "Optimizer's state on the host (offload_optimizer)", MEMORY_MORE),
      check("master_weights", "Keeps float32 master weights (master_weights)", MEMORY_MORE),
      select("counting", "Counting as", [["jax", "JAX"], ["megatron", "Megatron-LM"]], MEMORY_MORE),
      { key: "margin", label: "Part of the memory that may be filled (margin)", kind: "text", group: MEMORY_MORE },
    ];
    const isShown = ({ key }) =>
      !takes.never.includes(key) && (!takes.without.includes(key) || state[key] !== memoryDefaults[key]);
    return [
      select("model", "Model", [...models, ...own]),
      select("chip", "Chip", chips),
      ...(isMlp || state.model === "custom" ? shapes : []),
      number("data", "Mesh axis data", "shards the batch"),
      number("fsdp", "Mesh axis fsdp", "shards batch and state"),
      number("model_axis", "Mesh axis model", "shards heads, d_ff, vocabulary"),
      number("batch", isMlp ? "Rows a step (batch)" : "Sequences a step (batch)", "over all devices"),
      number("seq", "Tokens of a sequence (seq)", "empty: the model's own"),
      select(
        "zero",
        "data also shards (zero)",
        [["0", "0: nothing"], ["1", "1: optimizer"], ["2", "2: + gradients"], ["3", "3: + params"]],
        undefined,
        "ZeRO's stage; 3 is FSDP",
      ),
      select("recompute", "Recompute", offered("recompute", takes.recompute), undefined, "what runs again; selective: the scores of attention"),
      names("names_which_can_be_saved", "Results that it saves (names_which_can_be_saved)"),
      names("names_which_can_be_offloaded", "Results that it offloads (names_which_can_be_offloaded)"),
      ...more,
    ].filter(isShown);
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
        facts: memoryFacts(counted),
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
          shown: line.when.length === stepPhases.length ? "always" : line.when.join(", "),
        })),
        bars: memoryBars(found, scale),
        peak_phase: found.peak_phase,
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
        verdict: memoryVerdict(left, memoryShort(counted)),
        counting: counted.how.counting,
        changes,
      };
    });
  },

  view: memoryView,
};
