// A head of a trained model over a text that the reader writes, one step at a time. `model.js` and
// `attention_steps.js` come before this.

const TABLE = ["letter", "keys", "scores", "scale", "mask", "softmax", "values"]; // its columns

let tokens = [];
let reader = 0; // the position that looks back
let step = MODEL.step; // the last step that is shown, an index of STEPS
let layer = MODEL.layer;
let head = MODEL.head;
let rows = []; // what is drawn for each position
let queryBoxes = [];

function visible(char) {
  return { "\n": "⏎", " ": "␣" }[char] || char;
}

function letterAt(position) {
  return visible(chars[tokens[position]]);
}

// ---------------------------------------------------------------- the numbers

function vectorAt(cache, position) {
  const start = cacheAt(layer, position) + head * head_size;
  return [...cache.subarray(start, start + head_size)];
}

function stepsAt(position) {
  const query = vectorAt(queries, position).map((x, i) => edited("query", position, i, x));
  const all = (cache) => tokens.map((_, s) => vectorAt(cache, s));
  const headKeys = all(keys);
  const headValues = all(values);
  return { headKeys, headValues, ...attentionSteps(query, headKeys, headValues, position) };
}

// ---------------------------------------------------------------- what is said

function whereIs(position) {
  if (position === reader) {
    return "itself";
  }
  return position < reader ? `${reader - position} back` : `${position - reader} ahead`;
}

function explain(now) {
  const me = letterAt(reader);
  const best = now.weights.indexOf(Math.max(...now.weights));
  const other = `${letterAt(best)} (${whereIs(best)})`;
  const order = [...now.weights.keys()].sort((a, b) => now.weights[b] - now.weights[a]);
  const most = order
    .slice(0, 3)
    .map((s) => `${letterAt(s)} (${whereIs(s)}) ${Math.round(100 * now.weights[s])}%`);
  const root = Math.sqrt(head_size);
  return {
    query: `The query of ${me} has ${head_size} numbers. Training found them; no name fits them.`,
    keys: `Every position has a key of ${head_size} numbers. Blue is above zero, orange below.`,
    scores:
      `Query times key, number by number, added up. With ${other}: ` +
      `${products(now.query, now.headKeys[best], 3)} = ${written(now.scores[best])}.`,
    scale:
      `Divide by √${head_size} = ${written(root)}. For ${other}: ${written(now.scores[best])} / ` +
      `${written(root)} = ${written(now.scaled[best])}.`,
    mask:
      reader === tokens.length - 1
        ? "Nothing comes after the last letter. Choose an earlier one."
        : `What comes after ${me} gets −∞. Press a mask to lift it.`,
    softmax: `Scores become weights, which add up to 1. ${me} looks at ${most.join(", ")}.`,
    values: `Every position has a value of ${head_size} numbers, which it hands over.`,
    output: `The output is the mix of the values, mostly from ${most.join(", ")}.`,
  }[STEPS[step]];
}

// ---------------------------------------------------------------- the page

function strip(word) {
  const made = element("div", "strip");
  made.setAttribute("role", "img");
  made.word = word;
  made.append(...Array.from({ length: head_size }, () => element("i")));
  return made;
}

function tint(x, largest) {
  const depth = Math.round(100 * Math.min(1, Math.abs(x) / (largest || 1)));
  return `color-mix(in srgb, var(${x < 0 ? "--warm" : "--shade"}) ${depth}%, var(--card))`;
}

function fillStrip(made, numbers, largest) {
  made.setAttribute("aria-label", `${made.word}: ${numbers.map(written).join(", ")}`);
  made.title = inBrackets(numbers);
  [...made.children].forEach((cell, i) => {
    cell.style.background = tint(numbers[i], largest);
  });
}

function buildRow(s) {
  const letter = element("button", "letter", letterAt(s));
  letter.type = "button";
  letter.setAttribute("aria-label", `${letterAt(s)}, position ${s + 1}`);
  letter.onclick = () => choose(s);
  const mask = element("button", "mask");
  mask.type = "button";
  mask.onclick = () => {
    edit("seen", reader, s, !stepsAt(reader).seen[s]);
    draw();
  };
  const bar = element("div", "bar");
  const track = element("div", "track");
  track.append(bar);
  const name = `${letterAt(s)}, position ${s + 1}`;
  const row = {
    letter,
    mask,
    bar,
    key: strip(`key of ${name}`),
    value: strip(`value of ${name}`),
    score: numberBox(`score of ${name}`, draw),
    scaled: numberBox(`scaled score of ${name}`, draw),
    weight: numberBox(`weight of ${name}`, draw),
  };
  const softmax = element("div", "softmax");
  softmax.append(row.weight, track);
  const cells = [letter, row.key, row.score, row.scaled, mask, softmax, row.value];
  cells.forEach((cell, i) => {
    const box = element("div", `cell ${TABLE[i]}`);
    box.append(cell);
    $("table").append(box);
  });
  return row;
}

function buildTable() {
  const heads = ["", "key", "score", `÷ √${head_size}`, "mask", "softmax", "value"];
  const made = TABLE.map((name, i) => {
    const box = element("div", `cell ${name} head`);
    if (name !== "letter") {
      box.append(stepButton(name, heads[i]));
    }
    return box;
  });
  $("table").replaceChildren(...made);
  rows = tokens.map((_, s) => buildRow(s));
}

function stepButton(name, label) {
  const button = element("button", "label", label);
  button.type = "button";
  button.dataset.step = STEPS.indexOf(name);
  button.onclick = () => goTo(STEPS.indexOf(name));
  return button;
}

