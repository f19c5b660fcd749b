"use strict";

const $ = (id) => document.getElementById(id);

const MODEL = JSON.parse($("model").textContent);
const { vocab_size, context_length, d_model, n_layers, n_heads } = MODEL.cfg;
const head_size = d_model / n_heads;
const n_kv_heads = MODEL.cfg.n_kv_heads ?? n_heads; // fewer where heads share keys and values
const kv_width = n_kv_heads * head_size;
const chars = MODEL.chars.map((code) => String.fromCodePoint(code));
const idOf = new Map(chars.map((char, id) => [char, id]));
let { weights, shapes } = unpackWeights($("weights").textContent);

// ---------------------------------------------------------------- the model

// The block of bytes, in base64, holds float32 first (vectors, and a scale for each row of a
// matrix), then the int8 entries of the matrices, both in the order of MODEL.tensors.
function unpackWeights(block) {
  const bytes = Uint8Array.from(atob(block), (char) => char.charCodeAt(0));
  const floats = new Float32Array(bytes.buffer, 0, MODEL.floats);
  const ints = new Int8Array(bytes.buffer, 4 * MODEL.floats);
  const weights = {};
  const shapes = {};
  let nextFloat = 0;
  let nextInt = 0;
  for (const [name, rows, columns] of MODEL.tensors) {
    shapes[name] = [rows, columns];
    if (columns === 0) {
      weights[name] = floats.subarray(nextFloat, nextFloat + rows);
      nextFloat += rows;
      continue;
    }
    const matrix = new Float32Array(rows * columns);
    for (let row = 0; row < rows; row++) {
      const scale = floats[nextFloat + row];
      for (let column = 0; column < columns; column++) {
        const at = row * columns + column;
        matrix[at] = scale * ints[nextInt + at];
      }
    }
    weights[name] = matrix;
    nextFloat += rows;
    nextInt += rows * columns;
  }
  return { weights, shapes };
}

// x holds some positions, one after the other; the result holds the same positions after a
// linear layer. Both ways of going through the matrix use each number they fetch several times.
function linear(x, name) {
  const matrix = weights[name + ".weight"];
  const [outs, ins] = shapes[name + ".weight"];
  const bias = weights[name + ".bias"] || new Float32Array(outs);
  const positions = x.length / ins;
  const y = new Float32Array(positions * outs);
  if (positions === 1) {
    multiplyOnePosition(matrix, bias, x, y, outs, ins);
  } else {
    multiplyPositions(matrix, bias, x, y, outs, ins, positions);
  }
  return y;
}

// Four outputs at a time. At the edge the last output is computed more than once.
function multiplyOnePosition(matrix, bias, x, y, outs, ins) {
  for (let out0 = 0; out0 < outs; out0 += 4) {
    const out1 = Math.min(out0 + 1, outs - 1);
    const out2 = Math.min(out0 + 2, outs - 1);
    const out3 = Math.min(out0 + 3, outs - 1);
    const row0 = out0 * ins;
    const row1 = out1 * ins;
    const row2 = out2 * ins;
    const row3 = out3 * ins;
    let sum0 = bias[out0];
    let sum1 = bias[out1];
    let sum2 = bias[out2];
    let sum3 = bias[out3];
    for (let c = 0; c < ins; c++) {
      const value = x[c];
      sum0 += matrix[row0 + c] * value;
      sum1 += matrix[row1 + c] * value;
      sum2 += matrix[row2 + c] * value;
      sum3 += matrix[row3 + c] * value;
    }
    y[out0] = sum0;
    y[out1] = sum1;
    y[out2] = sum2;
    y[out3] = sum3;
  }
}

