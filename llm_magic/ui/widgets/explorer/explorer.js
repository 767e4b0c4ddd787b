// The page of the explorer: a reply and its branches, token by token. It shows the settled state (a trait)
// until the kernel answers. All text is set as text, nothing is fetched, and a second view of the same
// reply shows the same.

import { node } from "../shared/dom.js";
import { legend, TokenInspector } from "../shared/inspector.js";
import { UpdatableOutput } from "../shared/updatable_output.js";
import { forward, keepKeys } from "../shared/keys.js";
import { memory } from "../shared/memory.js";
import { Connection } from "../shared/protocol.js";
import { common } from "../shared/tokens.js";
import { BranchSettings } from "./settings.js";

const SILENT = "The kernel does not answer: it may be busy or restarted. What was saved is shown. " +
  "If the kernel was restarted, run this cell again.";
const GONE = "The kernel of this view is gone. To continue from here, run this cell again.";
const KEEP = 1500; // ms of quiet until the page asks for what it remembers of the reply
// What the last views of each cell showed, so that a view in a new kernel can go on from it.
const replies = memory("replies");

class Explorer {
  constructor(model, el) {
    this.model = model;
    this.views = []; // {title, parent, at, facts, kinds, own, rows}
    this.shown = 0;
    this.beside = null; // the view on the left, when two are compared
    this.busy = false;
    this.gone = false; // the kernel is: nothing can be asked of it
    this.place = null; // the notebook's cell around this view
    this.which = ""; // which of the views of this cell it is
    this.saved = null; // the reply itself, for a view in a new kernel
    this.line = new Connection(model, {
      apply: (op) => this.apply(op),
      begin: () => this.begin(),
      silent: () => this.say(SILENT),
      heard: () => this.status.textContent === SILENT && this.say(""),
      gone: () => this.lose(),
    });
    this.id = this.line.id;
    this.kept = new UpdatableOutput(model, () => this.send({ t: "output", page: this.id }));
    this.build(el);
    this.showSaved();
    this.line.open();
  }

  dispose() {
    if (this.gone && this.saved && this.place) replies.set(this.place, this.which, this.saved);
    this.line.close();
    clearTimeout(this.keeping);
    this.kept.dispose();
    this.inspector.dispose();
  }

  // -------------------------------------------------------------- building

  build(el) {
    this.root = node("section", "lmx", { "aria-label": "Tokens of a reply" });
    this.inspector = new TokenInspector(this.root, 2, (text, i, k) => this.choose(text, i, k), () =>
      this.gone ? GONE : this.busy ? "A branch is being written." : "");
    this.card = this.inspector.card;
    this.panes = this.inspector.texts;
    this.panes[0].el.hidden = true;
    this.tabs = node("div", "lmx-tabs", { role: "tablist", "aria-label": "Answer and branches" });
    this.tabs.addEventListener("keydown", (e) => this.tabKey(e));
    this.pair = button("lmx-button", "Side by side", () => this.toggle(), { "aria-pressed": "false" });
    this.left = node("select", "lmx-select", {
      "aria-label": "Compare with", onchange: () => this.compare(Number(this.left.value)),
    });
    this.progress = node("span", "lmx-soft lmx-progress");
    this.meter = node("progress", "lmx-meter", { max: 1, "aria-label": "Branch", hidden: true });
    this.settings = new BranchSettings(this.id, (name, value) => this.send({ t: "set", name, value }));
    this.hiding = this.kept.hiding; // hides the static copy, which says the same
    this.form = button("lmx-button lmx-form", "Show saved copy", () => this.toggleForm(), {
      "aria-pressed": "false", hidden: true, title: "The copy in the notebook file, which needs no kernel",
    });
    this.again = button("lmx-button lmx-again", "", () => this.resume(), { hidden: true });
    this.stop = button("lmx-button lmx-stop", "Stop", () => this.send({ t: "stop" }));
    this.bar = node("div", "lmx-head", {}, [
      this.tabs, this.pair, this.meter, this.progress, this.stop,
    ]);
    this.panes[0].title.append(this.left);
    this.status = node("div", "lmx-status lmx-soft", { role: "status" });
    this.root.append(
      this.bar, node("div", "lmx-panes", {}, this.panes.map((pane) => pane.el)),
      legend(this.model.get("scale") ?? [], [this.form]), this.settings.el, this.status, this.again,
      this.card.el, this.hiding,
    );
    keepKeys(this.root);
    this.root.addEventListener("keydown", (e) => this.key(e));
    el.append(this.root);
  }

  // -------------------------------------------------------------- data

