// ---------------------------------------------------------------- byte pairs as tokens

// As `BPETokenizer` of gpub.data.bpe: a pattern cuts the text into pieces; in each piece bytes are
// merged, the pair first that was learned first. A token's bytes are the characters of a string,
// each of the number of its byte.

const TOKEN = "token";
const PAIRS = MODEL.byte_pairs;
const SPLIT = new RegExp(PAIRS.pattern, "gu");
const isSpecial = new Set(PAIRS.specials); // ids that no text is encoded to
const idOfBytes = new Map();
PAIRS.tokens.forEach((bytes, id) => {
  if (!isSpecial.has(id)) {
    idOfBytes.set(bytes, id);
  }
});
const rankOf = new Map(PAIRS.merges.map(([first, second], rank) => [pairKey(first, second), rank]));

function pairKey(first, second) {
  return first * PAIRS.tokens.length + second;
}

// Half a character, which a text field can hold, becomes U+FFFD.
function replaceSurrogates(text) {
  return newDecoder().decode(new TextEncoder().encode(text));
}

function newDecoder() {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}

// The pieces that no token crosses: what the pattern finds, and what lies between.
function cutPieces(text) {
  const pieces = [];
  let end = 0;
  for (const { 0: found, index } of text.matchAll(SPLIT)) {
    pieces.push(text.slice(end, index), found);
    end = index + found.length;
  }
  pieces.push(text.slice(end));
  return pieces.filter((piece) => piece !== "");
}

function encodePiece(piece) {
  const bytes = Array.from(new TextEncoder().encode(piece), (byte) => String.fromCharCode(byte));
  const whole = idOfBytes.get(bytes.join(""));
  if (PAIRS.whole_pieces && whole !== undefined) {
    return [whole];
  }
  const ids = bytes.map((byte) => idOfBytes.get(byte));
  for (;;) {
    let best = Infinity;
    let at = 0;
    for (let i = 0; i + 1 < ids.length; i++) {
      const rank = rankOf.get(pairKey(ids[i], ids[i + 1])) ?? Infinity;
      if (rank < best) {
        best = rank;
        at = i;
      }
    }
    if (best === Infinity) {
      return ids;
    }
    const merged = PAIRS.tokens[ids[at]] + PAIRS.tokens[ids[at + 1]];
    ids.splice(at, 2, idOfBytes.get(merged));
  }
}

// The ids of a text; any text has some.
function encode(text) {
  return cutPieces(replaceSurrogates(text)).flatMap(encodePiece);
}

function bytesOf(id) {
  return Uint8Array.from(PAIRS.tokens[id], (byte) => byte.charCodeAt(0));
}

function decode(ids) {
  const spell = newDecoder();
  const texts = ids.map((id) => spell.decode(bytesOf(id), { stream: true }));
  return texts.join("") + spell.decode();
}

// Gives the text of one token after another: a character comes with the last of its bytes.
function newSpeller() {
  const spell = newDecoder();
  return (id) => spell.decode(bytesOf(id), { stream: true });
}

function bytesInHex(id) {
  return Array.from(bytesOf(id), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

// A token where it stands alone, with a sign for what cannot be seen; bytes that are no whole
// character as numbers.
function nameOf(id) {
  try {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });
    return Array.from(decoder.decode(bytesOf(id)), visible).join("");
  } catch {
    return `⟨${bytesInHex(id)}⟩`;
  }
}
