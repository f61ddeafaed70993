// The ruler and the bars of the prompts, with the handles between them: mouse, touch and keyboard.
import { make } from "../shared.js";
import { t } from "../texts.js";
import { Bar, help } from "./bar.js";
import { fitted, Labels } from "./labels.js";
import { Playhead } from "./playhead.js";
import { drawGrid, Ruler } from "./ruler.js";
import { blockAt, moved, placeFor, range, reordered, startSeconds, within } from "./segments.js";
import { largestZoom, USUAL_PIXELS, zoomForClicks } from "./zoom.js";

const FAR = 10; // blocks that a switch moves by with Shift
const STILL = 5; // pixels that a pointer may move in a click
let helps = 0; // elements with that text on the page

/**
 * `actions`: select(index), open(), seek(seconds), edit(), remove(), duplicate(), locked(index), preview(segments,
 * selected), dropped(index) after a drag that changes nothing, commit(segments, key, selected).
 */
export class Bars {
  ripples = false; // whether all later prompts move with one; Ctrl does it, too
  /** What a time under a pointer is taken for while a bar is dragged. @type {((seconds: number, event: any) => number) | undefined} */
  snap;
  zoomsByWheel = false; // without Ctrl, as in the story panel; the wheel scrolls with Shift
  #actions;
  #state = null;
  /** Pixels that are shown, and how far they are scrolled: kept, since asking an element lays out the page anew. */
  width = 0;
  left = 0;
  #zoom = 1; // 1 shows the whole video
  #prompts = 0; // number of bars that the zoom was chosen for
  #hidden = 0; // share of the story left of what is shown
  /** By number of their prompts. @type {Map<number, Bar>} */
  #bars = new Map();
  #held = -1; // the number of the prompt whose bar or handle the pointer holds
  #dragged = false; // whether the click that comes now ends a drag
  #labels = new Labels();

