// A run of one sampler alone, with inputs that no widget has: a part of the video or a draft, see nodes/host/graph/part.py.
// The workflow, its widgets and its seeds stay as they are.
import { app } from "../../scripts/app.js";
import { nodeOf } from "./shared.js";
import { t } from "./texts.js";

/**
 * Queue a sampler and what it needs; the sentence of an error, empty where it is queued.
 * @param {any} node
 * @param {{from_seconds?: number, until_seconds?: number, draft?: boolean}} asked
 * @returns {Promise<string>}
 */
export async function queuePart(node, asked) {
  const { output, workflow } = await app.graphToPrompt();
  const id = Object.keys(output).find((each) => nodeOf(each) === node);
  if (!id) return t("This node is muted or bypassed.");
  const needed = {};
  const need = (each) => {
    if (each in needed || !output[each]) return;
    needed[each] = output[each];
    for (const value of Object.values(output[each].inputs)) if (Array.isArray(value)) need(String(value[0]));
  };
  need(id);
  needed[id] = { ...output[id], inputs: { ...output[id].inputs, ...asked } };
  try {
    await app.api.queuePrompt(0, { output: needed, workflow });
    return "";
  } catch (error) {
    const wrong = Object.values(error.response?.node_errors ?? {}).flatMap(({ errors }) => errors ?? []);
    return wrong[0]?.details || error.response?.error?.message || String(error.message);
  }
}
