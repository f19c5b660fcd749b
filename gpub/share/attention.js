// The attention of a small model over a text that the reader writes. `model.js` comes before this.

let tokens = [];
let reader = 0; // the position whose look back is shown

function visible(char) {
  return { "\n": "⏎", " ": "␣" }[char] || char;
}

function readText() {
  const given = Array.from($("text").value);
  const known = given.filter((char) => idOf.has(char));
  const strange = [...new Set(given.filter((char) => !idOf.has(char)))];
  tokens = known.slice(-context_length).map((char) => idOf.get(char));
  reader = tokens.length - 1;
  const parts = [];
  if (strange.length > 0) {
    parts.push(`Left out, because Shakespeare has no ${strange.join(" ")}`);
  }
  if (known.length > context_length) {
    parts.push(`The model reads the last ${context_length} characters`);
  }
  $("note").textContent = parts.join(". ");
  if (tokens.length > 0) {
    forward(tokens, 0, true); // fills the cache of queries and keys
  }
  const buttons = tokens.map((id, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = visible(chars[id]);
    button.onmouseenter = button.onfocus = button.onclick = () => choose(i);
    return button;
  });
  $("strip").replaceChildren(...buttons);
  draw();
}

function choose(position) {
  reader = position;
  draw();
}

function draw() {
  const buttons = $("strip").children;
  if (tokens.length === 0) {
    $("says").textContent = "Write something that the model knows.";
    $("map").width = 0;
    return;
  }
  const layer = Number($("layer").value);
  const head = Number($("head").value);
  const weights = attention(layer, head, reader);
  for (let i = 0; i < buttons.length; i++) {
    const depth = Math.round(100 * Math.sqrt(weights[i] || 0));
    buttons[i].style.background = `color-mix(in srgb, var(--shade) ${depth}%, var(--card))`;
    buttons[i].className = i === reader ? "reader" : "";
  }
  describe(weights);
  drawMap(layer, head);
}

function describe(weights) {
  const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 3);
  const places = order.map((s) => {
    const where = s === reader ? "itself" : `${reader - s} back`;
    return `${visible(chars[tokens[s]])} (${where}) ${Math.round(100 * weights[s])}%`;
  });
  $("says").textContent = `${visible(chars[tokens[reader]])} looks at ${places.join(", ")}`;
}

// A row for each position that reads, a column for each that it looks at.
function drawMap(layer, head) {
  const size = tokens.length;
  const canvas = $("map");
  canvas.width = size;
  canvas.height = size;
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  for (let row = 0; row < size; row++) {
    pen.fillStyle = style.getPropertyValue(row === reader ? "--hot" : "--blue");
    attention(layer, head, row).forEach((weight, column) => {
      pen.globalAlpha = Math.sqrt(weight);
      pen.fillRect(column, row, 1, 1);
    });
  }
}

function fill(select, count, word, start) {
  for (let i = 0; i < count; i++) {
    $(select).append(new Option(`${word} ${i + 1}`, i, false, i === start));
  }
  $(select).onchange = draw;
}

fill("layer", n_layers, "layer", MODEL.layer);
fill("head", n_heads, "head", MODEL.head);
$("text").value = MODEL.text;
$("text").oninput = readText;
readText();
