// ---------------------------------------------------------------- the text

let ids = []; // the text
let odds = []; // for each of its tokens the probabilities it was chosen from
let base = 0; // the window starts at ids[base]
let cached = 0; // and the cache holds so many of its positions

// Logits for what follows the text; fills in the probabilities of a prompt's tokens.
function nextLogits() {
  const isPrompt = cached === 0;
  const start = Math.max(0, ids.length - context_length);
  if (start > base) {
    base = start;
    cached = 0; // the window moved, so every token has another position: read it again
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
let mark = -1; // the marked token
let writing = null; // { stop } while a text is written
let spell = newSpeller(); // of the text

function visible(char) {
  const sign = { "\n": "⏎", " ": "␣", "\t": "⇥" }[char] || char;
  const isSeen = !/^[\p{Cc}\p{Cf}\p{Z}]$/u.test(sign);
  return isSeen ? sign : `⟨U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

function quoted(id) {
  return `‘${nameOf(id)}’`;
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

// The indices of the largest values of an array, the largest first.
function largest(array, count) {
  const best = [];
  array.forEach((value, i) => {
    if (best.length < count || value > array[best.at(-1)]) {
      const place = best.findIndex((other) => array[other] < value);
      best.splice(place < 0 ? best.length : place, 0, i);
      best.length = Math.min(best.length, count);
    }
  });
  return best;
}

// Draws all that depends on the mark, the layer or the head.
function draw() {
  const layer = Number($("layer").value);
  const head = Number($("head").value);
  const reader = mark - 1 - base; // the position that had to predict the marked token
  const isInWindow = reader >= 0 && reader < cached;
  const looks = isInWindow ? attention(layer, head, reader) : null;
  shadeText(looks);
  drawRivals();
  describeAttention(looks, reader);
  drawMap(layer, head, reader);
  drawLayers(reader);
}

// The colour's name and depth (0 to 1) behind a token of the text.
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
  const shown = largest(probabilities, RIVALS);
  if (!shown.includes(ids[mark])) {
    shown[RIVALS - 1] = ids[mark];
  }
  const better = probabilities.filter((p) => p > probabilities[ids[mark]]).length;
  const choice = `${quoted(ids[mark])} was choice ${better + 1} of ${vocab_size}`;
  $("chosen").textContent = title + choice;
  $("list").replaceChildren(...shown.flatMap((id) => rivalLine(id, probabilities[id])));
}

function rivalLine(id, probability) {
  const className = id === ids[mark] ? "won" : "";
  const bar = element("i", "", className);
  bar.style.width = 100 * probability + "%";
  return [
    element("span", nameOf(id), className),
    bar,
    element("b", percent(probability), className),
  ];
}

function describeAttention(looks, reader) {
  if (!looks) {
    $("looks").textContent = `Nothing in the window led to the marked ${TOKEN}.`;
    return;
  }
  const strongest = largest(looks, 4);
  const places = strongest.map((s) => {
    const distance = reader === s ? "itself" : `${reader - s} back`;
    return `${quoted(ids[base + s])} ${distance} ${percent(looks[s])}`;
  });
  const who = `${quoted(ids[mark - 1])}, about to write ${quoted(ids[mark])}`;
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
function complaint(prompt) {
  if (prompt === "") {
    return "The prompt is empty: give at least one character.";
  }
  const isStrange = (char) => encode(char).includes(undefined);
  const strange = [...new Set(Array.from(prompt).filter(isStrange))];
  if (strange.length > 0) {
    const unknown = strange.map((char) => `‘${char}’`).join(", ");
    return `The model has never seen ${unknown}. It knows: ${chars.map(visible).join("")}`;
  }
  for (const input of [$("seed"), $("n")]) {
    if (!input.checkValidity() || input.value === "") {
      const name = input.labels[0].textContent.trim();
      return `${name} must be a whole number from ${input.min} to ${input.max}.`;
    }
  }
  return "";
}

function numberIn(field) {
  return Number($(field).value);
}

function startText(given) {
  ids = given;
  odds = [];
  base = 0;
  cached = 0;
  spell = newSpeller();
  $("out").replaceChildren(...given.map((id) => tokenSpan(id, "given")));
}

function append(id, logits) {
  odds[ids.length] = softmaxInPlace(logits);
  ids.push(id);
  $("out").append(tokenSpan(id, ""));
}

// The next token of the text; its bytes where no character ends with it.
function tokenSpan(id, className) {
  const span = element("span", spell(id), className);
  if (span.textContent === "") {
    span.dataset.bytes = bytesInHex(id);
  }
  return span;
}

function markLast() {
  mark = ids.length - 1;
  draw();
}

// Lets the browser draw and hear clicks before the next token.
function letPageBreathe() {
  return new Promise((done) => setTimeout(done));
}

async function write() {
  const prompt = $("prompt").value;
  const wrong = complaint(prompt);
  if (wrong) {
    setStatus(wrong, true);
    return;
  }
  const [temperature, top_k, seed, n] = FIELDS.slice(1).map(numberIn);
  const settings = JSON.stringify({ prompt, temperature, top_k, seed, n });
  history.replaceState(null, "", "#" + encodeURIComponent(settings)); // a link to this text
  startText(encode(prompt));
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
    setStatus(`${written} ${TOKEN}s…`);
    await letPageBreathe();
    rested = performance.now();
  }
  const speed = Math.round((1000 * written) / Math.max(1, performance.now() - began));
  writing = null;
  $("go").textContent = "Write";
  sayLoss();
  markLast();
  const slow = `; beyond ${context_length} ${TOKEN}s the whole window is read again for each`;
  setStatus(`${written} ${TOKEN}s, ${speed} a second` + (base ? slow : ""));
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
  // the chances of every token of the text are kept, up to 120 MB of them
  $("n").max = Math.min($("n").max, Math.floor(3e7 / vocab_size));
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
