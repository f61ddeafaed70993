// The times above the bars, and the lines between blocks.
import { make } from "../shared.js";
import { startSeconds, timeText } from "./segments.js";
/** @import {StoryView} from "../types.js" */

const TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600]; // seconds between two times
const TICK_PIXELS = 52;
const GRID_PIXELS = 4; // narrower blocks are not drawn

export class Ruler {
  #drawn = ""; // length and step of the times that are shown

  constructor() {
    this.element = make("div", { class: "hf-ruler", "aria-hidden": "true" });
  }

  /**
   * Draw the times of a view on a ruler of so many pixels.
   * @param {StoryView} view
   * @param {number} pixels
   */
  draw(view, pixels) {
    const total = startSeconds(view, view.blocks);
    const every = TICKS.find((seconds) => (seconds / total) * pixels >= TICK_PIXELS) ?? TICKS[TICKS.length - 1];
    if (this.#drawn === `${total} ${every}`) return;
    this.#drawn = `${total} ${every}`;
    const times = Array.from({ length: Math.floor(total / every) + 1 }, (_, index) => index * every);
    const ticks = times.map((seconds) => {
      const tick = make("span", {}, timeText(seconds));
      tick.style.left = `${(100 * seconds) / total}%`;
      return tick;
    });
    this.element.replaceChildren(...ticks);
  }
}

/**
 * Draw a line at each block of a view on a track of so many pixels.
 * @param {HTMLElement} track
 * @param {StoryView} view
 * @param {number} pixels
 */
export function drawGrid(track, view, pixels) {
  const total = startSeconds(view, view.blocks);
  const block = (view.block_seconds / total) * pixels;
  const lines = "linear-gradient(to right, var(--hf-grid) 1px, transparent 1px)";
  track.style.backgroundImage = block < GRID_PIXELS ? "none" : lines;
  track.style.backgroundSize = `${block}px 100%`;
  track.style.backgroundPositionX = `${(view.first_block_seconds / total) * pixels}px`;
}
