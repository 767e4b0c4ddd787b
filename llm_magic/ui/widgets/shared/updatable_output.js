// A static output that the kernel updates after its cell has ended. A page that was loaded anew does not
// know any more which output is meant, and JupyterLab drops the update: a saved notebook would keep an old
// one. So this looks for the output in the notebook and puts the newest one there. Where a front end does
// not let a widget reach the notebook, nothing happens. While the widget lives, the output is hidden: both
// show the same.

import { node } from "./dom.js";

const ARRIVAL = 500; // ms in which an update that was not dropped has arrived

export class UpdatableOutput {
  // ask: have the kernel send the output itself
  constructor(model, ask) {
    this.model = model;
    this.ask = ask;
    this.hiding = node("style", "lm-hiding");
  }

  dispose() {
    clearTimeout(this.timer);
  }

  // The kernel's output has this revision now.
  told({ display, revision }) {
    const form = `.llm-kept-${display}`;
    const rule = `${form}{display:none}.jp-OutputArea-child:has(${form}){display:none}`;
    if (this.hiding.textContent !== rule) this.hiding.textContent = rule;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.old(display, revision).length && this.ask(), ARRIVAL);
  }

  // Can this page find the output in its notebook? Then it can keep it up to date.
  reaches(display) {
    return this.old(display, Infinity).length > 0;
  }

  renew({ display, revision, data, metadata }) {
    for (const [outputs, i] of this.old(display, revision)) {
      outputs.set(i, { output_type: "display_data", data, metadata });
    }
  }

  // [outputs, place] of each output with this tag that is older.
  old(display, revision) {
    const found = [];
    try {
      for (const cell of this.model.widget_manager?.context?.model?.cells ?? []) {
        for (let i = 0; i < (cell.outputs?.length ?? 0); i++) {
          const tag = cell.outputs.get(i).metadata?.llm_magic;
          if (tag?.display === display && !(tag.revision >= revision)) found.push([cell.outputs, i]);
        }
      }
    } catch {
      return []; // another front end, or another version of this one
    }
    return found;
  }
}
