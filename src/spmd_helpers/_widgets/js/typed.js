import { countWords, meshDict, tupleWords } from "./sharding_words.js";
import { refuse } from "./words.js";

// What a person types. Each refuses with a sentence.

const WHOLE = /^[+-]?\d{1,15}$/;

/** "data=2, model=4" → [["data", 2], ["model", 4]]; at most `most` axes. */
export function parseMesh(text, most = 3) {
  const inside = text.trim().replace(/^[{(]|[)}]$/g, "").trim();
  const example = "such as data=2, model=4";
  if (!inside) return [];
  const mesh = [];
  for (const part of inside.replace(/,\s*$/, "").split(/\s*[,×]\s*/)) {
    const found = /^(['"]?)(\w+)\1\s*[=:]\s*(.*)$/.exec(part.trim());
    if (!found) {
      refuse(`mesh: “${part}” is not an axis and its size; give both, ${example}.`);
    }
    const [axis, size] = [found[2], found[3].trim()];
    if (/^\d/.test(axis)) {
      refuse(`mesh: the axis name “${axis}” begins with a digit; give a word, ${example}.`);
    }
    if (axis.length > 24) {
      refuse(`mesh: the axis name “${axis.slice(0, 24)}…” is longer than 24 letters.`);
    }
    if (axis === "None") {
      refuse("mesh: in a spec None is an unsharded dimension; give the axis another name.");
    }
    if (mesh.some(([name]) => name === axis)) {
      refuse(`mesh: the axis “${axis}” is there twice; give each a name of its own.`);
    }
    if (!WHOLE.test(size)) {
      refuse(`mesh: the size of ${axis} is “${size}”, not an integer; ${example}.`);
    }
    mesh.push([axis, Number(size)]);
  }
  for (const [axis, size] of mesh) {
    if (size < 1) {
      refuse(
        `mesh=${meshDict(mesh)}: axis '${axis}' has size ${size}; a mesh maps each ` +
          "axis name to a number of devices, 1 or more, such as " +
          "{'data': 4, 'model': 2}.",
      );
    }
  }
  if (mesh.length > most) {
    refuse(`mesh: ${mesh.length} axes; this page takes ${most} at most.`);
  }
  const devices = mesh.reduce((all, [, size]) => all * BigInt(size), 1n);
  if (devices > 65536n) {
    refuse(`mesh: ${devices} devices; this page takes 65536 at most.`);
  }
  return mesh;
}

/** "8, 16" → [8, 16]. */
export function parseShape(text, least = 1, most = 4, name = "shape") {
  const inside = text.trim().replace(/^[([]|[\])]$/g, "").trim();
  const example = "such as 8, 16";
  if (!inside) refuse(`${name}: nothing is there; give a size for each dimension, ${example}.`);
  const shape = inside.replace(/,\s*$/, "").split(/\s*[,×]\s*|\s+/).map((part) => {
    if (!WHOLE.test(part)) {
      refuse(`${name}: “${part}” is not an integer; give sizes, ${example}.`);
    }
    return Number(part);
  });
  if (shape.some((n) => n < 0)) {
    refuse(
      `x=${tupleWords(shape)} is not a shape; a shape is a tuple of integers, ` +
        "0 or more, such as (6, 10).",
    );
  }
  if (shape.length > most || shape.length < least) {
    const range = least === most ? `${most}` : `${least} to ${most}`;
    refuse(`${name}: ${countWords(shape.length, "dimension")}; this page takes ${range}.`);
  }
  if (shape.some((n) => n > 1e12)) {
    refuse(`${name}: a size of ${Math.max(...shape)}; this page takes 1000000000000 at most.`);
  }
  return shape;
}

const UNCONSTRAINED = /(?<!['"\w])(?:\w+\.)*UNCONSTRAINED(?!['"\w])/;

/** 'P("data", None, ("x", "y"))' → [["data"], [], ["x", "y"]]; P and quotes may lack. */
export function parseSpec(text, name = "spec") {
  const whole = text.trim();
  specClosed(whole, name);
  if (UNCONSTRAINED.test(whole)) {
    refuse(
      `${name}: UNCONSTRAINED leaves a dimension to the compiler, so there is nothing ` +
        "to lay out yet; name axes, or None for an unsharded dimension.",
    );
  }
  const called = /^(?:\w+\.)*(?:P|PartitionSpec)\s*\((.*)\)$/s.exec(whole);
  // "('x', 'y'), None" has brackets at both ends of nothing; so has "('x',), ('y',)".
  const words = (called ? called[1] : specInside(whole)).replaceAll("[", "(").replaceAll("]", ")");
  const tokens = words.match(/['"]\w*['"]|\w+|[(),]|\S/g) || [];
  const entries = [];
  let open = null;
  let value = null;
  const wrong = (token) =>
    refuse(
      `${name}: “${token}” is not understood; give for each dimension an axis, None, ` +
        "or several axes in brackets, such as P('data', None) or P(('data', 'model')).",
    );
  const close = () => {
    if (value !== null) entries.push(value);
    value = null;
  };
  for (const token of tokens) {
    const axis = /^(['"]?)([A-Za-z_]\w*)\1$/.exec(token);
    const isNone = token === "None";
    if (token === "(") {
      if (open || value) wrong(token);
      open = [];
    } else if (token === ")") {
      if (!open) wrong(token);
      [value, open] = [open, null];
    } else if (token === ",") {
      if (!open && value === null) wrong(token);
      if (!open) close();
    } else if (!axis || (value !== null && !open) || axis[2].length > 24) {
      wrong(token);
    } else if (open) {
      if (isNone) wrong(token);
      open.push(axis[2]);
    } else {
      value = isNone ? [] : [axis[2]];
    }
  }
  close();
  return entries;
}

/** Each bracket and each quote has its partner, or is named. */
function specClosed(words, name) {
  const pairs = { "(": ")", "[": "]" };
  const open = [];
  for (const c of words) {
    if (c in pairs) open.push(pairs[c]);
    else if (Object.values(pairs).includes(c) && open.pop() !== c) {
      refuse(`${name}: “${words}” closes a bracket with ${c} that is not open; take it away, or open it.`);
    }
  }
  if (open.length) refuse(`${name}: “${words}” has a bracket that is not closed; add ${open.reverse().join("")} at its end.`);
  const half = /(?:^|[^\w'"])(?:(['"])(\w+)(?!\1)(?![\w'"])|(\w+)['"])/.exec(words);
  if (half) {
    const axis = half[2] || half[3];
    refuse(`${name}: “${words}” has a quote at one side of ${axis} only; write '${axis}'.`);
  }
}

function specInside(words) {
  if (!/^[([]/.test(words)) return words;
  let depth = 0;
  for (let i = 0; i < words.length; i++) {
    depth += "([".includes(words[i]) ? 1 : ")]".includes(words[i]) ? -1 : 0;
    if (!depth) return i === words.length - 1 ? words.slice(1, -1) : words;
  }
  return words;
}
