// Opens Head Forcing Options as earlier versions saved it, with three inputs that the node no longer has.
/** @import {GraphNode} from "./types.js" */

const REMOVED = ["sink_gate", "rope_jitter", "compression"];
const PLACE = 8; // of the first one's value, where the text of method_options is now

/** A node as a workflow stores it. @typedef {{widgets_values?: unknown[], inputs?: {name: string}[]}} SavedNode */

/** @param {GraphNode} node */
export function nodeCreated(node) {
  if (node.comfyClass !== "HeadForcingOptions") return;
  const { configure } = node;
  /** @param {SavedNode} saved */
  node.configure = function (saved) {
    return configure.call(this, isEarlier(saved) ? withoutRemoved(saved) : saved);
  };
}

/** @param {SavedNode} saved */
function isEarlier({ widgets_values }) {
  return Array.isArray(widgets_values) && typeof widgets_values[PLACE] === "number";
}

/** The node as it is saved now: values are stored by position. @param {SavedNode} saved */
function withoutRemoved(saved) {
  const values = [...(saved.widgets_values ?? [])];
  values.splice(PLACE, REMOVED.length);
  const inputs = saved.inputs?.filter((input) => !REMOVED.includes(input.name));
  return { ...saved, widgets_values: values, inputs };
}
