// A pasted error is explained on the page of errors, and not searched for by its words.
// The excerpt of a term is the term with its meaning.

(() => {
  const AN_ERROR = /\n|\w(?:Error|Exception|Exit|Interrupt|Warning): |^.{100}/;
  const LONGEST = 50_000;
  const HALF = /^[\uDC00-\uDFFF]/; // of a character that the slice cuts
  const field = 'form.bd-search input[type="search"]';

  function explain(text) {
    const root = document.documentElement.dataset.content_root ?? "";
    const words = encodeURIComponent(text.slice(-LONGEST).replace(HALF, ""));
    location.href = `${root}book/errors.html#paste=${words}`;
  }

  document.addEventListener("paste", (event) => {
    const text = event.clipboardData?.getData("text/plain").trim() ?? "";
    if (!event.target.matches?.(field) || !AN_ERROR.test(text)) return;
    event.preventDefault();
    event.target.closest("dialog")?.close();
    explain(text);
  });
  document.addEventListener("submit", (event) => {
    const text = event.target.querySelector(field)?.value.trim() ?? "";
    if (!AN_ERROR.test(text)) return;
    event.preventDefault();
    event.target.closest("dialog")?.close();
    explain(text);
  });

  // Sphinx takes the element of the address alone, which is the term.
  document.addEventListener("DOMContentLoaded", () => {
    if (typeof Search === "undefined" || !Search.htmlToText) return;
    const textOf = Search.htmlToText;
    Search.htmlToText = (page, anchor) => {
      const text = textOf(page, anchor);
      if (!anchor?.startsWith("#term-")) return text;
      return `${text.trim()}: ${textOf(page, `${anchor} + dd`).trim()}`;
    };
  });
})();
