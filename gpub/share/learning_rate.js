// One model, trained with learning rates from far too small to far too large: a slider for the rate,
// its loss, and what the model writes in the end. `curves.js` comes before this.

const $ = (id) => document.getElementById(id);
const FACTS = JSON.parse($("facts").textContent);
const RUNS = FACTS.runs; // rate, loss at the end, text, curve of [step, loss]; rates rise
const TOP = 4.5; // nats; what lies higher is drawn at the upper edge
const NEAR = 0.05; // nats; so near to the best rate is as good

let current = 0;

function bestRun() {
  return RUNS.reduce((best, run, i) => (run.loss < RUNS[best].loss ? i : best), 0);
}

function describe(index) {
  const run = RUNS[index];
  const best = RUNS[bestRun()];
  const ends = `It ends at a loss of ${run.loss.toFixed(2)}`;
  if (run.loss < best.loss + NEAR) {
    return `${ends}. About right: no other rate here ends much lower.`;
  }
  const lost = `${(run.loss - best.loss).toFixed(2)} above the best`;
  if (run.rate < best.rate) {
    return `${ends}, ${lost}. Too small: each step helps, but so little that the steps run out.`;
  }
  return `${ends}, ${lost}. Too large: each step jumps past the place that it aims at.`;
}

function drawCurves() {
  const box = $("curve");
  const width = box.clientWidth;
  const height = box.clientHeight;
  const steps = RUNS[0].curve.map(([step]) => step);
  const low = Math.min(...RUNS.flatMap((run) => run.curve.map(([, loss]) => loss))) - 0.2;
  const x = (step) => 34 + ((width - 46) * step) / steps[steps.length - 1];
  const y = (loss) => 8 + ((height - 32) * (TOP - Math.min(TOP, loss))) / (TOP - low);
  box.setAttribute("viewBox", `0 0 ${width} ${height}`);
  box.replaceChildren();
  for (let loss = Math.ceil(low); loss <= TOP; loss++) {
    box.append(svg("text", { x: 26, y: y(loss) + 4, class: "number" }, loss));
  }
  for (const share of [0, 0.5, 1]) {
    const step = Math.round(share * FACTS.steps);
    const label = { x: Math.min(x(step), width - 32), y: height - 6, class: "step" };
    box.append(svg("text", label, share === 1 ? `step ${step}` : step));
  }
  const points = (run) => run.curve.map(([step, loss]) => [x(step), y(loss)]);
  RUNS.forEach((run) => box.append(line(points(run), "other")));
  box.append(line(points(RUNS[current]), "line"));
}

function show(index) {
  current = Math.min(RUNS.length - 1, Math.max(0, index));
  draw();
}

function draw() {
  const run = RUNS[current];
  $("slider").value = current;
  $("slider").setAttribute("aria-valuetext", String(run.rate));
  $("rate").textContent = run.rate;
  $("says").textContent = describe(current);
  $("written").textContent = run.text;
  drawCurves();
}

$("slider").max = RUNS.length - 1;
$("slider").oninput = () => show(Number($("slider").value));
addEventListener("resize", drawCurves);
draw();
joinHostPage(draw);
