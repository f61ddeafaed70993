// Drags of the timeline: what they make of the prompts, and the pointer that they follow.
import { moved, placeFor, reordered } from "./segments.js";

/** @import {Segment} from "../types.js" */

/**
 * The prompts that a drag shows.
 * @typedef {object} DragResult
 * @property {Segment[]} segments
 * @property {number} selected the index of the chosen one
 */

/**
 * Drag the beginning of a prompt to a block, see `moved`.
 * @param {Segment[]} segments
 * @param {number} index
 * @param {number} block
 * @param {{free?: number, ripple?: boolean}} how
 * @returns {DragResult}
 */
export function dragStart(segments, index, block, how) {
  return { segments: moved(segments, index, block, how), selected: index };
}

/**
 * Drag whole prompts in a row to the place in the order at which they begin nearest to a block; the first `begun`
 * prompts stay.
 * @param {Segment[]} segments
 * @param {number} first of those that are dragged
 * @param {number} block
 * @param {number} begun
 * @param {number} count of those that are dragged
 * @returns {DragResult}
 */
export function dragPrompts(segments, first, block, begun, count = 1) {
  const place = placeFor(segments, first, block, begun, count);
  if (place === first) return { segments, selected: first };
  return { segments: reordered(segments, first, place, count), selected: place };
}

/**
 * Whether two stories have the same prompts at the same blocks.
 * @param {Segment[]} one
 * @param {Segment[]} other
 */
export function isSameStory(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

/**
 * Follow a pointer from its press on an element until it is released.
 * @param {PointerEvent} press
 * @param {(event: PointerEvent) => void} move
 * @param {(isReleased: boolean) => void} stop hears the end; false if the browser took the pointer, or at a key `cancelKey`
 * @param {string} [cancelKey]
 */
export function followPointer(press, move, stop, cancelKey) {
  const element = /** @type {HTMLElement} */ (press.target);
  const listening = new AbortController();
  const { signal } = listening;
  /** @param {boolean} isReleased */
  const end = (isReleased) => {
    listening.abort();
    stop(isReleased);
  };
  element.setPointerCapture(press.pointerId);
  element.addEventListener("pointermove", move, { signal });
  element.addEventListener("pointerup", () => end(true), { signal });
  element.addEventListener("pointercancel", () => end(false), { signal });
  if (cancelKey === undefined) return;
  /** @param {KeyboardEvent} event */
  const cancel = (event) => {
    if (event.key !== cancelKey) return;
    event.stopPropagation();
    end(false);
  };
  window.addEventListener("keydown", cancel, { signal, capture: true });
}
