/** The name that is most like `word`, as Python's difflib finds it, or undefined. */
export function closeName(word, names, cutoff = 0.6) {
  let best;
  for (const name of names) {
    const ratio = likeness(name, word);
    if (ratio < cutoff) continue;
    if (!best || ratio > best[0] || (ratio === best[0] && name > best[1])) {
      best = [ratio, name];
    }
  }
  return best && best[1];
}

function likeness(a, b) {
  const matched = (a0, a1, b0, b1) => {
    let [size, i, j] = [0, a0, b0];
    for (let x = a0; x < a1; x++) {
      for (let y = b0; y < b1; y++) {
        let n = 0;
        while (x + n < a1 && y + n < b1 && a[x + n] === b[y + n]) n++;
        if (n > size) [size, i, j] = [n, x, y];
      }
    }
    if (!size) return 0;
    return size + matched(a0, i, b0, j) + matched(i + size, a1, j + size, b1);
  };
  const total = a.length + b.length;
  return total ? (2 * matched(0, a.length, 0, b.length)) / total : 1;
}
