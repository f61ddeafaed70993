// Of several players of a story its timeline follows one, though all play in turn.
import { storyNodeOf } from "../shared.js";
/** @import {GraphNode} from "../types.js" */
/** @import {Player} from "./player.js" */

/** By Prompt Timeline node. @type {WeakMap<GraphNode, Player>} */
const leaders = new WeakMap();

/**
 * The player that the timeline of a story follows; none if its node is gone or renders another story now.
 * @param {GraphNode} storyNode
 */
function leaderOf(storyNode) {
  const leader = leaders.get(storyNode);
  return leader && storyNodeOf(leader.node) === storyNode ? leader : undefined;
}

/**
 * Whether the timeline of a story follows a player, which it does from now on if it follows none.
 * @param {Player} player
 * @param {GraphNode} storyNode
 */
export function leads(player, storyNode) {
  const leader = leaderOf(storyNode);
  if (leader) return leader === player;
  leaders.set(storyNode, player);
  return true;
}

/**
 * Let the timeline of its story follow a player: a person plays it, or it is rendered. One in the panel stays.
 * @param {Player} player
 */
export function takeLead(player) {
  const storyNode = storyNodeOf(player.node);
  if (!storyNode || leaderOf(storyNode)?.isLent) return;
  leaders.set(storyNode, player);
}
