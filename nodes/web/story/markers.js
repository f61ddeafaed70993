// Markers on the timeline of the story panel: names at times of the story. They are a property of Prompt Timeline, kept
// with the workflow and undone with the graph; the text, which is what is rendered, knows nothing of them.
import { button, make, putProperty } from "../shared.js";
import { t } from "../texts.js";
import { followPointer } from "../timeline/drag.js";
import { isShortcut } from "../timeline/keys.js";
import { startSeconds, timeText } from "../timeline/segments.js";
/** @import {Entry, GraphNode, Marker} from "../types.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */

const PROPERTY = "headforcing_markers";
const SAME = 0.05; // seconds within which a second marker would cover the first
const STILL = 4; // pixels that a pointer may move in a click
const STEP = { usual: 0.1, large: 1 }; // seconds by which an arrow key moves one, and with Shift

/** Which way a key moves a marker. @type {Record<string, number>} */
const ARROWS = { ArrowLeft: -1, ArrowRight: 1 };

export class Markers {
  /** @type {GraphNode | null} */
  #storyNode = null;
  /** @type {TimelineEditor | null} */
  #editor = null;
  /** @type {(seconds: number) => void} */
  #seek = () => {};
  /** @type {(seconds: number, event: PointerEvent) => number} */
  #snap = (seconds) => seconds;
  #drawn = "";
  #edited = -1; // the index of the one that is dragged or named, for which no other is drawn anew
  /** @type {HTMLElement[]} */
  #elements = [];

