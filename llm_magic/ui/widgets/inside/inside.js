// The page of a live view of a model's inside. All that it shows is in the state.

/** @typedef {{get: (name: string) => any}} Model */

/**
 * An element with attributes and children.
 * @param {string} tag
 * @param {Record<string, string>} attributes
 * @param {(Node | string)[]} children
 */
function make(tag, attributes = {}, children = []) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** @param {number} p */
function percent(p) {
  return p < 0.0005 ? "<.1%" : p < 0.0995 ? `${(100 * p).toFixed(1)}%` : `${Math.round(100 * p)}%`;
}

/**
 * Shade an element by an amount from -1 to 1.
 * @param {HTMLElement} element
 * @param {number} value
 * @param {any[]} scale
 */
function shade(element, value, scale) {
  const step = scale[0].filter((/** @type {number} */ floor) => Math.abs(value) >= floor).length;
  const [back, text] = scale[value < 0 ? 2 : 1][step];
  element.style.backgroundColor = back;
  element.style.color = text;
}

/**
 * Let elements be chosen by pointer and by keyboard; arrow keys move between them.
 * @param {HTMLElement[]} elements
 * @param {(index: number) => void} choose
 * @param {number} across how many stand in a row
 */
function choosable(elements, choose, across = 1) {
  elements.forEach((element, index) => {
    element.tabIndex = index ? -1 : 0;
    element.addEventListener("focus", () => choose(index));
    element.addEventListener("mouseenter", () => choose(index));
    element.addEventListener("click", () => element.focus());
    element.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across };
      const step = /** @type {Record<string, number>} */ (steps)[event.key];
      if (!step || !elements[index + step]) return;
      event.preventDefault();
      event.stopPropagation();
      element.tabIndex = -1;
      elements[index + step].tabIndex = 0;
      elements[index + step].focus();
    });
  });
}

/**
 * @param {string} title
 * @param {string[]} names
 * @param {number} chosen
 */
function select(title, names, chosen) {
  const box = /** @type {HTMLSelectElement} */ (make("select"));
  names.forEach((name, i) => box.append(make("option", { value: String(i) }, [name])));
  box.selectedIndex = chosen;
  return { box, label: make("label", {}, [`${title} `, box]) };
}

/** @param {any} state @param {any[]} scale */
function lens(state, scale) {
  const card = make("div", { class: "lm-card", "aria-live": "polite" });
  const table = make("table", {}, [
    make("tr", {}, [make("th"), ...state.tokens.map((/** @type {string} */ t) => make("th", {}, [t]))]),
  ]);
  /** @type {HTMLElement[]} */
  const cells = [];
  const places = /** @type {number[][]} */ ([]);
  for (let row = state.layers.length - 1; row >= 0; row--) {
    const line = make("tr", {}, [make("th", {}, [String(state.layers[row])])]);
    state.tokens.forEach((/** @type {string} */ _, /** @type {number} */ column) => {
      const cell = make("td", {}, [state.names[state.ids[row][column][0]]]);
      shade(cell, state.shade[row][column], scale);
      cells.push(cell);
      places.push([row, column]);
      line.append(cell);
    });
    table.append(line);
  }
  choosable(cells, (index) => {
    const [row, column] = places[index];
    const rows = state.ids[row][column].map((/** @type {number} */ id, /** @type {number} */ rank) =>
      make("tr", {}, [
        make("td", {}, [state.names[id]]),
        make("td", {}, [percent(state.p[row][column][rank])]),
      ]));
    card.replaceChildren(`block ${state.layers[row]}, behind ${state.tokens[column]}`, make("table", {}, rows));
  }, state.tokens.length);
  return [make("div", { class: "lm-scroll" }, [table]), card];
}

