// The page of `gpub serve`: it asks the server that sent it, and shows the answer as it comes.

const $ = (id) => document.getElementById(id);
const FACTS = JSON.parse($("facts").textContent); // { model, chats, notice, tokens, wants_key }
let turns = []; // { role, content }: what is sent with the next question
let writing = null; // ends the answer that is on its way

// The path and the body of a request.
function requestFor(text) {
  const common = {
    model: FACTS.model,
    stream: true,
    temperature: Number($("temperature").value),
    max_tokens: Number($("tokens-at-most").value),
  };
  if (!FACTS.chats) {
    return ["v1/completions", { ...common, prompt: text }];
  }
  const messages = [...turns, { role: "user", content: text }];
  return ["v1/chat/completions", { ...common, messages, truncation: "auto" }];
}

// The events of a stream, one JSON value after the other; an error of the server is thrown.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      throw new Error("The server has gone.");
    }
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((line) => line.startsWith("data: "))) {
      const data = line.slice("data: ".length);
      if (data === "[DONE]") {
        return;
      }
      const event = JSON.parse(data);
      if (event.error) {
        throw new Error(event.error.message);
      }
      yield event;
    }
  }
}

async function openStream(text, signal) {
  const [path, body] = requestFor(text);
  const headers = { "Content-Type": "application/json" };
  if (FACTS.wants_key) {
    headers.Authorization = `Bearer ${$("key").value}`;
  }
  const options = { method: "POST", headers, body: JSON.stringify(body), signal };
  const response = await fetch(path, options).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The server does not answer.");
  });
  if (!response.ok) {
    throw new Error((await response.json()).error.message);
  }
  return response;
}

// Shows what has come so far: a text that goes on stands behind what was typed.
function showText(into, typed, written) {
  if (FACTS.chats) {
    showAnswer(into, written);
  } else {
    into.textContent = typed + written;
  }
}

// Ask, and let the answer grow; what came until it was stopped stays.
async function ask(typed) {
  const sum = FACTS.notice ? askSum(typed) : null;
  const text = sum ?? typed;
  let said = addBubble(FACTS.chats ? "user" : "text", typed);
  if (sum !== null) {
    addNote(`sent as ${sum}`);
  }
  if (FACTS.chats) {
    said = addBubble("assistant", "");
  }
  writing = new AbortController();
  $("go").textContent = "Stop";
  setStatus("It writes ...");
  let answer = "";
  let finish = "stop";
  try {
    const response = await openStream(text, writing.signal);
    for await (const { choices } of eventsOf(response)) {
      for (const choice of choices) {
        const piece = FACTS.chats ? choice.delta.content : choice.text;
        answer += piece ?? "";
        showText(said, typed, answer);
        finish = choice.finish_reason ?? finish;
      }
      said.scrollIntoView({ block: "nearest" });
    }
    const dropped = Number(response.headers.get("x-dropped-messages") ?? 0);
    turns = turns.slice(dropped);
    if (sum !== null && readAnswer(answer) !== null) {
      addNote(`that is ${readAnswer(answer)}`);
    }
    const isCut = finish === "length";
    const ends = isCut ? "Cut off at the number of tokens." : answer ? "" : "It ended at once.";
    const forgot = dropped > 0 ? `The oldest ${dropped} messages no longer fit.` : "";
    setStatus([ends, forgot].filter(Boolean).join(" "));
  } catch (error) {
    const isStopped = error.name === "AbortError";
    setStatus(isStopped ? "Stopped." : error.message, !isStopped);
  } finally {
    if (answer !== "") {
      // an empty turn is no turn
      turns.push({ role: "user", content: text }, { role: "assistant", content: answer });
    }
    writing = null;
    $("go").textContent = FACTS.chats ? "Ask" : "Go on";
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (writing) {
    writing.abort();
    return;
  }
  const text = $("question").value;
  if (text === "") {
    setStatus("The question is empty: type at least one character.", true);
    return;
  }
  $("question").value = "";
  ask(text);
});

$("forget").addEventListener("click", () => {
  turns = [];
  $("talk").replaceChildren();
  setStatus("");
});

function showTemperature() {
  $("temperature-now").textContent = Number($("temperature").value).toFixed(2);
}
$("temperature").addEventListener("input", showTemperature);
showTemperature();
$("address").textContent = new URL("v1", location.href).href;
