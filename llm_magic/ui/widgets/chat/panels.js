// The panels of a chat: its settings, how full the context is, the ledger, and the line of speeds.

import { node } from "../shared/dom.js";
import { drawing, iconButton } from "./parts.js";

const POINTS = 60; // of the line; older ones are merged

// ------------------------------------------------------------------ settings

export class Settings {
  constructor(form, id, tell) {
    this.tell = tell;
    this.fields = new Map();
    this.id = id;
    const rows = (more) => (form.settings ?? []).filter((setting) => Boolean(setting.more) === more)
      .map((setting) => this.field(setting, form.models ?? []));
    const common = rows(false);
    const others = node("details", "llmc-more llmc-wide", {}, [
      node("summary", "", { textContent: "More settings" }), node("div", "llmc-fields", {}, rows(true)),
    ]);
    this.el = node("div", "llmc-settings", {
      id: `${id}-settings`, role: "region", "aria-label": "Settings", hidden: true,
    }, [...common, others]);
  }

  field(setting, models) {
    const { name, kind, label, help } = setting;
    const input = this.input(setting);
    const id = `${this.id}-${name}`;
    input.id = id;
    input.setAttribute("aria-describedby", `${id}-help`);
    const set = (value) => {
      input.value = value ?? "";
      this.tell({ t: "set", name, value });
    };
    input.addEventListener("change", () => this.tell({ t: "set", name, value: read(input, kind) }));
    const reset = iconButton("close", `${label}: back to the default`, () => {
      set(null);
      input.focus();
    }, "llmc-reset");
    const box = node("div", "llmc-box", {}, [input, reset]);
    const head = node("label", "", { htmlFor: id, textContent: label });
    let toggle = null;
    if (setting.switch !== null) {
      toggle = node("input", "", {
        type: "checkbox", id: `${id}-on`, onchange: () => set(toggle.checked ? setting.switch : null),
      });
      toggle.setAttribute("aria-describedby", `${id}-help`);
      input.setAttribute("aria-label", setting.what);
      head.htmlFor = toggle.id;
      head.prepend(toggle);
    }
    const note = node("div", "llmc-help", { id: `${id}-help`, textContent: help });
    if (name === "model") {
      const list = node("datalist", "", { id: `${id}-list` }, models.map((value) =>
        node("option", "", { value })));
      input.setAttribute("list", list.id);
      box.append(list);
    }
    const wide = kind === "text" ? " llmc-wide" : "";
    const row = node("div", `llmc-field${wide}`, {}, [head, box, note]);
    this.fields.set(name, { input, reset, note, row, help, toggle });
    return row;
  }

  input({ name, kind, default: byDefault, low, high }) {
    if (name === "system") return node("textarea", "llmc-input", { rows: 2, placeholder: byDefault });
    if (kind === "flag") {
      const option = (value, textContent) => node("option", "", { value, textContent });
      return node("select", "llmc-input", {}, [
        option("", byDefault), option("true", "on"), option("false", "off"),
      ]);
    }
    const props = { placeholder: byDefault, type: kind === "text" ? "text" : "number" };
    if (kind !== "text") Object.assign(props, { step: kind === "integer" ? 1 : "any" });
    if (low !== null) props.min = low;
    if (high !== null) props.max = high;
    return node("input", "llmc-input", props);
  }

  show({ values, name, error }) {
    for (const [key, { input, row, note, help, reset, toggle }] of this.fields) {
      const value = values[key] ?? null;
      const wrong = key === name && error;
      if (!wrong && document.activeElement !== input) input.value = value === null ? "" : String(value);
      row.classList.toggle("llmc-set", value !== null);
      reset.hidden = value === null;
      if (toggle) toggle.checked = value !== null;
      row.classList.toggle("llmc-wrong", Boolean(wrong));
      input.setAttribute("aria-invalid", String(Boolean(wrong)));
      note.textContent = wrong || help;
    }
  }
}

function read(input, kind) {
  if (input.value === "") return null;
  return kind === "flag" ? input.value === "true" : input.value;
}

