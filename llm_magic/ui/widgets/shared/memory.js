// What a page remembers of the widgets of a cell after their kernel is gone: as long as the page and the
// cell live.

// One memory per name for all modules of the page: each widget may bring a module of its own.
export function memory(name) {
  const all = /** @type {any} */ (window);
  const cells = ((all.__llmMagicMemory ??= {})[name] ??= new WeakMap());
  return {
    get: (cell, key) => cells.get(cell)?.get(key),
    set: (cell, key, value) => {
      if (!cells.has(cell)) cells.set(cell, new Map());
      cells.get(cell).set(key, value);
    },
  };
}
