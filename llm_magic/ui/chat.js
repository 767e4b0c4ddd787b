// The page's side of a chat. Comes in: numbered messages {seq, ops} and, on request, a snapshot of
// everything ({to: this view}). Goes out: what the person asks for. HTML in "answer", "reasoning" and
// "edits" was made safe in Python; everything else is set as text. No network, no state of its own
// but the draft: a second view or a reloaded page shows the same.

const ICONS = {
  send: "M8 13.5V3M3.5 7.5 8 3l4.5 4.5",
  stop: "M4 4h8v8H4z",
};

const PROMPT = "Message";
// With Ctrl or Command these edit text; all other combinations belong to the front end.
const EDITING = new Set(
  "a c v x z y enter backspace delete arrowleft arrowright arrowup arrowdown home end control meta"
    .split(" "),
);
const HELLO_AGAIN = 1500; // ms until a silent kernel is mentioned

function node(tag, className, props = {}, children = []) {
  const el = document.createElement(tag);
  if (className) el.className = className;
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else if (key in el) el[key] = value;
    else el.setAttribute(key, value);
  }
  el.append(...children);
  return el;
}

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

// ------------------------------------------------------------------ one turn

class TurnView {
  constructor(turn) {
    this.id = turn.id;
    this.html = { answer: [], reasoning: [] };
    this.blocks = { answer: [], reasoning: [] };
    this.el = node("article", `llmc-turn llmc-${turn.role}`);
    this.el.dataset.id = turn.id;
    const who = turn.role === "user" ? "You said" : "The model said";
    this.el.append(node("h3", "llmc-hidden", { textContent: who }));
    if (turn.role === "user") this.user(turn);
    else this.assistant(turn);
  }

  user(turn) {
    this.el.append(node("div", "llmc-said", { textContent: turn.text }));
  }

  assistant(turn) {
    this.thoughts = node("div", "llmc-md");
    this.folded = node("details", "llmc-reasoning", { hidden: true }, [
      node("summary", "", { textContent: "Reasoning" }),
      this.thoughts,
    ]);
    this.answer = node("div", "llmc-md llmc-answer");
    this.foot = node("div", "llmc-foot");
    this.el.append(this.folded, this.answer, this.foot);
    for (const part of ["reasoning", "answer"]) {
      this.edit(part, turn[part].map((html, i) => [i, 0, html]));
    }
    this.busy(turn.busy);
    if (!turn.busy) this.done(turn);
  }

  // A screen reader is told of the answer when it is complete, not of every token.
  busy(on) {
    this.el.classList.toggle("llmc-writing", on);
    this.el.setAttribute("aria-busy", String(on));
  }

  edit(part, edits) {
    const home = part === "answer" ? this.answer : this.thoughts;
    for (const [at, keep, add] of edits) {
      const html = (this.html[part][at] ?? "").slice(0, keep) + add;
      this.html[part][at] = html;
      if (!this.blocks[part][at]) {
        this.blocks[part][at] = node("div", "llmc-block");
        home.append(this.blocks[part][at]);
      }
      this.blocks[part][at].innerHTML = html;
    }
    if (part === "reasoning" && edits.length) this.folded.hidden = false;
  }

  done({ foot, note, error }) {
    this.busy(false);
    this.foot.replaceChildren(
      ...foot.map((text) => node("span", "", { textContent: text })),
      ...(note ? [node("span", "llmc-note", { textContent: note })] : []),
      ...(error ? [node("span", "llmc-error", { textContent: error })] : []),
    );
  }
}

// ------------------------------------------------------------------ the view

class ChatView {
  constructor(model, el) {
    this.model = model;
    this.id = Math.random().toString(36).slice(2);
    this.seq = null; // number of the last message shown; null until the first snapshot
    this.turns = [];
    this.pending = new Map(); // nonce -> text that the kernel has not taken yet
    this.build(el);
    this.listen = (message) => this.receive(message);
    model.on("msg:custom", this.listen);
    this.showSaved();
    this.hello();
  }

  dispose() {
    this.model.off("msg:custom", this.listen);
    clearTimeout(this.timer);
  }

  // -------------------------------------------------------------- building

  build(el) {
    this.log = node("div", "llmc-log", { role: "log", tabIndex: 0, "aria-live": "polite" });
    this.log.setAttribute("aria-label", "Conversation");
    this.status = node("div", "llmc-status", { hidden: true });
    this.notice = node("div", "llmc-notice", { role: "alert", hidden: true });
    this.input = node("textarea", "llmc-input", {
      rows: 1, placeholder: PROMPT, "aria-label": PROMPT,
      oninput: () => this.grow(), onkeydown: (event) => this.key(event),
    });
    this.button = node("button", "llmc-send", { type: "button", onclick: () => this.press() });
    const form = node("div", "llmc-compose", {}, [this.input, this.button]);
    this.root = node("section", "llmc", { "aria-label": "Chat" }, [
      this.log, this.status, this.notice, form,
    ]);
    // JupyterLab would take Shift+Enter and single letters as notebook commands.
    this.root.setAttribute("data-lm-suppress-shortcuts", "true");
    this.setPhase({ name: "idle" });
    el.append(this.root);
  }

