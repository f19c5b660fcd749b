// ---------------------------------------------------------------- choosing a token

// A generator of uniform numbers in [0, 1) from a 32-bit seed (Mulberry32).
function mulberry(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function choose(logits, temperature, top_k, random) {
  const byLogit = (a, b) => logits[b] - logits[a] || a - b;
  const order = [...logits.keys()].sort(byLogit).slice(0, top_k);
  if (temperature === 0) {
    return order[0];
  }
  const scaled = Float64Array.from(order, (id) => logits[id] / temperature);
  const probabilities = softmaxInPlace(scaled);
  let left = random();
  for (let i = 0; i < order.length - 1; i++) {
    left -= probabilities[i];
    if (left < 0) {
      return order[i];
    }
  }
  return order[order.length - 1];
}
