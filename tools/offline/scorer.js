// How the search of the offline site orders its answers. Sphinx gives every page that holds a word
// the same score and sorts equals by title. Somebody who looks for a word of the field wants the
// page that explains it: chapters and guides come before the library's pages, prose before code.
const PROSE = 4;

var Scorer = {
  score: ([docName, _title, _anchor, _description, score, _file, kind]) => {
    const explains = docName === "index" || !/^(lib\/|core$)/.test(docName);
    return score + (explains && kind !== "object" ? PROSE : 0);
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
