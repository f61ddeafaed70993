// A run of one sampler alone, with inputs that no widget has: a part of the video, a draft or a live video, see
// nodes/host/graph/part.py and nodes/host/browser/performed.py. The workflow, its widgets and its seeds stay as they are.
import { app } from "../../scripts/app.js";
import { nodeOf } from "./shared.js";
import { t } from "./texts.js";
/** @import {GraphNode, Part} from "./types.js" */

/** A graph as it is queued. @typedef {Record<string, {class_type: string, inputs: Record<string, any>}>} QueuedGraph */

/**
 * Queue a sampler and what it needs; the sentence of an error, empty where it is queued.
 * @param {GraphNode} node
 * @param {Part} part
 * @returns {Promise<string>}
 */
export async function queuePart(node, part) {
  try {
    const { output, workflow } = await app.graphToPrompt();
    const id = queuedId(node, output);
    if (!id) return t("This node is muted or bypassed.");
    const needed = neededFor(id, output);
    needed[id] = { ...output[id], inputs: { ...output[id].inputs, ...part } };
    await app.api.queuePrompt(0, { output: needed, workflow });
    return "";
  } catch (/** @type {any} */ error) {
    /** @type {{errors?: {details?: string}[]}[]} */
    const nodes = Object.values(error.response?.node_errors ?? {});
    const wrong = nodes.flatMap(({ errors }) => errors ?? []);
    return wrong[0]?.details || error.response?.error?.message || String(error.message);
  }
}

/**
 * The id of a node in a queued graph; undefined if it is muted or bypassed.
 * @param {GraphNode | undefined} node
 * @param {QueuedGraph} output
 */
export function queuedId(node, output) {
  return Object.keys(output).find((each) => nodeOf(each) === node);
}

/**
 * A node of a queued graph and all nodes that it needs, by id.
 * @param {string} id
 * @param {QueuedGraph} graph
 */
function neededFor(id, graph) {
  /** @type {QueuedGraph} */
  const needed = {};
  /** @param {string} each */
  const need = (each) => {
    if (each in needed || !graph[each]) return;
    needed[each] = graph[each];
    for (const value of Object.values(graph[each].inputs)) if (Array.isArray(value)) need(String(value[0]));
  };
  need(id);
  return needed;
}
