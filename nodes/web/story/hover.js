// A larger picture of the story at the pointer, once it rests on the bars. It stands above the ruler, over the words: never
// over a button.
import { make } from "../shared.js";
import { plainTime } from "../timeline/segments.js";
/** @import {Segment} from "../types.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */

const REST_MS = 300;
const HEIGHT = { most: 110, least: 34 }; // of the picture, in pixels
const TIME = 22; // height of the time below it, with the edges
const MARGIN = 4; // pixels from the edges of the words

export class Hover {
  /** @type {TimelineEditor | null} */
  #editor = null;
  #pictureAt;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #listening = new AbortController();

  /** @param {(segment: Segment, seconds: number) => HTMLCanvasElement | null} pictureAt that of a bar at a time of the story */
  constructor(pictureAt) {
    this.#pictureAt = pictureAt;
    this.picture = make("canvas");
    this.time = make("span");
    this.element = make("div", { class: "hf-story-hover", hidden: true }, this.picture, this.time);
  }

  /** Show pictures over the bars of an editor in the panel; null: of none. @param {TimelineEditor | null} editor */
  bind(editor) {
    this.#listening.abort();
    this.#hide();
    this.element.remove();
    this.#editor = editor;
    const root = editor?.element.closest(".hf-story");
    if (!root) return;
    root.append(this.element);
    this.#listening = new AbortController();
    const { signal } = this.#listening;
    const hide = () => this.#hide();
    for (const event of ["pointerdown", "keydown", "wheel", "fullscreenchange"])
      root.addEventListener(event, hide, { signal, capture: true });
    editor.bars.track.addEventListener("pointerleave", hide, { signal });
    editor.bars.track.addEventListener("pointermove", (event) => this.#rest(event), { signal });
  }

  #hide() {
    clearTimeout(this.#timer);
    this.element.hidden = true;
  }

  /** Show the picture at the pointer when it has not moved for a while. @param {PointerEvent} event */
  #rest(event) {
    this.#hide();
    const { clientX, buttons } = event;
    if (!buttons) this.#timer = setTimeout(() => this.#show(clientX), REST_MS);
  }

  /** @param {number} clientX */
  #show(clientX) {
    const { bars, timeline, segments, panel } = this.#editor;
    if (!timeline) return;
    const seconds = bars.secondsAt({ clientX });
    const segment = segments[bars.indexAt(seconds)];
    const picture = segment && this.#pictureAt(segment, seconds);
    const words = panel.words.element.getBoundingClientRect();
    const height = Math.min(HEIGHT.most, words.height - TIME);
    if (!picture || height < HEIGHT.least) return;
    this.picture.width = picture.width;
    this.picture.height = picture.height;
    this.picture.style.height = `${height}px`;
    this.picture.getContext("2d").drawImage(picture, 0, 0);
    this.time.textContent = plainTime(seconds);
    this.element.hidden = false;
    const root = this.element.parentElement.getBoundingClientRect();
    const half = this.element.offsetWidth / 2 + MARGIN;
    const x = Math.max(Math.min(clientX, words.right - half), words.left + half);
    this.element.style.left = `${x - root.left}px`;
    this.element.style.top = `${words.bottom - root.top}px`;
  }
}
