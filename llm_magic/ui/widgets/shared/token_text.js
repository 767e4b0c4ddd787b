// Tokens as text in which one can move: by keys, by the pointer, and with a selection that can be copied.
// A long text is drawn in portions, so that the page stays awake; one listener serves all tokens.

import { node } from "./dom.js";
import { endsLine, joined, label, pieces, same, FLAGS, FORCED, SHADE, TEXT, TRIMMED } from "./tokens.js";

const PORTION = 250; // tokens drawn at once
const OPEN_AFTER = 90; // ms that the pointer rests on a token before its card opens
const CLOSE_AFTER = 250; // ms to reach the card

export class TokenText {
  // hooks: show(pane, i), hide(), over(): is the pointer or the focus in the card?
  constructor(hooks) {
    this.hooks = hooks;
    this.spans = [];
    this.rows = [];
    this.at = 0; // the token that Tab reaches
    this.pinned = false; // the card stays with this token
    this.view = 0; // whose tokens these are, for who uses it
    this.title = node("div", "lmt-title");
    this.list = node("div", "lmt-text", { role: "listbox" });
    this.foot = node("div", "lmt-soft lmt-foot");
    this.el = node("div", "lmt-pane", {}, [this.title, this.list, this.foot]);
    const on = (kind, handler) => this.list.addEventListener(kind, handler);
    on("pointerover", (e) => this.over(e));
    on("pointerleave", () => this.later(() => this.leave(), CLOSE_AFTER));
    on("focusin", (e) => this.focused(e));
    on("pointerdown", () => (this.pressing = true));
    on("click", (e) => this.click(e));
    on("keydown", (e) => this.key(e));
    on("copy", (e) => this.copy(e));
  }

  dispose() {
    clearTimeout(this.timer);
    clearTimeout(this.drawing);
  }

  // -------------------------------------------------------------- drawing

  // rows is kept, not copied: what is added to it later is drawn by `grow`.
  show(name, rows, look) {
    this.list.setAttribute("aria-label", name);
    this.look = look;
    this.rows = rows;
    const same = this.spans.length && this.shownLook === JSON.stringify(look) &&
      this.spans.length <= rows.length && this.spans.every((span, i) => this.isOf(span, rows[i]));
    if (!same) this.clear();
    else this.spans.forEach((span, i) => span.setAttribute("aria-label", label(rows[i])));
    this.shownLook = JSON.stringify(look);
    this.at = Math.min(this.at, Math.max(0, rows.length - 1));
    this.grow();
  }

  clear() {
    clearTimeout(this.drawing);
    this.drawing = null;
    this.spans = [];
    this.line = null;
    this.kind = null;
    this.group = this.list;
    this.list.replaceChildren();
    this.pinned = false;
  }

  isOf(span, row) {
    return same(span.content, row[TEXT]) && span.shade === row[SHADE];
  }

  grow() {
    if (this.drawing) return;
    this.portion();
  }

  portion() {
    this.drawing = null;
    const end = Math.min(this.rows.length, this.spans.length + PORTION);
    for (let i = this.spans.length; i < end; i++) this.draw(i);
    if (end < this.rows.length) this.drawing = setTimeout(() => this.portion(), 0);
    else this.list.setAttribute("aria-busy", "false");
  }

  draw(i) {
    const row = this.rows[i];
    const { common, kinds } = this.look;
    this.enterKind(kindAt(kinds, i));
    if (!this.line) {
      this.line = node("div", "lmt-line", { role: "presentation", dir: "auto" });
      this.group.append(this.line);
    }
    const span = node("span", "lmt-token", {}, drawn(row[TEXT]));
    span.content = row[TEXT];
    if (i < common) span.classList.add("lmt-common");
    else span.classList.add(`lmt-p${row[SHADE]}`);
    if (common && i === common) span.classList.add("lmt-parts");
    if (row[FLAGS] & FORCED) span.classList.add("lmt-given");
    if (row[FLAGS] & TRIMMED) span.classList.add("lmt-trimmed");
    span.setAttribute("role", "option");
    span.setAttribute("aria-selected", "false");
    span.setAttribute("aria-label", label(row));
    span.tabIndex = i === this.at ? 0 : -1;
    span.i = i;
    span.shade = row[SHADE];
    this.spans.push(span);
    this.line.append(span);
    // A line that has ended is a block of its own: what comes later does not lay it out again.
    if (endsLine(row[TEXT])) this.line = null;
  }

  enterKind(kind) {
    if (kind === this.kind || !kind) return;
    this.kind = kind;
    this.line = null;
    this.group = node("div", "lmt-kind", { role: "group", "aria-label": kind, "data-kind": kind });
    this.list.append(this.group);
  }

  // -------------------------------------------------------------- which token is meant

