// A training that can be wound back: stored states of a small model, one slider for the step, and
// for each state its loss, what it writes and where its heads look. `model.js` and `sampling.js`
// come before this.

const STATES = MODEL.states; // step, loss on new text (or null), what it wrote
const PAUSE = 1100; // milliseconds between two states when it plays

let current = 0; // the state that is shown
let timer = 0; // of the next state, while it plays
let tokens = []; // the text over which the heads are shown
let maps = []; // a canvas and its caption for each head

function visible(char) {
  return { "\n": "⏎", " ": "␣" }[char] || char;
}

function counted(number) {
  return number.toLocaleString("en-US");
}

// ---------------------------------------------------------------- the state

// The first state's weights are those that `model.js` began with.
function loadState(index) {
  const block = index === 0 ? $("weights") : $(`weights-${index}`);
  ({ weights, shapes } = unpackWeights(block.textContent));
  fillCaches(tokens);
}

// How much a head gives to the letter before, in the mean over the text.
function oneBack(layer, head) {
  let sum = 0;
  for (let position = 1; position < tokens.length; position++) {
    sum += attention(layer, head, position)[position - 1];
  }
  return tokens.length > 1 ? sum / (tokens.length - 1) : 0;
}

function writeText(prompt, count, seed) {
  const random = mulberry(seed);
  let ids = Array.from(prompt, (char) => idOf.get(char)).filter((id) => id !== undefined);
  if (ids.length === 0) {
    ids = [idOf.get("\n") ?? 0];
  }
  const last = ids.length + count;
  while (ids.length < last) {
    // half of a full window is read again, so that every letter has a past
    const start = ids.length < context_length ? 0 : ids.length - context_length / 2;
    const window = ids.slice(Math.ceil(start));
    const room = Math.min(context_length - window.length, last - ids.length - 1);
    let logits = forward(window, 0, false);
    ids.push(choose(logits, 0.8, chars.length, random));
    for (let i = 0; i < room; i++) {
      logits = forward(ids.slice(-1), window.length + i, false);
      ids.push(choose(logits, 0.8, chars.length, random));
    }
  }
  fillCaches(tokens); // the maps are of the other text
  return ids.map((id) => chars[id]).join("");
}

// ---------------------------------------------------------------- what is said

function describe(state, best) {
  const parts = [`After ${counted(state.step)} steps`];
  if (state.step === 0) {
    parts[0] = "Before the first step";
  }
  if (state.loss !== null) {
    parts[0] += ` the loss on new text is ${state.loss.toFixed(2)}`;
    const lines = Object.entries(MODEL.references).sort((a, b) => b[1] - a[1]);
    const passed = lines.filter(([, loss]) => state.loss < loss).pop();
    const ahead = lines.find(([, loss]) => state.loss >= loss);
    if (passed) {
      parts.push(`better than ${passed[0]} (${passed[1].toFixed(2)})`);
    }
    if (ahead) {
      parts.push(`not yet as good as ${ahead[0]} (${ahead[1].toFixed(2)})`);
    }
  }
  const share = Math.round(100 * best.share);
  return (
    `${parts.join(", ")}. Layer ${best.layer + 1}, head ${best.head + 1} gives ${share}% ` +
    "to the letter before."
  );
}

// ---------------------------------------------------------------- the curve

// Steps grow to the right as their logarithm: the first ones change the most.
function drawCurve() {
  const box = $("curve");
  const width = box.clientWidth;
  const height = box.clientHeight;
  const last = STATES[STATES.length - 1].step;
  const losses = MODEL.curve.map(([, loss]) => loss);
  const known = STATES.map((state) => state.loss).filter((loss) => loss !== null);
  const high = Math.max(...losses, ...known) + 0.15;
  const low = Math.min(...losses, ...known) - 0.25;
  const x = (step) => 34 + ((width - 46) * Math.log(1 + step / 10)) / Math.log(1 + last / 10);
  const y = (loss) => 8 + ((height - 32) * (high - loss)) / (high - low);
  box.setAttribute("viewBox", `0 0 ${width} ${height}`);
  box.replaceChildren();
  for (let loss = Math.ceil(low); loss < high; loss++) {
    box.append(svg("text", { x: 26, y: y(loss) + 4, class: "number" }, loss));
  }
  for (let step = 10; step <= last; step *= 10) {
    const label = { x: x(step), y: height - 6, class: "step" };
    box.append(svg("text", label, counted(step)));
  }
  box.append(svg("text", { x: 34, y: height - 6, class: "step" }, "step 0"));
  for (const [name, loss] of Object.entries(MODEL.references)) {
    box.append(svg("path", { d: `M34 ${y(loss)} H${width - 12}`, class: "reference" }));
    box.append(svg("text", { x: 38, y: y(loss) + 14, class: "name" }, `${name} ${loss.toFixed(2)}`));
  }
  box.append(line(MODEL.curve.map(([step, loss]) => [x(step), y(loss)]), "line"));
  STATES.forEach((state, i) => {
    if (state.loss === null) {
      return;
    }
    const dot = svg("circle", { cx: x(state.step), cy: y(state.loss), r: i === current ? 7 : 4 });
    dot.setAttribute("class", i === current ? "dot now" : "dot");
    dot.addEventListener("click", () => show(i));
    box.append(dot);
  });
}

