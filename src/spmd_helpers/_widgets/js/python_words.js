// How Python writes a value: _core/validate.py.

/** repr() of a BigInt, a number, a boolean, a text or null. */
export function pyRepr(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "bigint") return `${value}`;
  if (typeof value === "number") return pyFloat(value);
  const quote = value.includes("'") && !value.includes('"') ? '"' : "'";
  const written = (c) => (c === quote || c === "\\" ? `\\${c}` : pyCharacter(c));
  return quote + [...value].map(written).join("") + quote;
}

function pyCharacter(c) {
  const short = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[c];
  if (short || c === " " || !/[\p{C}\p{Z}]/u.test(c)) return short || c;
  const hex = c.codePointAt(0).toString(16);
  if (hex.length <= 2) return `\\x${hex.padStart(2, "0")}`;
  return hex.length <= 4 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
}

function pyFloat(value) {
  const [digits, exponent] = value.toExponential().split("e");
  const power = Number(exponent);
  if (power < -4 || power >= 16) {
    return `${digits}e${power < 0 ? "-" : "+"}${`${Math.abs(power)}`.padStart(2, "0")}`;
  }
  return Number.isInteger(value) ? value.toFixed(1) : `${value}`;
}

/** "'a', 'b' or 'c'". */
export function orWords(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} or ${words.at(-1)}`;
}

/** The divisors of a BigInt, in order. */
export function divisors(n) {
  const found = new Set();
  for (let d = 1n; d * d <= n; d++) if (n % d === 0n) found.add(d).add(n / d);
  return [...found].sort((a, b) => (a < b ? -1 : 1));
}

/** The greatest common divisor. */
export function gcd(a, b) {
  return b ? gcd(b, a % b) : a;
}
