// One look back of one attention head, in the steps of chapter 1. Readers may change numbers on
// the way: what they change is kept in `edits`, and all that comes later is computed from it.

const STEPS = ["query", "keys", "scores", "scale", "mask", "softmax", "values", "output"];

// For each number that can be changed: the numbers that are computed from it.
const LATER = {
  number: ["query", "key", "value", "score", "scaled", "weight"],
  queryMatrix: ["query", "score", "scaled", "weight"],
  keyMatrix: ["key", "score", "scaled", "weight"],
  valueMatrix: ["value"],
  query: ["score", "scaled", "weight"],
  key: ["score", "scaled", "weight"],
  score: ["scaled", "weight"],
  scaled: ["weight"],
  seen: ["weight"],
  weight: [],
  value: [],
};

const edits = new Map(); // "score 3 0" -> what the reader wrote there

function edited(name, row, column, computed) {
  const key = `${name} ${row} ${column}`;
  return edits.has(key) ? edits.get(key) : computed;
}

function edit(name, row, column, value) {
  for (const key of [...edits.keys()]) {
    if (LATER[name].includes(key.split(" ")[0])) {
      edits.delete(key);
    }
  }
  edits.set(`${name} ${row} ${column}`, value);
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) {
    sum += a[i] * b[i];
  }
  return sum;
}

// Minus infinity gets exactly 0; where nothing may be seen, all get 0.
function softmaxOf(scores) {
  const largest = Math.max(...scores);
  if (largest === -Infinity) {
    return scores.map(() => 0);
  }
  const powers = scores.map((score) => Math.exp(score - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

// How the token `reader` collects from all tokens. `keys` and `values` have a row for each token.
function attentionSteps(query, keys, values, reader) {
  const root = Math.sqrt(query.length);
  const scores = keys.map((key, s) => edited("score", reader, s, dot(query, key)));
  const scaled = scores.map((score, s) => edited("scaled", reader, s, score / root));
  const seen = keys.map((_, s) => edited("seen", reader, s, s <= reader));
  const masked = scaled.map((score, s) => (seen[s] ? score : -Infinity));
  const weights = softmaxOf(masked).map((weight, s) => edited("weight", reader, s, weight));
  const output = values[0].map((_, i) => dot(weights, values.map((value) => value[i])));
  return { query, scores, scaled, seen, masked, weights, output };
}

// ------------------------------------------------------------ numbers and boxes on the page

function plain(x) {
  const rounded = Math.round(100 * x) / 100;
  return String(rounded === 0 ? 0 : rounded);
}

function written(x) {
  return x === -Infinity ? "−∞" : plain(x).replace("-", "−");
}

function inBrackets(numbers) {
  return `(${[...numbers].map(written).join(", ")})`;
}

// "1·2 + 0·0", without the terms beyond the first `most`
function products(a, b, most = 8) {
  const terms = [...a].map((x, i) => `${factor(x)}·${factor(b[i])}`);
  return terms.length > most ? `${terms.slice(0, most - 1).join(" + ")} + …` : terms.join(" + ");
}

function factor(x) {
  return x < 0 && written(x) !== "0" ? `(${written(x)})` : written(x);
}

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

// A box with a number that the reader may change; `redraw` runs after a change.
function numberBox(label, redraw) {
  const box = element("input");
  box.type = "number";
  box.step = "0.5";
  box.setAttribute("aria-label", label);
  box.oninput = () => {
    if (Number.isFinite(box.valueAsNumber)) {
      edit(...box.place, box.valueAsNumber);
      redraw();
    }
  };
  box.onchange = redraw; // an empty box gets its number back
  return box;
}

// Puts a number into its box, unless the reader is writing there.
function fillBox(box, name, row, column, value) {
  box.place = [name, row, column];
  box.classList.toggle("edited", edits.has(`${name} ${row} ${column}`));
  const writing = document.activeElement === box && Number.isFinite(box.valueAsNumber);
  if (!writing || plain(box.valueAsNumber) !== plain(value)) {
    box.value = plain(value);
  }
}

// Arrow keys over the letters and the steps: left and right choose a letter, up and down a step.
function arrowKeys(group, onLetter, onStep) {
  const moves = {
    ArrowLeft: () => onLetter(-1),
    ArrowRight: () => onLetter(1),
    ArrowUp: () => onStep(-1),
    ArrowDown: () => onStep(1),
  };
  group.addEventListener("keydown", (event) => {
    if (moves[event.key] && event.target.tagName === "BUTTON") {
      event.preventDefault();
      moves[event.key]();
    }
  });
}
