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

/** "data, fsdp and model". */
export function joinWords(words) {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/** A mesh's axes and sizes: "data=4 × model=2". */
export function meshWords(mesh) {
  return mesh.map(([axis, size]) => `${axis}=${size}`).join(" × ");
}

/** A number stays on the line of its unit. */
export function unbroken(words) {
  return words.replace(/(\d) (?=(?:[KMGTPE]?i?B|[mµ]?s)\b)/g, "$1\u00a0");
}
