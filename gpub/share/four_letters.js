// Attention over four letters, one step at a time. `attention_steps.js` comes before this.

const $ = (id) => document.getElementById(id);
const FACTS = JSON.parse($("facts").textContent);
const LETTERS = FACTS.letters;
const WIDTH = FACTS.numbers[0].length; // numbers of a letter, and of its query, key and value
const MATRICES = ["queryMatrix", "keyMatrix", "valueMatrix"];

let reader = FACTS.reader; // the letter that looks back
let step = FACTS.step; // the last step that is shown, an index of STEPS
let boxes = {}; // row of the grid -> its boxes, by letter
let letterButtons = [];
let stepButtons = [];
let matrixBoxes = {};
let bars = [];
let maskButtons = [];
let mapCells = [];

// ---------------------------------------------------------------- the numbers

function matrixNow(name) {
  return FACTS[name].map((row, i) => row.map((x, j) => edited(name, i, j, x)));
}

function timesMatrix(numbers, matrix) {
  return matrix[0].map((_, j) => dot(numbers, matrix.map((row) => row[j])));
}

// What every letter has, whoever looks: numbers, query, key and value.
function vectorsNow() {
  const numbers = FACTS.numbers.map((row, s) => row.map((x, i) => edited("number", s, i, x)));
  const through = (name, matrix) =>
    numbers.map((row, s) =>
      timesMatrix(row, matrixNow(matrix)).map((x, i) => edited(name, s, i, x)),
    );
  return {
    numbers,
    queries: through("query", "queryMatrix"),
    keys: through("key", "keyMatrix"),
    values: through("value", "valueMatrix"),
  };
}

function stepsOf(letter) {
  const vectors = vectorsNow();
  const { queries, keys, values } = vectors;
  return { ...vectors, ...attentionSteps(queries[letter], keys, values, letter) };
}

// ---------------------------------------------------------------- what is said

function explain(now) {
  const me = LETTERS[reader];
  const best = now.weights.indexOf(Math.max(...now.weights));
  const other = LETTERS[best];
  const root = Math.sqrt(WIDTH);
  const powers = now.masked.map((x) => Math.exp(x));
  const sum = powers.reduce((a, b) => a + b, 0);
  const total = now.weights.reduce((a, b) => a + b, 0);
  const hidden = LETTERS.filter((_, s) => !now.seen[s]);
  return {
    query:
      `${me} has the numbers ${inBrackets(now.numbers[reader])}. Times the query matrix, they are ` +
      `its query ${inBrackets(now.query)}: what ${me} is looking for.`,
    keys:
      `Every letter has a key, by which it can be found: its numbers times the key matrix. ` +
      `The key of ${other} is ${inBrackets(now.keys[best])}.`,
    scores:
      `How well does the query of ${me} match each key? Multiply number by number and add up. ` +
      `With ${other}: ${products(now.query, now.keys[best])} = ${written(now.scores[best])}.`,
    scale:
      `Divide by √${WIDTH} = ${written(root)}, because a query has ${WIDTH} numbers. ` +
      `For ${other}: ${written(now.scores[best])} / ${written(root)} = ${written(now.scaled[best])}.`,
    mask:
      hidden.length === 0
        ? `Nothing comes after ${me}, so nothing is hidden from it. Choose another letter.`
        : `${me} must not see ${hidden.join(" and ")}: the score becomes −∞. ` +
          `Press a mask to lift it.`,
    softmax:
      `Take e to the power of each: ${powers.map(written).join(" + ")} = ${written(sum)}. ` +
      `Divide each by the sum. For ${other}: ${written(powers[best] / sum)}. ` +
      `Together the weights are ${written(total)}.`,
    values:
      `Every letter has a value, what it hands over: its numbers times the value matrix. ` +
      `The value of ${other} is ${inBrackets(now.values[best])}.`,
    output:
      `Mix the values in these proportions. The first number is ` +
      `${products(now.weights, now.values.map((value) => value[0]))} = ${written(now.output[0])}.`,
  }[STEPS[step]];
}

// ---------------------------------------------------------------- the page, built once

function rowOf(name, label, pressed) {
  const head = element(pressed ? "button" : "span", "label", label);
  if (pressed) {
    head.type = "button";
    head.onclick = pressed;
  }
  $("grid").append(head);
  boxes[name] = LETTERS.map(() => {
    const cell = element("div", `cell ${name}`);
    $("grid").append(cell);
    return cell;
  });
  return head;
}

function vectorBoxes(row, name, word) {
  boxes[row].forEach((cell, s) => {
    for (let i = 0; i < WIDTH; i++) {
      cell.append(numberBox(`${word} of ${LETTERS[s]}, number ${i + 1}`, draw));
    }
  });
}

function scoreBoxes(row, word) {
  boxes[row].forEach((cell, s) => cell.append(numberBox(`${word} of ${LETTERS[s]}`, draw)));
}

function buildGrid() {
  $("grid").append(element("span", "label", "press a letter"));
  letterButtons = LETTERS.map((letter, s) => {
    const button = element("button", "letter", letter);
    button.type = "button";
    button.onclick = () => choose(s);
    $("grid").append(button);
    return button;
  });
  rowOf("numbers", "its numbers");
  vectorBoxes("numbers", "number", "numbers");
  const labels = { scores: "query · key", scale: `÷ √${WIDTH}` };
  stepButtons = STEPS.map((name, i) => rowOf(name, labels[name] || name, () => goTo(i)));
  vectorBoxes("query", "query", "query");
  vectorBoxes("keys", "key", "key");
  scoreBoxes("scores", "score");
  scoreBoxes("scale", "scaled score");
  vectorBoxes("values", "value", "value");
  maskButtons = boxes.mask.map((cell, s) => {
    const button = element("button");
    button.type = "button";
    button.onclick = () => {
      edit("seen", reader, s, !stepsOf(reader).seen[s]);
      draw();
    };
    cell.append(button);
    return button;
  });
  bars = boxes.softmax.map((cell, s) => {
    const track = element("div", "track");
    track.append(element("div", "bar"));
    cell.append(track, numberBox(`weight of ${LETTERS[s]}`, draw));
    return track.firstChild;
  });
  for (const cell of boxes.output) {
    for (let i = 0; i < WIDTH; i++) {
      cell.append(element("b"));
    }
  }
}