function readText() {
  const given = Array.from($("text").value);
  const known = given.filter((char) => idOf.has(char));
  const strange = [...new Set(given.filter((char) => !idOf.has(char)))];
  tokens = known.slice(-context_length).map((char) => idOf.get(char));
  reader = tokens.length - 1;
  edits.clear();
  const notes = [];
  if (strange.length > 0) {
    notes.push(`Left out, because the model never read them: ${strange.join(" ")}`);
  }
  if (known.length > context_length) {
    notes.push(`The model reads the last ${context_length} characters`);
  }
  if (tokens.length > 0) {
    fillCaches(tokens);
  } else {
    notes.push("Write something that the model knows");
  }
  $("note").textContent = notes.join(". ");
  buildTable();
  draw();
  if (tokens.length > 0) {
    showReader();
  }
}

function choose(position) {
  reader = Math.min(tokens.length - 1, Math.max(0, position));
  draw();
  showReader();
}

// Scrolls the table, and nothing else, to the letter that looks back.
function showReader() {
  const table = $("table");
  const row = rows[reader].letter.parentElement;
  const top = row.offsetTop - table.offsetTop;
  const head = table.firstElementChild.offsetHeight + 4;
  const lowest = top - head; // the row would lie right below the heads
  const highest = top + row.offsetHeight - table.clientHeight;
  table.scrollTop = Math.max(highest, Math.min(lowest, table.scrollTop));
}

function goTo(wanted) {
  step = Math.min(STEPS.length - 1, Math.max(0, wanted));
  draw();
}

// An arrow key on a letter goes to the next letter, one on a step to the next step.
function moveFocus(by) {
  if (document.activeElement.classList.contains("letter")) {
    choose(reader + by);
    rows[reader].letter.focus();
  } else if (document.activeElement.classList.contains("label")) {
    goTo(step + by);
    document.querySelector(`[data-step="${step}"]`).focus();
  }
}

function largestIn(vectors) {
  return Math.max(...vectors.flat().map(Math.abs));
}

function draw() {
  $("look").hidden = tokens.length === 0;
  if (tokens.length === 0) {
    return;
  }
  const now = stepsAt(reader);
  const inQuery = largestIn([now.query]);
  queryBoxes.forEach((box, i) => {
    fillBox(box, "query", reader, i, now.query[i]);
    box.style.background = tint(now.query[i], inQuery);
  });
  const inKeys = largestIn(now.headKeys);
  const inValues = largestIn(now.headValues);
  rows.forEach((row, s) => {
    row.letter.setAttribute("aria-pressed", s === reader);
    row.letter.tabIndex = s === reader ? 0 : -1;
    fillStrip(row.key, now.headKeys[s], inKeys);
    fillStrip(row.value, now.headValues[s], inValues);
    fillBox(row.score, "score", reader, s, now.scores[s]);
    fillBox(row.scaled, "scaled", reader, s, now.scaled[s]);
    fillBox(row.weight, "weight", reader, s, now.weights[s]);
    row.mask.textContent = now.seen[s] ? "seen" : "−∞";
    row.mask.classList.toggle("masked", !now.seen[s]);
    row.bar.style.width = `${100 * Math.min(1, Math.max(0, now.weights[s]))}%`;
  });
  [...$("output").children].forEach((cell, i) => {
    cell.textContent = written(now.output[i]);
    cell.style.background = tint(now.output[i], inValues);
  });
  $("says").textContent = explain(now);
  drawProgress();
  drawMap();
}

function drawProgress() {
  $("number").textContent = `step ${step + 1} of ${STEPS.length}`;
  $("back").disabled = step === 0;
  $("next").disabled = step === STEPS.length - 1;
  $("reset").disabled = edits.size === 0;
  for (const button of document.querySelectorAll("[data-step]")) {
    const own = Number(button.dataset.step);
    button.setAttribute("aria-current", own === step ? "step" : "false");
    button.classList.toggle("later", own > step);
  }
  for (const name of STEPS) {
    $("look").classList.toggle(`no-${name}`, STEPS.indexOf(name) > step);
  }
}

// A row for each position that reads, a column for each that it looks at.
function drawMap() {
  const size = tokens.length;
  const canvas = $("map");
  canvas.width = size;
  canvas.height = size;
  const pen = canvas.getContext("2d");
  for (let row = 0; row < size; row++) {
    pen.fillStyle = getComputedStyle(row === reader ? $("hot") : $("blue")).color;
    stepsAt(row).weights.forEach((weight, column) => {
      pen.globalAlpha = Math.sqrt(Math.min(1, Math.max(0, weight)));
      pen.fillRect(column, row, 1, 1);
    });
  }
}

// ---------------------------------------------------------------- start

function fillChoice(id, count, word, start, onChoice) {
  for (let i = 0; i < count; i++) {
    $(id).append(new Option(`${word} ${i + 1}`, i, false, i === start));
  }
  $(id).onchange = () => {
    onChoice(Number($(id).value));
    edits.clear();
    draw();
  };
}

fillChoice("layer", n_layers, "layer", layer, (chosen) => (layer = chosen));
fillChoice("head", n_heads, "head", head, (chosen) => (head = chosen));
$("query").prepend(stepButton("query", "query"));
queryBoxes = Array.from({ length: head_size }, (_, i) => numberBox(`query, number ${i + 1}`, draw));
$("query-boxes").append(...queryBoxes);
$("output-row").prepend(stepButton("output", "output"));
$("output").append(...Array.from({ length: head_size }, () => element("b")));
arrowKeys($("look"), moveFocus, moveFocus);
$("back").onclick = () => goTo(step - 1);
$("next").onclick = () => goTo(step + 1);
$("all").onclick = () => goTo(STEPS.length - 1);
$("reset").onclick = () => {
  edits.clear();
  draw();
};
$("text").value = MODEL.text;
$("text").oninput = readText;
readText();
joinHostPage(draw);
