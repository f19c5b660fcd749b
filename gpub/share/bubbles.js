// ---------------------------------------------------------------- turns as bubbles

function setStatus(text, isError = false) {
  $("status").textContent = text;
  $("status").className = isError ? "bad" : "mute";
}

function addBubble(role, text) {
  const bubble = document.createElement("p");
  bubble.className = role;
  const who = Object.assign(document.createElement("b"), { textContent: role + " " });
  const said = Object.assign(document.createElement("span"), { textContent: text });
  bubble.append(who, said);
  $("talk").append(bubble);
  bubble.scrollIntoView({ block: "nearest" });
  return said;
}

// What the page did with the words of the newest bubble.
function addNote(text) {
  const note = Object.assign(document.createElement("i"), { textContent: ` (${text})` });
  $("talk").lastElementChild.append(note);
}
