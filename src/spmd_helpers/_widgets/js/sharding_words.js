// Words for numbers of things, devices, specs and meshes: those of _core/words.py.

/** "1 copy", "2 copies". */
export function countWords(n, one, many) {
  return `${n} ${`${n}` === "1" ? one : many || `${one}s`}`;
}

/** Facts or notes as sentences. */
export function sentences(words) {
  return words.map((line) => `${line[0].toUpperCase()}${line.slice(1)}.`).join(" ");
}

/** A set of device numbers, shortly. */
export function deviceList(ids, limit = 4) {
  const numbers = [...ids].sort((a, b) => a - b);
  if (numbers.length > Math.max(4, limit)) {
    const step = numbers[1] - numbers[0];
    if (step > 1 && numbers.every((n, i) => !i || n - numbers[i - 1] === step)) {
      return `${numbers.slice(0, 3).join(", ")} … ${numbers.at(-1)}`;
    }
  }
  const runs = [];
  for (const n of numbers) {
    if (runs.length && n === runs.at(-1).at(-1) + 1) runs.at(-1).push(n);
    else runs.push([n]);
  }
  const parts = runs.flatMap((run) =>
    run.length >= 3 ? [`${run[0]}–${run.at(-1)}`] : run.map(String),
  );
  if (parts.length <= limit) return parts.join(", ");
  const head = parts.slice(0, Math.max(1, limit - 1)).join(", ");
  return `${head} … ${parts.at(-1)} (${numbers.length} in all)`;
}

/** A tuple as Python prints it. */
export function tupleWords(items) {
  return items.length === 1 ? `(${items[0]},)` : `(${items.join(", ")})`;
}

/** A spec as it is typed: "P('data', None, ('fsdp', 'model'))". */
export function specWords(entries) {
  const words = entries.map((entry) => {
    if (!entry.length) return "None";
    const names = entry.map((axis) => `'${axis}'`);
    return names.length === 1 ? names[0] : `(${names.join(", ")})`;
  });
  return `P(${words.join(", ")})`;
}

/** A mesh as Python prints its dict. */
export function meshDict(mesh) {
  return `{${mesh.map(([axis, size]) => `'${axis}': ${size}`).join(", ")}}`;
}
