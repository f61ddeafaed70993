// Dates and values of widgets in a filename_prefix, such as %date:yyyy-MM-dd%, filled in as ComfyUI's own save nodes do.
import { app } from "../../scripts/app.js";

const NODES = new Set([
  "HeadForcingSampler", "HeadForcingDecodeVideo", "HeadForcingFinishVideo", "HeadForcingCompareMethods",
]);

/** Fill the prefix in when the graph is queued; the text of the widget stays. */
export function nodeCreated(node) {
  if (!NODES.has(node.comfyClass)) return;
  const widget = node.widgets?.find(({ name }) => name === "filename_prefix");
  const fill = window.comfyAPI?.utils?.applyTextReplacements;
  if (!widget || !fill) return;
  widget.serializeValue = () => (typeof widget.value === "string" ? fill(app, widget.value) : widget.value);
}
