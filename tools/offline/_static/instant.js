// Answers below the search field while one types, from the index that the search page uses. It is
// loaded when the field gets the focus; Enter opens the page with all results, as ever.
(() => {
  const MOST = 8; // answers below the field
  const field = document.querySelector(".sidebar-search");
  if (!field || document.querySelector("#search-results")) {
    return; // the search page itself
  }
  const root = document.documentElement.dataset.content_root;
  const box = Object.assign(document.createElement("ul"), { className: "instant", hidden: true });
  box.setAttribute("aria-label", "Pages found");
  field.closest(".sidebar-search-container").after(box);
  let index = null;

  function load() {
    if (window.Search) {
      return;
    }
    window.Search = {
      setIndex(loaded) {
        index = loaded;
        answer();
      },
    };
    document.head.append(
      Object.assign(document.createElement("script"), { src: `${root}searchindex.js` }),
    );
  }

  function listOf(found) {
    return typeof found === "number" ? [found] : (found ?? []);
  }

  // Pages in which some word begins like this one, which the index keeps without its ending.
  function pagesWith(word) {
    const pages = new Set();
    for (const words of [index.terms, index.titleterms]) {
      for (const [term, found] of Object.entries(words)) {
        if (term.startsWith(word) || (term.length > 3 && word.startsWith(term))) {
          listOf(found).forEach((page) => pages.add(page));
        }
      }
    }
    return pages;
  }

  const inLibrary = (page) => index.docnames[page].startsWith("lib/");

  // Headings that hold all words come first, those of the course before the library's; then pages.
  function search(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const answers = new Map();
    if (words.length === 0) {
      return answers;
    }
    const headings = Object.entries(index.alltitles)
      .filter(([title]) => words.every((word) => title.toLowerCase().includes(word)))
      .flatMap(([title, places]) => places.map(([page, anchor]) => ({ title, page, anchor })))
      .sort((a, b) => inLibrary(a.page) - inLibrary(b.page) || a.title.length - b.title.length);
    for (const { title, page, anchor } of headings) {
      const hash = anchor === null ? "" : `#${anchor}`;
      answers.set(index.docnames[page] + hash, [title, index.titles[page]]);
    }
    const [first, ...others] = words.map(pagesWith);
    const shown = new Set([...answers.keys()].map((address) => address.split("#")[0]));
    for (const page of first) {
      if (others.every((pages) => pages.has(page)) && !shown.has(index.docnames[page])) {
        answers.set(index.docnames[page], [index.titles[page], ""]);
      }
    }
    return answers;
  }

  function row(address, [title, page]) {
    const [name, hash] = address.split("#");
    const link = document.createElement("a");
    link.href = `${root}${name}.html${hash ? `#${hash}` : ""}`;
    link.textContent = title;
    const item = document.createElement("li");
    item.append(link);
    if (page && page !== title) {
      item.append(Object.assign(document.createElement("small"), { textContent: page }));
    }
    return item;
  }

  function answer() {
    if (index === null) {
      return;
    }
    const answers = [...search(field.value)].slice(0, MOST);
    box.replaceChildren(...answers.map(([address, found]) => row(address, found)));
    box.hidden = answers.length === 0;
  }

  field.addEventListener("focus", load);
  field.addEventListener("input", answer);
})();
