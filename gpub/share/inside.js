// ---------------------------------------------------------------- inside the model

// What the model would say at a position of the window after its embeddings, and after each half of
// each block: a name and probabilities. The norm and the table at its end read any of these vectors.
function guessesInside(position) {
  const x = embed([ids[base + position]], position);
  const guesses = [["the embeddings", softmaxInPlace(readOut(x))]];
  for (let layer = 0; layer < n_layers; layer++) {
    startBlock(layer, x, position); // the cache holds these numbers already
    addAttention(layer, x, position);
    guesses.push([`attention of layer ${layer + 1}`, softmaxInPlace(readOut(x))]);
    addFeedForward(layer, x);
    guesses.push([`MLP of layer ${layer + 1}`, softmaxInPlace(readOut(x))]);
  }
  return guesses;
}

function drawLayers(reader) {
  if (reader < 0 || reader >= cached) {
    $("layers").replaceChildren();
    $("way").textContent = `Nothing in the window led to the marked ${TOKEN}.`;
    return;
  }
  $("way").textContent = `On the way from ${quoted(ids[mark - 1])} to the next ${TOKEN}:`;
  $("layers").replaceChildren(...guessesInside(reader).map(([name, p]) => layerRow(name, p)));
}

// After a part of the model: its three favourites, and the chance of what stands there.
function layerRow(name, probabilities) {
  const row = element("tr", "", "");
  row.append(Object.assign(element("th", `after ${name}`, ""), { scope: "row" }));
  for (const id of largest(probabilities, 3)) {
    const cell = element("td", "", id === ids[mark] ? "won" : "");
    cell.append(element("b", nameOf(id), ""), ` ${percent(probabilities[id])}`);
    row.append(cell);
  }
  row.append(element("td", percent(probabilities[ids[mark]]), "won"));
  return row;
}

// ---------------------------------------------------------------- heads, on and off

// Reads the window again with the heads as they are now; the mean surprise at its tokens, in nats.
function readAgain() {
  const logits = forward(ids.slice(base, base + cached), 0, true);
  let sum = 0;
  for (let t = 0; t < cached; t++) {
    const p = softmaxInPlace(logits.slice(t * vocab_size, (t + 1) * vocab_size));
    odds[base + t + 1] = p;
    sum -= Math.log(p[ids[base + t + 1]]);
  }
  return sum / cached;
}

// The same with other heads off; afterwards those are off that were.
function lossWithout(heads) {
  const before = [...headsOff];
  setHeadsOff(heads);
  const loss = readAgain();
  setHeadsOff(before);
  return loss;
}

function setHeadsOff(heads) {
  headsOff.clear();
  heads.forEach((head) => headsOff.add(head));
}

function sayLoss() {
  const all = lossWithout([]);
  const now = readAgain(); // last: cache and chances are those of the heads as they are
  const measured = `${all.toFixed(3)} nats a ${TOKEN} over the ${cached} in the window`;
  const off = headsOff.size;
  const them = off === 1 ? "the one that is off" : `the ${off} that are off`;
  const without = `${now.toFixed(3)} without ${them}`;
  $("without").textContent =
    off === 0 ? `All heads are on: ${measured}.` : `With all heads ${measured}; ${without}.`;
  draw();
}

function switchHead(button, head) {
  if (writing) {
    return;
  }
  if (!headsOff.delete(head)) {
    headsOff.add(head);
  }
  button.setAttribute("aria-pressed", !headsOff.has(head));
  sayLoss();
}

// How much the loss rises without one head, for each of them.
async function tryEachHead() {
  if (writing) {
    return;
  }
  const me = { stop: false };
  writing = me;
  const all = lossWithout([]);
  for (const button of $("heads").querySelectorAll("button")) {
    const more = lossWithout([Number(button.value)]) - all;
    button.lastChild.textContent = (more < 0 ? "−" : "+") + Math.abs(more).toFixed(3);
    await letPageBreathe();
  }
  writing = null;
  sayLoss();
}

function forgetTrials() {
  for (const button of $("heads").querySelectorAll("button")) {
    button.lastChild.textContent = "";
  }
}

function buildHeads() {
  for (let layer = 0; layer < n_layers; layer++) {
    const row = element("div", "", "row");
    row.append(element("span", `Layer ${layer + 1}`, "mute"));
    for (let head = 0; head < n_heads; head++) {
      const key = layer * n_heads + head;
      const button = element("button", "", "head");
      button.type = "button";
      button.value = key;
      button.setAttribute("aria-pressed", true);
      button.append(element("span", `head ${head + 1}`, ""), element("small", "", ""));
      button.addEventListener("click", () => switchHead(button, key));
      row.append(button);
    }
    $("heads").append(row);
  }
  $("each").addEventListener("click", tryEachHead);
}

// ---------------------------------------------------------------- the checkpoints

// Several blocks of weights: the newest is the one that `model.js` began with.
function showState(index) {
  const state = MODEL.states[index];
  const block = index === MODEL.states.length - 1 ? "weights" : `weights-${index}`;
  ({ weights, shapes } = unpackWeights($(block).textContent));
  const loss = state.loss === null ? "" : `, validation loss ${state.loss.toFixed(3)}`;
  $("state-now").textContent = `${state.step.toLocaleString("en-US")}${loss}`;
}

function buildStates() {
  const states = MODEL.states ?? [];
  $("state-line").hidden = states.length < 2;
  if (states.length < 2) {
    return;
  }
  const slider = $("state");
  slider.max = states.length - 1;
  slider.value = slider.max;
  showState(states.length - 1);
  slider.addEventListener("input", async () => {
    if (writing) {
      writing.stop = true;
    }
    while (writing) {
      await letPageBreathe();
    }
    showState(Number(slider.value));
    write();
  });
}
