// One turn on the page. Comes in: its picture, and changes to it. Goes out: what the person wants
// done with it, through `tell`. HTML in "answer", "reasoning", "tools" and "edits" was made safe in
// Python; everything else is set as text.

import { node } from "../shared/dom.js";
import { iconButton, copyButton, toNewCell } from "./parts.js";

// Probability from which a token is shaded less; the same steps as in a cell's heat map (a test says so).
const FLOORS = [0.9, 0.5, 0.2, 0.05, 0.01];

export class TurnView {
  constructor(turn, tell) {
    this.id = turn.id;
    this.role = turn.role;
    this.tell = tell;
    this.html = { answer: [], reasoning: [] };
    this.blocks = { answer: [], reasoning: [] };
    this.el = node("article", `llmc-turn llmc-${turn.role}`);
    this.el.dataset.id = turn.id;
    const who = turn.role === "user" ? "You said" : "The model said";
    this.el.append(node("h3", "llmc-hidden", { textContent: who }));
    this.actions = node("div", "llmc-actions");
    if (turn.role === "user") this.user(turn);
    else this.assistant(turn);
    if (turn.branch) this.branches(turn.branch);
  }

  branches([index, count]) {
    const step = (by, name, label) => {
      const go = () => this.tell({ t: "branch", id: this.id, index: index + by });
      const button = iconButton(name, label, go);
      button.disabled = index + by < 0 || index + by >= count;
      return button;
    };
    const where = node("span", "llmc-count", { textContent: `${index + 1}/${count}` });
    this.actions.prepend(step(-1, "left", "Earlier version"), where,
      step(1, "right", "Later version"));
  }

  // -------------------------------------------------------------- what a person said

  user(turn) {
    this.text = turn.text;
    this.said = node("div", "llmc-said", { textContent: turn.text });
    this.actions.append(iconButton("edit", "Edit and send again", () => this.startEditing()),
      copyButton("Copy", () => this.text));
    this.el.append(this.said, this.actions);
  }

  startEditing() {
    if (this.editor) return;
    const input = node("textarea", "llmc-input", {
      value: this.text, rows: Math.min(8, this.text.split("\n").length + 1),
      "aria-label": "Edit the message",
      onkeydown: (event) => {
        if (event.key === "Escape") this.stopEditing();
        else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send();
        else return;
        event.preventDefault();
        event.stopPropagation();
      },
    });
    const send = () => {
      if (input.value.trim()) this.tell({ t: "edit", id: this.id, text: input.value, nonce: "" });
    };
    const buttons = node("div", "llmc-row", {}, [
      node("button", "llmc-button llmc-primary", { type: "button", textContent: "Send", onclick: send }),
      node("button", "llmc-button", {
        type: "button", textContent: "Cancel", onclick: () => this.stopEditing(),
      }),
    ]);
    this.editor = node("div", "llmc-editor", {}, [input, buttons]);
    this.said.replaceWith(this.editor);
    this.actions.hidden = true;
    input.focus();
    input.setSelectionRange(input.value.length, input.value.length);
  }

  stopEditing() {
    this.editor?.replaceWith(this.said);
    this.editor = null;
    this.actions.hidden = false;
    this.actions.querySelector("button:not(:disabled)")?.focus();
  }

  // -------------------------------------------------------------- what the model said

  assistant(turn) {
    this.thoughts = node("div", "llmc-md");
    this.folded = node("details", "llmc-reasoning", { hidden: true }, [
      node("summary", "", { textContent: "Reasoning" }), this.thoughts,
    ]);
    this.calls = node("div", "llmc-calls");
    this.answer = node("div", "llmc-md llmc-answer");
    this.tokens = node("div", "llmc-tokens", { hidden: true });
    this.foot = node("div", "llmc-foot");
    this.actions.append(
      copyButton("Copy", () => this.answer.innerText.trim()),
      iconButton("again", "Answer again", () => this.tell({ t: "regenerate", id: this.id })),
    );
    this.look = iconButton("tokens", "Show the tokens", () => this.toggleTokens());
    this.look.setAttribute("aria-expanded", "false");
    this.look.hidden = true;
    this.actions.append(this.look);
    const line = node("div", "llmc-line", {}, [this.foot, this.actions]);
    this.el.append(this.folded, this.calls, this.answer, this.tokens, line);
    for (const part of ["reasoning", "answer"]) {
      this.edit(part, turn[part].map((html, i) => [i, 0, html]));
    }
    this.showCalls(turn.tools);
    this.busy(turn.busy);
    if (!turn.busy) this.done(turn);
  }

