// What a bar that is dragged in the story panel jumps to: onsets and beats of the sound, the in and out points, where the
// video stands, and whole seconds. A scene begins at the block that is nearest to it.
/** @import {Grid} from "../types.js" */

const PIXELS = 9; // from which it jumps

/**
 * The nearest line of a regular grid, if it is so near that times between two lines stay free.
 * @param {number} seconds
 * @param {Grid} grid
 * @param {number} reach in seconds
 */
function gridLine(seconds, { every, first }, reach) {
  const line = first + Math.round((seconds - first) / every) * every;
  return Math.abs(line - seconds) <= Math.min(reach, every / 3) ? line : null;
}

/**
 * The nearest of some times within reach; null without one.
 * @param {number} seconds
 * @param {(number | null)[]} times
 * @param {number} reach in seconds
 */
function nearest(seconds, times, reach) {
  let found = null;
  let leastFar = Infinity;
  for (const time of times) {
    if (time === null) continue;
    const far = Math.abs(time - seconds);
    if (far <= reach && far < leastFar) {
      found = time;
      leastFar = far;
    }
  }
  return found;
}

/**
 * A time of the story, or that to which it jumps: whole seconds only where nothing else is near.
 * @param {number} seconds
 * @param {{times: (number | null)[], beats: Grid | null}} targets
 * @param {number} pixels of a second on the screen
 */
export function snap(seconds, { times, beats }, pixels) {
  const reach = PIXELS / pixels;
  const beat = beats && gridLine(seconds, beats, reach);
  return nearest(seconds, [...times, beat], reach) ?? gridLine(seconds, { every: 1, first: 0 }, reach) ?? seconds;
}
