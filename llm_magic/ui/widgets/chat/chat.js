// The page of a chat. It keeps no state of its own but the draft: a second view or a reloaded page shows
// the same. No network.

import { UpdatableOutput } from "../shared/updatable_output.js";
import { forward, keepKeys } from "../shared/keys.js";
import { memory } from "../shared/memory.js";
import { node } from "../shared/dom.js";
import { Connection, PATIENCE } from "../shared/protocol.js";
import { Ledger, Meter, Settings, Spark } from "./panels.js";
import { icon, iconButton } from "./parts.js";
import { TRANSCRIPT, Transcript } from "./transcript.js";
import { TurnView } from "./turn.js";

const TAKING = 4 * PATIENCE; // ms that the kernel has to take a message
const MAX_FILE = 20_000_000;
// With Ctrl or Command these edit text; all other combinations belong to the front end.
const EDITING = new Set(
  "a c v x z y enter backspace delete arrowleft arrowright arrowup arrowdown home end control meta"
    .split(" "),
);
const SILENT = "The kernel does not answer: it may be busy or restarted. If it was restarted, run this " +
  "cell again.";
const GONE = "The kernel of this chat is gone. To continue the conversation, run this cell again.";
const LOST = "interrupted: the kernel stopped"; // phases.py knows it, too
// What the last chats of each cell said, so that a chat in a new kernel can go on from it.
const remembered = memory("chats");

class ChatView {
  constructor(model, el) {
    this.model = model;
    this.turns = [];
    this.place = null; // the notebook's cell around this view
    this.which = ""; // which of the chats of this cell it is
    this.pending = null; // {nonce, text} that the kernel has not taken yet
    this.tell = this.tell.bind(this);
    this.form = model.get("form") ?? {};
    this.line = new Connection(model, {
      apply: (op) => this.apply(op),
      begin: (first) => this.begin(first),
      start: () => (this.stay = this.atEnd()),
      end: () => this.end(),
      silent: () => this.say(SILENT),
      heard: () => this.notice.firstChild?.textContent === SILENT && this.say(""),
      gone: () => this.lose(),
    });
    this.id = this.line.id;
    this.kept = new UpdatableOutput(model, () => this.tell({ t: "transcript", page: this.id }));
    this.transcript = new Transcript();
    this.build(el);
    this.showName(String((model.get("state") ?? {}).model ?? "a model"));
    this.showEmpty();
    this.line.open();
  }

  dispose() {
    if (this.place) this.remember();
    this.line.close();
    this.kept.dispose();
    clearTimeout(this.reaching);
    this.turns.forEach((turn) => turn.dispose());
  }

  // -------------------------------------------------------------- building

  build(el) {
    this.log = node("div", "llmc-log", {
      role: "log", tabIndex: 0, "aria-live": "polite", "aria-label": "Conversation",
      onscroll: () => this.seeEnd(),
    });
    this.toEnd = iconButton("down", "To the end", () => this.scrollToEnd(), "llmc-to-end");
    this.toEnd.hidden = true;
    this.empty = node("div", "llmc-empty");
    this.notice = node("div", "llmc-notice", { role: "alert", hidden: true });
    // There from the start, so that what comes into it is read out.
    this.earlier = node("div", "llmc-earlier", { "aria-live": "polite" });
    this.settings = new Settings(this.form, this.id, this.tell);
    this.ledger = new Ledger(this.id);
    this.root = node("section", "llmc", { "aria-label": "Chat" }, [
      this.head(), this.settings.el, this.ledger.el,
      node("div", "llmc-middle", {}, [this.empty, this.log, this.toEnd]),
      this.notice, this.earlier, this.composer(), this.kept.hiding,
    ]);
    keepKeys(this.root);
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.showIdle();
    el.append(this.root);
  }

