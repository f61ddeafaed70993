// Elements as widgets of nodes, of which nothing is saved or sent.
import { make, whileInGraph } from "./shared.js";
/** @import {GraphNode, Widget} from "./types.js" */

// By graph, node and widget. The graph's undo makes all nodes anew, and Nodes 2.0 goes on showing the elements that the
// old ones had: a new node gets the element of the one whose place it takes.
/** @type {Map<string, HTMLElement>} */
const roots = new Map();

/** @param {GraphNode} node @param {string} name */
function rootOf(node, name) {
  const place = `${node.graph.id} ${node.id} ${name}`;
  const known = roots.get(place);
  if (known) return known;
  const root = make("div", { style: "display: flex; flex-direction: column; min-height: 0" });
  roots.set(place, root);
  return root;
}

/**
 * Add a widget to a subgraph's node, where the frontend of ComfyUI 0.30 lists those of its inputs alone.
 * @param {GraphNode} face
 * @param {Widget} widget
 */
function addToFace(face, widget) {
  const { get } = Object.getOwnPropertyDescriptor(face, "widgets");
  Object.defineProperty(face, "widgets", { get: () => [...get.call(face), widget], set() {}, configurable: true });
}

/**
 * Add an element below a node's inputs; `options` are those of a DOM widget.
 * @param {GraphNode} node
 * @param {string} name
 * @param {HTMLElement} element
 * @param {Record<string, unknown>} options
 */
export function addElement(node, name, element, options) {
  // last and never serialised, so that the values of saved workflows stay in their places; a properties panel would
  // take the element from the node
  const all = { serialize: false, hideInPanel: true, getValue: () => "", ...options };
  element.style.flex = "1 1 auto";
  const widget = node.addDOMWidget(name, `headforcing_${name}`, element, all);
  widget.serialize = false;
  if (!node.widgets.some((each) => each.name === name)) addToFace(node, widget);
  const show = () => {
    widget.element = rootOf(node, name);
    widget.element.replaceChildren(element);
  };
  const leave = () => {
    if (element.parentNode === widget.element) widget.element.replaceChildren();
  };
  whileInGraph(node, show, leave);
  if (node.graph) show();
  return widget;
}