  constructor(actions) {
    this.#actions = actions;
    this.ruler = new Ruler();
    this.track = make("div", { class: "hf-track", role: "group", "aria-label": t("Prompts over time") });
    this.inner = make("div", { class: "hf-inner" }, this.ruler.element, this.track);
    this.playhead = new Playhead(this.track);
    this.ruler.element.addEventListener("click", (event) => this.#actions.seek(this.secondsAt(event)));
    const scroll = { class: "hf-scroll", "data-capture-wheel": "true", tabindex: -1 }; // a click beside bars focuses it
    this.help = make("span", { id: `hf-timeline-help-${++helps}`, hidden: true }, help().join(" "));
    this.element = make("div", scroll, this.inner, this.help);
    this.element.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    new ResizeObserver(() => this.#resized()).observe(this.element);
    this.element.addEventListener("scroll", () => this.#scrolled());
    this.element.addEventListener("focus", () => this.#bars.get(this.#state?.selected)?.element.focus({ preventScroll: true }));
  }

  /** Show the same part of the story: an element that was moved in the page stands at its beginning. */
  #resized() {
    this.width = this.element.clientWidth;
    if (!this.width || !this.#state) return;
    const hidden = this.#hidden;
    this.draw(this.#state);
    this.#scrollTo(hidden * this.pixels);
  }

  /** The width of the whole video in pixels. */
  get pixels() {
    return (this.width || USUAL_PIXELS) * this.#zoom;
  }

  /** Show a state: view, segments, selected, enabled. Elements are kept, and the keyboard's focus with them. */
  draw(state) {
    this.#state = state;
    const { view, segments, enabled } = state;
    if (this.#prompts !== segments.length) {
      this.#prompts = segments.length;
      this.#zoom = Math.max(this.#zoom, zoomForClicks(view, segments, this.width));
    }
    this.#zoom = Math.min(this.#zoom, largestZoom(view, this.width));
    this.inner.style.width = `${100 * this.#zoom}%`;
    this.element.classList.toggle("hf-off", !enabled);
    this.ruler.draw(view, this.pixels);
    drawGrid(this.track, view, this.pixels);
    this.#drawBars();
  }

  /** Draw the bars in view. Hundreds that are out of sight would be laid out at each move of the pointer. */
  #drawBars() {
    if (!this.#state) return;
    const { segments, view } = this.#state;
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
      const label = fitted(segments[index], labels[index], view, this.pixels);
      bar.draw(this.#state, label, range(segments, index, free));
    }
    this.playhead.draw(this.#state, this.#bars, this.pixels);
  }

  /** The numbers of the prompts that have bars: those in view or half as far again, the chosen, focused and held ones. */
  #shown() {
    const { view, segments, selected } = this.#state;
    const width = this.width || USUAL_PIXELS;
    const second = startSeconds(view, view.blocks) / this.pixels;
    const [first, last] = within(segments, view, (this.left - width / 2) * second, (this.left + 1.5 * width) * second);
    const shown = new Set([selected, this.#held, this.indexOf(document.activeElement)]);
    for (let index = first; index <= last; index++) shown.add(index);
    for (const index of shown) if (!(index in segments)) shown.delete(index);
    return shown;
  }

  /** Show where a render of the story and its player are, see `Playhead.move`. */
  follow(place) {
    this.playhead.move(place);
    if (this.#state) this.playhead.draw(this.#state, this.#bars, this.pixels);
  }

  /** See `Playhead.frame`. */
  frame(video, mediaTime) {
    this.playhead.frame(video, mediaTime);
  }

  /** Which bar an element is; -1 for none. */
  indexOf(element) {
    for (const [index, bar] of this.#bars) if (bar.element === element) return index;
    return -1;
  }

  /** The number of the prompt at a time of the story, from 0. */
  indexAt(seconds) {
    const { view, segments } = this.#state;
    return segments.findLastIndex(({ start_block }) => startSeconds(view, start_block) <= seconds);
  }

  focus(index) {
    this.#bringIntoView(index);
    this.#bars.get(index)?.element.focus({ preventScroll: true });
  }

  /** Zoom by a factor, 0 for the whole video, around a place on the screen or the selected prompt. */
  zoom(factor, clientX = null) {
    if (!this.#state) return;
    const { view, segments, selected } = this.#state;
    const box = this.element.getBoundingClientRect();
    const total = startSeconds(view, view.blocks);
    const selectedShare = startSeconds(view, segments[selected]?.start_block ?? 0) / total;
    const share = clientX === null ? selectedShare : this.#share(clientX);
    const width = this.element.clientWidth;
    const place = clientX === null ? width / 3 : ((clientX - box.left) / box.width) * width;
    this.#zoom = factor ? Math.min(Math.max(this.#zoom * factor, 1), largestZoom(view, this.width)) : 1;
    this.draw(this.#state);
    this.#scrollTo(share * width * this.#zoom - place);
  }

  #newBar(index) {
    return new Bar(index, this.help.id, {
      click: () => {
        if (this.#dragged) return (this.#dragged = false);
        this.#actions.open();
        this.#actions.seek(startSeconds(this.#state.view, this.#state.segments[index].start_block));
      },
      press: (event) => {
        this.#dragged = false;
        event.target.focus({ preventScroll: true }); // not all browsers focus a button that is clicked
        this.#reorder(event, index);
      },
      grasp: (event) => this.#move(event, index),
      focus: () => this.#actions.select(index),
      edit: () => this.#actions.edit(),
      key: (event) => this.#key(event, index),
    });
  }

  #key(event, index) {
    const { segments } = this.#state;
    const ripple = this.#ripples(event);
    const arrow = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if ((event.ctrlKey || event.metaKey || event.altKey) && !arrow) return;
    const move = (by) => {
      const next = moved(segments, index, segments[index].start_block + by, { free: this.playhead.free, ripple });
      if (next[index].start_block !== segments[index].start_block) this.#actions.commit(next, `move ${index}`, index);
      else if (this.isBegun(segments[index])) this.#actions.locked(index);
    };
    const swap = (to) => {
      if (to < 0 || to >= segments.length) return;
      const begun = [index, to].find((each) => this.isBegun(segments[each]));
      if (begun !== undefined) return this.#actions.locked(begun);
      this.#actions.commit(reordered(segments, index, to), null, to);
      this.focus(to);
    };
    const go = () => (event.altKey ? swap(index + arrow) : move(arrow * (event.shiftKey ? FAR : 1)));
    const keys = {
      ArrowLeft: go,
      ArrowRight: go,
      ArrowUp: () => this.focus(Math.max(index - 1, 0)),
      ArrowDown: () => this.focus(Math.min(index + 1, segments.length - 1)),
      Home: () => this.focus(0),
      End: () => this.focus(segments.length - 1),
      Enter: () => this.#actions.edit(),
      Delete: () => this.#actions.remove(),
      d: () => this.#actions.duplicate(),
      "+": () => this.zoom(1.5),
      "=": () => this.zoom(1.5),
      "-": () => this.zoom(1 / 1.5),
      0: () => this.zoom(0),
    };
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  /** Whether the render that runs has begun a prompt. */
  isBegun = ({ start_block }) => start_block < this.playhead.free;

  #ripples({ ctrlKey, metaKey }) {
    return this.ripples || ctrlKey || metaKey;
  }

  /** Drag the switch to a prompt, and where it ripples all that follows. */
  #move(event, index) {
    event.preventDefault();
    if (event.button !== 0 || !this.#state.enabled) return;
    this.focus(index);
    const { segments } = this.#state;
    if (this.isBegun(segments[index])) return this.#actions.locked(index);
    const change = (block, moving) => {
      const how = { free: this.playhead.free, ripple: this.#ripples(moving) };
      return [moved(segments, index, block, how), index];
    };
    this.#drag(event, index, change);
  }

  /** Drag a whole prompt to another place in the order. */
  #reorder(event, index) {
    if (event.button !== 0 || !this.#state.enabled) return;
    const { view, segments } = this.#state;
    const grip = blockAt(view, this.secondsAt(event)) - segments[index].start_block;
    const change = (block, moving) => {
      if (!this.#dragged && Math.abs(moving.clientX - event.clientX) < STILL) return null;
      this.#dragged = true;
      if (this.isBegun(segments[index])) return void this.#actions.locked(index);
      const begun = segments.filter(this.isBegun).length;
      const to = placeFor(segments, index, block - grip, begun);
      return [to === index ? segments : reordered(segments, index, to), to];
    };
    this.#drag(event, index, change);
  }

  /** Follow a pointer: `change(block, event)` gives the segments of now and which is selected; null: no change. */
  #drag(event, index, change) {
    event.stopPropagation();
    const element = event.target;
    element.setPointerCapture(event.pointerId);
    this.#held = index;
    const { view, segments } = this.#state;
    let latest = null;
    const show = (shown, selected) => {
      this.#actions.preview(shown, selected);
      this.#bars.get(selected)?.element.focus({ preventScroll: true });
    };
    const move = (moving) => {
      moving.stopPropagation();
      const at = this.secondsAt(moving);
      const found = change(blockAt(view, this.snap?.(at, moving) ?? at), moving);
      if (!found) return;
      latest = found;
      const box = this.element.getBoundingClientRect();
      const beyond = Math.min(0, moving.clientX - box.left) + Math.max(0, moving.clientX - box.right);
      if (beyond) this.#scrollTo(this.left + beyond / 2);
      show(...latest);
    };
    const stop = (keep) => {
      listeners.abort();
      this.#held = -1;
      if (!latest) return;
      const [changed, selected] = latest;
      const isSame = !keep || JSON.stringify(changed) === JSON.stringify(segments);
      if (isSame) this.#actions.dropped(index);
      else this.#actions.commit(changed, null, selected);
      this.focus(isSame ? index : selected);
    };
    const listeners = new AbortController();
    const { signal } = listeners;
    element.addEventListener("pointermove", move, { signal });
    element.addEventListener("pointerup", () => stop(true), { signal });
    element.addEventListener("pointercancel", () => stop(false), { signal });
    const escape = (key) => {
      if (key.key !== "Escape") return;
      key.stopPropagation();
      stop(false);
    };
    window.addEventListener("keydown", escape, { signal, capture: true });
  }

  /** The time of the story under a pointer. */
  secondsAt({ clientX }) {
    const { view } = this.#state;
    return this.#share(clientX) * startSeconds(view, view.blocks);
  }

  /** Where a place on the screen is in the video, from 0 to 1; works under the canvas's scaling. */
  #share(clientX) {
    const box = this.inner.getBoundingClientRect();
    return Math.min(Math.max((clientX - box.left) / box.width, 0), 1);
  }

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

  #bringIntoView(index) {
    const { view, segments } = this.#state ?? {};
    if (!segments?.[index]) return;
    const at = (startSeconds(view, segments[index].start_block) * this.pixels) / startSeconds(view, view.blocks);
    if (at < this.left || at > this.left + this.width - 20) this.#scrollTo(at - this.width / 3);
    else this.#drawBars();
  }

  #scrollTo(left) {
    this.element.scrollLeft = left;
    this.#scrolled();
  }

  #scrolled() {
    this.left = this.element.scrollLeft;
    this.#hidden = this.left / this.pixels;
    this.#drawBars();
  }
}
