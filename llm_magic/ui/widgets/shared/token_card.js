// The card that tells about one token and offers the alternatives to go on from. All text is set as text.

import { node } from "./dom.js";
import { alone, facts, label, FORBIDDEN, LOGPROB, OPEN, OTHERS, PERCENT, TAKEN, TEXT } from "./tokens.js";

const WHAT = ["", "taken", "forbidden", "no id"];
const MARK = ["", "→", "✗", ""];

// The card beside a token. It is a popover, so that no output clips it; in a browser without
// popovers it stands below the text.
export class TokenCard {
  constructor(choose, leave) {
    this.choose = choose;
    this.leave = leave;
    this.floats = "showPopover" in HTMLElement.prototype;
    this.el = node("div", "lmt-card", { role: "group", hidden: true });
    if (this.floats) this.el.popover = "manual";
    this.el.addEventListener("click", (e) => this.click(e));
    this.el.addEventListener("keydown", (e) => this.key(e));
    this.i = -1;
  }

  get open() {
    return !this.el.hidden;
  }

  get buttons() {
    return [...this.el.querySelectorAll(".lmt-choice:not([aria-disabled])")];
  }

  // row: of the token at place i, drawn in `anchor`. why: nothing can be chosen now, because.
  show(i, row, anchor, why) {
    this.i = i;
    this.anchor = anchor;
    this.el.setAttribute("aria-label", `Token ${i}: ${label(row)}`);
    const head = node("div", "lmt-card-head", {}, [
      node("code", "lmt-name", { textContent: alone(row[TEXT]) }),
      node("strong", "", { textContent: row[PERCENT] || "?" }),
      node("span", "lmt-soft", { textContent: `token ${i}` }),
    ]);
    const parts = [head, node("div", "lmt-soft lmt-facts", { textContent: facts(row).join(" · ") })];
    if (row[FORBIDDEN]) {
      const textContent = `${row[FORBIDDEN]} of the probability was forbidden here`;
      parts.push(node("div", "lmt-masked", { textContent }));
    }
    parts.push(...this.list(row, why));
    this.said = node("div", "lmt-said", { role: "status" });
    this.el.replaceChildren(...parts, this.said);
    this.el.hidden = false;
    if (this.floats && !this.el.matches(":popover-open")) this.el.showPopover();
    this.place();
  }

  list(row, why) {
    let others = row[OTHERS];
    if (others === null) return [this.remark("The details of this token come from the kernel.")];
    if (!others.length) return [this.remark("No alternatives were recorded. To record them, ask with log-probabilities on (--logprobs 5).")];
    if (!others.some((other) => other[3] === TAKEN)) {
      const share = row[LOGPROB] === null ? 0 : 1000 * Math.exp(row[LOGPROB]);
      others = [...others, [alone(row[TEXT]), row[PERCENT], share, TAKEN]];
    }
    const items = others.map((other, k) => this.choice(other, k, why));
    const first = items.find((item) => !item.firstChild.hasAttribute("aria-disabled"));
    if (first) first.firstChild.tabIndex = 0;
    const rest = 1000 - others.reduce((sum, other) => sum + other[2], 0);
    const list = node("ul", "lmt-choices", { "aria-label": "Most likely tokens here; Enter continues from one" }, items);
    const known = row[FORBIDDEN] ? "" : `everything else ${(Math.max(rest, 0) / 10).toFixed(1)}%`;
    const hint = why || (first ? "Choose one to continue from it." : "");
    return [list, this.remark([known, hint].filter(Boolean).join(" · "))];
  }

  choice([text, percent, share, what], k, why) {
    const props = { "data-k": String(k), tabIndex: -1 };
    const can = what === OPEN && !why;
    if (!can) props["aria-disabled"] = "true";
    const bar = node("span", "lmt-bar");
    bar.style.setProperty("width", `${Math.max(1, share / 10)}%`);
    const names = ["", " lmt-taken", " lmt-banned", ""];
    const el = node("button", `lmt-choice${names[what]}`, { type: "button", ...props });
    el.append(
      bar,
      node("span", "lmt-mark", { textContent: MARK[what], "aria-hidden": "true" }),
      node("code", "", { textContent: text }),
      node("span", "lmt-soft", { textContent: WHAT[what] }),
      node("span", "lmt-share", { textContent: percent }),
    );
    return node("li", "", {}, [el]);
  }

  remark(textContent) {
    return node("div", "lmt-soft", { textContent });
  }

  say(text) {
    if (this.open && this.said) this.said.textContent = text;
    if (text) this.place();
  }

  // Below the token, or above it where there is no room; never over it.
  place() {
    if (!this.open || !this.floats || !this.anchor.isConnected) return;
    const at = this.anchor.getClientRects()[0];
    if (!at) return;
    const { offsetWidth: w, offsetHeight: h } = this.el;
    const x = Math.max(8, Math.min(at.left - 8, innerWidth - w - 8));
    const below = at.bottom + h + 10 <= innerHeight || at.top < h + 10;
    this.el.style.setProperty("left", `${x}px`);
    this.el.style.setProperty("top", `${below ? at.bottom + 3 : at.top - h - 3}px`);
  }

  hide() {
    if (!this.open) return;
    if (this.floats && this.el.matches(":popover-open")) this.el.hidePopover();
    this.el.hidden = true;
    this.i = -1;
  }

  enter() {
    const [first] = this.buttons;
    first?.focus();
    return Boolean(first);
  }

  click(e) {
    const el = e.target.closest(".lmt-choice");
    if (el && !el.hasAttribute("aria-disabled")) this.choose(this.i, Number(el.dataset.k));
  }

  key(e) {
    const all = this.buttons;
    const k = all.indexOf(e.target);
    if (e.key === "Escape" || e.key === "ArrowLeft" || (e.key === "ArrowUp" && k === 0)) this.leave();
    else if (e.key === "ArrowDown") all[Math.min(k + 1, all.length - 1)]?.focus();
    else if (e.key === "ArrowUp") all[k - 1]?.focus();
    else if (e.key === "Home") all[0]?.focus();
    else if (e.key === "End") all.at(-1)?.focus();
    else return;
    e.preventDefault();
  }
}
