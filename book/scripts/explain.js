// What `spmd.explain` says of a text, by the same rules in the same order: read.py and
// explain.py of the package's _explain, on the data that rules_data.py makes of them.

const regex = (() => {
  const known = new Map();
  return (source, flags = "u") => {
    const name = flags + source;
    if (!known.has(name)) known.set(name, new RegExp(source, flags));
    return known.get(name);
  };
})();
const reading = (name, flags = "u") => regex(EXPLAIN.reading[name], flags);
const strip = (text) =>
  text.replace(regex(`^[${EXPLAIN.space}]+|[${EXPLAIN.space}]+$`, "gu"), "");
// Python counts characters, and JavaScript an emoji twice.
const first = (text, n) => [...text.slice(0, 2 * n)].slice(0, n).join("");
const last = (text, n) => [...text.slice(-2 * n)].slice(-n).join("");

function oneLine(message) {
  const plain = first(message, EXPLAIN.longest).replace(reading("colors", "gu"), "");
  const words = plain.replace(reading("jaxNote", "gu"), "").replaceAll("`", "'");
  const spaced = words.split(regex(`[${EXPLAIN.space}]+`)).filter(Boolean).join(" ");
  return spaced.replaceAll("PartitionSpec(", "P(");
}

function frameLine(file, name, line, part = "") {
  const statement = strip(line);
  const code = statement.startsWith("assert") ? statement : strip(part) || statement;
  return `${file}:${name}: ${code}`;
}

function framesOf(text) {
  const lines = [];
  for (const [, file, name, line = "", marks = ""] of text.matchAll(
    reading("pythonFrame", "gu"),
  )) {
    const begin = marks.length - marks.trimStart().length;
    const part = [...line].slice(begin, marks.length || undefined).join("");
    lines.push(frameLine(file, name, line, part));
  }
  const heads = lines.length ? [] : [...text.matchAll(reading("ipythonFrame", "gu"))];
  heads.forEach((head, i) => {
    const part = text.slice(head.index, heads[i + 1]?.index);
    const arrow = part.match(reading("arrow"));
    const code = arrow ? strip(arrow[1]) : "";
    lines.push(frameLine(head[1] || "cell", head[2] || "<module>", code));
  });
  return lines.join("\n");
}

/** The errors in a pasted text, the last one first. */
function readText(text) {
  const plain = last(text, EXPLAIN.longestText)
    .replace(reading("colors", "gu"), "")
    .replace(reading("bar", "gu"), "")
    .replace(reading("jaxNote", "gu"), "");
  const errors = [];
  for (const part of plain.split(reading("chain"))) {
    const raised = part.match(reading("raised"));
    if (!raised) continue;
    const { kind, message } = raised.groups;
    const frames = framesOf(part.slice(0, raised.index));
    errors.unshift({ kind, message: oneLine(message ?? ""), frames });
  }
  const alone = (message) => ({ kind: "", message: oneLine(message), frames: "" });
  if (!errors.length) return [alone(plain)];
  const logged = [...plain.matchAll(reading("logged", "gu"))];
  return [...errors, ...logged.map((found) => alone(found.groups.message))];
}

const all = (source, text) => [...text.matchAll(new RegExp(source, "gu"))];
const numbers = (text) => all("\\p{Nd}+", text ?? "").map((found) => Number(found[0]));

function namesIn(text) {
  const quoted = all("'([^']*)'", text).map((found) => found[1]);
  if (quoted.length) return quoted;
  return text.replace(/^[()]+|[()]+$/g, "").split(",").map(strip).filter(Boolean);
}

/** The axes after V: in float32[2]{V:(data,model)}; {data,model} in older JAX. */
function varying(type) {
  const axes = (type ?? "").match(/\{(?:V:)?\(?([\p{L}\p{N}_,]+)\)?\}/u);
  return axes ? axes[1].split(",") : [];
}

const bare = (type) => type.replace(/@(?:\([^)]*\)|[\p{L}\p{N}_]+)/gu, "");

// What a rule asks of its groups, by the names in CHECKS of fields.py.
const CHECKS = {
  "same devices": ({ ids, ids_other: other }) =>
    String(numbers(ids).sort((a, b) => a - b)) ===
    String(numbers(other).sort((a, b) => a - b)),
  "other platforms": (groups) => groups.platform !== groups.platform_other,
  "gains axes": (groups) => {
    const before = varying(groups.type);
    return varying(groups.type_out).some((axis) => !before.includes(axis));
  },
  "another sharding": (groups) => {
    const [type, out] = [groups.type ?? "", groups.type_out ?? ""];
    return bare(type) === bare(out) && type !== out;
  },
  "free explicit axes": (groups) => {
    const mesh = groups.mesh ?? "";
    const types = all("[\\p{L}\\p{N}_]+", mesh.split("axis_types=").slice(1).join("="));
    const kinds = types.map((found) => found[0]);
    const axes = all("'([^']+)': \\p{Nd}+", mesh).map((found) => found[1]);
    const kind = (axis) => kinds[axes.lastIndexOf(axis)];
    const named = namesIn(groups.spec ?? "").map(kind);
    return (
      named.length > 0 &&
      named.every((one) => one === "Explicit") &&
      kinds.includes("Manual")
    );
  },
};

/** What a rule reads from an error, by name; null if it is not the rule's. */
function match([, raised, patterns, where = "", alone = 0, check = ""], error) {
  if (error.kind ? !raised.includes(error.kind) : String(patterns) === "") return null;
  let groups = {};
  if (where) {
    const place = error.frames.match(regex(where));
    if (!place && (error.frames || !alone)) return null;
    groups = { ...place?.groups };
  }
  for (const pattern of patterns) {
    const found = error.message.match(regex(pattern));
    if (!found) continue;
    groups = { ...groups, ...found.groups };
    return !check || CHECKS[check](groups) ? groups : null;
  }
  return null;
}

/** {code, kind, groups} of the first rule that knows it; code is "" if none does. */
function explain(text) {
  const errors = readText(text);
  for (const error of errors) {
    const { kind, message } = error;
    if (EXPLAIN.own.includes(kind)) return { code: kind, kind, message, own: true };
    for (const rule of EXPLAIN.rules) {
      const groups = match(rule, error);
      if (groups) return { code: rule[0], kind, message, groups };
    }
  }
  return { code: "", kind: errors[0].kind, message: errors[0].message };
}
