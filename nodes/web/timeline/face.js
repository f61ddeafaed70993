// Prompt Timeline in a subgraph: the values of inputs that the subgraph's face shows are the face's.
/** @import {GraphNode} from "../types.js" */

/**
 * The node and the name of the widget that holds a value of a Prompt Timeline in a subgraph.
 * @param {GraphNode} face
 * @param {GraphNode} story
 * @param {string} name
 * @returns {[GraphNode, string]}
 */
export function ownerOf(face, story, name) {
  const slot = story.inputs.findIndex(({ widget }) => widget?.name === name);
  const link = slot < 0 ? null : story.getInputLink(slot);
  const isOutside = String(link?.origin_id) === String(face.subgraph.inputNode.id);
  const input = isOutside ? face.inputs[link.origin_slot] : null;
  return input?.widget ? [face, input.widget.name] : [story, name];
}

/**
 * The Prompt Timeline in a subgraph whose text the face shows; undefined where there is none.
 * @param {GraphNode} face
 */
export function storyIn(face) {
  /** @type {GraphNode[]} */
  const stories = face.subgraph.nodes.filter(isStory);
  return stories.find((story) => ownerOf(face, story, "prompts")[0] === face);
}

/** @param {GraphNode} node */
function isStory({ comfyClass }) {
  return comfyClass === "HeadForcingPromptTimeline";
}
