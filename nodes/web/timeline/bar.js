// The bar of one prompt, with its tag and the handle at its beginning. Prompts that are out of sight have none.
import { button, make } from "../shared.js";
import { t } from "../texts.js";
import { plainTime, startSeconds, tagText, timeText } from "./segments.js";
/** @import {EditorState, Segment, Timeline} from "../types.js" */

/** What keys do on a bar. */
export const help = () => [
  t("Arrow left and right move the start by the smallest step, with Shift by ten."),
  t("With Control all later prompts move along, with Alt the prompt moves past its neighbour."),
  t("Arrow up and down go to other prompts."),
  t("Enter edits the words and Escape ends that; D duplicates the prompt, Delete removes it."),
  t("Plus and minus zoom, 0 shows all, Control Z undoes."),
];

/**
 * Events of a bar, and of the handle at its beginning (`grasp`).
 * @typedef {object} BarEvents
 * @property {(event: MouseEvent) => void} click
 * @property {(event: PointerEvent) => void} press
 * @property {(event: PointerEvent) => void} grasp
 * @property {() => void} focus
 * @property {(event: MouseEvent) => void} seek
 * @property {(event: KeyboardEvent) => void} key
 */

/**
 * @param {Timeline} timeline
 * @param {Segment} segment
 */
function endOf(timeline, segment) {
  return Math.min(startSeconds(timeline, segment.end_block), timeline.seconds);
}

export class Bar {
  #drawn = "";
  #placed = "";

  /**
   * @param {number} index
   * @param {string} helpId of the element that says what keys do
   * @param {BarEvents} on
   */
  constructor(index, helpId, on) {
    this.index = index;
    // An <input>, see shared.js; as a slider it tells a screen reader its place whenever it moves.
    this.element = button("", "", (event) => on.click(/** @type {MouseEvent} */ (event)));
    this.element.addEventListener("mousedown", (event) => {
      if (event.shiftKey || event.ctrlKey || event.metaKey) event.preventDefault(); // `press` gives the focus
    });
    const about = { class: "hf-bar", role: "slider", "aria-describedby": helpId, "aria-orientation": "horizontal" };
    for (const [name, value] of Object.entries(about)) this.element.setAttribute(name, value);
    this.element.style.setProperty("--hf-hue", String((205 + index * 67) % 360));
    this.element.addEventListener("pointerdown", on.press);
    this.element.addEventListener("focus", on.focus);
    this.element.addEventListener("dblclick", on.seek);
    this.element.addEventListener("keydown", on.key);
    this.tag = make("span", { class: "hf-tag", "aria-hidden": "true" });
    this.handle = make("span", { class: "hf-handle", "aria-hidden": "true" });
    this.handle.addEventListener("pointerdown", on.grasp);
    this.parts = [this.element, this.tag, this.handle];
  }

  /**
   * Show a prompt of a state, which can begin at the blocks of `range`, with a label; what is drawn already stays.
   * @param {EditorState} state
   * @param {string} label
   * @param {[number, number]} range
   */
  draw({ timeline, segments, selected, choice, enabled }, label, [first, last]) {
    const { element, tag, index } = this;
    const segment = segments[index];
    const total = startSeconds(timeline, timeline.blocks);
    const isSelected = index === selected;
    const isChosen = choice.has(index);
    const { seconds, beyond } = timeline;
    const shown = [segment, segments.length, total, seconds, isSelected, isChosen, enabled, beyond, label, first, last];
    const drawn = JSON.stringify(shown);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const from = startSeconds(timeline, segment.start_block);
    const left = (100 * from) / total;
    const width = (100 * startSeconds(timeline, segment.end_block)) / total - left;
    const words = tagText(segment, timeline.block_seconds, t);
    const to = endOf(timeline, segment);
    const times = t("%1 to %2", plainTime(from), plainTime(to));
    const block = t("block %1", segment.start_block);
    const exact = `${t("%1 to %2", timeText(from), timeText(to))}, ${block}`;
    element.value = label;
    element.title = `${exact}${words && `\n[${words}]`}\n${segment.text}`;
    element.style.left = tag.style.left = `${left}%`;
    element.style.width = tag.style.width = `${width}%`;
    this.handle.style.left = `${left}%`;
    tag.textContent = segment.seed == null ? words : `⚄ ${words}`;
    element.disabled = !enabled;
    element.classList.toggle("hf-selected", isSelected);
    element.classList.toggle("hf-chosen", isChosen);
    element.classList.toggle("hf-beyond", timeline.beyond !== undefined && from >= timeline.beyond);
    const about = {
      label: `${t("Prompt %1 of %2", index + 1, segments.length)}: ${segment.text}`,
      valuemin: first,
      valuemax: last,
      valuenow: segment.start_block,
      valuetext: `${times}, ${block}${words && `, ${words}`}`,
    };
    for (const [name, value] of Object.entries(about)) element.setAttribute(`aria-${name}`, String(value));
  }

  /** @param {{hasHandle: boolean, isNarrow: boolean}} room */
  fit({ hasHandle, isNarrow }) {
    this.handle.hidden = !hasHandle;
    this.element.classList.toggle("hf-narrow", isNarrow);
  }

  /**
   * Show where the prompt is in a render: begun and not finished, waiting to be applied, played, with a picture, which a
   * wide bar has beside its words.
   * @param {{begun: boolean, finished: boolean, waits: boolean, playing: boolean, picture: string, isWide: boolean}} where
   */
  place({ begun, finished, waits, playing, picture, isWide }) {
    const { element, tag } = this;
    const placed = `${begun} ${finished} ${waits} ${playing} ${isWide} ${picture}`;
    if (placed === this.#placed) return;
    this.#placed = placed;
    const state = [begun && !finished && t("begun"), waits && t("not applied yet")].filter(Boolean).join(", ");
    element.classList.toggle("hf-begun", begun);
    element.classList.toggle("hf-waits", waits);
    element.setAttribute("aria-readonly", String(begun));
    if (waits) element.setAttribute("aria-description", t("not applied yet"));
    else element.removeAttribute("aria-description");
    tag.dataset.state = state && `${state} `;
    element.classList.toggle("hf-playing", playing);
    element.style.backgroundImage = picture && `url(${picture})`;
    element.classList.toggle("hf-pictured", isWide);
  }

  remove() {
    for (const part of this.parts) part.remove();
  }
}
