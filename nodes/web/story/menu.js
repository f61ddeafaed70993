// The menu of a bar in the story panel.
import { playerOf } from "../player/messages.js";
import { queuePart } from "../queue_part.js";
import { make } from "../shared.js";
import { t } from "../texts.js";
import { labels } from "../timeline/labels.js";
import { isShortcut } from "../timeline/keys.js";
import { plainTime, startSeconds } from "../timeline/segments.js";
import { exportEntries, takeToExport } from "./export.js";
/** @import {Entry, GraphNode, Marker, Part, Say, Take} from "../types.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */
/** @import {Markers} from "./markers.js" */

const MOST_LETTERS = 32; // of the words of such a scene
const MOST_SCENES = 12; // that can be brought back from the menu; the fields of a prompt list all

/** The element that a menu belongs to, and where on the page it opens. @typedef {{owner: HTMLElement, x: number, y: number}} MenuPlace */

export class Menu {
  #root;
  #say;
  /** @type {HTMLElement | null} */
  #element = null;
  /** The bar or marker that it belongs to. @type {HTMLElement | null} */
  #owner = null;
  #listening = new AbortController();

  /**
   * @param {HTMLElement} root what the menu stands in, so that it is seen in full screen, too
   * @param {Say} say
   */
  constructor(root, say) {
    this.#root = root;
    this.#say = say;
  }

