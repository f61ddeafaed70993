// Markers on the timeline of the story panel: names at times of the story. They are a property of Prompt Timeline, kept
// with the workflow and undone with the graph; the text, which is what is rendered, knows nothing of them.
import { button, make, putProperty } from "../shared.js";
import { t } from "../texts.js";
import { isShortcut } from "../timeline/keys.js";
import { startSeconds, timeText } from "../timeline/segments.js";

const PROPERTY = "headforcing_markers";
const SAME = 0.05; // seconds within which a second marker would cover the first
const STILL = 4; // pixels that a pointer may move in a click
const STEP = { usual: 0.1, large: 1 }; // seconds by which an arrow key moves one, and with Shift

/** @typedef {{seconds: number, name: string}} Mark */

export class Markers {
  #story = null;
  #editor = null;
  /** @type {(seconds: number) => void} */
  #seek = () => {};
  /** @type {(seconds: number, event: any) => number} */
  #snap = (seconds) => seconds;
  #drawn = "";
  #held = -1; // the number of the one that is dragged or named
  #elements = [];

  /** Show those of a story over its bars; `seek` plays from a time, `snap` is that of the bars. */
  bind(story, editor, { seek, snap }) {
    for (const element of this.#elements) element.remove();
    this.#elements = [];
    this.#drawn = "";
    this.#held = -1;
    this.#story = story;
    this.#editor = editor;
    this.#seek = seek;
    this.#snap = snap;
    this.look();
  }

  /** Those of the story by their times; others than a person can set are left out. @returns {Mark[]} */
  get all() {
    const stored = this.#story?.properties?.[PROPERTY];
    const all = (Array.isArray(stored) ? stored : []).filter((each) => Number.isFinite(each?.seconds));
    return all.map(({ seconds, name }) => ({ seconds, name: String(name ?? "") }));
  }

  /** Their times, to which bars and other markers jump; without the one that is dragged. */
  get times() {
    return this.all.filter((_, index) => index !== this.#held).map(({ seconds }) => seconds);
  }

  /** Draw them where the graph's undo or another workflow has changed them. */
  look() {
    const view = this.#editor?.view;
    if (!view || this.#held >= 0) return;
    const { all } = this;
    const total = startSeconds(view, view.blocks);
    const drawn = JSON.stringify([all, total]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const focused = this.#elements.findIndex((element) => element.contains(document.activeElement));
    for (const element of this.#elements) element.remove();
    this.#elements = all.map((mark, index) => this.#flag(mark, index, total));
    this.#editor.bars.inner.append(...this.#elements);
    this.#focus(Math.min(focused, all.length - 1));
  }

  #focus(index) {
    this.#elements[index]?.querySelector("input").focus({ preventScroll: true });
  }

  /** Set one at a time of the story, and ask for its name. */
  add(seconds) {
    const { all } = this;
    const known = all.findIndex((mark) => Math.abs(mark.seconds - seconds) < SAME);
    if (known < 0) this.#put([...all, { seconds: rounded(seconds), name: "" }]);
    const { all: now } = this;
    this.#name(now.findIndex((mark) => Math.abs(mark.seconds - seconds) < SAME));
  }

  /** What the menu of one does; null where an element is none. */
  entries(element) {
    const index = this.#elements.findIndex((each) => each.contains(element));
    if (index < 0) return null;
    return [
      [t("Name"), () => this.#name(index)],
      [t("Delete"), () => this.#remove(index)],
    ];
  }

  #put(all) {
    putProperty(this.#story, PROPERTY, all.toSorted((a, b) => a.seconds - b.seconds));
    this.#held = -1;
    this.look();
  }

  #remove(index) {
    this.#put(this.all.filter((_, each) => each !== index));
  }

  #flag(mark, index, total) {
    const time = timeText(Math.round(10 * mark.seconds) / 10);
    const does = t("Click: play from here. Drag or arrow keys: move. Enter: name. Delete: remove.");
    const flag = button(mark.name || "◆", `${mark.name} ${time}\n${does}`.trim(), () => {});
    flag.classList.add("hf-marker");
    flag.setAttribute("aria-label", [t("Marker at %1", time), mark.name].filter(Boolean).join(": "));
    flag.addEventListener("pointerdown", (event) => this.#drag(event, index));
    flag.addEventListener("dblclick", () => this.#name(index));
    flag.addEventListener("keydown", (event) => this.#key(event, index));
    const place = make("div", { class: "hf-marker-place" }, make("span", { class: "hf-marker-line" }), flag);
    place.style.left = `${(100 * mark.seconds) / total}%`;
    place.hidden = mark.seconds > total;
    return place;
  }

  #key(event, index) {
    const { all } = this;
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const acts = { Enter: () => this.#name(index), F2: () => this.#name(index), Delete: () => this.#remove(index) };
    if (!way && !acts[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    if (!way) return acts[event.key]();
    const seconds = rounded(Math.max(0, all[index].seconds + way * (event.shiftKey ? STEP.large : STEP.usual)));
    const moved = { ...all[index], seconds };
    this.#put(all.with(index, moved));
    this.#focus(this.all.findIndex((mark) => mark.seconds === seconds && mark.name === moved.name));
  }

  /** Follow the pointer; a press that does not move plays from there. */
  #drag(event, index) {
    if (event.button !== 0) return;
    event.stopPropagation();
    const { all } = this;
    const { bars, view } = this.#editor;
    const total = startSeconds(view, view.blocks);
    const flag = event.target;
    const grip = bars.secondsAt(event) - all[index].seconds;
    let seconds = null;
    flag.setPointerCapture(event.pointerId);
    this.#held = index;
    const listening = new AbortController();
    const { signal } = listening;
    const move = (moving) => {
      if (seconds === null && Math.abs(moving.clientX - event.clientX) < STILL) return;
      seconds = Math.min(Math.max(this.#snap(bars.secondsAt(moving) - grip, moving), 0), total);
      this.#elements[index].style.left = `${(100 * seconds) / total}%`;
    };
    const stop = (keeps) => {
      listening.abort();
      this.#held = -1;
      if (seconds === null) return keeps && this.#seek(all[index].seconds);
      this.#drawn = "";
      if (keeps) this.#put(all.with(index, { ...all[index], seconds: rounded(seconds) }));
      else this.look();
    };
    flag.addEventListener("pointermove", move, { signal });
    flag.addEventListener("pointerup", () => stop(true), { signal });
    flag.addEventListener("pointercancel", () => stop(false), { signal });
  }

  /** Let its name be typed in its place. */
  #name(index) {
    const mark = this.all[index];
    const place = this.#elements[index];
    if (!place) return;
    this.#held = index;
    const field = make("input", { type: "text", class: "hf-marker-name", "aria-label": t("Name"), value: mark.name });
    const end = (keeps) => {
      if (this.#held !== index) return; // a field that is removed loses the focus
      this.#held = -1;
      this.#drawn = "";
      const { all } = this;
      if (keeps && field.value.trim() !== mark.name) this.#put(all.with(index, { ...mark, name: field.value.trim() }));
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

/** To the millisecond. */
function rounded(seconds) {
  return Math.round(1000 * seconds) / 1000;
}
