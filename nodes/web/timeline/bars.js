// The ruler and the bars of the prompts, with the handles between them: mouse, touch and keyboard.
import { make } from "../shared.js";
import { t } from "../texts.js";
import { Bar, help } from "./bar.js";
import { BarDrag } from "./bar_drag.js";
import { BarKeys } from "./bar_keys.js";
import { labelFor, Labels } from "./labels.js";
import { Playhead } from "./playhead.js";
import { drawGrid, Ruler } from "./ruler.js";
import { indicesBetween, range, startSeconds, timeText } from "./segments.js";
import { largestZoom, USUAL_PIXELS, zoomForClicks } from "./zoom.js";
/** @import {Actions, EditorState, Segment, ShownPlace} from "../types.js" */

const HANDLE_PIXELS = 24; // of two bars that have a handle between them: it would cover narrower ones
const DOUBLE_CLICK_MS = 400; // between its two clicks, at most
const NARROW = 40; // pixels of a bar in which the number of its prompt has all the room
let helps = 0; // elements with that text on the page

/** The bars of a story, as wide as their prompts last, in a part of the page that is scrolled and zoomed. */
export class Bars {
  ripples = false; // whether all later prompts move with one; Ctrl does it, too
  /**
   * The time that one under a pointer stands for while a bar is dragged.
   * @type {((seconds: number, event: PointerEvent) => number) | undefined}
   */
  snap;
  zoomsByWheel = false; // without Ctrl, as in the story panel; the wheel scrolls with Shift
  #actions;
  /** What is shown; null before the first. @type {EditorState | null} */
  state = null;
  /** Pixels that are shown, and how far they are scrolled: kept, since asking an element lays out the page anew. */
  shownWidth = 0;
  scrollLeft = 0;
  #zoom = 1; // 1 shows the whole video
  #prompts = 0; // number of bars that the zoom was chosen for
  #scrolledShare = 0; // how much of the video is left of what is shown, from 0 to 1
  /** By number of their prompts. @type {Map<number, Bar>} */
  #bars = new Map();
  #labels = new Labels();
  #drag;
  #keys;
  /** Opens the fields of a prompt. @type {ReturnType<typeof setTimeout> | undefined} */
  #opening;