  // What the notebook saved: texts and shades, until a kernel answers.
  showSaved() {
    const state = this.model.get("state") ?? {};
    if (state.v !== 1 && state.v !== 2) {
      this.say("This view was saved by another version of llm_magic. Run this cell again.");
      return;
    }
    this.root.setAttribute("aria-label", `Tokens of a reply of ${state.model}`);
    this.views = state.views.map(([title, parent, at, texts, shades]) => ({
      title, parent, at, facts: [], kinds: [], rows: null,
      own: texts.map((text, i) => [text, "", Number(shades[i]), null, null, null, null, 0, null]),
    }));
    this.draw();
  }

  // All rows of a view: the first ones are those of the view that it left.
  rowsOf(i) {
    const view = this.views[i];
    if (!view.rows) {
      view.rows = view.parent === null ? [] : this.rowsOf(view.parent).slice(0, view.at);
      view.rows.push(...view.own);
    }
    return view.rows;
  }

  take(i, from, rows) {
    const view = this.views[i];
    if (!view || view.own.length < from) return this.line.hello(); // something was missed
    const drawn = view.rows !== null && view.own.length === from;
    view.own.splice(from, rows.length, ...rows);
    if (drawn) view.rows.push(...rows);
    else view.rows = null;
    return undefined;
  }

  heads(op) {
    const old = this.views;
    this.busy = op.busy;
    this.views = op.views.map(([title, parent, at, facts, kinds, count], i) => {
      const own = old[i]?.title === title && old[i].at === at ? old[i].own : [];
      const rows = own.length === count ? old[i].rows : null;
      return { title, parent, at, facts, kinds: shownKinds(kinds), own: own.slice(0, count), rows };
    });
    this.shown = Math.min(this.shown, this.views.length - 1);
    if (this.beside !== null && this.beside >= this.views.length) this.beside = 0;
  }

  // -------------------------------------------------------------- drawing

  draw() {
    this.drawTabs();
    const two = this.beside !== null;
    this.panes[0].el.hidden = !two;
    this.root.classList.toggle("lmx-two", two);
    this.pair.setAttribute("aria-pressed", String(two));
    const shared = two ? common(this.rowsOf(this.beside), this.rowsOf(this.shown)) : this.views[this.shown]?.at ?? 0;
    if (two) this.fill(this.panes[0], this.beside, shared);
    this.fill(this.panes[1], this.shown, shared);
    this.panes[1].title.textContent = two ? this.titleOf(this.shown) : "";
    if (two) {
      const options = this.views.map((_, i) =>
        node("option", "", { value: String(i), textContent: this.titleOf(i), disabled: i === this.shown }));
      this.left.replaceChildren(...options);
      this.left.value = String(this.beside);
    }
  }

  fill(pane, i, shared) {
    const view = this.views[i];
    if (!view) return;
    pane.view = i;
    pane.show(this.titleOf(i), this.rowsOf(i), { view: i, common: shared, kinds: view.kinds });
    const none = "This reply has no recorded tokens.";
    pane.foot.textContent = pane.rows.length ? view.facts.join(" · ") : none;
  }

  titleOf(i) {
    const { title, parent } = this.views[i];
    return parent ? `${title} ↳ ${this.views[parent].title}` : title;
  }

  drawTabs() {
    const focused = this.tabs.contains(document.activeElement);
    const several = this.views.length > 1;
    this.tabs.replaceChildren(...(several ? this.views : []).map((_, i) =>
      button("lmx-tab", this.titleOf(i), () => this.select(i), {
        role: "tab", "aria-selected": String(i === this.shown), tabIndex: i === this.shown ? 0 : -1,
      })));
    if (focused) this.tabs.children[this.shown]?.focus();
    this.pair.hidden = !several;
    this.stop.hidden = !this.busy;
    this.progress.hidden = !this.busy;
    if (!this.busy) this.meter.hidden = true;
    this.bar.hidden = !several && !this.busy;
    this.tabs.classList.toggle("lmx-writing", this.busy);
  }

  select(i) {
    this.shown = i;
    if (this.beside === i) this.beside = this.views[i].parent ?? (i ? 0 : this.views.length - 1);
    this.card.hide();
    this.draw();
  }

  toggle() {
    const other = this.views[this.shown].parent ?? this.views.length - 1;
    this.compare(this.beside === null ? other : null);
  }

  compare(i) {
    this.beside = i;
    this.card.hide();
    this.draw();
  }

  // -------------------------------------------------------------- the saved copy

  toggleForm() {
    const shown = this.form.getAttribute("aria-pressed") !== "true";
    this.form.setAttribute("aria-pressed", String(shown));
    this.hiding.media = shown ? "not all" : "";
  }

  // -------------------------------------------------------------- one token

  choose(pane, i, k) {
    this.send({ t: "branch", page: this.id, view: pane.view, at: i, alternative: k + 1 });
  }

  // -------------------------------------------------------------- keys

  key(e) {
    if (!e.isTrusted) return;
    e.stopPropagation();
    const combined = (e.ctrlKey || e.metaKey) && !["c", "a", "Control", "Meta"].includes(e.key);
    if (combined && !e.defaultPrevented) forward(this.root, e);
  }

