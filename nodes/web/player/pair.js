// The video of a player and another take in step with it, beside it or wiped over it, with their names below.
import { app } from "../../../scripts/app.js";
import { Beside } from "./beside.js";
import { Wipe } from "./wipe.js";
import { address, button, make } from "../shared.js";
import { nameOf } from "../takes/store.js";
import { t } from "../texts.js";
/** @import {Take} from "../types.js" */

const HEIGHT = 24; // of the names, in pixels
const BUTTON = "border: 0; background: none; color: inherit; font-size: 18px; cursor: pointer";

export class Pair {
  /** The take in step with the video. @type {Take | null} */
  second = null;
  #stage;
  #video;
  /** @type {Beside | null} */
  #beside = null;
  /** @type {Wipe | null} */
  #wipe = null;
  #canWipe = false;
  #isSwapped = false;
  /** @type {[string, boolean]} */
  #labels = ["", false]; // what `label` was told last
  #hearsSecond = false; // whether the second take's sound is the one that is heard

  /**
   * @param {HTMLElement} stage holds the video
   * @param {HTMLVideoElement} video
   */
  constructor(stage, video) {
    this.#stage = stage;
    this.#video = video;
    const style = `flex: none; display: none; gap: 8px; font-size: 12px; line-height: ${HEIGHT}px`;
    this.names = make("div", { style });
    this.swaps = button("⇄", t("Swap the two takes: the left one goes to the right"), () => this.#swap(!this.#isSwapped));
    this.swaps.style.cssText = BUTTON;
    this.wipes = button("◧", t("Lay one take over the other, with a line to drag (W)"), () => this.wipe());
    this.wipes.style.cssText = BUTTON;
    this.hears = button("♪", t("Hear the other take; ♪ stands behind the name of the one that is heard"), () => this.#hearOther());
    this.hears.style.cssText = BUTTON;
  }

  /** Whether nothing is heard: of two takes one is, or none. */
  get isSilent() {
    return this.#video.muted && (this.video?.muted ?? true);
  }

  /** Let the chosen one of the two be heard, or neither. @param {boolean} isHeard */
  hear(isHeard) {
    const second = this.#hearsSecond ? this.video : null;
    this.#video.muted = !isHeard || Boolean(second);
    if (!this.video) return;
    this.video.muted = !isHeard || !second;
    const name = nameOf(this.second);
    this.video.title = this.video.muted ? t("%1, without its sound", name) : name;
    this.hears.setAttribute("aria-pressed", String(this.#hearsSecond));
  }

  #hearOther() {
    this.#hearsSecond = !this.#hearsSecond;
    this.hear(true);
    this.label(...this.#labels);
  }

  /** The video of the second take. */
  get video() {
    return this.#beside?.video;
  }

  /**
   * Play a take in step with the video, without its sound until a person asks for it.
   * @param {Take | null} take null: none
   */
  compare(take) {
    const wasHeard = !this.isSilent;
    this.#unwipe();
    this.#beside?.close();
    this.#beside = null;
    this.second = take;
    this.#hearsSecond = false;
    this.hear(wasHeard);
    if (!take) return;
    this.#beside = new Beside(this.#video, app.api.apiURL(address(take.file)), t("Video of %1", nameOf(take)));
    this.#stage.append(this.#beside.video);
    this.hear(wasHeard);
  }

  /**
   * Whether the second take can be wiped over the first: a node's own player has its controls below the picture.
   * @param {boolean} canWipe
   */
  allowWipe(canWipe) {
    this.#canWipe = canWipe;
    if (!canWipe) this.#unwipe();
    this.wipes.hidden = !canWipe;
  }

  /** Wipe the second take over the video, or put it beside it again. */
  wipe() {
    const isOver = Boolean(this.#wipe);
    this.#unwipe();
    if (!this.#beside || !this.#canWipe || isOver) return;
    this.#wipe = new Wipe(this.#stage, this.#beside.video);
    this.#wipe.swap(this.#isSwapped);
    this.wipes.setAttribute("aria-pressed", "true");
  }

  /**
   * Say which takes are played.
   * @param {string} first the name of the video
   * @param {boolean} isTake whether it is shown without a second one, too
   */
  label(first, isTake) {
    this.#labels = [first, isTake];
    this.names.style.display = isTake || this.second ? "flex" : "none";
    if (!this.second) {
      this.names.replaceChildren(nameElement(first, false));
      this.#swap(false);
      return;
    }
    const left = nameElement(first, !this.#hearsSecond);
    const right = nameElement(nameOf(this.second), this.#hearsSecond);
    this.names.replaceChildren(left, this.swaps, this.wipes, this.hears, right);
  }

  /** @param {boolean} isSwapped */
  #swap(isSwapped) {
    this.#isSwapped = isSwapped;
    for (const row of [this.#stage, this.names]) row.style.flexDirection = isSwapped ? "row-reverse" : "";
    this.#wipe?.swap(isSwapped);
  }

  #unwipe() {
    this.#wipe?.close();
    this.#wipe = null;
    this.wipes.setAttribute("aria-pressed", "false");
  }
}

/** @param {string} name @param {boolean} isHeard whether its sound is the one of two that is heard */
function nameElement(name, isHeard) {
  return make("span", { style: "flex: 1" }, isHeard ? `${name} ♪` : name);
}
