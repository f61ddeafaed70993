// Prompt Timeline in a subgraph: the values of inputs that the subgraph's face shows are the face's.
/** @import {GraphNode} from "../types.js" */

/**
 * The node and the name of the widget that holds a value of a Prompt Timeline in a subgraph.
 * @param {GraphNode} face
 * @param {GraphNode} storyNode
 * @param {string} name
 * @returns {[GraphNode, string]}
 */
export function ownerOf(face, storyNode, name) {
  const slot = storyNode.inputs.findIndex(({ widget }) => widget?.name === name);
  const link = slot < 0 ? null : storyNode.getInputLink(slot);
  const isOutside = String(link?.origin_id) === String(face.subgraph.inputNode.id);
  const input = isOutside ? face.inputs[link.origin_slot] : null;
  return input?.widget ? [face, input.widget.name] : [storyNode, name];
}

/**
 * The Prompt Timeline in a subgraph whose text the face shows; undefined where there is none.
 * @param {GraphNode} face
 */
export function storyNodeIn(face) {
  /** @type {GraphNode[]} */
  const storyNodes = face.subgraph.nodes.filter(isStoryNode);
  return storyNodes.find((storyNode) => ownerOf(face, storyNode, "prompts")[0] === face);
}

/** @param {GraphNode} node */
function isStoryNode({ comfyClass }) {
  return comfyClass === "HeadForcingPromptTimeline";
}
