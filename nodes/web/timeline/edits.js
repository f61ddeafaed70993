// What the tools, the menu of a bar and the ways out of a long story do with prompts.
import { blockAt, changed, divided, duplicated, pasted, without } from "./segments.js";
/** @import {CopiedScene, Segment} from "../types.js" */
/** @import {Shorter} from "./ways.js" */
/** @import {TimelineEditor} from "./editor.js" */

/** A seed that no one has seen; as a text, since seeds have up to 64 bits. */
export const newSeed = () => String(crypto.getRandomValues(new Uint32Array(1))[0]);

export class Edits {
  #editor;

  /** @param {TimelineEditor} editor */
  constructor(editor) {
    this.#editor = editor;
  }

  /**
   * Divide a prompt in two.
   * @param {string | null} text the words of the second half; null: the same ones
   */
  divide(text, index = this.#editor.selected) {
    const { segments, bars } = this.#editor;
    const halves = divided(segments, index, text ?? segments[index].text);
    if (!halves) return;
    if (!this.#editor.commit(halves, null, index + 1)) return;
    if (text) this.#editor.edit(true);
    else bars.focus(index + 1);
  }

  /**
   * Divide a prompt at a time of the story, where it has a block on both sides of it.
   * @param {number} index
   * @param {number} seconds
   */
  cut(index, seconds) {
    const { segments, timeline } = this.#editor;
    const { start_block, end_block, text } = segments[index];
    const block = blockAt(timeline, seconds);
    const halves = divided(segments, index, text);
    if (!halves || block <= start_block || block >= end_block) return;
    this.#editor.commit(changed(halves, index + 1, { start_block: block }), null, index + 1);
  }

  /** All chosen prompts if the one at an index is among them, else that one. @param {number} index */
  #with(index) {
    const { choice } = this.#editor;
    return choice.has(index) ? choice.indices : [index];
  }

  duplicate(index = this.#editor.selected) {
    const indices = this.#with(index);
    const [last] = indices.slice(-1);
    this.#insert(last, indices.length, duplicated(this.#editor.segments, indices));
  }

  /** Put copied scenes behind the chosen prompts. @param {CopiedScene[]} scenes */
  paste(scenes) {
    const [last] = this.#editor.choice.indices.slice(-1);
    this.#insert(last, scenes.length, pasted(this.#editor.segments, last, scenes));
  }

  /**
   * Write prompts with new ones behind one of them, unless the next has begun, and choose the new ones.
   * @param {number} index
   * @param {number} count of new ones
   * @param {Segment[]} segments
   */
  #insert(index, count, segments) {
    const { bars } = this.#editor;
    const next = this.#editor.segments[index + 1];
    if (next && bars.isBegun(next)) return this.#editor.locked(index + 1);
    if (!this.#editor.commit(segments, null, index + 1)) return;
    bars.focus(index + 1);
    this.#editor.span(index + 1, count);
  }

  remove(index = this.#editor.selected) {
    const { segments, bars } = this.#editor;
    const indices = this.#with(index);
    if (indices.length === segments.length) return;
    const next = Math.max(indices[0] - 1, 0);
    const rest = indices.toReversed().reduce(without, segments);
    if (!this.#editor.commit(rest, null, next)) return;
    bars.focus(next);
    this.#editor.span(next, 1);
  }

  /** Give prompts new seeds. @param {number} index of the one, or of one of those that are chosen */
  reroll(index) {
    /** @type {(segments: Segment[], each: number) => Segment[]} */
    const withSeed = (segments, each) => changed(segments, each, { seed: newSeed() });
    this.#editor.commit(this.#with(index).reduce(withSeed, this.#editor.segments), null, index);
  }

  /**
   * Let the scene of an earlier prompt come back, by its number.
   * @param {number} index
   * @param {number} recall
   */
  bringBack(index, recall) {
    const { segments, timeline } = this.#editor;
    const before = segments[index].switch ?? timeline.default;
    const fields = { switch: { ...before, recall, new_scene: false } };
    this.#editor.commit(changed(segments, index, fields), null, index);
  }

  /**
   * Write fewer or shorter prompts, which fit into the node's seconds.
   * @param {Shorter} shorter makes them of the timeline
   */
  async shorten(shorter) {
    await this.#editor.settled();
    const { timeline, selected } = this.#editor;
    const segments = shorter(timeline);
    if (!segments) return;
    this.#editor.commit(segments, null, Math.min(selected, segments.length - 1), { keepsSeconds: true });
  }

  /** Put the cursor into the words of a prompt. @param {number} index */
  words(index) {
    this.#editor.select(index);
    this.#editor.edit();
  }
}