  tabKey(e) {
    const n = this.views.length;
    const to = {
      ArrowRight: (this.shown + 1) % n, ArrowLeft: (this.shown + n - 1) % n, Home: 0, End: n - 1,
    }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    this.select(to);
    this.tabs.children[to]?.focus();
  }

  // -------------------------------------------------------------- the kernel

  send(message) {
    this.line.send(message, true);
  }

  lose() {
    this.gone = true;
    this.busy = false;
    this.progress.textContent = "";
    this.settings.el.hidden = true;
    this.redraw();
    this.say(GONE, true);
  }

  // What is remembered of the cell's last view, whose kernel is gone.
  remember() {
    const earlier = replies.get(this.place, this.which);
    this.again.hidden = !earlier;
    if (!earlier) return;
    const n = (earlier.tokens ?? []).length;
    const branches = (earlier.branches ?? []).length;
    const more = branches ? `, ${branches} branch${branches === 1 ? "" : "es"}` : "";
    this.again.textContent = `Continue with the earlier reply (${n} tokens${more})`;
  }

  resume() {
    this.send({ t: "load", data: replies.get(this.place, this.which) });
    replies.set(this.place, this.which, undefined);
    this.again.hidden = true;
  }

  // When it is quiet: a kernel that is gone cannot be asked any more.
  keep() {
    clearTimeout(this.keeping);
    this.keeping = setTimeout(() => this.busy || this.send({ t: "keep", page: this.id }), KEEP);
  }

  begin() {
    this.gone = false;
    this.place ??= this.root.closest(".jp-Cell") ?? this.root; // only now is the view in the page
    if (this.status.textContent === GONE) this.say("");
  }

  apply(op) {
    switch (op.o) {
      case "views": return this.heads(op);
      case "rows": return this.added(op);
      case "ready": return this.ready();
      case "settings": return this.settings.show(op);
      case "kept": this.form.hidden = false; return this.kept.told(op);
      case "place": this.which = op.key; return undefined;
      case "output": return this.kept.renew(op);
      case "saved": this.saved = op.data; return undefined;
      case "open": return this.opened(op);
      case "busy": return this.started(op);
      case "live": return this.counted(op);
      case "note": return this.say(op.text);
      case "end": return this.ended(op);
    }
    return undefined;
  }

  added(op) {
    this.take(op.view, op.from, op.rows);
    for (const pane of this.panes) {
      if (!pane.el.hidden && pane.view === op.view && pane.rows === this.views[op.view]?.rows) pane.grow();
    }
  }

  opened({ view, by, head, rows }) {
    const [title, parent, at, facts, kinds] = head;
    this.busy = true;
    this.views[view] = { title, parent, at, facts, kinds: shownKinds(kinds), own: rows, rows: null };
    const mine = by === this.id;
    if (!mine) {
      this.drawTabs();
      return;
    }
    this.panes.forEach((pane) => pane.release());
    if (this.beside !== null) this.beside = parent;
    this.shown = view;
    this.draw();
    // The one who chose goes on reading where the branch begins.
    this.reach(at);
  }

  reach(i) {
    const pane = this.panes[1];
    if (pane.spans[i]) pane.go(i, true);
    else if (pane.rows[i]) setTimeout(() => this.reach(i), 20);
  }

  ready() {
    this.redraw();
    this.remember();
    this.keep();
  }

  started({ text, share }) {
    this.busy = true;
    this.progress.textContent = text;
    this.meter.hidden = false;
    this.meter.setAttribute("aria-label", text);
    if (share === null) this.meter.removeAttribute("value");
    else this.meter.value = share;
    this.drawTabs();
  }

  counted({ n, tps }) {
    this.meter.hidden = true;
    const speed = tps ? ` · ${tps.toFixed(tps < 10 ? 1 : 0)} tok/s` : "";
    this.progress.textContent = `${n} token${n === 1 ? "" : "s"}${speed}`;
  }

  ended({ text, fault }) {
    this.busy = false;
    this.progress.textContent = "";
    this.redraw();
    this.say(text, fault);
    this.keep();
  }

  redraw() {
    this.inspector.redraw(() => this.draw());
  }

  say(text, fault = false) {
    this.status.textContent = text;
    this.status.classList.toggle("lmx-fault", fault);
    this.card.say(text);
  }
}

// Kinds are not shown where all tokens belong to the answer.
function shownKinds(kinds) {
  return kinds.length < 2 && (!kinds[0] || kinds[0][0] === "answer") ? [] : kinds;
}

function button(className, textContent, onclick, props = {}) {
  return node("button", className, { type: "button", textContent, onclick, ...props });
}

export default {
  render({ model, el }) {
    const explorer = new Explorer(model, el);
    return () => explorer.dispose();
  },
};
