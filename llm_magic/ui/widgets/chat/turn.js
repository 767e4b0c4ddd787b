// One turn on the page. HTML in "answer", "reasoning", "tools" and "edits" was made safe in Python;
// everything else is set as text.

import { node } from "../shared/dom.js";
import { legend, TokenInspector } from "../shared/inspector.js";
import { copyButton, iconButton, toNewCell } from "./parts.js";

export class TurnView {
  // tell(message): to the kernel. scale: the probabilities at which the shades of tokens begin.
  constructor(turn, tell, scale) {
    this.id = turn.id;
    this.scale = scale;
    this.note = turn.note ?? "";
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

  dispose() {
    this.inspector?.dispose();
    this.inspector = null;
  }

  remove() {
    this.dispose();
    this.el.remove();
  }

  // What is remembered of the turn when its kernel is gone; nothing of an answer without a word.
  saved() {
    if (!this.text) return null;
    return { role: this.role, content: this.text, ...(this.note ? { note: this.note } : {}) };
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
    this.text = turn.text ?? ""; // as it was written: Markdown
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

  // The kernel is gone, and the answer will not go on.
  cutOff(note) {
    if (!this.el.classList.contains("llmc-writing")) return;
    this.question?.remove();
    this.note = note;
    this.busy(false);
    this.foot.replaceChildren(node("span", "llmc-note", { textContent: note }));
  }

  edit(part, edits, text = "") {
    if (part === "answer") this.text += text;
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

  done({ foot, note, error, tokens, tools, more, text }) {
    this.text = text ?? this.text;
    this.note = note || error;
    this.busy(false);
    this.showCalls(tools);
    this.look.hidden = !tokens;
    this.foot.replaceChildren(
      ...foot.map((text) => node("span", "", { textContent: text })),
      ...(note ? [node("span", "llmc-note", { textContent: note })] : []),
      ...(error ? [node("span", "llmc-error", { textContent: error })] : []),
      ...(more ? [node("button", "llmc-link", {
        type: "button", textContent: "Continue", onclick: () => this.tell({ t: "continue", id: this.id }),
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
    if (!open) this.inspector?.card.hide();
    if (open && !this.tokens.firstChild) this.tell({ t: "tokens", id: this.id });
  }

  showTokens(rows) {
    this.dispose();
    const choose = (text, i, alternative) => this.tell({ t: "fork", id: this.id, at: i, alternative });
    this.inspector = new TokenInspector(this.tokens, 1, choose, () => "");
    const [text] = this.inspector.texts;
    this.tokens.replaceChildren(text.el, legend(this.scale), this.inspector.card.el);
    text.show("Tokens of the answer", rows, { common: 0, kinds: [] });
  }
}
