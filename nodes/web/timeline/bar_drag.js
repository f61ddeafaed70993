// A bar, or the handle at its beginning, that a pointer drags.
import { dragPrompts, dragStart, followPointer, isSameStory } from "./drag.js";
import { blockAt } from "./segments.js";
/** @import {Actions, Segment} from "../types.js" */
/** @import {Bars} from "./bars.js" */
/** @import {DragResult} from "./drag.js" */

/**
 * The prompts that a drag to a block makes; null while there is nothing to show.
 * @typedef {(block: number, event: PointerEvent) => DragResult | null} ResultAt
 */

const STILL = 5; // pixels that a pointer may move in a click

export class BarDrag {
  held = -1; // the index of the prompt whose bar or handle the pointer holds
  hasMoved = false; // whether the click that comes now ends a drag
  #bars;
  #actions;

  /**
   * @param {Bars} bars
   * @param {Actions} actions
   */
  constructor(bars, actions) {
    this.#bars = bars;
    this.#actions = actions;
  }

  /**
   * Drag the beginning of a prompt, and where it ripples all that follows.
   * @param {PointerEvent} press
   * @param {number} index
   */
  dragHandle(press, index) {
    press.preventDefault();
    if (press.button !== 0 || !this.#bars.state.enabled) return;
    this.#bars.focus(index); // the field that loses the focus writes what was typed
    const { segments } = this.#bars.state;
    if (this.#bars.isBegun(segments[index])) {
      this.#actions.locked(index);
      return;
    }
    this.#follow(press, index, (block, event) => {
      const how = { free: this.#bars.playhead.free, ripple: this.#bars.ripplesWith(event) };
      return dragStart(segments, index, block, how);
    });
  }

  /**
   * Drag a whole prompt, or the chosen ones in a row with it, to another place in the order.
   * @param {PointerEvent} press
   * @param {number} index
   */
  dragBar(press, index) {
    const { timeline, segments, choice, enabled } = this.#bars.state;
    if (press.button !== 0 || !enabled) return;
    const row = choice.rowWith(index);
    const { first, count } = row;
    const grip = blockAt(timeline, this.#bars.secondsAt(press)) - segments[first].start_block;
    /** @type {ResultAt} */
    const resultAt = (block, event) => {
      if (!this.hasMoved && Math.abs(event.clientX - press.clientX) < STILL) return null;
      this.hasMoved = true;
      if (this.#bars.isBegun(segments[first])) {
        this.#actions.locked(first);
        return null;
      }
      const begun = segments.filter(this.#bars.isBegun).length;
      return dragPrompts(segments, first, block - grip, begun, count);
    };
    this.#follow(press, index, resultAt, row);
  }

  /**
   * Show what a drag makes of the prompts, and write it into the text when the pointer is released.
   * @param {PointerEvent} press
   * @param {number} index of the prompt whose bar or handle is pressed
   * @param {ResultAt} resultAt
   * @param {{first: number, count: number}} row of prompts that are dragged
   */
  #follow(press, index, resultAt, { first, count } = { first: index, count: 1 }) {
    press.stopPropagation();
    const { timeline, segments } = this.#bars.state;
    /** @type {DragResult | null} */
    let result = null;
    /** @param {PointerEvent} event */
    const move = (event) => {
      event.stopPropagation();
      const seconds = this.#bars.secondsAt(event);
      const block = blockAt(timeline, this.#bars.snap?.(seconds, event) ?? seconds);
      const next = resultAt(block, event);
      if (!next) return;
      result = next;
      this.#bars.scrollAfter(event.clientX);
      this.#actions.preview(result.segments, result.selected, count);
      this.#bars.showEdge(result.segments[result.selected].start_block);
      this.#bars.focusBar(result.selected);
    };
    /** @param {boolean} isReleased */
    const stop = (isReleased) => {
      this.held = -1;
      this.#bars.showEdge(null);
      if (result) this.#end(first, segments, isReleased ? result : null);
      if (result && count > 1) this.#actions.span(isReleased ? result.selected : first, count);
    };
    followPointer(press, move, stop, "Escape");
    this.held = index;
  }

  /**
   * Write the result of a drag into the text; null: the prompts stay as they were.
   * @param {number} index
   * @param {Segment[]} before
   * @param {DragResult | null} result
   */
  #end(index, before, result) {
    if (result === null || isSameStory(result.segments, before)) {
      this.#actions.dropped(index);
      this.#bars.focus(index);
      return;
    }
    const isTaken = this.#actions.commit(result.segments, null, result.selected);
    this.#bars.focus(isTaken ? result.selected : index);
  }
}