  head() {
    this.name = node("span", "llmc-name");
    this.doing = node("span", "llmc-doing", { role: "status" });
    this.amount = node("span", "llmc-amount", { "aria-hidden": "true" }); // the bar says it, too
    this.meter = new Meter();
    this.spark = new Spark();
    const change = (t) => () => this.tell({ t });
    this.gear = iconButton("gear", "Settings", () => this.toggleSettings());
    this.gear.setAttribute("aria-expanded", "false");
    this.gear.setAttribute("aria-controls", `${this.id}-settings`);
    this.stats = iconButton("stats", "Ledger of this notebook", () => this.toggleLedger());
    this.stats.setAttribute("aria-expanded", "false");
    this.stats.setAttribute("aria-controls", `${this.id}-ledger`);
    this.tools = node("div", "llmc-tools", { role: "toolbar", "aria-label": "Chat actions" }, [
      iconButton("undo", "Undo the last turn", change("undo")),
      iconButton("clear", "Clear the conversation", change("clear")),
      iconButton("save", "Save the conversation", () => {
        this.wantsFile = true;
        this.tell({ t: "save" });
      }),
      iconButton("load", "Load a conversation", () => this.file.click()),
      this.stats, this.gear,
    ]);
    this.file = node("input", "", {
      type: "file", accept: ".json,.ipynb", hidden: true, onchange: () => this.loadFile(),
    });
    this.bar = node("progress", "llmc-progress", { "aria-label": "Progress", hidden: true });
    return node("header", "llmc-head", {}, [
      this.name, this.doing, this.amount, this.spark.el, this.meter.el, this.tools, this.file, this.bar,
    ]);
  }

  composer() {
    this.input = node("textarea", "llmc-input", {
      rows: 1, placeholder: "Ask something", "aria-label": "Message", oninput: () => this.grow(),
    });
    this.input.title = "Enter sends, Shift+Enter begins a new line, Escape stops the answer";
    this.button = node("button", "llmc-send", { type: "button", onclick: () => this.press() });
    return node("div", "llmc-compose", {}, [this.input, this.button]);
  }

  toggleSettings() {
    const open = this.settings.el.hidden;
    this.settings.el.hidden = !open;
    this.gear.setAttribute("aria-expanded", String(open));
    if (open) this.settings.el.querySelector("input, textarea, select")?.focus();
  }

  toggleLedger() {
    const open = this.ledger.el.hidden;
    this.ledger.el.hidden = !open;
    this.stats.setAttribute("aria-expanded", String(open));
    if (open) this.tell({ t: "ledger" });
  }

  // Close the panel that the focus is in, and go back to its button. False where it is in none.
  closePanel(at) {
    const panels = [[this.gear, this.settings.el], [this.stats, this.ledger.el]];
    const [button] = panels.find(([button, el]) => !el.hidden && (el.contains(at) || at === button)) ?? [];
    button?.click();
    button?.focus();
    return Boolean(button);
  }

  showName(name) {
    this.name.textContent = name;
    this.name.title = name;
    this.root.setAttribute("aria-label", `Chat with ${name}`);
    this.input.placeholder = `Ask ${name}`;
  }

  // -------------------------------------------------------------- what is going on

  showPhase(phase) {
    this.phase = phase;
    const busy = phase.name !== "idle";
    if (phase.name === "start") this.spark.start();
    this.root.classList.toggle("llmc-busy", busy);
    const label = busy ? "Stop" : "Send";
    if (this.button.getAttribute("aria-label") !== label) {
      this.button.replaceChildren(icon(busy ? "stop" : "send"));
      this.button.title = busy ? "Stop (Escape)" : "Send (Enter)";
      this.button.setAttribute("aria-label", label);
    }
    if (this.doing.textContent !== phase.text) this.doing.textContent = phase.text;
    this.bar.hidden = !busy || ["decode", "reason", "ask"].includes(phase.name);
    this.bar.removeAttribute("value");
    if (phase.total) Object.assign(this.bar, { max: phase.total, value: phase.done });
    this.bar.setAttribute("aria-label", phase.text || "Progress");
    const amount = this.bar.hidden ? "" : phase.amount ?? "";
    if (amount) this.bar.setAttribute("aria-valuetext", amount);
    else this.bar.removeAttribute("aria-valuetext");
    this.amount.textContent = amount;
    this.showEmpty();
  }

  showIdle() {
    this.showPhase({ name: "idle", text: "", done: 0, total: 0 });
  }

  showEmpty() {
    const nothing = this.turns.length === 0 && !this.log.firstChild;
    this.log.hidden = nothing;
    this.empty.hidden = !nothing;
    this.earlier.hidden = !nothing; // while the first answer is being written, too
    for (const tool of [...this.tools.children].slice(0, 3)) {
      tool.disabled = nothing || this.phase.name !== "idle";
    }
    if (!nothing || this.empty.firstChild || this.line.seq === null) return;
    const chips = (this.form.suggestions ?? []).map((text) => node("button", "llmc-chip", {
      type: "button", textContent: text, onclick: () => this.suggest(text),
    }));
    this.empty.append(...chips);
  }

  suggest(text) {
    this.input.value = text;
    this.grow();
    this.input.focus();
  }