// ---------------------------------------------------------------- the maps

function buildMaps() {
  maps = [];
  $("maps").style.gridTemplateColumns = `repeat(${n_heads}, minmax(0, 11rem))`;
  for (let layer = 0; layer < n_layers; layer++) {
    for (let head = 0; head < n_heads; head++) {
      const figure = document.createElement("figure");
      const canvas = document.createElement("canvas");
      const caption = document.createElement("figcaption");
      canvas.setAttribute("role", "img");
      figure.append(canvas, caption);
      $("maps").append(figure);
      maps.push({ layer, head, figure, canvas, caption });
    }
  }
}

// A row for each letter that looks, a column for each that it looks at. Gives the head that looks
// one back the most.
function drawMaps() {
  const blue = getComputedStyle($("blue")).color;
  let best = { share: -1 };
  for (const { layer, head, figure, canvas, caption } of maps) {
    canvas.width = tokens.length;
    canvas.height = tokens.length;
    const pen = canvas.getContext("2d");
    pen.fillStyle = blue;
    for (let row = 0; row < tokens.length; row++) {
      attention(layer, head, row).forEach((weight, column) => {
        pen.globalAlpha = Math.sqrt(weight);
        pen.fillRect(column, row, 1, 1);
      });
    }
    const share = oneBack(layer, head);
    const name = `layer ${layer + 1}, head ${head + 1}`;
    caption.textContent = `${Math.round(100 * share)}% one back`;
    caption.title = name;
    canvas.setAttribute("aria-label", `Attention map of ${name}`);
    figure.classList.remove("best");
    if (share > best.share) {
      best = { share, layer, head, figure };
    }
  }
  best.figure.classList.add("best");
  return best;
}

// ---------------------------------------------------------------- the page

function readText() {
  const known = Array.from($("text").value).filter((char) => idOf.has(char));
  tokens = known.slice(0, context_length).map((char) => idOf.get(char));
  if (tokens.length === 0) {
    tokens = [0];
  }
  fillCaches(tokens);
  draw();
}

function show(index) {
  current = Math.min(STATES.length - 1, Math.max(0, index));
  loadState(current);
  $("written").textContent = STATES[current].text;
  draw();
}

function draw() {
  const state = STATES[current];
  $("slider").value = current;
  $("slider").setAttribute("aria-valuetext", `${counted(state.step)} steps`);
  const last = STATES[STATES.length - 1].step;
  $("step").textContent = `step ${counted(state.step)} of ${counted(last)}`;
  drawCurve();
  $("says").textContent = describe(state, drawMaps());
}

function stop() {
  clearTimeout(timer);
  timer = 0;
  $("play").textContent = "Play";
}

function playOn() {
  show(current + 1);
  if (current < STATES.length - 1) {
    timer = setTimeout(playOn, PAUSE);
  } else {
    stop();
  }
}

function play() {
  if (timer) {
    stop();
    return;
  }
  $("play").textContent = "Pause";
  if (current === STATES.length - 1) {
    show(0);
  }
  timer = setTimeout(playOn, PAUSE);
}

function writeAgain() {
  const seed = Math.floor(Math.random() * 2 ** 31);
  $("written").textContent = writeText(MODEL.prompt, STATES[current].text.length, seed);
}

$("slider").max = STATES.length - 1;
$("slider").oninput = () => {
  stop();
  show(Number($("slider").value));
};
$("play").onclick = play;
$("again").onclick = writeAgain;
$("text").value = MODEL.text;
$("text").oninput = readText;
addEventListener("resize", drawCurve);
buildMaps();
tokens = Array.from(MODEL.text, (char) => idOf.get(char));
show(MODEL.start);
joinHostPage(draw);