/** @param {any} state @param {any[]} scale */
function attention(state, scale) {
  const n = state.tokens.length;
  const blocks = select("block", Array.from({ length: state.layers }, (_, i) => String(i)), state.layers >> 1);
  const heads = select("head", ["mean", ...Array.from({ length: state.heads }, (_, i) => String(i))], 0);
  const card = make("div", { class: "lm-card", "aria-live": "polite" });
  const spans = state.tokens.map((/** @type {string} */ t) => make("span", {}, [t]));
  let token = n - 1;
  /** @type {Record<number, Uint8Array>} */
  const decoded = {};
  const draw = () => {
    const block = blocks.box.selectedIndex;
    decoded[block] ??= Uint8Array.from(atob(state.patterns[block]), (c) => c.charCodeAt(0));
    const chosen = heads.box.selectedIndex - 1;
    const list = chosen < 0 ? Array.from({ length: state.heads }, (_, i) => i) : [chosen];
    const weights = state.tokens.map((/** @type {string} */ _, /** @type {number} */ i) =>
      list.reduce((sum, h) => sum + decoded[block][(h * n + token) * n + i], 0) / (255 * list.length));
    const most = Math.max(...weights, 1e-6);
    spans.forEach((/** @type {HTMLElement} */ span, /** @type {number} */ i) => {
      shade(span, weights[i] / most, scale);
      span.title = percent(weights[i]);
      span.classList.toggle("lm-chosen", i === token);
    });
    const best = weights.map((/** @type {number} */ w, /** @type {number} */ i) => [w, i])
      .sort((/** @type {number[]} */ a, /** @type {number[]} */ b) => b[0] - a[0]).slice(0, 3);
    card.replaceChildren(`“${state.tokens[token]}” looks at ` + best.map(
      (/** @type {number[]} */ [w, i]) => `“${state.tokens[i]}” ${percent(w)}`).join(", "));
  };
  choosable(spans, (index) => { token = index; draw(); });
  blocks.box.addEventListener("change", draw);
  heads.box.addEventListener("change", draw);
  draw();
  return [make("div", {}, [blocks.label, heads.label]), make("div", { class: "lm-flow" }, spans), card];
}

/** @param {any} state @param {any[]} scale */
function causes(state, scale) {
  const most = Math.max(...state.effects.map(Math.abs), 1e-6);
  const card = make("div", { class: "lm-card", "aria-live": "polite" });
  /** @type {HTMLElement[]} */
  const parts = [];
  const flow = state.pieces.map((/** @type {[string, number | null]} */ [text, part]) => {
    const span = make("span", {}, [text]);
    if (part !== null) {
      shade(span, state.effects[part] / most, scale);
      parts.push(span);
    }
    return span;
  });
  choosable(parts, (i) => {
    const effect = state.effects[i];
    const without = (state.logprob - effect).toFixed(2);
    const sign = effect < 0 ? "" : "+";
    card.replaceChildren(
      `${sign}${effect.toFixed(3)} nats: without this part the answer has ${without} nats, with it ` +
      `${state.logprob.toFixed(2)}`);
  });
  return [make("div", { class: "lm-flow" }, flow), card];
}

/** @param {any} state */
function strengths(state) {
  const zero = state.scales.reduce((/** @type {number} */ best, /** @type {number} */ s, /** @type {number} */ i) =>
    (Math.abs(s) < Math.abs(state.scales[best]) ? i : best), 0);
  const slider = /** @type {HTMLInputElement} */ (make("input", {
    type: "range", min: "0", max: String(state.scales.length - 1), value: String(zero), step: "1",
  }));
  const shown = make("output");
  const answers = state.answers.map((/** @type {string} */ text, /** @type {number} */ i) =>
    make("div", {}, [make("strong", {}, [`${state.scales[i]}\n`]), text]));
  const draw = () => {
    const at = Number(slider.value);
    shown.textContent = ` ${state.scales[at]}`;
    answers.forEach((/** @type {HTMLElement} */ a, /** @type {number} */ i) => {
      a.classList.toggle("lm-chosen", i === at);
      a.style.display = Math.abs(i - at) <= 1 ? "" : "none";
    });
  };
  slider.addEventListener("input", draw);
  draw();
  return [
    make("div", {}, [make("strong", {}, [state.prompt])]),
    make("label", {}, ["strength ", slider, shown]),
    make("div", { class: "lm-answers" }, answers),
  ];
}

const VIEWS = /** @type {Record<string, (state: any, scale: any[]) => Node[]>} */ ({
  lens, attention, causes, strengths,
});

export default {
  /** @param {{model: Model, el: HTMLElement}} page */
  render({ model, el }) {
    const state = model.get("state");
    el.classList.add("lm-inside");
    el.replaceChildren(...VIEWS[state.kind](state, model.get("scale")));
  },
};
