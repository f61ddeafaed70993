// Of several players of a story its timeline follows one, though all play in turn.
import { storyNodeOf } from "../shared.js";
/** @import {GraphNode} from "../types.js" */
/** @import {View} from "./view.js" */

/** By Prompt Timeline node. @type {WeakMap<GraphNode, View>} */
const leaders = new WeakMap();

/**
 * The player that the timeline of a story follows; none if its node is gone or renders another story now.
 * @param {GraphNode} story
 */
function leaderOf(story) {
  const leader = leaders.get(story);
  return leader && storyNodeOf(leader.node) === story ? leader : undefined;
}

/**
 * Whether the timeline of a story follows a player, which it does from now on if it follows none.
 * @param {View} player
 * @param {GraphNode} story
 */
export function leads(player, story) {
  const leader = leaderOf(story);
  if (leader) return leader === player;
  leaders.set(story, player);
  return true;
}

/**
 * Let the timeline of its story follow a player: a person plays it, or it is rendered. One in the panel stays.
 * @param {View} player
 */
export function takeLead(player) {
  const story = storyNodeOf(player.node);
  if (!story || leaderOf(story)?.isLent) return;
  leaders.set(story, player);
}
