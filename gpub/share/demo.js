// ---------------------------------------------------------------- the text

let ids = []; // the text
let odds = []; // for each of its characters the probabilities it was chosen from
let base = 0; // the window starts at ids[base]
let cached = 0; // and the cache holds so many of its positions

// Logits for what follows the text; fills in the probabilities of a prompt's characters.
function nextLogits() {
  const isPrompt = cached === 0;
  const start = Math.max(0, ids.length - context_length);
  if (start > base) {
    base = start;
    cached = 0; // the window moved, so every character has another position: read it again
  }
  const logits = forward(ids.slice(base + cached), cached, isPrompt);
  if (isPrompt) {
    for (let t = 0; t + 1 < ids.length - base; t++) {
      odds[base + t + 1] = softmaxInPlace(logits.slice(t * vocab_size, (t + 1) * vocab_size));
    }
  }
  cached = ids.length - base;
  return logits.slice(-vocab_size);
}

// ---------------------------------------------------------------- the page

const FIELDS = ["prompt", "temperature", "top_k", "seed", "n"];
const RIVALS = 8; // lines in the list of what else could have stood there
let mark = -1; // the marked character
let writing = null; // { stop } while a text is written

function visible(char) {
  return { "\n": "⏎", " ": "␣", "\t": "⇥" }[char] || char;
}

function quoted(char) {
  return `‘${visible(char)}’`;
}

function percent(p) {
  return (100 * p).toFixed(1) + "%";
}

function setStatus(text, isError = false) {
  $("status").textContent = text;
  $("status").className = isError ? "bad" : "mute";
}

function element(tag, text, className) {
  return Object.assign(document.createElement(tag), { textContent: text, className });
}

// The indices of an array, those of the largest values first.
function largestFirst(array) {
  return [...array.keys()].sort((a, b) => array[b] - array[a]);
}

// Draws all that depends on the mark, the layer or the head.
function draw() {
  const layer = Number($("layer").value);
  const head = Number($("head").value);
  const reader = mark - 1 - base; // the position that had to predict the marked character
  const isInWindow = reader >= 0 && reader < cached;
  const looks = isInWindow ? attention(layer, head, reader) : null;
  shadeText(looks);
  drawRivals();
  describeAttention(looks, reader);
  drawMap(layer, head, reader);
  drawLayers(reader);
}

// The colour's name and depth (0 to 1) behind a character of the text.
function shadeOf(i, looks) {
  const how = $("shade").value;
  if (how === "surprise" && odds[i]) {
    return ["hot", -Math.log(odds[i][ids[i]]) / 8];
  }
  if (how === "attention" && looks) {
    return ["blue", Math.sqrt(looks[i - base] || 0)];
  }
  return ["blue", 0];
}

function shadeText(looks) {
  const spans = $("out").children;
  for (let i = 0; i < spans.length; i++) {
    const [colour, depth] = shadeOf(i, looks);
    const share = Math.min(50, 60 * depth);
    const mix = `color-mix(in srgb, var(--${colour}) ${share}%, transparent)`;
    spans[i].style.background = depth > 0.02 ? mix : "";
    spans[i].classList.toggle("now", i === mark);
  }
}

function drawRivals() {
  const probabilities = odds[mark];
  const title = "What could have stood there: ";
  if (!probabilities) {
    $("chosen").textContent = title + "nothing was read before it";
    $("list").replaceChildren();
    return;
  }
  const order = largestFirst(probabilities);
  const rank = order.indexOf(ids[mark]);
  const shown = order.slice(0, RIVALS);
  if (rank >= RIVALS) {
    shown[RIVALS - 1] = ids[mark];
  }
  const choice = `${quoted(chars[ids[mark]])} was choice ${rank + 1} of ${vocab_size}`;
  $("chosen").textContent = title + choice;
  $("list").replaceChildren(...shown.flatMap((id) => rivalLine(id, probabilities[id])));
}

function rivalLine(id, probability) {
  const className = id === ids[mark] ? "won" : "";
  const bar = element("i", "", className);
  bar.style.width = 100 * probability + "%";
  return [
    element("span", visible(chars[id]), className),
    bar,
    element("b", percent(probability), className),
  ];
}

function describeAttention(looks, reader) {
  if (!looks) {
    $("looks").textContent = "Nothing in the window led to the marked character.";
    return;
  }
  const nameOf = (i) => quoted(chars[ids[i]]);
  const strongest = largestFirst(looks).slice(0, 4);
  const places = strongest.map((s) => {
    const distance = reader === s ? "itself" : `${reader - s} back`;
    return `${nameOf(base + s)} ${distance} ${percent(looks[s])}`;
  });
  const who = `${nameOf(mark - 1)}, about to write ${nameOf(mark)}`;
  $("looks").textContent = `${who}, looks at: ${places.join(", ")}`;
}

// The red, green and blue of a colour of the style sheet, which is written as #rrggbb.
function rgbOf(name) {
  const style = getComputedStyle(document.documentElement);
  const digits = style.getPropertyValue(name).trim().slice(1);
  return digits.match(/../g).map((two) => parseInt(two, 16));
}

function drawMap(layer, head, markedRow) {
  const canvas = $("map");
  const size = Math.max(1, cached);
  canvas.width = size;
  canvas.height = size;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(size, size);
  const blue = rgbOf("--blue");
  const hot = rgbOf("--hot");
  for (let row = 0; row < cached; row++) {
    const colour = row === markedRow ? hot : blue;
    attention(layer, head, row).forEach((probability, column) => {
      const alpha = 255 * Math.cbrt(probability); // the weak ones are to be seen, too
      image.data.set([...colour, alpha], 4 * (row * size + column));
    });
  }
  pen.putImageData(image, 0, 0);
}