  /**
   * Show those of a story over its bars; `seek` plays from a time, `snap` is that of the bars.
   * @param {GraphNode | null} storyNode
   * @param {TimelineEditor | null} editor
   * @param {{seek: (seconds: number) => void, snap: (seconds: number, event: PointerEvent) => number}} does
   */
  bind(storyNode, editor, { seek, snap }) {
    for (const element of this.#elements) element.remove();
    this.#elements = [];
    this.#drawn = "";
    this.#edited = -1;
    this.#storyNode = storyNode;
    this.#editor = editor;
    this.#seek = seek;
    this.#snap = snap;
    this.look();
  }

  /** Those of the story by their times; others than a person can set are left out. @returns {Marker[]} */
  get all() {
    const stored = this.#storyNode?.properties?.[PROPERTY];
    if (!Array.isArray(stored)) return [];
    const all = stored.filter(
      (marker) => Number.isFinite(marker?.seconds) && typeof (marker.name ?? "") === "string",
    );
    return all.map(({ seconds, name }) => ({ seconds, name: name ?? "" }));
  }

  /** Their times, to which bars and other markers jump; without the one that is dragged. */
  get times() {
    return this.all.filter((_, index) => index !== this.#edited).map(({ seconds }) => seconds);
  }

  /** Draw them where the graph's undo or another workflow has changed them. */
  look() {
    const timeline = this.#editor?.timeline;
    if (!timeline || this.#edited >= 0) return;
    const { all } = this;
    const total = startSeconds(timeline, timeline.blocks);
    const drawn = JSON.stringify([all, total]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const focused = this.#elements.findIndex((element) => element.contains(document.activeElement));
    for (const element of this.#elements) element.remove();
    this.#elements = all.map((marker, index) => this.#flag(marker, index, total));
    this.#editor.bars.inner.append(...this.#elements);
    this.#focus(Math.min(focused, all.length - 1));
  }

  /** @param {number} index */
  #focus(index) {
    this.#elements[index]?.querySelector("input").focus({ preventScroll: true });
  }

  /** Set one at a time of the story, and ask for its name. @param {number} seconds */
  add(seconds) {
    /** @param {Marker} marker */
    const isThere = (marker) => Math.abs(marker.seconds - seconds) < SAME;
    if (!this.all.some(isThere)) this.#put([...this.all, { seconds: toMillisecond(seconds), name: "" }]);
    this.#name(this.all.findIndex(isThere));
  }

  /** What the menu of one does; null where an element is none. @param {Node} element @returns {Entry[] | null} */
  entries(element) {
    const index = this.#elements.findIndex((each) => each.contains(element));
    if (index < 0) return null;
    return [
      [t("Name"), () => this.#name(index)],
      [t("Delete"), () => this.#remove(index)],
    ];
  }

  /** Keep them with the workflow. @param {Marker[]} all */
  #put(all) {
    putProperty(this.#storyNode, PROPERTY, all.toSorted((a, b) => a.seconds - b.seconds));
    this.#edited = -1;
    this.look();
  }

  /** @param {number} index */
  #remove(index) {
    this.#put(this.all.filter((_, each) => each !== index));
  }

  /** @param {Marker} marker @param {number} index @param {number} total seconds of the story */
  #flag(marker, index, total) {
    const time = timeText(Math.round(10 * marker.seconds) / 10);
    const does = t("Click: play from here. Drag or arrow keys: move. Enter: name. Delete: remove.");
    const flag = button(marker.name || "◆", `${marker.name} ${time}\n${does}`.trim(), () => {});
    flag.classList.add("hf-marker");
    flag.setAttribute("aria-label", [t("Marker at %1", time), marker.name].filter(Boolean).join(": "));
    flag.addEventListener("pointerdown", (event) => this.#drag(event, index));
    flag.addEventListener("dblclick", () => this.#name(index));
    flag.addEventListener("keydown", (event) => this.#key(event, index));
    const place = make("div", { class: "hf-marker-place" }, make("span", { class: "hf-marker-line" }), flag);
    place.style.left = `${(100 * marker.seconds) / total}%`;
    place.hidden = marker.seconds > total;
    return place;
  }

  /** @param {KeyboardEvent} event @param {number} index */
  #key(event, index) {
    const step = event.shiftKey ? STEP.large : STEP.usual;
    const move = () => this.#moveBy(index, ARROWS[event.key] * step);
    const name = () => this.#name(index);
    /** @type {Record<string, () => void>} */
    const keys = { ArrowLeft: move, ArrowRight: move, Enter: name, F2: name, Delete: () => this.#remove(index) };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  /** @param {number} index @param {number} by seconds */
  #moveBy(index, by) {
    const { all } = this;
    const seconds = toMillisecond(Math.max(0, all[index].seconds + by));
    const { name } = all[index];
    this.#put(all.with(index, { seconds, name }));
    this.#focus(this.all.findIndex((marker) => marker.seconds === seconds && marker.name === name));
  }

  /** Follow the pointer; a press that does not move plays from there. @param {PointerEvent} press @param {number} index */
  #drag(press, index) {
    if (press.button !== 0) return;
    press.stopPropagation();
    const { all } = this;
    const { bars, timeline } = this.#editor;
    const total = startSeconds(timeline, timeline.blocks);
    const grip = bars.secondsAt(press) - all[index].seconds;
    /** @type {number | null} */
    let dragged = null; // the second to which it is dragged
    /** @param {PointerEvent} event */
    const move = (event) => {
      if (dragged === null && Math.abs(event.clientX - press.clientX) < STILL) return;
      const snapped = this.#snap(bars.secondsAt(event) - grip, event);
      dragged = Math.min(Math.max(snapped, 0), total);
      this.#elements[index].style.left = `${(100 * dragged) / total}%`;
    };
    /** @param {boolean} isReleased */
    const stop = (isReleased) => {
      this.#edited = -1;
      if (dragged === null) {
        if (isReleased) this.#seek(all[index].seconds);
        return;
      }
      this.#drawn = "";
      if (isReleased) this.#put(all.with(index, { ...all[index], seconds: toMillisecond(dragged) }));
      else this.look();
    };
    followPointer(press, move, stop);
    this.#edited = index;
  }

  /** Let its name be typed in its place. @param {number} index */
  #name(index) {
    const marker = this.all[index];
    const place = this.#elements[index];
    if (!place) return;
    this.#edited = index;
    const field = make("input", { type: "text", class: "hf-marker-name", "aria-label": t("Name"), value: marker.name });
    /** @param {boolean} keeps */
    const end = (keeps) => {
      if (this.#edited !== index) return; // a field that is removed loses the focus
      this.#edited = -1;
      this.#drawn = "";
      const { all } = this;
      if (keeps && field.value.trim() !== marker.name) this.#put(all.with(index, { ...marker, name: field.value.trim() }));
      else this.look();
      this.#focus(index);
    };
    field.addEventListener("keydown", (event) => {
      if (!isShortcut(event)) event.stopPropagation();
      if (event.key === "Enter" || event.key === "Escape") end(event.key === "Enter");
    });
    field.addEventListener("pointerdown", (event) => event.stopPropagation());
    field.addEventListener("blur", () => end(true));
    place.querySelector("input").replaceWith(field);
    field.focus({ preventScroll: true });
    field.select();
  }
}

/** @param {number} seconds */
function toMillisecond(seconds) {
  return Math.round(1000 * seconds) / 1000;
}