  /**
   * Open it for the bar or the marker under the pointer, or the one with the focus where a key asked for it.
   * @param {PointerEvent} event
   * @param {TimelineEditor | null} editor
   * @param {GraphNode | null} sampler
   * @param {Markers} markers
   */
  open(event, editor, sampler, markers) {
    const target = /** @type {HTMLElement} */ (event.target);
    const place = { owner: target, x: event.clientX, y: event.clientY };
    const ofMarker = markers.entries(target);
    const index = editor?.bars.indexOf(target) ?? -1;
    if (!ofMarker && index < 0) return;
    event.preventDefault();
    event.stopPropagation();
    if (ofMarker) {
      this.#show(place, ofMarker, t("Marker"));
      return;
    }
    const seconds = editor.bars.secondsAt(event);
    const entries = sampler ? this.#renderEntries(editor, sampler, index) : [];
    entries.push(...this.#editEntries(editor, index, seconds));
    entries.push([t("Set a marker at %1", plainTime(seconds)), () => markers.add(seconds)]);
    const played = sampler ? playerOf(sampler).played : undefined;
    entries.push([t("Export"), () => this.#showFormats(place, takeToExport(played), markers.all)]);
    entries.push(...this.#recallEntries(editor, index));
    this.#show(place, entries, t("Prompt %1", index + 1));
  }

  /**
   * Offer the formats of an export below a button.
   * @param {HTMLElement} owner
   * @param {Take | undefined} take
   * @param {Marker[]} markers
   */
  openFormats(owner, take, markers) {
    const { left, bottom } = owner.getBoundingClientRect();
    return this.#showFormats({ owner, x: left, y: bottom }, take, markers);
  }

  /** @param {MenuPlace} place @param {Take | undefined} take @param {Marker[]} markers */
  async #showFormats(place, take, markers) {
    if (!take) {
      this.#say(t("No takes of this workflow yet."), true);
      return;
    }
    this.#show(place, await exportEntries(take, markers, this.#say), t("Export"));
  }

  /** @param {MenuPlace} place @param {Entry[]} entries @param {string} label */
  #show({ owner, x, y }, entries, label) {
    this.close();
    this.#owner = owner;
    const items = entries.map((entry) => (entry ? this.#item(...entry) : make("hr")));
    this.#element = make("div", { class: "hf-story-menu", role: "menu", "aria-label": label }, ...items);
    this.#root.append(this.#element);
    this.#put(x, y);
    this.#items[0].focus({ preventScroll: true });
    this.#listening = new AbortController();
    const { signal } = this.#listening;
    this.#element.addEventListener("keydown", (key) => this.#key(key), { signal });
    /** @param {PointerEvent} press */
    const leave = ({ target }) => {
      if (!this.#element.contains(/** @type {Node} */ (target))) this.close();
    };
    window.addEventListener("pointerdown", leave, { signal, capture: true });
  }

  get #items() {
    /** @type {NodeListOf<HTMLElement>} */
    const items = this.#element.querySelectorAll("[role=menuitem]");
    return [...items];
  }

  /** The keys belong to the bar again, if they belonged to the menu. */
  close() {
    this.#listening.abort();
    if (this.#element?.contains(document.activeElement)) this.#owner.focus({ preventScroll: true });
    this.#element?.remove();
    this.#element = null;
  }

  /**
   * Entries that render a part of the story.
   * @param {TimelineEditor} editor
   * @param {GraphNode} sampler
   * @param {number} index
   * @returns {Entry[]}
   */
  #renderEntries(editor, sampler, index) {
    const { timeline, segments, edits } = editor;
    const until_seconds = startSeconds(timeline, segments[index].end_block);
    const scene = { from_seconds: startSeconds(timeline, segments[index].start_block), until_seconds };
    /** @param {Part} part */
    const render = async (part) => {
      await editor.settled();
      this.#say(await queuePart(sampler, part), true);
    };
    const reroll = () => {
      edits.reroll(index);
      return render(scene);
    };
    return [
      [t("Render this scene"), () => render(scene)],
      [t("Re-roll and render"), reroll],
      [t("Render up to here"), () => render({ until_seconds })],
      null,
    ];
  }

  /**
   * Entries that change the prompts.
   * @param {TimelineEditor} editor
   * @param {number} index
   * @param {number} seconds at the pointer
   * @returns {Entry[]}
   */
  #editEntries({ edits }, index, seconds) {
    return [
      [t("Cut here, at %1", plainTime(seconds)), () => edits.cut(index, seconds)],
      [t("Duplicate"), () => edits.duplicate(index)],
      [t("Edit the words"), () => edits.words(index)],
      [t("Delete"), () => edits.remove(index)],
    ];
  }

  /**
   * Entries that let the scene of an earlier prompt come back: the nearest of them.
   * @param {TimelineEditor} editor
   * @param {number} index
   * @returns {Entry[]}
   */
  #recallEntries({ segments, edits }, index) {
    /** @type {Entry[]} */
    const entries = [];
    const words = labels(segments);
    for (let earlier = Math.max(0, index - MOST_SCENES); earlier < index; earlier++) {
      const number = earlier + 1;
      const label = t("Bring back scene %1: %2", number, words[earlier].slice(0, MOST_LETTERS));
      entries.push([label, () => edits.bringBack(index, number)]);
    }
    return entries.length ? [null, ...entries] : [];
  }

  /** @param {string} label @param {() => unknown} act @param {string} [refusal] why it cannot be done */
  #item(label, act, refusal) {
    const onclick = () => {
      if (refusal) return;
      this.close();
      act();
    };
    const onpointermove = () => item.focus({ preventScroll: true }); // one entry is marked, not that of the keys, too
    const item = make("div", { role: "menuitem", tabindex: -1, onclick, onpointermove }, label);
    if (!refusal) return item;
    item.setAttribute("aria-disabled", "true");
    item.append(make("small", {}, refusal));
    return item;
  }

  /** @param {number} x @param {number} y */
  #put(x, y) {
    const root = this.#root.getBoundingClientRect();
    const { width, height } = this.#element.getBoundingClientRect();
    this.#element.style.left = `${Math.max(4, Math.min(x - root.left, root.width - width - 4))}px`;
    this.#element.style.top = `${Math.max(4, Math.min(y - root.top, root.height - height - 4))}px`;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const items = this.#items;
    const at = items.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    /** @param {number} place */
    const to = (place) => items.at(place % items.length).focus();
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => to(at + 1),
      ArrowUp: () => to(at - 1),
      Home: () => to(0),
      End: () => to(-1),
      Enter: () => items[at]?.click(),
      Escape: () => this.close(),
      Tab: () => this.close(),
    };
    if (!isShortcut(event)) event.stopPropagation();
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }
}
