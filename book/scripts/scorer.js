// How the search orders its hits. A hit's page may be "page#place": see spmd_search.py.

// A term that is asked for by its name leads, and an error.
const LEADS = { "book/glossary": 40, "book/errors": 20 };
const A_PAGE = 8;
const IN_TITLE = 14;

// The P of P.UNCONSTRAINED, or of "Forgot P", says nothing.
function stems(text) {
  const stemmer = new Stemmer();
  const words = text.toLowerCase().match(/[\p{L}_]{2,}/gu) ?? [];
  return words.map((word) => stemmer.stemWord(word));
}

/** How much of a hit's name was asked for, 0 to 1; of "FSDP, ZeRO-3" each half is one. */
function shareAskedFor(name) {
  const asked = stems(new URLSearchParams(location.search).get("q") ?? "");
  const shares = name.split(", ").map((part) => {
    const words = stems(part);
    const common = words.filter((word) => asked.includes(word));
    return words.length ? common.length / words.length : 0;
  });
  return Math.max(...shares);
}

var Scorer = {
  score: (result) => {
    const [page, place] = result[0].split("#");
    result[0] = page;
    result[1] = result[1].split(" > ")[0];
    result[2] = place ? `#${place}` : "";
    if (result[4] < IN_TITLE) return result[4];
    const share = shareAskedFor(result[1].split(" · ")[0]);
    const lead = share > 0.5 ? (LEADS[page] ?? 0) : 0;
    return result[4] + 10 * share + (place ? lead : A_PAGE);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 4,
  term: 5,
  partialTerm: 2,
};

// Several hits may be in one page, which is read once.
const pagesRead = new Map();
const fetchPage = window.fetch;
window.fetch = (address) => {
  if (!pagesRead.has(address))
    pagesRead.set(
      address,
      fetchPage(address).then((answer) => answer.text()),
    );
  const text = pagesRead.get(address);
  return Promise.resolve({ text: () => text });
};
