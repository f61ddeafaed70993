// The line below the bars: how long the story is, or what is wrong.
import { make } from "../shared.js";
import { t } from "../texts.js";
import { plainTime, timeText } from "./segments.js";
/** @import {Timeline} from "../types.js" */

export class Status {
  /** Whether to say that a change could not be taken, until the next one is. */
  hasLostChange = false;

  constructor() {
    this.element = make("div", { class: "hf-status", role: "status", "aria-live": "polite" });
  }

  /** @param {string} sentence */
  say(sentence, isError = false) {
    this.element.textContent = sentence;
    this.element.classList.toggle("hf-error", isError);
  }

  /**
   * Say what there is to say of a timeline.
   * @param {Timeline} timeline
   * @param {boolean} hasBars whether it can be shown as bars
   */
  show(timeline, hasBars) {
    const lost = this.hasLostChange ? `${t("The last change was not taken: the text was changed elsewhere.")} ` : "";
    const tooMany = t("%1 prompts are too many for bars; edit the text.", timeline.segments.length);
    const about = hasBars ? (timeline.read_as ?? plainTime(timeline.seconds)) : tooMany;
    this.element.title = t("%1 blocks, %2", timeline.blocks, timeText(timeline.seconds));
    const isProblem = !hasBars || this.hasLostChange || timeline.refusal !== undefined;
    this.say(lost + (timeline.refusal ?? about), isProblem);
  }
}
