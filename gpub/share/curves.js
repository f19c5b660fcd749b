// What is drawn into an SVG.

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.textContent = text;
  return made;
}

// A path through points, each [x, y] in pixels.
function line(points, name) {
  const corners = points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`);
  return svg("path", { d: `M${corners.join(" L")}`, class: name });
}
