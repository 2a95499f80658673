import { unbroken } from "./words.js";

// What all widgets share: elements, controls, the state in the page's address.

const SVG_TAGS = new Set(["svg", "path", "rect", "line", "pattern", "defs", "g", "text"]);

/** An element: `on…` are listeners, true is an empty attribute, false and null none. */
export function h(tag, props = {}, ...children) {
  const element = SVG_TAGS.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((c) => c != null && c !== false && c !== ""));
  return element;
}

/** A table that scrolls inside itself. */
export function scrolling(label, ...children) {
  return h(
    "div",
    { class: "spmd-w-scroll", tabindex: "0", role: "region", "aria-label": label },
    ...children,
  );
}

/** A table of words: a caption, the columns' names, rows whose first cell names them. */
export function wordTable(caption, head, rows, numbers = []) {
  const kind = (i) => (numbers.includes(i) ? "spmd-w-number" : null);
  return scrolling(
    caption,
    h(
      "table",
      { class: "spmd-w-words" },
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, head.map((w, i) => h("th", { scope: "col", class: kind(i) }, w)))),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h("tr", {}, row.map((w, i) => h(i ? "td" : "th", { scope: i ? null : "row", class: kind(i) }, w))),
        ),
      ),
    ),
  );
}

/** The options of a select: [value, words], or [value, words, the group it is under]. */
function optionGroups(options, option) {
  const groups = new Map();
  for (const one of options) groups.set(one[2], [...(groups.get(one[2]) || []), option(one)]);
  return [...groups].map(([label, under]) => (label ? h("optgroup", { label }, under) : under));
}

/** The state that a link holds, and how many of its settings were not understood. */
export function readLink(widget, search) {
  const state = { ...widget.defaults };
  let unknown = 0;
  for (const [key, value] of new URLSearchParams(search)) {
    if (!key.startsWith(`${widget.prefix}.`)) continue;
    const name = key.slice(widget.prefix.length + 1);
    const fits = Object.hasOwn(widget.defaults, name) && /^[^\p{Cc}\p{Cs}]{0,200}$/u.test(value);
    if (fits) state[name] = value;
    else unknown += 1;
  }
  for (const control of widget.controls(state)) {
    const known = control.options?.map(([value]) => value);
    if (known && control.key in state && !known.includes(state[control.key])) {
      state[control.key] = widget.defaults[control.key];
      unknown += 1;
    }
  }
  return { state, unknown };
}

/** The query that holds the state: other widgets' settings stay, defaults are left out. */
export function writeLink(widget, state, search) {
  const query = new URLSearchParams(search);
  for (const key of [...query.keys()]) {
    if (key.startsWith(`${widget.prefix}.`)) query.delete(key);
  }
  for (const [key, value] of Object.entries(state)) {
    if (value !== widget.defaults[key]) query.set(`${widget.prefix}.${key}`, value);
  }
  const words = query.toString();
  return words ? `?${words}` : "";
}

let mounted = 0;

/**
 * Put a widget into `root`.
 *
 * `state` is where it begins, `onChange(state)` hears of every change, and with
 * `linkable` the page's address holds the state. Returns {set(state), state()}.
 */