  setPhase(phase) {
    this.phase = phase;
    const busy = phase.name !== "idle";
    this.root.classList.toggle("llmc-busy", busy);
    this.button.replaceChildren(icon(busy ? "stop" : "send"));
    this.button.title = busy ? "Stop (Escape)" : "Send (Enter)";
    this.button.setAttribute("aria-label", busy ? "Stop" : "Send");
    this.status.hidden = !busy;
    const text = node("span", "", { textContent: phase.text ?? "" });
    const bar = node("progress", "", phase.total ? { max: phase.total, value: phase.done } : {});
    bar.setAttribute("aria-label", phase.text || "Progress");
    bar.hidden = ["decode", "idle"].includes(phase.name);
    this.status.replaceChildren(text, bar);
  }

  // What the notebook saved, as text, until a kernel answers.
  showSaved() {
    const state = this.model.get("state") ?? {};
    this.root.classList.add("llmc-saved");
    for (const [role, text, note] of Array.isArray(state.turns) ? state.turns : []) {
      const said = node("div", "llmc-said", { textContent: String(text) });
      const foot = node("div", "llmc-foot", { textContent: String(note ?? "") });
      const who = role === "user" ? "user" : "assistant";
      this.log.append(node("article", `llmc-turn llmc-${who}`, {}, [said, foot]));
    }
  }

  // -------------------------------------------------------------- talking to the kernel

  tell(message) {
    try {
      this.model.send(message);
      return true;
    } catch (error) {
      this.say(`No kernel: ${error.message ?? error}`);
      return false;
    }
  }

  hello() {
    this.tell({ t: "hello", view: this.id });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (this.seq === null) {
        this.say("The kernel does not answer: it is busy, or no longer the one of this chat. " +
          "Run the cell again to go on.");
      }
    }, HELLO_AGAIN);
  }

  press() {
    if (this.phase.name === "idle") this.send();
    else this.stop();
  }

  stop() {
    this.tell({ t: "stop" });
  }

  send() {
    const text = this.input.value;
    if (!text.trim() || this.phase.name !== "idle" || this.pending.size) return;
    const nonce = `${this.id}-${Date.now()}`;
    this.pending.set(nonce, text);
    // The text stays where it was typed until the kernel has taken it.
    this.root.classList.add("llmc-sending");
    this.say("");
    if (!this.tell({ t: "send", text, nonce })) this.answered(nonce);
  }

  answered(nonce) {
    const text = this.pending.get(nonce);
    this.pending.delete(nonce);
    this.root.classList.toggle("llmc-sending", this.pending.size > 0);
    return text;
  }

  key(event) {
    event.stopPropagation();
    if (!event.isTrusted) return;
    if ((event.ctrlKey || event.metaKey) && !EDITING.has(event.key.toLowerCase())) {
      this.forward(event);
      return;
    }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.send();
    } else if (event.key === "Escape" && this.phase.name !== "idle") {
      event.preventDefault();
      this.stop();
    }
  }

  // Saving and the like are the front end's, wherever the cursor is.
  forward(event) {
    const { key, code, keyCode, ctrlKey, metaKey, shiftKey, altKey } = event;
    const copy = { key, code, keyCode, ctrlKey, metaKey, shiftKey, altKey };
    const twin = new KeyboardEvent("keydown", { ...copy, bubbles: true, cancelable: true });
    if (!this.root.parentElement.dispatchEvent(twin)) event.preventDefault();
  }

  grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, 200)}px`;
  }

  draft(text) {
    // What was typed meanwhile is never lost.
    this.input.value = [text, this.input.value].filter((part) => part.trim()).join("\n");
    this.grow();
  }

  say(text) {
    this.notice.textContent = text;
    this.notice.hidden = !text;
  }

  // -------------------------------------------------------------- hearing from the kernel

  receive(message) {
    if (message.to !== undefined) {
      if (message.to !== this.id) return;
      this.say("");
      this.root.classList.remove("llmc-saved");
      this.root.setAttribute("aria-label", `Chat with ${message.model}`);
    } else if (this.seq === null || message.seq <= this.seq) {
      return; // the snapshot that was asked for has it
    } else if (message.seq !== this.seq + 1) {
      this.hello(); // one was missed
      return;
    }
    this.seq = message.seq;
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    const atEnd = scrollHeight - scrollTop - clientHeight < 48;
    for (const op of message.ops) this.apply(op);
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  apply(op) {
    const turn = this.turns.find((view) => view.id === op.id);
    switch (op.o) {
      case "path": return this.path(op.at, op.turns);
      case "tail": return turn?.edit(op.part, op.edits);
      case "done": return turn?.done(op);
      case "phase": return this.setPhase(op);
      case "notice": return this.say(op.text);
      case "draft": return this.draft(op.text);
      case "accepted": return this.accepted(op.nonce);
      case "refused":
        if (this.answered(op.nonce) !== undefined && op.why) this.say(op.why);
    }
  }

  accepted(nonce) {
    if (this.answered(nonce) === undefined) return;
    this.input.value = "";
    this.grow();
  }

  path(at, turns) {
    for (const view of this.turns.splice(at)) view.el.remove();
    if (at === 0) this.log.replaceChildren();
    for (const turn of turns) {
      const view = new TurnView(turn);
      this.turns.push(view);
      this.log.append(view.el);
    }
    this.log.scrollTop = this.log.scrollHeight;
  }
}

export default {
  render({ model, el }) {
    const view = new ChatView(model, el);
    return () => view.dispose();
  },
};
