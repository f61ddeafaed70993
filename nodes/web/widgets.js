// Elements as widgets of nodes, of which nothing is saved or sent.
import { make, whileInGraph } from "./shared.js";

// By graph, node and widget. The graph's undo makes all nodes anew, and Nodes 2.0 goes on showing the elements that the
// old ones had: a new node gets the element of the one whose place it takes.
const roots = new Map();

function rootOf(node, name) {
  const place = `${node.graph.id} ${node.id} ${name}`;
  const style = "display: flex; flex-direction: column; min-height: 0";
  if (!roots.has(place)) roots.set(place, make("div", { style }));
  return roots.get(place);
}

/** Add an element below a node's inputs; `options` are those of a DOM widget. */
export function addElement(node, name, element, options) {
  // last and never serialised, so that the values of saved workflows stay in their places; a properties panel would
  // take the element from the node
  const all = { serialize: false, hideInPanel: true, getValue: () => "", ...options };
  element.style.flex = "1 1 auto";
  const widget = node.addDOMWidget(name, `headforcing_${name}`, element, all);
  widget.serialize = false;
  const show = () => {
    widget.element = rootOf(node, name);
    widget.element.replaceChildren(element);
  };
  const leave = () => element.parentNode === widget.element && widget.element.replaceChildren();
  whileInGraph(node, show, leave);
  if (node.graph) show();
  return widget;
}