  /** @param {Actions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.#drag = new BarDrag(this, actions);
    this.#keys = new BarKeys(this, actions);
    this.ruler = new Ruler();
    this.track = make("div", { class: "hf-track", role: "group", "aria-label": t("Prompts over time") });
    this.inner = make("div", { class: "hf-inner" }, this.ruler.element, this.track);
    this.edge = make("output", { class: "hf-edge", "aria-hidden": "true", hidden: true });
    this.inner.append(this.edge);
    this.playhead = new Playhead(this.track);
    this.ruler.element.addEventListener("click", (event) => this.#actions.seek(this.secondsAt(event)));
    const scroll = { class: "hf-scroll", "data-capture-wheel": "true", tabindex: -1 }; // a click beside bars focuses it
    this.help = make("span", { id: `hf-timeline-help-${++helps}`, hidden: true }, help().join(" "));
    this.element = make("div", scroll, this.inner, this.help);
    this.element.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    new ResizeObserver(() => this.#resized()).observe(this.element);
    this.element.addEventListener("scroll", () => this.#scrolled());
    this.element.addEventListener("focus", () => this.focusBar(this.state?.selected));
  }

  /** Show the same part of the story: an element that was moved in the page stands at its beginning. */
  #resized() {
    this.shownWidth = this.element.clientWidth;
    if (!this.shownWidth || !this.state) return;
    const share = this.#scrolledShare;
    this.draw(this.state);
    this.#scrollTo(share * this.wholeWidth);
  }

  /** The width of the whole video in pixels. */
  get wholeWidth() {
    return (this.shownWidth || USUAL_PIXELS) * this.#zoom;
  }

  /**
   * Show a state. Elements are kept, and the keyboard's focus with them.
   * @param {EditorState} state
   */
  draw(state) {
    this.state = state;
    const { timeline, segments, enabled } = state;
    if (this.#prompts !== segments.length) {
      this.#prompts = segments.length;
      this.#zoom = Math.max(this.#zoom, zoomForClicks(timeline, segments, this.shownWidth));
    }
    this.#zoom = Math.min(this.#zoom, largestZoom(timeline, this.shownWidth));
    this.inner.style.width = `${100 * this.#zoom}%`;
    this.element.classList.toggle("hf-off", !enabled);
    this.ruler.draw(timeline, this.wholeWidth);
    drawGrid(this.track, timeline, this.wholeWidth);
    this.#drawBars();
  }

  /** Draw the bars in view. Hundreds that are out of sight would be laid out at each move of the pointer. */
  #drawBars() {
    if (!this.state) return;
    const { segments } = this.state;
    const shown = this.#shown();
    for (const [index, bar] of this.#bars) {
      if (shown.has(index)) continue;
      bar.remove();
      this.#bars.delete(index);
    }
    const labels = this.#labels.of(segments);
    const { free } = this.playhead;
    let next = null; // in the page: a handle lies over the bar before it, and Tab goes from bar to bar
    for (const index of [...shown].toSorted((a, b) => b - a)) {
      const known = this.#bars.get(index);
      const bar = known ?? this.#newBar(index);
      if (!known && next) next.before(...bar.parts);
      else if (!known) this.track.append(...bar.parts);
      next = bar.element;
      this.#bars.set(index, bar);
      const pixels = this.#pixelsOf(segments[index]);
      const before = segments[index - 1];
      const fits = before && Math.min(pixels, this.#pixelsOf(before)) >= HANDLE_PIXELS;
      bar.fit({ hasHandle: Boolean(fits), isNarrow: pixels < NARROW });
      const label = labelFor(segments[index].text, index + 1, labels[index], pixels);
      bar.draw(this.state, label, range(segments, index, free));
    }
    this.playhead.draw(this.state, this.#bars, this.wholeWidth);
  }

  /** The width of a bar. @param {Segment} segment */
  #pixelsOf({ start_block, end_block }) {
    const { timeline } = this.state;
    const seconds = startSeconds(timeline, end_block) - startSeconds(timeline, start_block);
    return (seconds / startSeconds(timeline, timeline.blocks)) * this.wholeWidth;
  }

  /** The numbers of the prompts that have bars: those in view or half as far again, the chosen, focused and held ones. */
  #shown() {
    const { timeline, segments, selected } = this.state;
    const width = this.shownWidth || USUAL_PIXELS;
    const second = startSeconds(timeline, timeline.blocks) / this.wholeWidth;
    const from = (this.scrollLeft - width / 2) * second;
    const until = (this.scrollLeft + 1.5 * width) * second;
    const [first, last] = indicesBetween(segments, timeline, from, until);
    const shown = new Set([selected, this.#drag.held, this.indexOf(document.activeElement)]);
    for (let index = first; index <= last; index++) shown.add(index);
    for (const index of shown) if (!(index in segments)) shown.delete(index);
    return shown;
  }

  /**
   * Show where a render of the story and its player are, see `Playhead.move`.
   * @param {ShownPlace} place
   */
  follow(place) {
    this.playhead.move(place);
    if (this.state) this.playhead.draw(this.state, this.#bars, this.wholeWidth);
  }

  /**
   * See `Playhead.frame`.
   * @param {HTMLVideoElement} video
   * @param {number} mediaTime
   */
  frame(video, mediaTime) {
    this.playhead.frame(video, mediaTime);
  }

  /**
   * Which bar an element is; -1 for none.
   * @param {EventTarget | null} element
   */
  indexOf(element) {
    for (const [index, bar] of this.#bars) if (bar.element === element) return index;
    return -1;
  }

  /**
   * The number of the prompt at a time of the story, from 0.
   * @param {number} seconds
   */
  indexAt(seconds) {
    const { timeline, segments } = this.state;
    return segments.findLastIndex(({ start_block }) => startSeconds(timeline, start_block) <= seconds);
  }

  /** @param {number} index */
  focus(index) {
    this.#bringIntoView(index);
    this.focusBar(index);
  }

  /**
   * Zoom by a factor around a place on the screen or the selected prompt.
   * @param {number} factor
   * @param {number | null} clientX
   */
  zoom(factor, clientX = null) {
    if (!this.state) return;
    const { timeline, segments, selected } = this.state;
    const box = this.element.getBoundingClientRect();
    const total = startSeconds(timeline, timeline.blocks);
    const selectedShare = startSeconds(timeline, segments[selected]?.start_block ?? 0) / total;
    const share = clientX === null ? selectedShare : this.#share(clientX);
    const width = this.element.clientWidth;
    const place = clientX === null ? width / 3 : ((clientX - box.left) / box.width) * width;
    this.#zoom = Math.min(Math.max(this.#zoom * factor, 1), largestZoom(timeline, this.shownWidth));
    this.draw(this.state);
    this.#scrollTo(share * width * this.#zoom - place);
  }

  /** Show the whole video. */
  showAll() {
    if (!this.state) return;
    this.#zoom = 1;
    this.draw(this.state);
    this.#scrollTo(0);
  }

  /** @param {number} index */
  #newBar(index) {
    return new Bar(index, this.help.id, {
      click: ({ shiftKey, ctrlKey, metaKey, detail }) => {
        if (this.#drag.hasMoved) {
          this.#drag.hasMoved = false;
          return;
        }
        if (!(shiftKey || ctrlKey || metaKey)) this.#actions.choose(index, "only");
        clearTimeout(this.#opening);
        // in the node the fields move the bars up, away from the second click of a double click
        const open = () => this.inner.isConnected && this.#actions.open();
        this.#opening = setTimeout(open, detail ? DOUBLE_CLICK_MS : 0); // 0: by a key
      },
      press: (event) => {
        this.#drag.hasMoved = false;
        const isRow = event.shiftKey;
        const isMore = event.ctrlKey || event.metaKey;
        if (isMore) this.#actions.choose(index, "toggle");
        else this.#actions.choose(index, isRow ? "range" : "keep");
        this.focusBar(this.state?.selected); // not all browsers focus a button that is clicked
        if (!isRow && !isMore) this.#drag.dragBar(event, index);
      },
      grasp: (event) => this.#drag.dragHandle(event, index),
      focus: () => this.#actions.select(index),
      seek: (event) => this.#actions.seek(this.secondsAt(event)),
      key: (event) => this.#keys.press(event, index),
    });
  }

  /** Whether the render that runs has begun a prompt. @param {Segment} segment */
  isBegun = ({ start_block }) => start_block < this.playhead.free;

  /** Whether all later prompts move with one. @param {KeyboardEvent | PointerEvent} event */
  ripplesWith({ ctrlKey, metaKey }) {
    return this.ripples || ctrlKey || metaKey;
  }

  /** Show the time of a block, to which an edge is dragged, above it; null: of none. @param {number | null} block */
  showEdge(block) {
    this.edge.hidden = block === null;
    if (block === null) return;
    const { timeline } = this.state;
    const seconds = startSeconds(timeline, block);
    this.edge.textContent = timeText(Math.round(10 * seconds) / 10);
    this.edge.style.left = `${(100 * seconds) / startSeconds(timeline, timeline.blocks)}%`;
  }

  /** Scroll on while a pointer drags beyond an edge. @param {number} clientX */
  scrollAfter(clientX) {
    const box = this.element.getBoundingClientRect();
    const beyond = Math.min(0, clientX - box.left) + Math.max(0, clientX - box.right);
    if (beyond) this.#scrollTo(this.scrollLeft + beyond / 2);
  }

  /** Give the focus to a bar, if it is in sight. @param {number | undefined} index */
  focusBar(index) {
    this.#bars.get(index)?.element.focus({ preventScroll: true });
  }

  /** The time of the story under a pointer. @param {{clientX: number}} event */
  secondsAt({ clientX }) {
    const { timeline } = this.state;
    return this.#share(clientX) * startSeconds(timeline, timeline.blocks);
  }

  /** Where a place on the screen is in the video, from 0 to 1; works under the canvas's scaling. @param {number} clientX */
  #share(clientX) {
    const box = this.inner.getBoundingClientRect();
    return Math.min(Math.max((clientX - box.left) / box.width, 0), 1);
  }

  /** @param {WheelEvent} event */
  #wheel(event) {
    const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.ctrlKey || event.metaKey || (this.zoomsByWheel && !isSideways)) {
      event.preventDefault();
      event.stopPropagation();
      this.zoom(event.deltaY < 0 ? 1.25 : 1 / 1.25, event.clientX);
    } else if (this.element.scrollWidth > this.element.clientWidth) {
      event.preventDefault();
      event.stopPropagation();
      this.element.scrollLeft += event.deltaX || event.deltaY;
    }
  }

  /** @param {number} index */
  #bringIntoView(index) {
    const { timeline, segments } = this.state ?? {};
    if (!segments?.[index]) return;
    const share = startSeconds(timeline, segments[index].start_block) / startSeconds(timeline, timeline.blocks);
    const at = share * this.wholeWidth;
    if (at < this.scrollLeft || at > this.scrollLeft + this.shownWidth - 20) this.#scrollTo(at - this.shownWidth / 3);
    else this.#drawBars();
  }

  /** @param {number} left */
  #scrollTo(left) {
    this.element.scrollLeft = left;
    this.#scrolled();
  }

  #scrolled() {
    this.scrollLeft = this.element.scrollLeft;
    this.#scrolledShare = this.scrollLeft / this.wholeWidth;
    this.#drawBars();
  }
}
