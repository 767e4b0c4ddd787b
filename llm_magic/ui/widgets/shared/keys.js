// Keys pressed in a widget stay in it; combinations that are meant for the notebook reach the notebook.

// JupyterLab takes letters and arrows as commands of the notebook. It looks for this attribute, but some
// of its commands ask for the focused element first: so that one carries it, too.
export function keepKeys(root) {
  const suppress = (el) => el.setAttribute("data-lm-suppress-shortcuts", "true");
  suppress(root);
  root.addEventListener("focusin", (event) => suppress(event.target));
}

// A combination that is the front end's, like saving, reaches it from inside of the widget as well.
export function forward(root, event) {
  const { key, code, keyCode, ctrlKey, metaKey, shiftKey, altKey } = event;
  const copy = { key, code, keyCode, ctrlKey, metaKey, shiftKey, altKey };
  const twin = new KeyboardEvent("keydown", { ...copy, bubbles: true, cancelable: true });
  if (!root.parentElement?.dispatchEvent(twin)) event.preventDefault();
}
