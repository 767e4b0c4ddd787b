// The chat page of a server: messages go to /v1/chat/completions, the answer streams back.
// Everything that a person or the model wrote is shown as text, never as markup.

"use strict";

/** @typedef {{role: string, content: string}} Turn */

const token = decodeURIComponent(location.hash.slice(1));
/** @type {Turn[]} */
let turns = [];
/** @type {AbortController | null} */
let running = null;

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
const field = /** @type {HTMLTextAreaElement} */ (element("text"));
const stopButton = /** @type {HTMLButtonElement} */ (element("stop"));
const send = /** @type {HTMLButtonElement} */ (element("send"));

/** @returns {Record<string, string>} */
function headers() {
  const found = { "content-type": "application/json" };
  return token ? { ...found, authorization: `Bearer ${token}` } : found;
}

/** @param {string} who @param {string} text */
function show(who, text) {
  const box = document.createElement("div");
  const head = document.createElement("span");
  head.className = "who";
  head.textContent = who;
  const thinking = document.createElement("span");
  thinking.className = "thinking";
  const body = document.createElement("span");
  body.textContent = text;
  box.append(head, thinking, body);
  element("turns").append(box);
  return { box, thinking, body };
}

/**
 * The JSON objects of a stream of events.
 * @param {ReadableStream<Uint8Array>} stream
 */
async function* events(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    text += decoder.decode(value, { stream: !done });
    const lines = text.split("\n");
    text = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
    if (done) return;
  }
}

/** @param {string} text */
async function ask(text) {
  show("You", text);
  turns.push({ role: "user", content: text });
  const shown = show("Model", "");
  const control = new AbortController();
  running = control;
  send.disabled = true;
  stopButton.disabled = false;
  element("note").textContent = "";
  try {
    const body = JSON.stringify({ messages: turns, stream: true, temperature: 0.7 });
    const answer = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), body, signal: control.signal,
    });
    if (!answer.ok || !answer.body) throw new Error((await answer.json()).error.message);
    for await (const event of events(answer.body)) {
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices[0]?.delta ?? {};
      shown.thinking.textContent += delta.reasoning_content ?? "";
      shown.body.textContent += delta.content ?? "";
      if (event.choices[0]?.finish_reason === "length") note("cut off: the context is full");
    }
  } catch (error) {
    if (control.signal.aborted) note("stopped");
    else {
      shown.box.className = "failed";
      note(String(error instanceof Error ? error.message : error));
    }
  } finally {
    const content = shown.body.textContent ?? "";
    if (content) turns.push({ role: "assistant", content });
    else turns.pop(); // nothing was said: the next message is the first one again
    if (running === control) running = null;
    send.disabled = false;
    stopButton.disabled = true;
    field.focus();
  }
}

/** @param {string} text */
function note(text) {
  element("note").textContent = text;
}

element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = field.value.trim();
  if (!text || running) return;
  field.value = "";
  void ask(text);
});
field.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send.click();
});
stopButton.addEventListener("click", () => running?.abort());
element("clear").addEventListener("click", () => {
  running?.abort();
  turns = [];
  element("turns").replaceChildren();
  note("");
});
void fetch("/v1/models", { headers: headers() }).then(async (answer) => {
  const found = await answer.json();
  if (answer.ok) element("model").textContent = found.data[0].id;
  else note(found.error.message);
});