// Tiles of two outputs (a, b) and four positions (0 to 3), with the same repetition at the edges.
function multiplyPositions(matrix, bias, x, y, outs, ins, positions) {
  for (let a = 0; a < outs; a += 2) {
    const b = Math.min(a + 1, outs - 1);
    const rowA = a * ins;
    const rowB = b * ins;
    for (let t0 = 0; t0 < positions; t0 += 4) {
      const t1 = Math.min(t0 + 1, positions - 1);
      const t2 = Math.min(t0 + 2, positions - 1);
      const t3 = Math.min(t0 + 3, positions - 1);
      const x0 = t0 * ins;
      const x1 = t1 * ins;
      const x2 = t2 * ins;
      const x3 = t3 * ins;
      let a0 = bias[a];
      let a1 = a0;
      let a2 = a0;
      let a3 = a0;
      let b0 = bias[b];
      let b1 = b0;
      let b2 = b0;
      let b3 = b0;
      for (let c = 0; c < ins; c++) {
        const weightA = matrix[rowA + c];
        const weightB = matrix[rowB + c];
        const value0 = x[x0 + c];
        const value1 = x[x1 + c];
        const value2 = x[x2 + c];
        const value3 = x[x3 + c];
        a0 += weightA * value0;
        a1 += weightA * value1;
        a2 += weightA * value2;
        a3 += weightA * value3;
        b0 += weightB * value0;
        b1 += weightB * value1;
        b2 += weightB * value2;
        b3 += weightB * value3;
      }
      y[t0 * outs + a] = a0;
      y[t1 * outs + a] = a1;
      y[t2 * outs + a] = a2;
      y[t3 * outs + a] = a3;
      y[t0 * outs + b] = b0;
      y[t1 * outs + b] = b1;
      y[t2 * outs + b] = b2;
      y[t3 * outs + b] = b3;
    }
  }
}

function layerNorm(x, name) {
  const weight = weights[name + ".weight"];
  const bias = weights[name + ".bias"];
  const y = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += d_model) {
    let mean = 0;
    for (let c = 0; c < d_model; c++) {
      mean += x[start + c] / d_model;
    }
    let variance = 0;
    for (let c = 0; c < d_model; c++) {
      variance += (x[start + c] - mean) ** 2 / d_model;
    }
    const deviation = Math.sqrt(variance + 1e-5);
    for (let c = 0; c < d_model; c++) {
      const normed = (x[start + c] - mean) / deviation;
      y[start + c] = normed * weight[c] + (bias ? bias[c] : 0);
    }
  }
  return y;
}

// GELU with tanh, as 0.5 (1 + tanh z) is 1 / (1 + exp(-2 z)).
function gelu(v) {
  return v / (1 + Math.exp(-2 * Math.sqrt(2 / Math.PI) * (v + 0.044715 * v * v * v)));
}

function softmaxInPlace(scores) {
  let largest = -Infinity;
  for (let i = 0; i < scores.length; i++) {
    largest = Math.max(largest, scores[i]);
  }
  let sum = 0;
  for (let i = 0; i < scores.length; i++) {
    scores[i] = Math.exp(scores[i] - largest);
    sum += scores[i];
  }
  for (let i = 0; i < scores.length; i++) {
    scores[i] /= sum;
  }
  return scores;
}

function addInPlace(x, y) {
  for (let i = 0; i < x.length; i++) {
    x[i] += y[i];
  }
}

// The KV cache: queries, keys and values of every layer, for all positions of the window. The
// queries are kept for the attention map.
const queries = new Float32Array(n_layers * context_length * d_model);
const keys = new Float32Array(n_layers * context_length * kv_width);
const values = new Float32Array(n_layers * context_length * kv_width);

function cacheAt(layer, position) {
  return (layer * context_length + position) * d_model;
}

// Where the key and the value for a head lie.
function sharedAt(layer, position, head) {
  const own = Math.floor((head * n_kv_heads) / n_heads);
  return (layer * context_length + position) * kv_width + own * head_size;
}

// How much a position looks at each of 0..position: probabilities.
function attention(layer, head, position) {
  const query = cacheAt(layer, position) + head * head_size;
  const scores = new Float64Array(position + 1);
  for (let s = 0; s <= position; s++) {
    const key = sharedAt(layer, s, head);
    let dot = 0;
    for (let d = 0; d < head_size; d++) {
      dot += queries[query + d] * keys[key + d];
    }
    scores[s] = dot / Math.sqrt(head_size);
  }
  return softmaxInPlace(scores);
}

