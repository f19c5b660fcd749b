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

// The parts of an answer: { kind, text }, of kind "said", "think" or "call"; a call with its result.
function answerParts(text) {
  const joined = text.replaceAll("</call><result>", " = ").replaceAll("</result>", "</call>");
  const parts = [];
  let kind = "said";
  for (const piece of joined.split(/(<\/?(?:think|call)>)/)) {
    if (/^<\/?(think|call)>$/.test(piece)) {
      kind = piece.startsWith("</") ? "said" : piece.slice(1, -1);
    } else if (piece !== "") {
      parts.push({ kind, text: piece });
    }
  }
  return parts;
}

// Shows an answer as far as it has come. What is there stays, so that a screen reader says it once.
function showAnswer(into, answer) {
  answerParts(answer).forEach(({ kind, text }, n) => {
    if (into.childNodes.length === n) {
      const isSaid = kind === "said";
      const part = isSaid ? document.createTextNode("") : document.createElement("small");
      into.append(isSaid ? part : Object.assign(part, { className: kind }));
    }
    const part = into.childNodes[n];
    if (part.textContent !== text) {
      part.textContent = text;
    }
  });
}

// What the page did with the words of the newest bubble.
function addNote(text) {
  const note = Object.assign(document.createElement("i"), { textContent: ` (${text})` });
  $("talk").lastElementChild.append(note);
}
