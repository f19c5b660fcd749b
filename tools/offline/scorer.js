// How the search of the offline site orders its answers. Sphinx gives every page that holds a word
// the same score, a higher one if a heading has it, and sorts equals by title. Somebody who looks
// for a word of the field wants the page that is about it: pages that bear its name come first,
// then chapters and guides before the library's pages, prose before code.
const NAMED = 8;
const PROSE = 4;
const searchedFor = (new URLSearchParams(window.location.search).get("q") || "").trim().toLowerCase();

var Scorer = {
  score: ([docName, title, _anchor, _description, score, _file, kind]) => {
    const named = searchedFor !== "" && title.toLowerCase().includes(searchedFor);
    const explains = docName === "index" || !/^(lib\/|core$)/.test(docName);
    const prose = explains && kind !== "object";
    return score + (named ? NAMED : 0) + (prose ? PROSE : 0);
  },

  // Sphinx's own weights
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