// What is wrong with the form, in a sentence; nothing when all is well.
function complaint(given) {
  if (given.length === 0) {
    return "The prompt is empty: give at least one character.";
  }
  const strange = [...new Set(given.filter((char) => !idOf.has(char)))];
  if (strange.length > 0) {
    const unknown = strange.map((char) => `‘${char}’`).join(", ");
    return `The model has never seen ${unknown}. It knows: ${chars.map(visible).join("")}`;
  }
  const names = { seed: "Seed", n: "Characters" };
  for (const [field, name] of Object.entries(names)) {
    const input = $(field);
    if (!input.checkValidity() || input.value === "") {
      return `${name} must be a whole number from ${input.min} to ${input.max}.`;
    }
  }
  return "";
}

function numberIn(field) {
  return Number($(field).value);
}

function startText(given) {
  ids = given.map((char) => idOf.get(char));
  odds = [];
  base = 0;
  cached = 0;
  $("out").replaceChildren(...given.map((char) => element("span", char, "given")));
}

function append(id, logits) {
  odds[ids.length] = softmaxInPlace(logits);
  ids.push(id);
  $("out").append(element("span", chars[id], ""));
}

function markLast() {
  mark = ids.length - 1;
  draw();
}

// Lets the browser draw and hear clicks before the next character.
function letPageBreathe() {
  return new Promise((done) => setTimeout(done));
}

async function write() {
  const prompt = $("prompt").value;
  const given = Array.from(prompt);
  const wrong = complaint(given);
  if (wrong) {
    setStatus(wrong, true);
    return;
  }
  const [temperature, top_k, seed, n] = FIELDS.slice(1).map(numberIn);
  const settings = JSON.stringify({ prompt, temperature, top_k, seed, n });
  history.replaceState(null, "", "#" + encodeURIComponent(settings)); // a link to this text
  startText(given);
  forgetTrials();
  const me = { stop: false };
  writing = me;
  $("go").textContent = "Stop";
  const random = mulberry(seed);
  const began = performance.now();
  let drawn = began;
  let rested = began;
  let written = 0;
  while (written < n && !me.stop) {
    const logits = nextLogits();
    append(choose(logits, temperature, top_k, random), logits);
    written++;
    if (performance.now() - rested < 15) {
      continue;
    }
    if (performance.now() - drawn > 300) {
      markLast();
      drawn = performance.now();
    }
    setStatus(`${written} characters…`);
    await letPageBreathe();
    rested = performance.now();
  }
  const speed = Math.round((1000 * written) / Math.max(1, performance.now() - began));
  writing = null;
  $("go").textContent = "Write";
  sayLoss();
  markLast();
  const slow = `; beyond ${context_length} characters the whole window is read again for each`;
  setStatus(`${written} characters, ${speed} a second` + (base ? slow : ""));
}

function labelSliders() {
  const temperature = numberIn("temperature");
  const top_k = numberIn("top_k");
  const always = "0: always the favourite";
  $("temperature-now").textContent = temperature === 0 ? always : temperature.toFixed(2);
  $("top_k-now").textContent = top_k === vocab_size ? "all" : top_k;
}

// Takes the settings that the link holds, then writes.
function followLink() {
  let settings;
  try {
    settings = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
  } catch {
    setStatus("This link is damaged: its settings cannot be read.", true);
    return;
  }
  for (const field of FIELDS) {
    if (settings !== null && Object.hasOwn(settings, field)) {
      $(field).value = settings[field];
    }
  }
  labelSliders();
  write();
}

function moveMark(i) {
  const isNew = i >= 0 && i < ids.length && i !== mark;
  if (isNew && !writing) {
    mark = i;
    draw();
  }
}

function onSubmit(event) {
  event.preventDefault();
  if (writing) {
    writing.stop = true;
  } else {
    write();
  }
}

function onPoint(event) {
  moveMark([...$("out").children].indexOf(event.target));
}

function onKey(event) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by && !writing) {
    event.preventDefault();
    moveMark(mark + by);
  }
}

function onMapClick(event) {
  const row = Math.floor((event.offsetY / $("map").clientHeight) * cached);
  moveMark(base + 1 + row);
}

function onLinkChange() {
  if (!writing) {
    followLink();
  }
}

function fillSelect(id, n) {
  for (let i = 0; i < n; i++) {
    $(id).append(new Option(`${i + 1} of ${n}`, i));
  }
}

// Inside another page, at its top: only what is needed to see the model write.
function fitIntoPage() {
  if (location.search === "?small") {
    document.body.classList.add("small");
    $("shade").value = "";
  }
}

function start() {
  fitIntoPage();
  $("about").textContent = MODEL.about;
  $("prompt").value = MODEL.prompt;
  $("top_k").max = vocab_size;
  $("top_k").value = vocab_size;
  fillSelect("layer", n_layers);
  fillSelect("head", n_heads);
  buildHeads();
  buildStates();
  $("form").addEventListener("submit", onSubmit);
  $("temperature").addEventListener("input", labelSliders);
  $("top_k").addEventListener("input", labelSliders);
  for (const id of ["layer", "head", "shade"]) {
    $(id).addEventListener("change", draw);
  }
  $("out").addEventListener("click", onPoint);
  $("out").addEventListener("pointerover", onPoint);
  $("out").addEventListener("keydown", onKey);
  $("map").addEventListener("click", onMapClick);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  window.addEventListener("hashchange", onLinkChange);
  followLink();
}

start();
