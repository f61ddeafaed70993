// The chosen prompts of an editor: the one whose words are shown, and those that are deleted, copied, moved and re-rolled
// with it.

export class Choice {
  selected = 0; // the index of the prompt whose words are shown
  /** All chosen ones. @type {Set<number>} */
  #all = new Set([0]);
  #anchor = 0; // where a range begins

  /** @param {number} index */
  has(index) {
    return this.#all.has(index);
  }

  /** The chosen ones in order. */
  get indices() {
    return [...this.#all].toSorted((a, b) => a - b);
  }

  /**
   * The first and the number of the chosen prompts if one of them is at an index and they are in a row, else that one.
   * @param {number} index
   */
  rowWith(index) {
    const { indices } = this;
    const [first] = indices;
    const isInRow = indices[indices.length - 1] - first + 1 === indices.length;
    return this.has(index) && isInRow ? { first, count: indices.length } : { first: index, count: 1 };
  }

  /** Choose one prompt. @param {number} index */
  only(index) {
    this.span(index, 1);
  }

  /** Choose prompts in a row. @param {number} first @param {number} count */
  span(first, count) {
    this.selected = this.#anchor = first;
    this.#all = new Set(Array.from({ length: count }, (_, place) => first + place));
  }

  /** Choose all from the one that was chosen first to another. @param {number} index */
  range(index) {
    const anchor = this.#anchor;
    this.span(Math.min(anchor, index), Math.abs(anchor - index) + 1);
    this.selected = index;
    this.#anchor = anchor;
  }

  /** Choose one more, or one less; the last one stays. @param {number} index */
  toggle(index) {
    if (!this.#all.delete(index)) {
      this.#all.add(index);
      this.selected = this.#anchor = index;
    } else if (!this.#all.size) this.#all.add(index);
    else if (this.selected === index) this.selected = this.#anchor = this.indices[0];
  }

  /** Show the words of one of the chosen prompts. @param {number} index */
  keep(index) {
    if (this.#all.has(index)) this.selected = index;
    else this.only(index);
  }

  /** Leave out those that are not there any more. @param {number} count of prompts */
  limit(count) {
    for (const index of this.#all) if (index >= count) this.#all.delete(index);
    this.selected = Math.max(0, Math.min(this.selected, count - 1));
    this.#all.add(this.selected);
  }
}
