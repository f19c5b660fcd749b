// What the frame and the page around it know of each other. Where there is no page around it, or
// one from elsewhere, the system's light or dark holds, and the frame scrolls.

// Light or dark: the site and JupyterLab have a switch of their own.
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

function followHostTheme(host, redraw) {
  const { body, documentElement: root } = host;
  const follow = () => {
    const theme = hostTheme(body, root);
    if (theme !== (document.documentElement.dataset.theme || "")) {
      document.documentElement.dataset.theme = theme;
      redraw();
    }
  };
  follow();
  const attributeFilter = ["class", "data-theme", "data-jp-theme-light"];
  for (const watched of [body, root]) {
    new MutationObserver(follow).observe(watched, { attributes: true, attributeFilter });
  }
}

// As high as what is in it, so that nothing scrolls within what scrolls.
function fitFrame(frame) {
  const fit = () => {
    frame.style.height = `${document.body.offsetHeight + 2}px`;
  };
  new ResizeObserver(fit).observe(document.body);
}

function joinHostPage(redraw) {
  try {
    if (window.frameElement) {
      followHostTheme(window.parent.document, redraw);
      fitFrame(window.frameElement);
    }
  } catch {
    // the page around this one is from elsewhere
  }
}