  // A screen reader is told of the answer when it is complete, not of every token.
  busy(on) {
    this.el.classList.toggle("llmc-writing", on);
    this.el.setAttribute("aria-busy", String(on));
    this.actions.hidden = on;
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
      this.dress(this.blocks[part][at]);
    }
    if (part === "reasoning" && edits.length) this.folded.hidden = false;
  }

  dress(block) {
    for (const pre of block.querySelectorAll("pre")) {
      const frame = node("div", "llmc-code");
      pre.replaceWith(frame);
      pre.tabIndex = 0; // a wide block must be scrollable by keyboard
      frame.append(pre, node("div", "llmc-corner", {}, [
        iconButton("cell", "Put into a new cell", () => toNewCell(this.el, pre.textContent)),
        copyButton("Copy the code", () => pre.textContent),
      ]));
    }
    for (const link of block.querySelectorAll("a[href]")) link.target = "_blank";
  }

  showCalls(html) {
    this.calls.innerHTML = html ?? "";
  }

  done({ foot, note, error, tokens, tools, more }) {
    this.busy(false);
    this.showCalls(tools);
    this.look.hidden = !tokens;
    this.foot.replaceChildren(
      ...foot.map((text) => node("span", "", { textContent: text })),
      ...(note ? [node("span", "llmc-note", { textContent: note })] : []),
      ...(error ? [node("span", "llmc-error", { textContent: error })] : []),
      ...(more ? [node("button", "llmc-link", {
        type: "button", textContent: "Go on", onclick: () => this.tell({ t: "go on", id: this.id }),
      })] : []),
    );
  }

  // -------------------------------------------------------------- a call that waits for a person

  ask({ call, name, arguments: shown }) {
    const input = node("textarea", "llmc-input llmc-json", {
      value: shown, rows: Math.min(10, shown.split("\n").length), spellcheck: false,
      "aria-label": `Arguments for ${name}, as JSON`,
    });
    const answer = (yes) => {
      this.tell({ t: "verdict", call, yes, ...(yes ? { arguments: input.value } : {}) });
    };
    const button = (text, yes, className = "") => node("button", `llmc-button ${className}`, {
      type: "button", textContent: text, onclick: () => answer(yes),
    });
    this.question?.remove();
    this.question = node("div", "llmc-ask", { role: "group", "aria-label": `Call of ${name}` }, [
      node("p", "", {}, ["The model wants to call ", node("code", "", { textContent: name }),
        " with these arguments:"]),
      input,
      node("div", "llmc-row", {}, [button("Allow", true, "llmc-primary"), button("Refuse", false)]),
    ]);
    this.question.dataset.call = call;
    this.calls.after(this.question);
  }

  asked(call) {
    if (this.question?.dataset.call === call) this.question.remove();
  }

  // -------------------------------------------------------------- its tokens

  toggleTokens() {
    const open = this.tokens.hidden;
    this.tokens.hidden = !open;
    this.answer.hidden = open;
    this.look.setAttribute("aria-expanded", String(open));
    this.look.title = open ? "Show the text" : "Show the tokens";
    this.look.setAttribute("aria-label", this.look.title);
    if (open && !this.tokens.firstChild) this.tell({ t: "tokens", id: this.id });
  }

  showTokens(rows) {
    const detail = node("div", "llmc-detail", {}, [
      "Arrow keys or the mouse choose a token; another word beside it continues from there.",
    ]);
    const parts = rows.map((row, i) => this.chip(row, () => this.showOne(detail, row, i)));
    const chips = parts.map(([chip]) => chip);
    const flow = node("div", "llmc-flow", { role: "group", "aria-label": "Tokens of the answer" },
      parts.flat());
    if (chips.length) chips[0].tabIndex = 0;
    flow.addEventListener("keydown", (event) => this.walk(event, chips));
    const steps = FLOORS.map((floor, i) => step(i, `${floor * 100}%`));
    const legend = node("div", "llmc-legend", {}, ["probability from ", ...steps, step(FLOORS.length, "less")]);
    this.tokens.replaceChildren(flow, legend, detail);
  }

  // A token as a button. What of it stands behind a line break is on the next line, as in the text; a
  // button cannot be cut in two, so this is a part of its own that leads to the button.
  chip([text, percent, , , , , level], show) {
    const visible = text.replace(/\n/g, "⏎\n").replace(/\t/g, "⇥\t")
      .replace(/ {2,}/g, (blanks) => "·".repeat(blanks.length)) || "∅";
    const [first, ...rest] = visible.split("\n");
    const chip = node("button", `llmc-token llmc-p${level}`, {
      type: "button", tabIndex: -1, textContent: first, onfocus: show, onmouseenter: show,
      "aria-label": `${text.trim() || "blank"}, ${percent}`,
    });
    const more = (textContent) => node("span", `llmc-more llmc-p${level}`, {
      textContent, "aria-hidden": "true", onmouseenter: show, onclick: () => chip.focus(),
    });
    return [chip, ...rest.flatMap((part) => [node("br"), ...(part ? [more(part)] : [])])];
  }

  walk(event, chips) {
    const at = chips.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: chips.length - 1 }[event.key];
    if (to === undefined || !chips[to]) return;
    event.preventDefault();
    if (at >= 0) chips[at].tabIndex = -1;
    chips[to].tabIndex = 0;
    chips[to].focus();
  }

  showOne(detail, [text, percent, rank, top, bits, forbidden], i) {
    const others = top.map(([other, share, allowed], n) => node("button", `llmc-alternative${allowed ? "" : " llmc-banned"}`, {
      type: "button", disabled: !allowed || other === text,
      title: allowed ? "Continue from here with this" : "Not allowed by the constraint",
      onclick: () => this.tell({ t: "fork", id: this.id, at: i, alternative: n }),
    }, [
      node("span", "llmc-word", { textContent: `${allowed ? "" : "✗ "}${JSON.stringify(other).slice(1, -1) || "∅"}` }),
      node("span", "llmc-share", { textContent: share }),
    ]));
    const facts = [percent];
    if (rank !== null) facts.push(`rank ${rank}`);
    if (bits !== null) facts.push(`entropy ≥ ${bits.toFixed(2)} bits`);
    if (forbidden) facts.push(`${forbidden} forbidden by the constraint`);
    detail.replaceChildren(
      node("span", "", { textContent: `token ${i + 1}: ` }),
      node("code", "", { textContent: JSON.stringify(text) }),
      node("span", "", { textContent: ` ${facts.join(", ")}` }),
      node("div", "llmc-row", {}, others),
    );
  }
}

function step(level, textContent) {
  return node("span", `llmc-step llmc-p${level}`, { textContent });
}
