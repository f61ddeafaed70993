// Elements without HTML in strings: text of others only ever becomes text.

/** A new element; attributes whose names begin with "on" are event listeners, children are nodes or texts. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** A button. As an <input>, since ComfyUI leaves the keys of those alone: Ctrl+Z on a <button> would undo the graph. */
export function button(label, title, onclick) {
  return make("input", { type: "button", value: label, title, "aria-label": title, onclick });
}

/** Load the style sheet beside this file, once for all editors. */
export function addStyle() {
  const href = new URL("./timeline.css", import.meta.url).href;
  if (![...document.querySelectorAll("link")].some((link) => link.href === href))
    document.head.append(make("link", { rel: "stylesheet", href }));
}
