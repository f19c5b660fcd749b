// ---------------------------------------------------------------- sums, as people write them

// As `ask_sum` and `read_answer` of gpub.chat.sums: 12 + 34 is asked as 210+430, and 6400 is 46.
const TYPED_SUM =
  /^\s*(?:what\s+is|what's|how\s+much\s+is)?\s*([0-9]{1,3})\s*(?:\+|plus)\s*([0-9]{1,3})\s*[=?\s]*$/i;

function unitsFirst(digits) {
  return Array.from(digits).reverse().join("");
}

// A sum in the form in which the model is asked; null: it is none.
function askSum(text) {
  const typed = TYPED_SUM.exec(text);
  return typed && typed.slice(1).map((number) => unitsFirst(number.padStart(3, "0"))).join("+");
}

// The number that an answer stands for; null: it is none.
function readAnswer(text) {
  return /^[0-9]+$/.test(text) ? String(Number(unitsFirst(text))) : null;
}
