// How far the bars can be zoomed; 1 shows the whole video in the width of the element.
/** @import {Segment, Timeline} from "../types.js" */

const BLOCK_PIXELS = 26; // width of a block at the largest zoom
const BAR_PIXELS = 34; // width of a usual bar at first
const MOST_PIXELS = 24000; // width of a whole video at the largest zoom
export const USUAL_PIXELS = 400; // width of the element before it is seen

/**
 * The zoom at which the bar of usual length is wide enough to be hit and read.
 * @param {Timeline} timeline
 * @param {Segment[]} segments
 * @param {number} width pixels of the element, 0 before it is seen
 */
export function zoomForClicks(timeline, segments, width) {
  const lengths = segments.map(({ start_block, end_block }) => end_block - start_block).toSorted((a, b) => a - b);
  const usual = lengths[Math.floor(lengths.length / 2)] / timeline.blocks;
  return BAR_PIXELS / (usual * (width || USUAL_PIXELS));
}

/**
 * @param {Timeline} timeline
 * @param {number} width
 */
export function largestZoom(timeline, width) {
  return Math.max(1, Math.min(timeline.blocks * BLOCK_PIXELS, MOST_PIXELS) / (width || USUAL_PIXELS));
}