  remember() {
    const turns = this.turns.map((turn) => turn.saved()).filter(Boolean);
    let draft = this.input.value;
    // A question without an answer goes back to where it was typed.
    if (turns.at(-1)?.role === "user") draft = [turns.pop().content, draft].filter(Boolean).join("\n");
    const before = this.offered ? remembered.get(this.place, this.which) : undefined;
    const found = turns.length || (draft && !this.offered) ? { turns, draft }
      : this.offered ? { ...before, draft } : undefined;
    remembered.set(this.place, this.which, found);
  }

  // A chat in a new kernel is told what this cell's last one said: the kernel may know it from the
  // saved notebook, or not.
  recall() {
    const { turns, draft } = remembered.get(this.place, this.which) ?? {};
    if (this.turns.length) return;
    if (draft) this.draft(draft);
    if (turns?.length) this.tell({ t: "remembered", turns });
  }

  // One line above the input, as long as nothing else was said.
  offer({ n, model, at }) {
    this.offered = n > 0;
    const day = at && !Number.isNaN(Date.parse(at)) &&
      new Date(at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    const source = [model, day].filter(Boolean).join(", ");
    const text = `This notebook holds an earlier conversation of ${n} turn${n === 1 ? "" : "s"}` +
      `${source && ` (${source})`}.`;
    const button = (textContent, t, className) => node("button", `llmc-button ${className}`, {
      type: "button", textContent, onclick: () => {
        this.tell({ t });
        this.input.focus(); // the button goes
      },
    });
    this.earlier.replaceChildren(...(n ? [
      node("span", "", { textContent: text }),
      node("div", "llmc-choice", {}, [
        button("Resume", "resume", "llmc-primary"), button("Start anew", "start anew", ""),
      ]),
    ] : []));
    this.showEmpty();
  }

  say(text, action = "") {
    this.notice.hidden = !text;
    this.notice.replaceChildren(text);
    if (!text) return;
    if (action === "restore") {
      const undo = () => {
        this.tell({ t: "restore" });
        this.say("");
      };
      this.notice.append(node("button", "llmc-button", {
        type: "button", textContent: "Undo", onclick: undo,
      }));
    }
    this.notice.classList.toggle("llmc-fault", action !== "restore");
    this.notice.append(iconButton("close", "Dismiss", () => this.say("")));
  }

  // -------------------------------------------------------------- talking to the kernel

  tell(message) {
    return this.line.send(message);
  }

  lose() {
    this.showIdle();
    for (const turn of this.turns) turn.cutOff(LOST);
    this.say(GONE);
  }

  press() {
    if (this.phase.name === "idle") this.send();
    else this.tell({ t: "stop" });
  }

  send() {
    const text = this.input.value;
    if (!text.trim() || this.phase.name !== "idle" || this.pending) return;
    // The text stays where it was typed until the kernel has taken it.
    this.pending = { nonce: `${this.id}-${Date.now()}`, text };
    this.root.classList.add("llmc-sending");
    this.say("");
    if (!this.tell({ t: "send", ...this.pending })) this.answered(this.pending.nonce);
    const { nonce } = this.pending ?? {};
    setTimeout(() => {
      if (nonce && this.pending?.nonce === nonce && this.answered(nonce)) {
        this.say(SILENT);
        this.line.hello();
      }
    }, TAKING);
  }

  answered(nonce) {
    if (this.pending?.nonce !== nonce) return false;
    this.pending = null;
    this.root.classList.remove("llmc-sending");
    return true;
  }

  key(event) {
    if (!event.isTrusted) return;
    event.stopPropagation();
    const combined = event.ctrlKey || event.metaKey;
    if (combined && !EDITING.has(event.key.toLowerCase())) forward(this.root, event);
    else if (event.key === "Escape" && this.closePanel(event.target)) event.preventDefault();
    else if (event.key === "Escape" && this.phase.name !== "idle") this.tell({ t: "stop" });
    else if (event.target === this.input) this.inputKey(event);
    else if (this.tools.contains(event.target)) this.toolKey(event);
  }

  inputKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.send();
    } else if (event.key === "ArrowUp" && !this.input.value && this.phase.name === "idle") {
      const last = this.turns.findLast((turn) => turn.role === "user");
      if (last) event.preventDefault();
      last?.startEditing();
    }
  }

  toolKey(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const tools = [...this.tools.querySelectorAll("button:not(:disabled)")];
    tools.at((tools.indexOf(document.activeElement) + by) % tools.length)?.focus();
  }

  grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, 200)}px`;
  }

  draft(text) {
    // What was typed meanwhile is never lost.
    this.input.value = [text, this.input.value].filter((part) => part.trim()).join("\n");
    this.grow();
  }

  // -------------------------------------------------------------- files

  async loadFile() {
    const [file] = this.file.files;
    this.file.value = "";
    if (!file) return;
    try {
      if (file.size > MAX_FILE) throw new Error("it is larger than 20 MB");
      const data = JSON.parse(await file.text());
      const outputs = (data.cells ?? []).flatMap((cell) => cell.outputs ?? []);
      const found = outputs.map((output) => output.data?.[TRANSCRIPT]).filter(Boolean);
      if (data.nbformat && !found.length) throw new Error("it holds no saved chat");
      this.tell({ t: "load", data: found.at(-1) ?? data });
    } catch (error) {
      this.say(`${file.name} cannot be loaded: ${error.message ?? error}`);
    }
  }

  offerFile(data) {
    if (!this.wantsFile) return; // another view asked
    this.wantsFile = false;
    const blob = new Blob([JSON.stringify(data, null, 1)], { type: "application/json" });
    const href = URL.createObjectURL(blob);
    node("a", "", { href, download: "chat.json" }).click();
    setTimeout(() => URL.revokeObjectURL(href), 10_000);
  }

  // -------------------------------------------------------------- hearing from the kernel

  begin(first) {
    this.transcript = new Transcript(); // what was missed may have changed it
    this.keepsIt = false;
    this.place = this.root.closest(".jp-Cell") ?? this.root; // only now is the view in the page
    if (first || this.notice.firstChild?.textContent === GONE) this.say("");
    if (first) setTimeout(() => this.recall());
  }

  end() {
    if (this.stay) this.scrollToEnd();
    this.seeEnd();
  }

  apply(op) {
    const turn = this.turns.find((view) => view.id === op.id);
    switch (op.o) {
      case "path": return this.path(op.at, op.turns);
      case "tail": return turn?.edit(op.part, op.edits, op.text);
      case "done": this.spark.rest(op.tps); return turn?.done(op);
      case "tools": return turn?.showCalls(op.html);
      case "tokens": return turn?.showTokens(op.rows);
      case "ask": return turn?.ask(op);
      case "asked": return this.turns.forEach((view) => view.asked(op.call));
      case "live": this.ledger.live(this.name.textContent, op); return this.spark.add(op.tps);
      case "ledger": return this.ledger.show(op);
      case "context": return this.meter.show(op);
      case "phase": return this.showPhase(op);
      case "settings": this.showName(op.model); return this.settings.show(op);
      case "kept": return this.keeps(op);
      case "transcript": return this.keep(op);
      case "notice": return this.say(op.text, op.action);
      case "draft": return this.draft(op.text);
      case "file": return this.offerFile(op.data);
      case "place": this.which = op.key; return undefined;
      case "offer": return this.offer(op);
      case "accepted": return this.accepted(op.nonce);
      case "refused":
        if (this.answered(op.nonce) && op.why) this.say(op.why);
    }
  }

  // What the notebook file keeps of the chat. A page that can reach it puts in what changed; otherwise the
  // kernel sends the whole of it each time.
  keeps(op) {
    this.kept.told(op);
    clearTimeout(this.reaching);
    this.reaching = setTimeout(() => this.reach(op.display), PATIENCE / 4); // the output comes after the view
  }

  reach(display) {
    if (this.keepsIt || !this.kept.reaches(display)) return;
    this.keepsIt = true;
    this.tell({ t: "keeps" });
  }

  keep(op) {
    if (!this.transcript.take(op)) {
      this.tell({ t: "transcript", page: this.id }); // rows before it are missing
      return;
    }
    this.kept.told(op);
    this.reach(op.display);
    const { display, revision, metadata } = op;
    this.kept.renew({ display, revision, metadata, data: this.transcript.bundle() });
  }

  accepted(nonce) {
    if (!this.answered(nonce)) return;
    this.input.value = "";
    this.grow();
  }

  path(at, turns) {
    for (const view of this.turns.splice(at)) view.remove();
    if (at === 0) this.log.replaceChildren();
    for (const turn of turns) {
      const view = new TurnView(turn, this.tell, this.form.scale ?? []);
      this.turns.push(view);
      this.log.append(view.el);
    }
    this.showEmpty();
    this.scrollToEnd();
  }

  atEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    return scrollHeight - scrollTop - clientHeight < 48;
  }

  seeEnd() {
    this.toEnd.hidden = this.log.hidden || this.atEnd();
  }

  scrollToEnd() {
    this.log.scrollTop = this.log.scrollHeight;
    this.toEnd.hidden = true;
  }
}

export default {
  render({ model, el }) {
    const view = new ChatView(model, el);
    return () => view.dispose();
  },
};
