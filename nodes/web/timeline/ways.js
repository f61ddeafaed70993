// Ways out of a story that is longer than the node's seconds, shown below its bars.
import { button, make } from "../shared.js";
import { t } from "../texts.js";
import { cutAt, plainTime, scaledTo, startSeconds } from "./segments.js";
/** @import {Segment, Timeline} from "../types.js" */

/**
 * What makes the prompts of a timeline fit; null: they cannot.
 * @typedef {(timeline: Timeline) => Segment[] | null} Shorter
 */

export class Ways {
  #shorten;
  #lengthen;
  #fitting = 0; // length of the last story that fitted, in seconds

  /**
   * @param {(shorter: Shorter) => void} shorten takes what makes the prompts fit
   * @param {(seconds: number) => void} lengthen takes a length into which the story fits
   */
  constructor(shorten, lengthen) {
    this.#shorten = shorten;
    this.#lengthen = lengthen;
    this.element = make("div", { class: "hf-tools", role: "toolbar", "aria-label": t("Ways out"), hidden: true });
  }

  /**
   * Show the ways for a timeline.
   * @param {Timeline} timeline
   * @param {boolean} isFixed whether the length comes from another node
   */
  show(timeline, isFixed) {
    const { beyond, segments } = timeline;
    this.element.hidden = beyond === undefined;
    if (beyond === undefined) {
      this.#fitting = timeline.seconds;
      return;
    }
    const ways = [this.#cut(beyond)];
    if (scaledTo(segments, timeline, beyond)) ways.push(this.#scale(beyond));
    if (!isFixed) ways.push(this.#restore(timeline));
    this.element.replaceChildren(...ways);
  }

  /** @param {number} seconds */
  #cut(seconds) {
    const title = t("Leave out the prompts that begin after the end of the video");
    const cut = () => this.#shorten((now) => cutAt(now.segments, now, seconds));
    return button(t("cut at %1", plainTime(seconds)), title, cut);
  }

  /** @param {number} seconds */
  #scale(seconds) {
    const scale = () => this.#shorten((now) => scaledTo(now.segments, now, seconds));
    return button(t("fit into %1", plainTime(seconds)), t("Shorten all prompts alike"), scale);
  }

  /** Back to the last length that fitted, if the last prompt begins in it. @param {Timeline} timeline */
  #restore(timeline) {
    const last = startSeconds(timeline, timeline.segments[timeline.segments.length - 1].start_block);
    const seconds = this.#fitting > last ? this.#fitting : timeline.seconds;
    const title = t("Make the video as long as the story");
    return button(t("back to %1", plainTime(seconds)), title, () => this.#lengthen(seconds));
  }
}
