// Folds advanced inputs on the canvas, where the frontends show all of them; Nodes 2.0 folds them itself.
import { app } from "../../scripts/app.js";
import { isLinked } from "./shared.js";
import { t } from "./texts.js";
/** @import {GraphNode, Widget} from "./types.js" */

const BUTTON = "advanced inputs";
const NO_ROOM = () => [0, -4]; // the frontend of ComfyUI 0.3.75 leaves room for hidden widgets, and 4 between two
/** Values of advanced widgets of new nodes, by widget. @type {WeakMap<Widget, unknown>} */
const defaults = new WeakMap();

/**
 * Hide or show the advanced widgets of a node that have not been changed, and give it or take away their room.
 * @param {GraphNode} node
 * @param {boolean} hidden
 */
function setHidden(node, hidden) {
  const before = node.computeSize()[1];
  for (const widget of node.widgets) {
    if (!defaults.has(widget)) continue;
    widget.hidden = hidden && !isChanged(node, widget);
    if (widget.hidden) widget.computeSize = NO_ROOM;
    else delete widget.computeSize;
  }
  node.setSize([node.size[0], node.size[1] + node.computeSize()[1] - before]);
}

/** Show what `showAdvanced` says, in which both renderers keep the state. @param {GraphNode} node */
function fold(node) {
  setHidden(node, !LiteGraph.vueNodesMode && !node.showAdvanced);
  const button = node.widgets.find((widget) => widget.name === BUTTON);
  if (button) button.label = node.showAdvanced ? t("hide advanced inputs") : t("show advanced inputs");
}

/** Show what a saved or copied node has. @param {GraphNode} node */
function restore(node) {
  const [width, height] = node.size; // as it was saved, with what was shown then
  fold(node);
  node.setSize([width, LiteGraph.vueNodesMode ? height : Math.max(height, node.computeSize()[1])]);
}

/**
 * Whether an advanced widget is linked or not as a new node has it, and must stay in sight.
 * @param {GraphNode} node
 * @param {Widget} widget
 */
function isChanged(node, widget) {
  return defaults.has(widget) && (isLinked(node, widget.name) || widget.value !== defaults.get(widget));
}

function foldAll() {
  /** @type {GraphNode[]} */
  const nodes = app.graph.nodes;
  for (const node of nodes) if (node.widgets?.some((widget) => defaults.has(widget))) fold(node);
}

export function setup() {
  app.ui.settings.addEventListener("Comfy.VueNodes.Enabled.change", () => setTimeout(foldAll));
}

/** @param {GraphNode} node */
export function nodeCreated(node) {
  if (!node.comfyClass?.startsWith("HeadForcing")) return;
  const advanced = (node.widgets ?? []).filter((widget) => widget.options?.advanced ?? widget.advanced);
  if (!advanced.length) return;
  for (const widget of advanced) defaults.set(widget, widget.value);
  const toggle = () => {
    node.showAdvanced = !node.showAdvanced;
    fold(node);
  };
  const button = node.addWidget("button", BUTTON, null, toggle, { serialize: false, canvasOnly: true });
  button.serialize = false; // values are stored by position
  setHidden(node, true);
  const size = [...node.size];
  fold(node);
  node.setSize(size); // Nodes 2.0 counts the room of what it has folded
  const { onConfigure } = node;
  /** @param {any[]} args */
  node.onConfigure = function (...args) {
    onConfigure?.apply(this, args); // of a workflow, a copy, a node that comes back
    restore(this);
  };
}
