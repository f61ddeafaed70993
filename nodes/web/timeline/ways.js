// Ways out of a story that is longer than the node's seconds, shown below its bars.
import { button, make } from "../shared.js";
import { t } from "../texts.js";
import { cutAt, plainTime, scaledTo, startSeconds } from "./segments.js";

export class Ways {
  #shorten;
  #lengthen;
  #fitting = 0; // length of the last story that fitted, in seconds

  /**
   * `shorten(shortened)` gets a function of a view, whose prompts it makes fit; `lengthen(seconds)` a length into which
   * the story fits.
   */
  constructor(shorten, lengthen) {
    this.#shorten = shorten;
    this.#lengthen = lengthen;
    this.element = make("div", { class: "hf-tools", role: "toolbar", "aria-label": t("Ways out"), hidden: true });
  }

  /** Show the ways for a view; `isFixed`: the length comes from another node. */
  show(view, isFixed) {
    const { beyond, segments } = view;
    this.element.hidden = beyond === undefined;
    if (beyond === undefined) {
      this.#fitting = view.seconds;
      return;
    }
    const length = plainTime(beyond);
    const cut = t("Leave out the prompts that begin after the end of the video");
    const ways = [button(t("cut at %1", length), cut, () => this.#shorten((now) => cutAt(now.segments, now, beyond)))];
    const scaled = (now) => scaledTo(now.segments, now, beyond);
    if (scaled(view))
      ways.push(button(t("fit into %1", length), t("Shorten all prompts alike"), () => this.#shorten(scaled)));
    const last = startSeconds(view, segments.at(-1).start_block);
    const back = this.#fitting > last ? this.#fitting : view.seconds;
    const lengthen = t("Make the video as long as the story");
    if (!isFixed) ways.push(button(t("back to %1", plainTime(back)), lengthen, () => this.#lengthen(back)));
    this.element.replaceChildren(...ways);
  }
}
