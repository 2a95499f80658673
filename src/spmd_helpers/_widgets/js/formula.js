// A line's bytes are what its formula says, with its words left out: each stands once.

const formulaKnown = new Map(); // a plan asks for the same ones again and again

/** The value of a formula, rounded down, or up where `up` says so. */
export function formulaBytes(formula, up = false) {
  const key = up ? `up ${formula}` : formula;
  let bytes = formulaKnown.get(key);
  if (bytes !== undefined) return bytes;
  if (formulaKnown.size > 20000) formulaKnown.clear();
  bytes = formulaCounted(formula, up);
  formulaKnown.set(key, bytes);
  return bytes;
}

function formulaCounted(formula, up) {
  const tokens = formula.match(/\d+|[-+×/()]/g);
  let at = 0;
  const factor = () => {
    const token = tokens[at++];
    if (token !== "(") return [BigInt(token), 1n];
    const inside = sum();
    at++;
    return inside;
  };
  const product = () => {
    let [top, bottom] = factor();
    while (tokens[at] === "×" || tokens[at] === "/") {
      const times = tokens[at++] === "×";
      const [above, below] = factor();
      [top, bottom] = times ? [top * above, bottom * below] : [top * below, bottom * above];
    }
    return [top, bottom];
  };
  const sum = () => {
    let [top, bottom] = product();
    while (tokens[at] === "+" || tokens[at] === "-") {
      const sign = tokens[at++] === "+" ? 1n : -1n;
      const [above, below] = product();
      [top, bottom] = [top * below + sign * above * bottom, bottom * below];
    }
    return [top, bottom];
  };
  const [top, bottom] = sum();
  return (top + (up ? bottom - 1n : 0n)) / bottom;
}

export function over(axis, size) {
  return size > 1n ? ` / ${axis} ${size}` : "";
}