// ------------------------------------------------------------------ context

export class Meter {
  constructor() {
    this.fill = node("span", "llmc-fill");
    this.text = node("span", "llmc-percent");
    this.el = node("div", "llmc-meter", { role: "meter", hidden: true, "aria-valuemin": 0 }, [
      node("span", "llmc-track", {}, [this.fill]), this.text,
    ]);
    this.el.setAttribute("aria-label", "Context used");
  }

  show({ used, size }) {
    const share = Math.min(1, used / size);
    this.el.hidden = false;
    this.el.title = `${used} of ${size} tokens of context`;
    this.el.setAttribute("aria-valuemax", size);
    this.el.setAttribute("aria-valuenow", Math.min(used, size));
    this.el.setAttribute("aria-valuetext", this.el.title);
    this.el.classList.toggle("llmc-full", share > 0.85);
    this.fill.style.width = `${Math.max(4, share * 100)}%`;
    this.text.textContent = `${Math.round(share * 100)}%`;
  }
}

// ------------------------------------------------------------------ the notebook's ledger

// A table of what every cell and chat took. The answer that is being written has a row of its own.
export class Ledger {
  constructor(id) {
    this.head = node("tr");
    this.body = node("tbody");
    this.now = null;
    this.el = node("div", "llmc-ledger", {
      id: `${id}-ledger`, role: "region", tabIndex: 0, "aria-label": "Ledger of this notebook", hidden: true,
    }, [node("table", "", {}, [node("thead", "", {}, [this.head]), this.body])]);
  }

  show({ head, rows }) {
    this.now = null;
    this.head.replaceChildren(...head.map((text) => node("th", "", { scope: "col", textContent: text })));
    this.body.replaceChildren(...rows.map((row) => this.row(row)));
    if (!rows.length) this.body.append(node("tr", "", {}, [
      node("td", "", { colSpan: head.length, textContent: "No model has answered in this notebook yet." }),
    ]));
    this.el.scrollTop = this.el.scrollHeight;
  }

  row(texts) {
    return node("tr", "", {}, texts.map((textContent) => node("td", "", { textContent })));
  }

  // What the answer that is being written has so far.
  live(model, { n, tps }) {
    if (this.el.hidden || !this.head.firstChild) return;
    const row = this.row(["now", model, "", "", n.toLocaleString("en"), "", String(Math.round(tps)), "", "writing"]);
    if (this.now) this.now.replaceWith(row);
    else this.body.append(row);
    this.now = row;
    this.el.scrollTop = this.el.scrollHeight;
  }
}

// ------------------------------------------------------------------ speed

export class Spark {
  constructor() {
    this.svg = drawing("0 0 64 18", "llmc-line-plot", [""]);
    this.text = node("span", "llmc-speed");
    this.el = node("div", "llmc-spark", { hidden: true }, [this.svg, this.text]);
    this.start();
  }

  start() {
    this.speeds = [];
  }

  add(speed) {
    if (!speed) return;
    this.speeds.push(speed);
    if (this.speeds.length > POINTS) {
      this.speeds = this.speeds.filter((_, i) => i % 2 === 1 || i === this.speeds.length - 1);
    }
    const most = Math.max(...this.speeds);
    const step = 62 / Math.max(1, this.speeds.length - 1);
    const points = this.speeds.map((v, i) => `${(1 + i * step).toFixed(1)} ${(16 - 14 * v / most).toFixed(1)}`);
    this.svg.firstElementChild.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
    this.el.hidden = false;
    this.say("now", speed);
  }

  // What stays of an answer is its mean, as in the line below it.
  rest(mean) {
    if (mean && this.speeds.length) this.say("on average", mean);
  }

  say(what, speed) {
    const most = Math.max(...this.speeds);
    this.text.textContent = `${Math.round(speed)} tok/s`;
    this.el.title = `${what} ${Math.round(speed)}, at most ${Math.round(most)} tokens a second`;
  }
}
