// The keys of a widget are its own. Comes in: its element. Goes out: nothing that the notebook hears.

// JupyterLab takes letters and arrows as commands of the notebook. It looks for this attribute, but some
// of its commands ask for the focused element first: so that one carries it, too.
export function keepKeys(root) {
  const suppress = (el) => el.setAttribute("data-lm-suppress-shortcuts", "true");
  suppress(root);
  root.addEventListener("focusin", (event) => suppress(event.target));
}
