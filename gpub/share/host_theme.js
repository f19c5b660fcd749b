// Light or dark as the page around this frame is: the site and JupyterLab have a switch of their
// own. Where there is no page around it, or it cannot be read, the system's setting holds.

function hostTheme(body, root) {
  const chosen = body.dataset.theme || root.dataset.theme; // the site
  if (chosen === "light" || chosen === "dark") {
    return chosen;
  }
  if (body.dataset.jpThemeLight) {
    return body.dataset.jpThemeLight === "true" ? "light" : "dark"; // JupyterLab
  }
  if (body.classList.contains("quarto-dark")) {
    return "dark";
  }
  return body.classList.contains("quarto-light") ? "light" : "";
}

function followHostTheme(redraw) {
  try {
    if (window.parent === window) {
      return;
    }
    const { body, documentElement: root } = window.parent.document;
    const follow = () => {
      const theme = hostTheme(body, root);
      if (theme !== (document.documentElement.dataset.theme || "")) {
        document.documentElement.dataset.theme = theme;
        redraw();
      }
    };
    follow();
    const watched = { attributes: true, attributeFilter: ["class", "data-theme", "data-jp-theme-light"] };
    new MutationObserver(follow).observe(body, watched);
    new MutationObserver(follow).observe(root, watched);
  } catch {
    // the page around this one is from elsewhere
  }
}
