// Makes the elements of a widget.

// Handlers are named "on" and the event; what is no property of the element becomes an attribute.
export function node(tag, className = "", props = {}, children = []) {
  const el = document.createElement(tag);
  if (className) el.className = className;
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else if (key in el) el[key] = value;
    else el.setAttribute(key, value);
  }
  el.append(...children);
  return el;
}
