// Small parts that the chat is built of: icons, buttons, the clipboard, a new cell.

import { node } from "../shared/dom.js";

const ICONS = {
  send: "M8 13V3.5M3.8 7.7 8 3.5l4.2 4.2",
  stop: "M4.5 4.5h7v7h-7z",
  gear: "M6.8 2h2.4l.4 1.7 1.2.7 1.7-.5 1.2 2.1-1.3 1.2v1.6l1.3 1.2-1.2 2.1-1.7-.5-1.2.7L9.2 14H6.8" +
    "l-.4-1.7-1.2-.7-1.7.5-1.2-2.1 1.3-1.2V7.2L2.3 6l1.2-2.1 1.7.5 1.2-.7zM8 6a2 2 0 1 0 0 4 2 2 0 0 0 0-4z",
  undo: "M6 3 3 6l3 3M3 6h6.5a3.5 3.5 0 0 1 0 7H6",
  clear: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5M6.8 7v3.5M9.2 7v3.5",
  save: "M8 2.5v7M5 7l3 3 3-3M3 11.5V13h10v-1.5",
  load: "M8 10V3M5 5.5l3-3 3 3M3 11.5V13h10v-1.5",
  copy: "M6 6h7v7H6zM10 6V3H3v7h3",
  done: "m3.5 8.5 3 3 6-7",
  again: "M13 4v3.2H9.8M12.6 7A5 5 0 1 0 13 9.5",
  edit: "m3 13 .6-2.6L10.8 3l2.2 2.2-7.4 7.2zM9.6 4.3l2.1 2.1",
  tokens: "M3 4h4M9 4h4M3 8h2M7 8h6M3 12h6M11 12h2",
  left: "m10 3.5-4.5 4.5L10 12.5",
  right: "m6 3.5 4.5 4.5L6 12.5",
  cell: "M3 3h10v5H3zM8 10.5v4M6 12.5h4",
  down: "M8 3v9.5M3.8 8.3 8 12.5l4.2-4.2",
  stats: "M3 13V9M6.3 13V5.5M9.6 13V8M13 13V3",
  close: "m4 4 8 8M12 4l-8 8",
};
const SVG = "http://www.w3.org/2000/svg";

export function drawing(box, className, paths) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", box);
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", className);
  for (const d of paths) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

export function icon(name) {
  return drawing("0 0 16 16", "llmc-icon", [ICONS[name]]);
}

// A button with a drawing on it; its name is its tooltip and what a screen reader says.
export function iconButton(name, label, onclick, className = "") {
  return node("button", `llmc-tool ${className}`, {
    type: "button", title: label, "aria-label": label, onclick,
  }, [icon(name)]);
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // no permission, or a page without a secure context
  }
}

// Copies, and says for a moment that it did.
export function copyButton(label, getText) {
  const button = iconButton("copy", label, async () => {
    const ok = await copyText(getText());
    button.replaceChildren(icon(ok ? "done" : "close"));
    button.title = ok ? "Copied" : "The browser does not let this page use the clipboard";
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.title = label;
    }, 1500);
  });
  return button;
}

// A new code cell below the one that shows `el`, made as a person makes it: command mode, B, typing.
// There is no other way from a widget. Where that does not work the code is copied instead.
export async function toNewCell(el, code) {
  const cell = el.closest(".jp-Notebook .jp-Cell");
  const cells = () => [...(cell?.parentElement.querySelectorAll(":scope > .jp-Cell") ?? [])];
  const before = cells();
  if (cell) {
    cell.focus();
    cell.dispatchEvent(new KeyboardEvent("keydown", {
      key: "b", code: "KeyB", keyCode: 66, bubbles: true, cancelable: true,
    }));
  }
  for (let tries = 0; cell && tries < 20; tries++) {
    await new Promise((done) => setTimeout(done, 50));
    const editor = cells().find((other) => !before.includes(other))?.querySelector(".cm-content");
    if (!editor) continue;
    editor.focus();
    document.execCommand("insertText", false, code.replace(/\n$/, ""));
    return true;
  }
  await copyText(code);
  return false;
}