  mark(i) {
    const old = this.spans[this.at];
    if (i !== this.at) this.pressed = null;
    if (old) {
      old.tabIndex = -1;
      old.setAttribute("aria-selected", "false");
    }
    this.at = i;
    const span = this.spans[i];
    span.tabIndex = 0;
    span.setAttribute("aria-selected", "true");
    return span;
  }

  // Go to a token; quietly: without its card.
  go(i, quiet = false) {
    if (!this.spans[i]) return;
    const span = this.mark(i);
    this.quiet = quiet;
    this.pinned = !quiet;
    if (document.activeElement === span) this.focused({ target: span });
    else span.focus({ preventScroll: true });
    span.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.quiet = false;
  }

  release() {
    this.pinned = false;
    clearTimeout(this.timer);
    this.hooks.hide();
  }

  later(action, ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(action, ms);
  }

  over(e) {
    const i = e.target.i;
    if (i === undefined || this.pinned) return;
    this.later(() => this.hooks.over() || this.hooks.show(this, i), OPEN_AFTER);
  }

  leave() {
    if (!this.pinned && !this.hooks.over()) this.hooks.hide();
  }

  focused(e) {
    const i = e.target.i;
    // The focus that a press brings is not yet a click: it may begin a selection of text.
    if (i === undefined || this.quiet || this.pressing) return;
    if (i !== this.at) this.mark(i);
    this.pinned = true;
    clearTimeout(this.timer);
    this.hooks.show(this, i);
  }

  click(e) {
    const i = e.target.i;
    this.pressing = false;
    if (i === undefined || !getSelection().isCollapsed) return;
    if (this.pressed === i && this.pinned) {
      this.pressed = null;
      this.release();
      return;
    }
    this.pressed = i;
    this.go(i);
  }

  // -------------------------------------------------------------- copying

  // What is copied is what the model wrote, without marks and with its line ends.
  copy(e) {
    const selection = getSelection();
    if (selection.isCollapsed) return;
    const range = selection.getRangeAt(0);
    const parts = this.spans.filter((span) => range.intersectsNode(span)).map((span) => part(range, span));
    e.clipboardData.setData("text/plain", joined(parts));
    e.preventDefault();
  }

  // -------------------------------------------------------------- keys

  key(e) {
    this.pressing = false;
    if (e.target.i === undefined || e.altKey || e.metaKey) return;
    const i = this.at;
    const last = this.spans.length - 1;
    const moves = {
      ArrowRight: () => Math.min(i + 1, last),
      ArrowLeft: () => Math.max(i - 1, 0),
      ArrowDown: () => this.vertical(i, 1),
      ArrowUp: () => this.vertical(i, -1),
      Home: () => (e.ctrlKey ? 0 : this.edge(i, -1)),
      End: () => (e.ctrlKey ? last : this.edge(i, 1)),
    };
    if (e.key in moves && (!e.ctrlKey || e.key === "Home" || e.key === "End")) this.go(moves[e.key]());
    else if (e.key === "Enter" || e.key === " ") {
      if (!this.pinned) this.go(i);
      this.hooks.enter();
    } else if (e.key === "Escape") this.release();
    else return;
    e.preventDefault();
  }

  top(i) {
    return this.spans[i].getClientRects()[0]?.top ?? 0;
  }

  // The last token of the visual line in that direction.
  edge(i, step) {
    const top = this.top(i);
    let k = i;
    while (this.spans[k + step] && Math.abs(this.top(k + step) - top) < 4) k += step;
    return k;
  }

  // The token of the next visual line that is nearest.
  vertical(i, step) {
    const start = this.edge(i, step) + step;
    if (!this.spans[start]) return i;
    const middle = (k) => {
      const box = this.spans[k].getClientRects()[0];
      return box ? (box.left + box.right) / 2 : 0;
    };
    const x = middle(i);
    const stop = this.edge(start, step) + step;
    let best = start;
    for (let k = start; k !== stop; k += step) {
      if (Math.abs(middle(k) - x) < Math.abs(middle(best) - x)) best = k;
    }
    return best;
  }
}

// The line break at a token's end is made by the line.
function drawn(content) {
  const found = pieces(content);
  return found.flatMap(({ text = "", mark }, i) => {
    const last = i === found.length - 1 && text === "\n";
    return [...(mark ? [node("i", "lmt-sign", { "data-mark": mark })] : []), last ? "" : text];
  }).filter((part) => part !== "");
}

function kindAt(runs, i) {
  let end = 0;
  for (const [kind, count] of runs) {
    end += count;
    if (i < end) return kind;
  }
  return runs.at(-1)?.[0] ?? "";
}

// The part of a token that is selected. A mark alone cannot be cut.
function part(range, span) {
  const inner = document.createRange();
  inner.selectNodeContents(span);
  if (range.comparePoint(span, 0) < 0) inner.setStart(range.startContainer, range.startOffset);
  if (range.comparePoint(span, span.childNodes.length) > 0) inner.setEnd(range.endContainer, range.endOffset);
  const text = inner.toString();
  return text === span.textContent ? span.content : text;
}
