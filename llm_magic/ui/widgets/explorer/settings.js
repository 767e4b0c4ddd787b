// The settings of new branches. A field is [name, kind, label, default, low, high]; a change is sent
// by `set(name, value)`, where null is the default.

import { node } from "../shared/dom.js";

export class BranchSettings {
  constructor(id, set) {
    this.id = id;
    this.set = set;
    this.rows = new Map();
    this.summary = node("summary", "lmx-soft");
    this.form = node("div", "lmx-fields");
    this.more = node("div", "lmx-fields");
    const others = node("details", "", {}, [node("summary", "lmx-soft", { textContent: "More settings" }), this.more]);
    this.el = node("details", "lmx-settings", { hidden: true }, [this.summary, this.form, others]);
  }

  show({ fields, values, name, error }) {
    for (const field of fields) this.row(field).show(values[field[0]] ?? null, field[0] === name && error, field[3]);
    const told = fields.filter(([key]) => values[key] != null)
      .map(([key, , label]) => `${label.toLowerCase()} ${values[key]}`);
    this.summary.textContent = `New branches: ${told.join(", ") || "default settings"}`;
    this.el.hidden = false;
  }

  row(field) {
    const [key] = field;
    if (!this.rows.has(key)) {
      this.rows.set(key, new Row(`${this.id}-${key}`, field, this.set));
      (field[6] ? this.more : this.form).append(this.rows.get(key).el);
    }
    return this.rows.get(key);
  }
}

class Row {
  constructor(id, [key, kind, label, , low, high], set) {
    this.input = node("input", "lmx-input", {
      id, ...(kind === "text" ? { type: "text" } : { type: "number", step: kind === "integer" ? "1" : "any" }),
      ...(low === null ? {} : { min: low }), ...(high === null ? {} : { max: high }),
      "aria-describedby": `${id}-note`, onchange: () => set(key, this.input.value || null),
    });
    this.reset = node("button", "lmx-button", { type: "button", textContent: "Default", onclick: () => {
      this.input.value = "";
      set(key, null);
      this.input.focus();
    }, "aria-label": `${label}: back to the default` });
    this.note = node("div", "lmx-soft", { id: `${id}-note` });
    this.el = node("div", "lmx-field", {}, [
      node("label", "", { htmlFor: id, textContent: label }),
      node("div", "lmx-box", {}, [this.input, this.reset]), this.note,
    ]);
  }

  show(value, wrong, byDefault) {
    if (!wrong && document.activeElement !== this.input) this.input.value = value === null ? "" : String(value);
    this.input.placeholder = "default";
    this.input.setAttribute("aria-invalid", String(Boolean(wrong)));
    this.reset.hidden = value === null;
    this.note.textContent = wrong || `${value === null ? "" : "default: "}${byDefault}`;
    this.note.classList.toggle("lmx-fault", Boolean(wrong));
  }
}
