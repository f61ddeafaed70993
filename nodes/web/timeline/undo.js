// The undo of an editor: its steps are texts with the length of their video.
import { History } from "./history.js";
/** @import {Host, StoryValues} from "../types.js" */

/** A step, as JSON. @param {StoryValues} values */
const stepOf = ({ text, seconds }) => JSON.stringify({ prompts: text, seconds });

export class Undo {
  /** That of the node once its text was read; empty before. */
  history = new History();
  #host;
  #isOfNode = false;

  /** @param {Host} host */
  constructor(host) {
    this.#host = host;
  }

  /** Note values that the node has got from outside, as from a workflow. @param {StoryValues} values */
  read(values) {
    if (!this.#isOfNode) this.history = this.#host.history(stepOf(values));
    this.#isOfNode = true;
    this.history.record(stepOf(values), "outside", false);
  }

  /** Note a change of the editor that the node holds now; see `Change` for its key. @param {string | null} key */
  change(key) {
    this.history.record(stepOf(this.#host.read()), key, true);
  }

  /** Note that the server has changed the node, which is no step. */
  took() {
    this.history.replace(stepOf(this.#host.read()));
  }

  /** Go one step back (-1) or forth (1); false where there is none. @param {number} by */
  go(by) {
    const step = this.history.step(by);
    if (step === null) return false;
    this.#host.write(JSON.parse(step));
    return true;
  }
}
