// The ruler and the bars of the prompts, with the handles between them: mouse, touch and keyboard.
import { button, make } from "../shared.js";
import { t } from "../texts.js";
import { Labels } from "./labels.js";
import { Playhead } from "./playhead.js";
import { drawGrid, Ruler } from "./ruler.js";
import { blockAt, moved, placeFor, plainTime, range, reordered, startSeconds, tagText, timeText } from "./segments.js";
import { largestZoom, USUAL_PIXELS, zoomForClicks } from "./zoom.js";

const FAR = 10; // blocks that a switch moves by with Shift
const STILL = 5; // pixels that a pointer may move in a click
const help = () => [
  t("Arrow left and right move the start by the smallest step, with Shift by ten."),
  t("With Control all later prompts move along, with Alt the prompt moves past its neighbour."),
  t("Arrow up and down go to other prompts."),
  t("Enter edits the words and Escape ends that; D duplicates the prompt, Delete removes it."),
  t("Plus and minus zoom, 0 shows all, Control Z undoes."),
];
let helps = 0; // elements with that text on the page

/**
 * `actions`: select(index), open(), seek(seconds), edit(), remove(), duplicate(), locked(index), preview(segments,
 * selected), commit(segments, key, selected).
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
  #bars = [];
  #dragged = false; // whether the click that comes now ends a drag
  #labels = new Labels();

  constructor(actions) {
    this.#actions = actions;
    this.ruler = new Ruler();
    this.track = make("div", { class: "hf-track", role: "group", "aria-label": t("Prompts over time") });
    this.inner = make("div", { class: "hf-inner" }, this.ruler.element, this.track);
    this.playhead = new Playhead(this.track);
    this.ruler.element.addEventListener("click", (event) => this.#actions.seek(this.secondsAt(event)));
    const scroll = { class: "hf-scroll", "data-capture-wheel": "true", tabindex: -1 };
    this.help = make("span", { id: `hf-timeline-help-${++helps}`, hidden: true }, help().join(" "));
    this.element = make("div", scroll, this.inner, this.help);
    this.element.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    new ResizeObserver(() => this.#resized()).observe(this.element);
    this.element.addEventListener("scroll", () => (this.left = this.element.scrollLeft));
  }

  #resized() {
    this.width = this.element.clientWidth;
    if (this.#state) this.draw(this.#state);
  }

  /** The width of the whole video in pixels. */
  get pixels() {
    return (this.width || USUAL_PIXELS) * this.#zoom;
  }

  /** Show a state: view, segments, selected, enabled. Elements are kept, and the keyboard's focus with them. */
  draw(state) {
    this.#state = state;
    const { view, segments, selected, enabled } = state;
    const total = startSeconds(view, view.blocks);
    const percent = (block) => (100 * startSeconds(view, block)) / total;
    if (this.#prompts !== segments.length) {
      this.#prompts = segments.length;
      this.#zoom = Math.max(this.#zoom, zoomForClicks(view, segments, this.width));
    }
    this.#zoom = Math.min(this.#zoom, largestZoom(view, this.width));
    this.inner.style.width = `${100 * this.#zoom}%`;
    this.element.classList.toggle("hf-off", !enabled);
    const { pixels } = this;
    this.ruler.draw(view, pixels);
    drawGrid(this.track, view, pixels);
    while (this.#bars.length > segments.length) this.#bars.pop().forEach((part) => part.remove());
    while (this.#bars.length < segments.length) this.#bars.push(this.#newBar(this.#bars.length));
    const shown = this.#labels.of(segments);
    segments.forEach((segment, index) => {
      const [bar, tag, handle] = this.#bars[index];
      const drawn = JSON.stringify([segment, segments.length, total, view.seconds, index === selected, enabled, view.beyond]);
      const free = this.playhead.free;
      // hundreds of bars are drawn at each move of the pointer, of which few change
      if (bar.drawn === drawn && bar.free === free && bar.value === shown[index]) return;
      Object.assign(bar, { drawn, free });
      const left = percent(segment.start_block);
      const width = percent(segment.end_block) - left;
      const [first, last] = range(segments, index, this.playhead.free);
      const words = tagText(segment, view.block_seconds, t);
      const from = startSeconds(view, segment.start_block);
      const to = endOf(view, segment);
      const times = t("%1 to %2", plainTime(from), plainTime(to));
      const exact = `${t("%1 to %2", timeText(from), timeText(to))}, ${t("block %1", segment.start_block)}`;
      bar.value = shown[index];
      bar.title = `${exact}${words && `\n[${words}]`}\n${segment.text}`;
      bar.style.left = tag.style.left = `${left}%`;
      bar.style.width = tag.style.width = `${width}%`;
      handle.style.left = `${left}%`;
      tag.textContent = segment.seed == null ? words : `⚄ ${words}`;
      bar.disabled = !enabled;
      bar.classList.toggle("hf-selected", index === selected);
      bar.classList.toggle("hf-beyond", view.beyond !== undefined && from >= view.beyond);
      const about = {
        label: `${t("Prompt %1 of %2", index + 1, segments.length)}: ${segment.text}`,
        valuemin: first,
        valuemax: last,
        valuenow: segment.start_block,
        valuetext: `${times}, ${t("block %1", segment.start_block)}${words && `, ${words}`}`,
      };
      for (const [name, value] of Object.entries(about)) bar.setAttribute(`aria-${name}`, value);
    });
    this.playhead.draw(state, this.#bars, pixels);
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
    return this.#bars.findIndex(([bar]) => bar === element);
  }

  /** The number of the prompt at a time of the story, from 0. */
  indexAt(seconds) {
    const { view, segments } = this.#state;
    return segments.findLastIndex(({ start_block }) => startSeconds(view, start_block) <= seconds);
  }

  focus(index) {
    const bar = this.#bars[index]?.[0];
    bar?.focus({ preventScroll: true });
    this.#bringIntoView(index);
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
    this.element.scrollLeft = share * width * this.#zoom - place;
  }

  #newBar(index) {
    // An <input>, see shared.js; as a slider it tells a screen reader its place whenever it moves.
    const bar = button("", "", () => {
      if (this.#dragged) return (this.#dragged = false);
      this.#actions.open();
      this.#actions.seek(startSeconds(this.#state.view, this.#state.segments[index].start_block));
    });
    const about = { class: "hf-bar", role: "slider", "aria-describedby": this.help.id };
    about["aria-orientation"] = "horizontal";
    for (const [name, value] of Object.entries(about)) bar.setAttribute(name, value ?? "");
    bar.style.setProperty("--hf-hue", String((205 + index * 67) % 360));
    bar.addEventListener("pointerdown", (event) => {
      this.#dragged = false;
      bar.focus({ preventScroll: true }); // not all browsers focus a button that is clicked
      this.#reorder(event, bar, index);
    });
    bar.addEventListener("focus", () => this.#actions.select(index));
    bar.addEventListener("dblclick", () => this.#actions.edit());
    bar.addEventListener("keydown", (event) => this.#key(event, index));
    const tag = make("span", { class: "hf-tag", "aria-hidden": "true" });
    const handle = make("span", { class: "hf-handle", "aria-hidden": "true", hidden: index === 0 });
    handle.addEventListener("pointerdown", (event) => this.#move(event, handle, index));
    this.track.append(bar, tag, handle);
    return [bar, tag, handle];
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
  #move(event, handle, index) {
    event.preventDefault();
    if (event.button !== 0 || !this.#state.enabled) return;
    this.#bars[index][0].focus({ preventScroll: true });
    const { segments } = this.#state;
    if (this.isBegun(segments[index])) return this.#actions.locked(index);
    const change = (block, moving) => {
      const how = { free: this.playhead.free, ripple: this.#ripples(moving) };
      return [moved(segments, index, block, how), index];
    };
    this.#drag(event, handle, index, change);
  }

  /** Drag a whole prompt to another place in the order. */
  #reorder(event, bar, index) {
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
    this.#drag(event, bar, index, change);
  }

  /** Follow a pointer: `change(block, event)` gives the segments of now and which is selected; null: no change. */
  #drag(event, element, index, change) {
    event.stopPropagation();
    element.setPointerCapture(event.pointerId);
    const { view, segments } = this.#state;
    let latest = null;
    const show = (shown, selected) => {
      this.#actions.preview(shown, selected);
      this.#bars[selected][0].focus({ preventScroll: true });
    };
    const move = (moving) => {
      moving.stopPropagation();
      const at = this.secondsAt(moving);
      const found = change(blockAt(view, this.snap?.(at, moving) ?? at), moving);
      if (!found) return;
      latest = found;
      const box = this.element.getBoundingClientRect();
      const beyond = Math.min(0, moving.clientX - box.left) + Math.max(0, moving.clientX - box.right);
      this.element.scrollLeft += beyond / 2;
      show(...latest);
    };
    const stop = (keep) => {
      listeners.abort();
      if (!latest) return;
      const [changed, selected] = latest;
      if (!keep || JSON.stringify(changed) === JSON.stringify(segments)) return show(segments, index);
      this.#actions.commit(changed, null, selected);
      this.focus(selected);
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
    const bar = this.#bars[index]?.[0];
    if (!bar) return;
    const { scrollLeft, clientWidth } = this.element;
    if (bar.offsetLeft < scrollLeft || bar.offsetLeft > scrollLeft + clientWidth - 20)
      this.element.scrollLeft = bar.offsetLeft - clientWidth / 3;
  }
}

/**
 * @param {import("./segments.js").View} view
 * @param {import("./segments.js").Segment} segment
 */
function endOf(view, segment) {
  return Math.min(startSeconds(view, segment.end_block), view.seconds);
}
