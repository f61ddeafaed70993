// What a bar that is dragged in the story panel jumps to: onsets and beats of the sound, the in and out points, where the
// video stands, and whole seconds. A scene begins at the block that is nearest to it.

const PIXELS = 9; // from which it jumps

/**
 * The nearest line of a regular grid, if it is so near that times between two lines stay free.
 * @param {number} seconds
 * @param {{every: number, first: number}} grid in seconds
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
  const far = (time) => Math.abs(time - seconds);
  const near = times.filter((time) => time !== null && far(time) <= reach);
  return near.toSorted((a, b) => far(a) - far(b))[0] ?? null;
}

/**
 * A time of the story, or that to which it jumps: whole seconds only where nothing else is near.
 * @param {number} seconds
 * @param {{times: (number | null)[], beats: {every: number, first: number} | null}} marks
 * @param {number} pixels of a second on the screen
 */
export function snapped(seconds, { times, beats }, pixels) {
  const reach = PIXELS / pixels;
  const beat = beats && gridLine(seconds, beats, reach);
  return nearest(seconds, [...times, beat], reach) ?? gridLine(seconds, { every: 1, first: 0 }, reach) ?? seconds;
}
