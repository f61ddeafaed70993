// Dates and values of widgets in a filename_prefix, such as %date:yyyy-MM-dd%, filled in as for ComfyUI's own save nodes.
import { app } from "../../scripts/app.js";

const NODES = new Set([
  "HeadForcingSampler", "HeadForcingDecodeVideo", "HeadForcingFinishVideo", "HeadForcingCompareMethods",
]);

/** Fill prefixes in when a graph is queued. The texts of the widgets stay; that of a subgraph's face is there, too. */
export function setup() {
  const graphToPrompt = app.graphToPrompt;
  app.graphToPrompt = async function (...given) {
    const prompt = await graphToPrompt.apply(this, given);
    for (const { class_type, inputs } of Object.values(prompt.output)) {
      const prefix = inputs.filename_prefix; // a link is no text
      if (NODES.has(class_type) && typeof prefix === "string") inputs.filename_prefix = filled(prefix);
    }
    return prompt;
  };
}

/** The prefix as the editor fills it in. */
function filled(prefix) {
  const fill = window.comfyAPI?.utils?.applyTextReplacements;
  return fill ? fill(app, prefix) : prefix;
}
