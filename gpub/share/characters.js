// ---------------------------------------------------------------- characters as tokens

// What the page asks of a tokenizer; `byte_pairs.js` has functions of the same names.

const TOKEN = "character";

// The ids of a text; undefined for a character that the model has never seen.
function encode(text) {
  return Array.from(text, (char) => idOf.get(char));
}

function decode(ids) {
  return ids.map((id) => chars[id]).join("");
}

// Gives the text of one token after another.
function newSpeller() {
  return (id) => chars[id];
}

// A token where it stands alone, with a sign for what cannot be seen.
function nameOf(id) {
  return visible(chars[id]);
}

// No character takes several tokens.
function bytesInHex() {
  return "";
}
