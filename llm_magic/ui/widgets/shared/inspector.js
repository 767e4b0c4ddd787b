// Texts of tokens with the card that belongs to them: the one who looks at a token sees what is known of
// it, and may continue from another one.

import { node } from "./dom.js";
import { TokenCard } from "./token_card.js";
import { TokenText } from "./token_text.js";

export const HINT = "Point at a token, or Tab to the text and use the arrow keys; Enter opens its alternatives.";

// What the shades mean. floors: where the steps begin.
export function legend(floors, more = []) {
  const steps = floors.map((floor, i) =>
    node("span", `lmt-step lmt-p${i}`, { textContent: floor < 0 ? "less" : `${floor * 100}%` }));
  return node("div", "lmt-legend lmt-soft", {}, ["probability from ", ...steps,
    node("span", "lmt-hint", { textContent: HINT }), ...more]);
}

export class TokenInspector {
  // root: the element around all of it. count: of texts. choose(text, i, k): the person wants to continue
  // from alternative k of token i. why(): the reason why nobody can now, "" if one can.
  constructor(root, count, choose, why) {
    this.root = root;
    this.why = why;
    this.entering = false; // somebody wants into the card, which has nothing to choose yet
    this.card = new TokenCard((i, k) => choose(this.text, i, k), () => this.home());
    this.card.el.addEventListener("pointerleave", () => this.text?.later(() => this.text.leave(), 250));
    const hooks = {
      show: (text, i) => this.show(text, i),
      hide: () => this.card.hide(),
      over: () => this.card.el.matches(":hover") || this.card.el.contains(document.activeElement),
      enter: () => (this.entering = !this.card.enter()),
    };
    this.texts = Array.from({ length: count }, () => new TokenText(hooks));
    this.moved = () => this.follow();
    this.pressed = (e) => root.contains(e.target) || this.texts.forEach((text) => text.release());
    this.left = (e) => {
      if (e.relatedTarget && !root.contains(e.relatedTarget)) this.text?.release();
    };
    addEventListener("scroll", this.moved, { capture: true, passive: true });
    addEventListener("resize", this.moved, { passive: true });
    document.addEventListener("pointerdown", this.pressed, { capture: true, passive: true });
    root.addEventListener("focusout", this.left);
  }

  dispose() {
    removeEventListener("scroll", this.moved, { capture: true });
    removeEventListener("resize", this.moved);
    document.removeEventListener("pointerdown", this.pressed, { capture: true });
    this.root.removeEventListener("focusout", this.left);
    this.card.hide();
    this.texts.forEach((text) => text.dispose());
  }

  show(text, i) {
    const row = text.rows[i];
    if (!row) return;
    if (this.text && this.text !== text) this.text.pinned = false;
    this.text = text;
    this.entering = false;
    this.card.show(i, row, text.spans[i], this.why());
  }

  // From the card back to its token.
  home() {
    this.text?.go(this.card.i);
  }

  follow() {
    if (!this.card.open || this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      if (this.text?.pinned || this.card.el.contains(document.activeElement)) this.card.place();
      else this.card.hide();
    });
  }

  // Draw the texts anew; a card that is open says what is known now.
  redraw(draw) {
    const { open, i } = this.card;
    const focused = document.activeElement;
    const inside = this.card.el.contains(focused) || (this.entering && focused === this.text?.spans[i]);
    draw();
    if (open && this.text.rows[i]) this.show(this.text, i);
    if (inside) this.entering = !this.card.enter();
  }
}
