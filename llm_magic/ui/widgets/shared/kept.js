// An output of the notebook that the kernel renews after its cell has ended. A page that was loaded
// anew does not know any more which one is meant, and JupyterLab drops the update: so a saved notebook
// would keep an old one. Comes in: what the kernel tells of it. Goes out: the newest in its place. Where
// a front end does not let a widget reach the notebook, nothing happens.

const PATIENCE = 500; // ms in which an update that was not dropped has arrived

export class Kept {
  // ask: have the kernel send the output itself
  constructor(model, ask) {
    this.model = model;
    this.ask = ask;
  }

  dispose() {
    clearTimeout(this.timer);
  }

  // The kernel's output has this revision now.
  told({ display, revision }) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.old(display, revision).length && this.ask(), PATIENCE);
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
