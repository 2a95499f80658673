// The page of errors: the box takes a text, and the entry that explains it unfolds.

const form = document.querySelector(".spmd-paste");
const area = form.querySelector("textarea");
const status = form.querySelector("[role=status]");
const ISSUES = "https://github.com/jax-ml/jax/issues?q=";
const LONGEST_VALUE = 160;
const LONGEST_IN_A_SENTENCE = 60;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const code = (text) => element("code", {}, text);
const link = (address, text) => element("a", { href: address }, text);
const paragraph = (...children) => element("p", {}, ...children);
const sectionOf = (rule) => document.getElementById(rule.toLowerCase());

/** Unfolds the entry that the address names. */
function unfold() {
  let id = "";
  try {
    id = decodeURIComponent(location.hash.slice(1));
  } catch {
    return; // no address of this page
  }
  const details = document.getElementById(id)?.querySelector(":scope > details");
  if (!details) return;
  details.open = true;
  details.parentElement.scrollIntoView();
}

const changed = []; // texts of the entry, and what they were

function forget() {
  for (const [node, text] of changed.splice(0)) node.data = text;
  document.querySelector(".spmd-read")?.remove();
  document.querySelector(".spmd-hit")?.classList.remove("spmd-hit");
  status.replaceChildren();
}

/** What the text has in place of the words in capitals. */
function valuesOf(groups, section) {
  const said = section.textContent;
  return Object.entries(groups)
    .map(([name, text]) => [name.toUpperCase().replaceAll("_", " "), text])
    .filter(([name, text]) => text && new RegExp(`\\b${name}\\b`).test(said));
}

/** Writes short values into the entry itself, below its message. */
function fillIn(pairs, details) {
  const short = new Map(pairs.filter(([, text]) => text.length <= LONGEST_IN_A_SENTENCE));
  if (!short.size) return;
  const names = [...short.keys()].sort((a, b) => b.length - a.length);
  const any = new RegExp(`\\b(?:${names.join("|")})\\b`, "g");
  for (const part of details.querySelectorAll(":scope > :not(summary)")) {
    const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const filled = node.data.replace(any, (name) => short.get(name));
      if (filled === node.data) continue;
      changed.push([node, node.data]);
      node.data = filled;
    }
  }
}

function listed(pairs) {
  if (!pairs.length) return null;
  const list = element("ul", {});
  for (const [name, text] of pairs) {
    const long = text.length > LONGEST_VALUE;
    const value = long ? `${text.slice(0, LONGEST_VALUE)}…` : text;
    list.append(element("li", {}, `${name}: `, code(value)));
  }
  return element("div", { class: "spmd-read" }, paragraph("In your text:"), list);
}

function showKnown(found) {
  const section = sectionOf(found.code);
  const heading = section.querySelector("h3");
  const details = section.querySelector("details");
  const pairs = valuesOf(found.groups, section);
  const values = listed(pairs);
  fillIn(pairs, details);
  if (values) details.querySelector("summary").after(values);
  section.classList.add("spmd-hit");
  details.open = true;
  const name = heading.firstChild.textContent;
  status.append(paragraph("This is ", link(`#${section.id}`, name), ", opened below."));
  return heading;
}

function showOwn({ kind }) {
  const words = " is an error of this book's package. Its message gives the remedy.";
  status.append(paragraph(code(kind), words));
}

function showUnknown({ kind, message }) {
  const short = message.slice(0, 120);
  const about = kind && short ? `${kind}: ${short}` : kind || short;
  const words = "No rule explains this text, so nothing is guessed: ";
  status.append(paragraph(words, code(about)), paragraph("What you can do:"));
  const steps = element("ul", {});
  if (!kind) {
    steps.append(
      element("li", {}, "Paste the traceback down to its last line, which begins with")
    );
    steps.lastChild.append(" the name of an error, such as ", code("ValueError:"), ".");
  }
  steps.append(
    element("li", {}, "Look through the group below for what your program was doing."),
    element("li", {}, "Call ", code("spmd.explain()"), " in the session that raised it."),
    element(
      "li",
      {},
      "Search ",
      link(ISSUES + encodeURIComponent(short.slice(0, 80)), "JAX's issues"),
      " for its words.",
    ),
  );
  status.append(steps);
}

/** Shows what is known of the text; gives the entry's heading if there is one. */
function show() {
  forget();
  if (!area.value.trim()) return null;
  const found = explain(area.value);
  if (found.own) showOwn(found);
  else if (!found.code) showUnknown(found);
  else return showKnown(found);
  return null;
}

/** The address without what stands after its #. */
function forgetAddress() {
  if (location.hash) history.replaceState(history.state, "", location.pathname + location.search);
}

function goTo(heading) {
  if (!heading) return forgetAddress();
  const address = `#${heading.parentElement.id}`;
  if (location.hash !== address) location.hash = address;
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
  heading.parentElement.scrollIntoView();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  goTo(show());
  if (area.value.trim()) return;
  status.append(paragraph("The box is empty: paste the error into it first."));
  area.focus();
});
form.addEventListener("reset", () => {
  forget();
  area.focus();
});
area.addEventListener("paste", () => setTimeout(() => goTo(show())));
area.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
// A heading beside its message unfolds it, too.
for (const details of document.querySelectorAll(".spmd-error")) {
  details.previousElementSibling.addEventListener("click", (event) => {
    if (!event.target.closest("a")) details.open = !details.open;
  });
}

/** The search hands over what it was given, as …errors.html#paste=… */
function arrive() {
  if (!location.hash.startsWith("#paste=")) {
    unfold();
    return;
  }
  area.value = decodeURIComponent(location.hash.slice("#paste=".length));
  forgetAddress();
  // Before a page is complete the browser may take the focus away again.
  if (document.readyState === "complete") goTo(show());
  else addEventListener("load", () => setTimeout(() => goTo(show())));
}

addEventListener("hashchange", arrive);
arrive();
