// Keys on a bar, see `help` in bar.js.
import { moved, reordered } from "./segments.js";
/** @import {Actions, Segment} from "../types.js" */
/** @import {Bars} from "./bars.js" */

const FAR = 10; // blocks that a prompt's start moves by with Shift
const ZOOM = 1.5;
/** Which way a key moves a prompt or its start. @type {Record<string, number>} */
const ARROWS = { ArrowLeft: -1, ArrowRight: 1 };

export class BarKeys {
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
   * Do what a key says with the prompt at an index.
   * @param {KeyboardEvent} event
   * @param {number} index
   */
  press(event, index) {
    const { segments } = this.#bars.state;
    const way = ARROWS[event.key];
    const isCombined = event.ctrlKey || event.metaKey || event.altKey;
    if (isCombined && !way) return;
    const last = segments.length - 1;
    const arrow = () => {
      if (event.altKey) this.#swap(segments, index, index + way);
      else this.#moveStart(segments, index, event.shiftKey ? way * FAR : way, this.#bars.ripplesWith(event));
    };
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowLeft: arrow,
      ArrowRight: arrow,
      ArrowUp: () => this.#bars.focus(Math.max(index - 1, 0)),
      ArrowDown: () => this.#bars.focus(Math.min(index + 1, last)),
      Home: () => this.#bars.focus(0),
      End: () => this.#bars.focus(last),
      Enter: () => this.#actions.edit(),
      Delete: () => this.#actions.remove(),
      d: () => this.#actions.duplicate(),
      "+": () => this.#bars.zoom(ZOOM),
      "=": () => this.#bars.zoom(ZOOM),
      "-": () => this.#bars.zoom(1 / ZOOM),
      0: () => this.#bars.showAll(),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  /**
   * Move the start of a prompt by blocks, or say that it has begun.
   * @param {Segment[]} segments
   * @param {number} index
   * @param {number} by
   * @param {boolean} ripple
   */
  #moveStart(segments, index, by, ripple) {
    const { start_block } = segments[index];
    const next = moved(segments, index, start_block + by, { free: this.#bars.playhead.free, ripple });
    if (next[index].start_block !== start_block) this.#actions.commit(next, `move ${index}`, index);
    else if (this.#bars.isBegun(segments[index])) this.#actions.locked(index);
  }

  /**
   * Put a prompt into a neighbour's place, unless one of the two has begun.
   * @param {Segment[]} segments
   * @param {number} index
   * @param {number} to
   */
  #swap(segments, index, to) {
    if (to < 0 || to >= segments.length) return;
    const begun = [index, to].find((each) => this.#bars.isBegun(segments[each]));
    if (begun !== undefined) {
      this.#actions.locked(begun);
      return;
    }
    this.#actions.commit(reordered(segments, index, to), null, to);
    this.#bars.focus(to);
  }
}
