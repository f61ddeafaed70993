// The lane of the words that every prompt keeps, above the bars: the line [shared] of the text.
import { make } from "../shared.js";
import { t } from "../texts.js";
import { Words } from "./words.js";
/** @import {StoryValues} from "../types.js" */

export class Lane {
  /** @param {(words: string) => void} change gets the words while they are typed */
  constructor(change) {
    this.opened = false; // asked for, while there are no words
    this.node = make("span", { class: "hf-node-words" }); // those of the node's own widget, which come first
    /** @param {{target: HTMLInputElement}} event */
    const oninput = ({ target }) => change(target.value);
    const about = { type: "text", "aria-label": t("Words of every prompt"), oninput };
    this.words = new Words(() => make("input", about));
    const title = t("Words that every prompt keeps; they are put before its own");
    this.element = make("label", { class: "hf-lane", title, hidden: true }, t("shared"), this.node, this.words.element);
  }

  /**
   * Show the shared words of the text and of the node. Words that are being typed are left alone.
   * @param {string} shared
   * @param {StoryValues} values
   * @param {boolean} enabled
   */
  show(shared, { shared_prompt }, enabled) {
    const typed = this.words.element.value.split(/\s+/).join(" ").trim();
    if (document.activeElement !== this.words.element || typed !== shared) this.words.put(shared);
    this.node.textContent = this.node.title = shared_prompt;
    this.words.element.disabled = !enabled;
    this.element.hidden = !(shared || shared_prompt || this.opened);
  }
}
