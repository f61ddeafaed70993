// What the tools and the menu of a bar do with prompts.
import { blockAt, changed, divided, duplicated, without } from "./segments.js";

/** A seed that no one has seen; as a text, since seeds have up to 64 bits. */
export const newSeed = () => String(crypto.getRandomValues(new Uint32Array(1))[0]);

export class Edits {
  #editor;

  /** @param {import("./editor.js").TimelineEditor} editor */
  constructor(editor) {
    this.#editor = editor;
  }

  /** Divide a prompt in two; the second half has other words, or the same ones where `text` is null. */
  divide(text, index = this.#editor.selected) {
    const { segments, bars } = this.#editor;
    const halves = divided(segments, index, text ?? segments[index].text);
    if (!halves) return;
    this.#editor.commit(halves, null, index + 1);
    if (text) this.#editor.edit(true);
    else bars.focus(index + 1);
  }

  /** Divide a prompt at a time of the story, where it has a block on both sides of it. */
  cut(index, seconds) {
    const { segments, view } = this.#editor;
    const { start_block, end_block, text } = segments[index];
    const block = blockAt(view, seconds);
    const halves = divided(segments, index, text);
    if (!halves || block <= start_block || block >= end_block) return;
    this.#editor.commit(changed(halves, index + 1, { start_block: block }), null, index + 1);
  }

  duplicate(index = this.#editor.selected) {
    const { segments, bars } = this.#editor;
    const next = segments[index + 1];
    if (next && bars.isBegun(next)) return this.#editor.locked(index + 1);
    this.#editor.commit(duplicated(segments, index), null, index + 1);
    bars.focus(index + 1);
  }

  remove(index = this.#editor.selected) {
    const { segments, bars } = this.#editor;
    if (segments.length < 2) return;
    const next = Math.max(index - 1, 0);
    this.#editor.commit(without(segments, index), null, next);
    bars.focus(next);
  }

  /** Give a prompt a new seed. */
  reroll(index) {
    this.#editor.commit(changed(this.#editor.segments, index, { seed: newSeed() }), null, index);
  }

  /** Let the scene of an earlier prompt come back, by its number. */
  bringBack(index, recall) {
    const { segments, view } = this.#editor;
    const before = segments[index].switch ?? view.default;
    const fields = { switch: { ...before, recall, new_scene: false } };
    this.#editor.commit(changed(segments, index, fields), null, index);
  }

  /** Put the cursor into the words of a prompt. */
  words(index) {
    this.#editor.select(index);
    this.#editor.edit();
  }
}
