// A picture of cells as a real table: strips name the mesh axes, cells what is there.
// `answer.mesh` is [[axis, size], ...] in all of it.

export const DRAWN_LINES = 8; // lines of a table before the middle is left out

/** The place of an axis in the mesh, which gives it its hue. */
const axisHue = (answer, axis) => answer.mesh.findIndex(([name]) => name === axis);

/** A strip: an axis and the index along it, in the axis's hue. */
export function axisStrip(answer, ui, axis, index, props = {}) {
  const hue = axisHue(answer, axis);
  const size = answer.mesh[hue][1];
  const tint = size > 1 ? index / (size - 1) : 0;
  const style = hue < 4 ? `--hue: var(--axis-${hue}); --tint: ${(12 + 20 * tint).toFixed(1)}%` : null;
  return ui.h("th", { class: "spmd-w-strip", style, ...props }, `${axis} ${index}`);
}

/** The number along each of these axes of block `n` of a dimension. */
export function axisIndices(answer, axes, n) {
  const found = [];
  for (const axis of [...axes].reverse()) {
    const size = answer.mesh[axisHue(answer, axis)][1];
    found.unshift(n % size);
    n = Math.floor(n / size);
  }
  return found;
}

/**
 * One table. `rows` and `columns` are {axes, count, label(n)} or null for a single line
 * without a name, and `cell(row, column)` gives what a td takes: [props, ...children].
 */
export function gridTable(answer, ui, caption, rows, columns, cell) {
  const { h } = ui;
  const lines = (edge) => (edge ? drawnLines(edge.count, DRAWN_LINES) : [0]);
  const [down, across] = [lines(rows), lines(columns)];
  const axesOf = (edge) => (edge ? edge.axes : []);
  const corner = axesOf(rows).length + (rows?.label ? 1 : 0);
  const gap = (edge) => `… ${edge.count - DRAWN_LINES} more`;
  const head = [];
  axesOf(columns).forEach((axis, depth) => {
    const cells = [];
    for (const n of across) {
      const indices = n === null ? null : axisIndices(answer, columns.axes, n).slice(0, depth + 1);
      const last = cells.at(-1);
      if (last && indices && last.key === indices.join()) last.span += 1;
      else cells.push({ key: indices?.join(), index: indices?.at(-1), span: 1 });
    }
    head.push(
      cells.map(({ key, index, span }) =>
        key === undefined
          ? h("td", {}, depth || columns.label ? "" : gap(columns))
          : axisStrip(answer, ui, axis, index, { scope: span > 1 ? "colgroup" : "col", colspan: span }),
      ),
    );
  });
  if (columns?.label) {
    head.push(across.map((n) => (n === null ? h("td", {}, gap(columns)) : h("th", { scope: "col" }, columns.label(n)))));
  }
  const before = new Map();
  const body = down.map((n) => {
    if (n === null) return h("tr", {}, h("td", { class: "spmd-w-gap", colspan: corner + across.length }, gap(rows)));
    const names = [];
    if (rows) {
      const indices = axisIndices(answer, rows.axes, n);
      rows.axes.forEach((axis, depth) => {
        const key = indices.slice(0, depth + 1).join();
        if (before.get(depth) === key) return;
        before.set(depth, key);
        const span = down.filter((m) => m !== null && axisIndices(answer, rows.axes, m).slice(0, depth + 1).join() === key);
        const together = span.every((m, i) => !i || m === span[i - 1] + 1) ? span.length : 1;
        const scope = together > 1 ? "rowgroup" : "row";
        names.push(axisStrip(answer, ui, axis, indices[depth], { scope, rowspan: together }));
      });
      if (rows.label) names.push(h("th", { scope: "row" }, rows.label(n)));
    }
    const cells = across.map((m) => {
      if (m === null) return h("td", { class: "spmd-w-gap" }, "…");
      const [props, ...children] = cell(n, m);
      return h("td", props, ...children);
    });
    return h("tr", {}, names, cells);
  });
  return h(
    "table",
    { class: "spmd-w-grid" },
    h("caption", {}, caption),
    head.length
      ? h("thead", {}, head.map((cells) => h("tr", {}, corner ? h("td", { colspan: corner }) : null, cells)))
      : null,
    h("tbody", {}, body),
  );
}

/** Tables side by side: the last two dimensions (or axes) of each are rows and columns. */
export function gridPanels(edges, each) {
  const lead = edges.slice(0, -2);
  const counts = lead.map((edge) => edge.count);
  const total = counts.reduce((n, m) => n * m, 1);
  return drawnLines(total, 4).map((n) => {
    if (n === null) return `… ${total - 4} more`;
    const front = [];
    let rest = n;
    for (const count of [...counts].reverse()) {
      front.unshift(rest % count);
      rest = Math.floor(rest / count);
    }
    return each(front);
  });
}

/**
 * The mesh as tables of buttons, each of which sets `state[key]` to its device. `look(device)`
 * is {kind, sign, words, pressed}: a class, a mark, a word below the number. `caption` ends the
 * table's caption.
 */
export function deviceGrid(answer, ui, key, caption, look) {
  const { h } = ui;
  const rank = answer.mesh.length;
  const edges = answer.mesh.map(([axis, size]) => ({ axes: [axis], count: size }));
  const [rows, columns] = rank > 1 ? edges.slice(-2) : [null, edges[0]];
  let panels = 0;
  const panel = (front) => {
    const first = panels++ * DRAWN_LINES * 2;
    const cell = (row, column) => {
      const index = rank > 1 ? [...front, row, column] : [column];
      const device = index.reduce((n, i, axis) => n * answer.mesh[axis][1] + i, 0);
      const { kind, sign, words, pressed } = look(device);
      const button = h(
        "button",
        {
          type: "button",
          "aria-pressed": `${pressed}`,
          class: `spmd-w-device ${kind}`.trim(),
          onclick: () => ui.change({ [key]: `${device}` }),
        },
        h("span", { class: "spmd-w-mark", "aria-hidden": "true" }, sign),
        h("span", { class: "spmd-w-long" }, "device "),
        `${device}`,
        h("small", {}, words),
      );
      button.dataset.key = `device-${device}`;
      button.dataset.row = first + row;
      button.dataset.column = column;
      return [{}, button];
    };
    const where = front.map((n, axis) => `${answer.mesh[axis][0]} ${n}`);
    return gridTable(answer, ui, `${["The mesh", ...where].join(", ")}${caption}`, rows, columns, cell);
  };
  const box = ui.scrolling("The mesh of devices", gridPanels(edges, panel));
  box.removeAttribute("tabindex"); // its buttons can be reached
  return box;
}

/** Which lines to draw of so many; null stands for those left out of the middle. */
function drawnLines(count, limit) {
  if (count <= limit) return [...Array(count).keys()];
  const half = Math.max(1, Math.floor(limit / 2));
  const from = (start) => [...Array(half).keys()].map((i) => start + i);
  return [...from(0), null, ...from(count - half)];
}