// Heads that are switched off, by layer * n_heads + head: they fetch nothing.
const headsOff = new Set();

// What all heads of a layer fetch for `count` positions from `first` on.
function attend(layer, first, count) {
  const mixed = new Float32Array(count * d_model);
  for (let t = 0; t < count; t++) {
    for (let head = 0; head < n_heads; head++) {
      if (headsOff.has(layer * n_heads + head)) {
        continue;
      }
      const probabilities = attention(layer, head, first + t);
      const to = t * d_model + head * head_size;
      for (let s = 0; s < probabilities.length; s++) {
        const from = sharedAt(layer, s, head);
        for (let d = 0; d < head_size; d++) {
          mixed[to + d] += probabilities[s] * values[from + d];
        }
      }
    }
  }
  return mixed;
}

function embed(tokens, from) {
  const x = new Float32Array(tokens.length * d_model);
  tokens.forEach((id, t) => {
    for (let c = 0; c < d_model; c++) {
      const token = weights["tok.weight"][id * d_model + c];
      const position = weights["pos.weight"][(from + t) * d_model + c];
      x[t * d_model + c] = token + position;
    }
  });
  return x;
}

function fillCache(layer, from, qkv, count) {
  for (let t = 0; t < count; t++) {
    const query = t * (d_model + 2 * kv_width);
    const key = query + d_model;
    const value = key + kv_width;
    const to = cacheAt(layer, from + t);
    const shared = sharedAt(layer, from + t, 0);
    queries.set(qkv.subarray(query, key), to);
    keys.set(qkv.subarray(key, value), shared);
    values.set(qkv.subarray(value, value + kv_width), shared);
    rotate(queries, to, from + t, d_model);
    rotate(keys, shared, from + t, kv_width);
  }
}

// A GPT's positions are added at the start; a Llama turns its queries and keys here.
function rotate() {}

// The first part of a block: queries, keys and values of the positions in x.
function startBlock(layer, x, from) {
  const block = `blocks.${layer}.`;
  const qkv = linear(layerNorm(x, block + "norm1"), block + "attn.qkv");
  fillCache(layer, from, qkv, x.length / d_model);
}

// The rest of it, for the positions in x, of which `from` is the first.
function finishBlock(layer, x, from) {
  addAttention(layer, x, from);
  addFeedForward(layer, x);
}

function addAttention(layer, x, from) {
  const mixed = attend(layer, from, x.length / d_model);
  addInPlace(x, linear(mixed, `blocks.${layer}.attn.proj`));
}

function addFeedForward(layer, x) {
  const block = `blocks.${layer}.`;
  const hidden = linear(layerNorm(x, block + "norm2"), block + "ffn.up").map(gelu);
  addInPlace(x, linear(hidden, block + "ffn.down"));
}

// Queries, keys and values of all layers for a text from its start. What the last block does
// afterwards is not needed.
function fillCaches(tokens) {
  const x = embed(tokens, 0);
  for (let layer = 0; layer < n_layers; layer++) {
    startBlock(layer, x, 0);
    if (layer < n_layers - 1) {
      finishBlock(layer, x, 0);
    }
  }
}

// Reads tokens at the positions from, from + 1, ... and gives the logits after each of them, or
// after the last alone.
function forward(tokens, from, wantAll) {
  let x = embed(tokens, from);
  for (let layer = 0; layer < n_layers; layer++) {
    startBlock(layer, x, from);
    if (layer === n_layers - 1 && !wantAll) {
      x = x.slice(-d_model); // of the other positions only keys and values were needed
    }
    finishBlock(layer, x, from + tokens.length - x.length / d_model);
  }
  return readOut(x);
}

// What a position's vector says of the next token, at any place of the model.
function readOut(x) {
  return linear(layerNorm(x, "norm"), weights["head.weight"] ? "head" : "tok");
}
