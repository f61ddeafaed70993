// The server's answers to texts, so that an undo shows its bars at once and they can be edited at once.
/** @import {Timeline} from "../types.js" */

const MOST = 200;

export class Answers {
  /** By values of a node, as JSON. @type {Map<string, Timeline>} */
  #kept = new Map();

  /** The answer to these values of the node; undefined where they are new. @param {string} values */
  of(values) {
    return this.#kept.get(values);
  }

  /**
   * Keep an answer, which is returned.
   * @param {string} values
   * @param {Timeline} answer
   */
  keep(values, answer) {
    const [oldest] = this.#kept.keys();
    if (this.#kept.size === MOST) this.#kept.delete(oldest);
    this.#kept.set(values, answer);
    return answer;
  }
}
