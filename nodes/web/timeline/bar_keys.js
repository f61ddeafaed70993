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
    if (event.key.toLowerCase() === "a" && (event.ctrlKey || event.metaKey)) this.#chooseAll(event, segments.length);
    if (isCombined && !way) return;
    const last = segments.length - 1;
    const arrow = () => {
      if (event.altKey) this.#pass(segments, index, way);
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

  /** @param {KeyboardEvent} event @param {number} count of prompts */
  #chooseAll(event, count) {
    event.preventDefault();
    event.stopPropagation();
    this.#actions.span(0, count);
    this.#bars.focus(0);
  }

  /**
   * Move a prompt, or the chosen ones in a row with it, past a neighbour, unless one of them has begun.
   * @param {Segment[]} segments
   * @param {number} index
   * @param {number} way -1 or 1
   */
  #pass(segments, index, way) {
    const { choice } = this.#bars.state;
    const { first, count } = choice.rowWith(index);
    const neighbour = way < 0 ? first - 1 : first + count;
    if (!segments[neighbour]) return;
    const begun = [Math.min(first, neighbour), neighbour].find((each) => this.#bars.isBegun(segments[each]));
    if (begun !== undefined) {
      this.#actions.locked(begun);
      return;
    }
    const next = reordered(segments, first, first + way, count);
    if (!this.#actions.commit(next, null, first + way)) return;
    this.#bars.focus(first + way);
    this.#actions.span(first + way, count);
  }
}