function buildMatrices() {
  for (const name of MATRICES) {
    const word = name.replace("Matrix", " matrix");
    const box = element("div", "matrix");
    box.style.gridTemplateColumns = `repeat(${WIDTH}, 1fr)`;
    matrixBoxes[name] = FACTS[name].map((row, i) =>
      row.map((_, j) => numberBox(`${word}, row ${i + 1}, column ${j + 1}`, draw)),
    );
    box.append(...matrixBoxes[name].flat());
    const figure = element("div");
    figure.append(element("p", "mute", word), box);
    $("matrices").append(figure);
  }
}

function buildMap() {
  const columns = LETTERS.length + 1;
  $("map").style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
  $("map").append(element("span"), ...LETTERS.map((letter) => element("span", "", letter)));
  mapCells = LETTERS.map((letter) => {
    const row = LETTERS.map(() => element("i"));
    $("map").append(element("span", "", letter), ...row);
    return row;
  });
}

// ---------------------------------------------------------------- the page, filled in

function fillVectors(row, name, vectors, only = null) {
  boxes[row].forEach((cell, s) => {
    const shown = only === null || s === only;
    [...cell.children].forEach((box, i) => {
      box.hidden = !shown;
      fillBox(box, name, s, i, vectors[s][i]);
    });
  });
}

function fillScores(row, name, scores) {
  boxes[row].forEach((cell, s) => fillBox(cell.querySelector("input"), name, reader, s, scores[s]));
}

function drawMap() {
  const all = LETTERS.map((_, letter) => stepsOf(letter).weights);
  mapCells.forEach((row, t) =>
    row.forEach((cell, s) => {
      const depth = Math.round(100 * Math.min(1, Math.max(0, all[t][s])));
      cell.style.background = `color-mix(in srgb, var(--shade) ${depth}%, var(--card))`;
      cell.textContent = written(all[t][s]);
      cell.className = t === reader ? "reader" : "";
    }),
  );
  const rows = all.map((row, t) => `${LETTERS[t]}: ${row.map(written).join(", ")}`);
  $("map").setAttribute("aria-label", `Weights of all letters. ${rows.join("; ")}`);
}

function draw() {
  const now = stepsOf(reader);
  fillVectors("numbers", "number", now.numbers);
  fillVectors("query", "query", now.queries, reader);
  fillVectors("keys", "key", now.keys);
  fillVectors("values", "value", now.values);
  fillScores("scores", "score", now.scores);
  fillScores("scale", "scaled", now.scaled);
  fillScores("softmax", "weight", now.weights);
  maskButtons.forEach((button, s) => {
    button.textContent = written(now.masked[s]);
    button.className = now.seen[s] ? "" : "masked";
    button.setAttribute("aria-label", `${LETTERS[s]} is ${now.seen[s] ? "seen" : "masked"}`);
  });
  bars.forEach((bar, s) => {
    bar.style.height = `${100 * Math.min(1, Math.max(0, now.weights[s]))}%`;
  });
  boxes.output.forEach((cell, s) =>
    [...cell.children].forEach((shown, i) => {
      shown.textContent = s === reader ? written(now.output[i]) : "";
    }),
  );
  MATRICES.forEach((name) => {
    const matrix = matrixNow(name);
    matrixBoxes[name].forEach((row, i) =>
      row.forEach((box, j) => fillBox(box, name, i, j, matrix[i][j])),
    );
  });
  drawProgress(now);
  drawMap();
}

// Which rows are shown yet, which letter and which step are chosen.
function drawProgress(now) {
  letterButtons.forEach((button, s) => {
    button.setAttribute("aria-pressed", s === reader);
    button.tabIndex = s === reader ? 0 : -1;
  });
  stepButtons.forEach((button, i) => {
    button.setAttribute("aria-current", i === step ? "step" : "false");
    button.classList.toggle("later", i > step);
    for (const cell of boxes[STEPS[i]]) {
      cell.classList.toggle("later", i > step);
    }
  });
  $("says").textContent = explain(now);
  $("number").textContent = `step ${step + 1} of ${STEPS.length}`;
  $("back").disabled = step === 0;
  $("next").disabled = step === STEPS.length - 1;
  $("reset").disabled = edits.size === 0;
}

function choose(letter) {
  reader = Math.min(LETTERS.length - 1, Math.max(0, letter));
  draw();
}

function goTo(wanted) {
  step = Math.min(STEPS.length - 1, Math.max(0, wanted));
  draw();
}

buildGrid();
buildMatrices();
buildMap();
arrowKeys(
  $("grid"),
  (move) => {
    choose(reader + move);
    letterButtons[reader].focus();
  },
  (move) => {
    goTo(step + move);
    stepButtons[step].focus();
  },
);
$("back").onclick = () => goTo(step - 1);
$("next").onclick = () => goTo(step + 1);
$("all").onclick = () => goTo(STEPS.length - 1);
$("reset").onclick = () => {
  edits.clear();
  draw();
};
draw();
joinHostPage(draw);
