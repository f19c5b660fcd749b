// ---------------------------------------------------------------- the conversation

// ids of the marks, and of the tags of thoughts and calls; calls that are computed, and tokens, of an
// answer at most
const { marks, tags, calls, longest } = MODEL.chat;
const roleOf = new Map(Object.entries(marks).map(([role, id]) => [id, role]));
const tagOf = new Map(Object.entries(tags).map(([tag, id]) => [id, tag]));
let turns = []; // { role, content }: what is remembered, user and assistant in turns
let read = []; // the ids that the newest answer was given to, with the answer
let answering = null; // { stop } while an answer is written

// What tokens of an answer stand for, with its tags.
function textOf(ids) {
  let text = "";
  let plain = [];
  for (const id of ids) {
    if (tagOf.has(id)) {
      text += decode(plain) + tagOf.get(id);
      plain = [];
    } else {
      plain.push(id);
    }
  }
  return text + decode(plain);
}

// The ids of what somebody says. Tags are marks in what the assistant says, and letters elsewhere.
function encodeText(role, content) {
  const isTagged = role === "assistant" && tagOf.size > 0;
  const pieces = isTagged ? content.split(/(<\/?(?:think|call|result)>)/) : [content];
  return pieces.flatMap((piece) => (isTagged && piece in tags ? [tags[piece]] : encode(piece)));
}

// The result of the call with which an answer ends, with its tags; nothing where it ends with none.
function replyIds(ids) {
  if (tagOf.get(ids.at(-1)) !== "</call>") {
    return [];
  }
  const begin = ids.lastIndexOf(tags["<call>"]);
  const isComputed = begin >= 0 && ids.filter((id) => id === ids.at(-1)).length <= calls;
  const call = textOf(ids.slice(begin + 1, -1));
  const result = isComputed ? calculate(call) : "?";
  return [tags["<result>"], ...encode(result), tags["</result>"]];
}

// The ids of a conversation: a mark before each turn, and the end after each of the assistant's.
function encodeTurns(turns, isModelNext) {
  const ids = [];
  for (const { role, content } of turns) {
    ids.push(marks[role], ...encodeText(role, content));
    if (role === "assistant") {
      ids.push(marks.end);
    }
  }
  return isModelNext ? [...ids, marks.assistant] : ids;
}

// The newest part of a conversation that leaves room for an answer; null where a question is too
// long by itself.
function fitted(turns) {
  const room = context_length - Math.min(longest, Math.floor(context_length / 2));
  let kept = [...turns];
  for (;;) {
    const ids = encodeTurns(kept, true);
    const isAlone = kept.length === 1;
    if (ids.length <= (isAlone ? context_length - 1 : room)) {
      return ids;
    }
    if (isAlone) {
      return null;
    }
    kept = kept.slice(2);
  }
}

// ---------------------------------------------------------------- the page

// The name of a mark; undefined for another token.
function markName(id) {
  return roleOf.get(id) ?? tagOf.get(id)?.slice(1, -1);
}

// What is wrong with a question, in a sentence; nothing when all is well.
function complaint(question) {
  if (question === "") {
    return "The question is empty: type at least one character.";
  }
  const isStrange = (id) => id === undefined || markName(id) !== undefined;
  const strange = Array.from(question).filter((char) => encode(char).some(isStrange));
  if (strange.length > 0) {
    const unknown = [...new Set(strange)].map((char) => `‘${char}’`).join(", ");
    const known = chars.filter((_, id) => !markName(id)).join("").replace("\n", "⏎");
    return `The model cannot read ${unknown}. It knows: ${known}`;
  }
  if (!$("seed").checkValidity() || $("seed").value === "") {
    return `Seed must be a whole number from ${$("seed").min} to ${$("seed").max}.`;
  }
  return "";
}

