// A second video over the one that a player plays: it is seen on one side of a line that is dragged.
import { make } from "../shared.js";
import { t } from "../texts.js";

/** Shares of the width by which a key moves the line. @type {Record<string, number>} */
const STEPS = { ArrowLeft: -0.02, ArrowRight: 0.02 };
const OVER = { position: "absolute", inset: "0", height: "100%", pointerEvents: "none" };
const LINE =
  "position: absolute; top: 0; bottom: 0; width: 20px; margin-left: -10px; cursor: ew-resize; touch-action: none; " +
  "background: linear-gradient(90deg, transparent 9px, #0008 9px, #fff 10px 11px, #0008 11px 12px, transparent 12px)";

export class Wipe {
  #stage;
  #video;
  #place = 0.5; // of the line, from 0 at the left to 1
  #isSwapped = false;

  /**
   * @param {HTMLElement} stage holds both videos
   * @param {HTMLVideoElement} video the second one
   */
  constructor(stage, video) {
    this.#stage = stage;
    this.#video = video;
    const label = t("Line between the two takes (Left, Right)");
    const about = { role: "slider", tabindex: 0, title: label, "aria-label": label, style: LINE };
    this.line = make("div", { class: "hf-wipe", "aria-valuemin": 0, "aria-valuemax": 100, ...about });
    this.line.addEventListener("pointerdown", (event) => this.line.setPointerCapture(event.pointerId));
    this.line.addEventListener("pointermove", (event) => this.#drag(event));
    this.line.addEventListener("keydown", (event) => this.#key(event));
    Object.assign(video.style, OVER);
    stage.style.position = "relative";
    stage.append(this.line);
    this.#draw();
  }

  /** Show the second video left of the line instead of right of it. @param {boolean} isSwapped */
  swap(isSwapped) {
    this.#isSwapped = isSwapped;
    this.#draw();
  }

  /** Put the second video beside the first again. */
  close() {
    this.line.remove();
    this.#stage.style.position = "";
    for (const name of Object.keys(OVER)) Object.assign(this.#video.style, { [name]: "" });
    this.#video.style.clipPath = "";
  }

  /** @param {PointerEvent} event */
  #drag(event) {
    if (!this.line.hasPointerCapture(event.pointerId)) return;
    const { left, width } = this.#stage.getBoundingClientRect();
    this.#moveTo((event.clientX - left) / width);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const by = STEPS[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    this.#moveTo(this.#place + by);
  }

  /** @param {number} place of the line, from 0 at the left to 1 */
  #moveTo(place) {
    this.#place = Math.min(Math.max(place, 0), 1);
    this.#draw();
  }

  #draw() {
    const percent = 100 * this.#place;
    this.line.style.left = `${percent}%`;
    this.line.setAttribute("aria-valuenow", String(Math.round(percent)));
    const right = `inset(0 0 0 ${percent}%)`;
    const left = `inset(0 ${100 - percent}% 0 0)`;
    this.#video.style.clipPath = this.#isSwapped ? left : right;
  }
}
