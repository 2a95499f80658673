/** The arrow keys inside a table of buttons: one of them can be reached by Tab. */
export function roving(box, chosen) {
  const buttons = [...box.querySelectorAll("button[data-row]")];
  const at = (b) => [Number(b.dataset.row), Number(b.dataset.column)];
  const stop = buttons.find((b) => b === chosen) || buttons[0];
  for (const b of buttons) b.tabIndex = b === stop ? 0 : -1;
  box.addEventListener("keydown", (event) => {
    const here = event.target.closest("button[data-row]");
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!here || !(step || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    const [row, column] = at(here);
    const line = buttons.filter((b) => at(b)[0] === row);
    let next = event.key === "Home" ? line[0] : line.at(-1);
    if (step) next = buttons.find((b) => at(b)[0] === row + step[0] && at(b)[1] === column + step[1]);
    if (!next) return;
    for (const b of buttons) b.tabIndex = b === next ? 0 : -1;
    next.focus();
  });
  return box;
}
