// ---------------------------------------------------------------- a Llama

// What a Llama computes in another way than a GPT. Of two functions of one name in a script the
// later one counts: these take the places of those in model.js.

const { rope_base, norm_eps } = MODEL.cfg;

// RMSNorm: no mean is taken off, no bias is added.
function layerNorm(x, name) {
  const weight = weights[name + ".weight"];
  const y = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += d_model) {
    let square = 0;
    for (let c = 0; c < d_model; c++) {
      square += x[start + c] ** 2 / d_model;
    }
    const size = Math.sqrt(square + norm_eps);
    for (let c = 0; c < d_model; c++) {
      y[start + c] = (x[start + c] / size) * weight[c];
    }
  }
  return y;
}

// Positions are not added: queries and keys are turned by them.
function embed(tokens) {
  const x = new Float32Array(tokens.length * d_model);
  tokens.forEach((id, t) => {
    const row = weights["tok.weight"].subarray(id * d_model, (id + 1) * d_model);
    x.set(row, t * d_model);
  });
  return x;
}

// RoPE: in each head of the `width` numbers at `start` the channels i and i + half turn by an angle.
function rotate(vectors, start, position, width) {
  const half = head_size / 2;
  for (let i = 0; i < half; i++) {
    const angle = position / rope_base ** (i / half);
    const cos = Math.cos(angle);
    const sin = Math.sin(angle);
    for (let at = start + i; at < start + width; at += head_size) {
      const a = vectors[at];
      const b = vectors[at + half];
      vectors[at] = a * cos - b * sin;
      vectors[at + half] = b * cos + a * sin;
    }
  }
}

// SwiGLU: one projection decides how much of the other passes.
function addFeedForward(layer, x) {
  const block = `blocks.${layer}.`;
  const normed = layerNorm(x, block + "norm2");
  const gate = linear(normed, block + "ffn.gate");
  const up = linear(normed, block + "ffn.up");
  const hidden = up.map((v, i) => (v * gate[i]) / (1 + Math.exp(-gate[i])));
  addInPlace(x, linear(hidden, block + "ffn.down"));
}
