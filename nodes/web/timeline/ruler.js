// The times above the bars, and the lines between blocks.
import { make } from "../shared.js";
import { startSeconds, timeText } from "./segments.js";
/** @import {Timeline} from "../types.js" */

const TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600]; // seconds between two times
const TICK_PIXELS = 52;
const LABEL_PIXELS = 34; // a time that is nearer to the end stands left of its line
const GRID_PIXELS = 4; // narrower blocks are not drawn

export class Ruler {
  #drawn = ""; // length and step of the times that are shown

  constructor() {
    this.element = make("div", { class: "hf-ruler", "aria-hidden": "true" });
  }

  /**
   * Draw the times of a timeline on a ruler of so many pixels.
   * @param {Timeline} timeline
   * @param {number} pixels
   */
  draw(timeline, pixels) {
    const total = startSeconds(timeline, timeline.blocks);
    const every = TICKS.find((seconds) => (seconds / total) * pixels >= TICK_PIXELS) ?? TICKS[TICKS.length - 1];
    if (this.#drawn === `${total} ${every}`) return;
    this.#drawn = `${total} ${every}`;
    const times = Array.from({ length: Math.floor(total / every) + 1 }, (_, index) => index * every);
    const ticks = times.map((seconds) => {
      const tick = make("span", {}, timeText(seconds));
      tick.style.left = `${(100 * seconds) / total}%`;
      tick.classList.toggle("hf-last", (1 - seconds / total) * pixels < LABEL_PIXELS);
      return tick;
    });
    this.element.replaceChildren(...ticks);
  }
}

/**
 * Draw a line at each block of a timeline on a track of so many pixels.
 * @param {HTMLElement} track
 * @param {Timeline} timeline
 * @param {number} pixels
 */
export function drawGrid(track, timeline, pixels) {
  const total = startSeconds(timeline, timeline.blocks);
  const block = (timeline.block_seconds / total) * pixels;
  const lines = "linear-gradient(to right, var(--hf-grid) 1px, transparent 1px)";
  track.style.backgroundImage = block < GRID_PIXELS ? "none" : lines;
  track.style.backgroundSize = `${block}px 100%`;
  track.style.backgroundPositionX = `${(timeline.first_block_seconds / total) * pixels}px`;
}