export function mount(root, widget, { state, onChange, linkable = false } = {}) {
  const id = `spmd-${widget.id}${linkable ? "" : `-${(mounted += 1)}`}`;
  const linked = linkable ? readLink(widget, location.search) : { unknown: 0 };
  let now = { ...widget.defaults, ...(state || linked.state) };
  let timers = [];
  const brief = h("p", { class: "spmd-w-brief", "aria-hidden": "true" }); // what stays in sight on a phone
  const said = h("p", { class: "spmd-w-said" });
  const wrong = h("p", { class: "spmd-w-error" });
  const picture = h("div", { class: "spmd-w-picture" });
  const code = h("code", {});
  const status = h("p", { class: "spmd-w-status", role: "status" });
  const seen = h("span", { class: "spmd-w-seen", "aria-hidden": "true", hidden: true }); // the status of a copy
  const beside = widget.beside || {}; // keys that no preset sets, and what is said when they change
  const presets = h("div", { class: "spmd-w-radios" });
  const controls = h("div", { class: "spmd-w-controls" });
  let drawn = ""; // which controls are there
  let known = {}; // what they are now, by key

  const later = (wait, f) => timers.push(setTimeout(f, wait));
  let news = new Set(); // what changed since the last word about it
  const tell = (answer) => {
    const keys = [...news];
    const isBeside = keys.length > 0 && keys.every((key) => beside[key]);
    status.textContent = answer.error || (isBeside ? beside[keys.at(-1)](answer) : answer.sentence);
    news = new Set();
  };
  let touched = ""; // the control whose work is the last entry of the history
  const change = (less, by = Object.keys(less).join()) => {
    const keys = Object.keys(less).filter((key) => less[key] !== now[key]);
    for (const key of keys) {
      news.delete(key); // the last one that changed stands last
      news.add(key);
    }
    now = { ...now, ...less };
    timers.forEach(clearTimeout);
    timers = [];
    const answer = update();
    later(400, () => tell(answer));
    if (linkable && keys.length) {
      // Back undoes what one control did: each letter that is typed would be too much.
      if (by === touched) later(300, remember);
      else remember("pushState");
      touched = by;
    }
    onChange?.({ ...now });
  };
  const remember = (how = "replaceState") => {
    const query = writeLink(widget, now, location.search);
    if (query === location.search) return;
    try {
      history[how](history.state, "", location.pathname + query + location.hash);
    } catch {} // a page that has no address of its own, as inside of a frame
  };
  const recall = () => {
    const { state: before } = readLink(widget, location.search);
    if (JSON.stringify(before) === JSON.stringify(now)) return;
    timers.forEach(clearTimeout);
    [now, touched, news] = [before, "", new Set()];
    status.textContent = update().sentence ?? "";
  };
  // A link to another page of the book; in a notebook its words.
  const link = (words, href) => (linkable ? h("a", { href }, words) : words);
  const ui = { h, id, change, link, scrolling, wordTable, picture, linkable };

  const isPreset = (preset) =>
    Object.entries({ ...widget.defaults, ...preset.state }).every(([k, v]) => k in beside || now[k] === v);
  const radios = widget.presets.map((preset, i) => {
    const radio = h("input", {
      type: "radio",
      name: `${id}-preset`,
      id: `${id}-preset-${i}`,
      checked: isPreset(preset),
      onchange: () => change({ ...widget.defaults, ...preset.state }, "preset"),
    });
    presets.append(h("label", { for: radio.id }, radio, h("span", {}, preset.name)));
    return radio;
  });

  const field = (control) => {
    const value = control.value ?? now[control.key];
    const set = (typed) => {
      const { key, change: made } = known[control.key];
      change(made ? made(typed) : { [key]: typed }, key);
    };
    const name = `${id}-${control.key}`;
    let input;
    if (control.kind === "select") {
      const option = ([v, words]) => h("option", { value: v, selected: v === value }, words);
      input = h("select", { id: name, onchange: () => set(input.value) }, optionGroups(control.options, option));
    } else if (control.kind === "check") {
      const checked = value === "yes";
      const listen = () => set(input.checked ? "yes" : "no");
      input = h("input", { id: name, type: "checkbox", checked, onchange: listen });
    } else {
      input = h("input", {
        id: name,
        type: "text",
        inputmode: control.kind === "number" ? "numeric" : null,
        value,
        autocomplete: "off",
        autocapitalize: "off",
        spellcheck: "false",
        maxlength: "200",
        "aria-describedby": control.hint ? `${name}-hint` : null,
        oninput: () => set(input.value),
      });
    }
    input.dataset.key = control.key;
    const hint = control.hint && h("span", { class: "spmd-w-hint", id: `${name}-hint` }, control.hint);
    const isWide = control.wide || control.kind === "text" || (control.kind === "check" && control.label.length > 24);
    const wide = isWide ? "spmd-w-field spmd-w-wide" : "spmd-w-field";
    const label = h("label", { for: name }, control.label);
    if (control.kind === "check") return h("div", { class: `${wide} spmd-w-check` }, input, label, hint);
    return h("div", { class: wide }, label, input, hint);
  };

  const buildControls = (wanted) => {
    const groups = new Map();
    for (const control of wanted) {
      const group = control.group || "";
      groups.set(group, [...(groups.get(group) || []), field(control)]);
    }
    const open = new Set([...controls.querySelectorAll("details[open]")].map((d) => d.dataset.group));
    controls.replaceChildren(
      ...[...groups].map(([group, fields]) => {
        const grid = h("div", { class: "spmd-w-fields" }, fields);
        if (!group) return grid;
        const summary = h("summary", {}, group);
        const details = h("details", { open: open.has(group) }, summary, grid);
        details.dataset.group = group;
        return details;
      }),
    );
  };

  const setControls = (wanted) => {
    known = Object.fromEntries(wanted.map((control) => [control.key, control]));
    const shape = JSON.stringify(wanted.map(({ value, change: _, ...rest }) => rest));
    if (shape !== drawn) {
      keepingFocus(controls, () => buildControls(wanted));
      drawn = shape;
      return;
    }
    for (const control of wanted) {
      const input = controls.querySelector(`[data-key="${control.key}"]`);
      const value = control.value ?? now[control.key];
      if (control.kind === "check") input.checked = value === "yes";
      else if (input.value !== value) input.value = value;
    }
  };

  const update = () => {
    const answer = widget.answer(now);
    setControls(widget.controls(now));
    radios.forEach((radio, i) => (radio.checked = isPreset(widget.presets[i])));
    wrong.textContent = answer.error || "";
    wrong.hidden = !answer.error;
    root.classList.toggle("spmd-w-refused", Boolean(answer.error));
    copyCode.disabled = Boolean(answer.error);
    brief.textContent = answer.error ? `✕ ${answer.error}` : unbroken(widget.brief(answer));
    if (!answer.error) {
      said.textContent = unbroken(answer.sentence);
      code.textContent = answer.code;
      keepingFocus(picture, () => keepingOpen(picture, () => picture.replaceChildren(...widget.view(answer, ui).flat())));
    }
    return answer;
  };

  const press = (words, act) => h("button", { type: "button", onclick: act }, words);
  let hide;
  const copied = (what, where) => (done) => {
    status.textContent = done ? `${what} copied.` : `${what} could not be copied; select it ${where}.`;
    seen.textContent = status.textContent;
    seen.hidden = false;
    clearTimeout(hide);
    hide = setTimeout(() => (seen.hidden = true), done ? 3000 : 8000);
  };
  const copyLink = () => (remember(), copyText(location.href).then(copied("Link", "in the address bar")));
  const copyCode = press("Copy code", () => copyText(code.textContent).then(copied("Code", "above")));
  const buttons = [
    press("Reset", () => change({ ...widget.defaults }, "reset")),
    linkable && press("Copy link", copyLink),
    copyCode,
    seen,
  ];
  const legend = h("legend", {}, widget.presetsTitle || "Start from");
  root.replaceChildren(
    h("fieldset", { class: "spmd-w-presets" }, legend, presets),
    controls,
    brief,
    wrong,
    said,
    picture,
    scrolling("Code", h("pre", {}, code)),
    h("div", { class: "spmd-w-buttons" }, buttons.filter(Boolean)),
    status,
    widget.caption ? h("figcaption", {}, widget.caption) : "",
  );
  root.classList.add("spmd-w", `spmd-w-${widget.id}`);
  update();
  if (linkable) addEventListener("popstate", recall);
  if (linked.unknown) {
    status.textContent = `${linked.unknown === 1 ? "1 setting" : `${linked.unknown} settings`} in the link ${linked.unknown === 1 ? "was" : "were"} not understood.`;
    status.classList.add("spmd-w-shown");
  }
  return {
    state: () => ({ ...now }),
    set(next) {
      if (JSON.stringify(next) === JSON.stringify(now)) return;
      now = { ...widget.defaults, ...next };
      update();
    },
  };
}

/** Rebuild a part of the page and leave the focus on what has the same data-key. */
function keepingFocus(box, rebuild) {
  const focus = box.contains(document.activeElement) ? document.activeElement : null;
  const key = focus?.dataset.key;
  const place = focus?.selectionStart;
  rebuild();
  if (!key) return;
  const again = box.querySelector(`[data-key="${CSS.escape(key)}"]`);
  again?.focus();
  if (again && place != null && again.setSelectionRange) again.setSelectionRange(place, place);
}

/** Rebuild a part of the page and leave open what was, if there are as many to open. */
function keepingOpen(box, rebuild) {
  const before = [...box.querySelectorAll("details")].map((d) => d.open);
  rebuild();
  const after = [...box.querySelectorAll("details")];
  if (after.length === before.length) after.forEach((d, i) => (d.open ||= before[i]));
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { readonly: true, class: "spmd-w-status" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
