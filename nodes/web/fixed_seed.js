// A new node keeps its seed from run to run, so that a stopped render goes on.
// Newer versions take that from the schema; the frontend of ComfyUI 0.3.75 begins every seed with "randomize".
/** @import {GraphNode} from "./types.js" */

/** @param {GraphNode} node */
export function nodeCreated(node) {
  // before the values of a saved workflow are put in, which may say otherwise
  if (!node.comfyClass?.startsWith("HeadForcing")) return;
  const seed = node.widgets?.find((widget) => widget.name === "seed");
  for (const control of seed?.linkedWidgets ?? []) {
    if (control.options?.values?.includes?.("fixed")) control.value = "fixed";
  }
}
