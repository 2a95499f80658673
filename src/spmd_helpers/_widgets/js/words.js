// Words for numbers, specs and meshes: those of _core/words.py and _shardings/sharding.py.

/** An error that a reader is told as it stands. */
export function refuse(words) {
  const error = new Error(words);
  error.refused = true;
  throw error;
}

/** What `make` returns, or {error} with the sentence that it refused with. */
export function attempt(make) {
  try {
    return make();
  } catch (error) {
    if (error.refused) return { error: error.message };
    throw error;
  }
}

/** A number of bytes in powers of 1024 with at most three digits; n may be a BigInt. */
export function bytesWords(n) {
  const bytes = BigInt(n);
  let unit = 0n;
  while (unit < 6n && bytes / 1024n ** unit >= 1024n) unit += 1n;
  const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  if (unit === 0n) return `${bytes} B`;
  let words = threeDigits(bytes, 1024n ** unit);
  if (words === "1024" && unit < 6n) [words, unit] = ["1", unit + 1n];
  return `${words} ${names[unit]}`;
}

/** top / bottom with at most three digits, a half rounded to even, as Python does. */
export function threeDigits(top, bottom) {
  let decimals = 0n;
  if (top * 1000n < 9995n * bottom) decimals = 2n;
  else if (top * 100n < 9995n * bottom) decimals = 1n;
  return fixedWords(top, bottom, decimals, true);
}

/** top / bottom with so many decimals, a half rounded to even. */
export function fixedWords(top, bottom, decimals, strip) {
  const scaled = top * 10n ** decimals;
  let whole = scaled / bottom;
  const twice = 2n * (scaled % bottom);
  if (twice > bottom || (twice === bottom && whole % 2n === 1n)) whole += 1n;
  if (!decimals) return `${whole}`;
  const digits = `${whole}`.padStart(Number(decimals) + 1, "0");
  const split = digits.length - Number(decimals);
  const words = `${digits.slice(0, split)}.${digits.slice(split)}`;
  return strip ? words.replace(/0+$/, "").replace(/\.$/, "") : words;
}

/** "1 copy", "2 copies". */
export function countWords(n, one, many) {
  return `${n} ${`${n}` === "1" ? one : many || `${one}s`}`;
}

/** "data, fsdp and model". */
export function joinWords(words) {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
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

/** A mesh's axes and sizes: "data=4 × model=2". */
export function meshWords(mesh) {
  return mesh.map(([axis, size]) => `${axis}=${size}`).join(" × ");
}

/** A mesh as Python prints its dict. */
export function meshDict(mesh) {
  return `{${mesh.map(([axis, size]) => `'${axis}': ${size}`).join(", ")}}`;
}