// The tokens that the model read and wrote, marks by name.
function drawTokens() {
  const spell = newSpeller();
  const pieces = read.map((id) => {
    const name = markName(id);
    const text = name ?? spell(id).replaceAll("\n", "⏎");
    const span = Object.assign(document.createElement("span"), {
      textContent: text,
      className: name ? "mark" : "",
    });
    if (text === "") {
      span.dataset.bytes = bytesInHex(id);
    }
    return span;
  });
  $("tokens").replaceChildren(...pieces);
}

// Lets the browser draw and hear clicks before the next token.
function letPageBreathe() {
  return new Promise((done) => setTimeout(done));
}

// Writes an answer after some ids, into an element; the text, and why it ended.
async function answer(ids, into, me) {
  const temperature = Number($("temperature").value);
  // each turn has dice of its own
  const random = mulberry(Number($("seed").value) + turns.length);
  const most = Math.min(longest, context_length - ids.length);
  read = [...ids];
  const written = [];
  const reply = []; // of the calculator: comes before the model goes on
  let text = "";
  let logits = forward(ids, 0, false);
  for (let n = 0; n < most && !me.stop; n++) {
    for (const tag of ["<result>", "</result>"].filter((tag) => tag in tags)) {
      logits[tags[tag]] = -Infinity; // the calculator alone writes results
    }
    const id = reply.shift() ?? choose(logits, temperature, vocab_size, random);
    read.push(id);
    if (roleOf.has(id)) {
      return { text, why: `ended by itself, with the token ‘${roleOf.get(id)}’` };
    }
    written.push(id);
    reply.push(...replyIds(written));
    text = textOf(written);
    showAnswer(into, text);
    await letPageBreathe();
    if (n < most - 1) {
      logits = forward([id], read.length - 1, false);
    }
  }
  return { text, why: me.stop ? "stopped" : `cut off after ${most} ${TOKEN}s` };
}

async function ask() {
  const typed = $("question").value.trim();
  const sum = MODEL.chat.sums ? askSum(typed) : null;
  const question = sum ?? typed;
  const wrong = complaint(question);
  if (wrong) {
    setStatus(wrong, true);
    return;
  }
  const asked = [...turns, { role: "user", content: question }];
  const ids = fitted(asked);
  if (ids === null) {
    setStatus(`This question is too long: the model reads ${context_length} ${TOKEN}s.`, true);
    return;
  }
  const me = { stop: false };
  answering = me;
  $("go").textContent = "Stop";
  $("question").value = "";
  addBubble("user", typed);
  if (sum !== null) {
    addNote(`sent as ${sum}`);
  }
  const began = performance.now();
  const { text, why } = await answer(ids, addBubble("assistant", ""), me);
  if (sum !== null && readAnswer(text) !== null) {
    addNote(`that is ${readAnswer(text)}`);
  }
  if (text !== "") {
    turns = [...asked, { role: "assistant", content: text }]; // an empty turn is no turn
  }
  answering = null;
  $("go").textContent = "Ask";
  drawTokens();
  const forgot = encodeTurns(asked, true).length > ids.length ? "; the oldest turns are forgotten" : "";
  setStatus(`${Math.round(performance.now() - began)} ms, ${why}${forgot}`);
}

function forget() {
  turns = [];
  read = [];
  $("talk").replaceChildren();
  $("tokens").replaceChildren();
  setStatus("Nothing is remembered.");
}

function labelSlider() {
  const temperature = Number($("temperature").value);
  const always = "0: always the favourite";
  $("temperature-now").textContent = temperature === 0 ? always : temperature.toFixed(2);
}

function onSubmit(event) {
  event.preventDefault();
  if (answering) {
    answering.stop = true;
  } else {
    ask();
  }
}

function onForget() {
  if (!answering) {
    forget();
  }
}

function start() {
  $("about").textContent = MODEL.about;
  $("notice").textContent = MODEL.chat.sums;
  $("question").value = MODEL.prompt;
  if (Object.keys(tags).length > 0) {
    $("temperature").value = 0; // who calculates has no use for dice
  }
  $("form").addEventListener("submit", onSubmit);
  $("forget").addEventListener("click", onForget);
  $("temperature").addEventListener("input", labelSlider);
  labelSlider();
}

start();
