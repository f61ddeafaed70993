// A field for words. Other words than those that were typed in it come with a new element: the browser's undo knows an
// element, not whose words stand in it.

export class Words {
  #create;
  #put = ""; // the words that were shown last

  /** `create()` makes an empty element with its listeners. */
  constructor(create) {
    this.#create = create;
    this.element = create();
  }

  /** Show words; `isOther`: of another prompt, even if they are the same. */
  put(words, isOther = false) {
    if (!isOther && words === this.element.value) {
      this.#put = words;
      return;
    }
    const before = this.element;
    const isFocused = document.activeElement === before;
    this.element = this.#create();
    this.element.value = this.#put = words;
    this.element.disabled = before.disabled;
    before.replaceWith(this.element);
    if (isFocused) this.element.focus({ preventScroll: true });
  }

  /** Whether an element is this one and holds what was put into it, so that its own undo has nothing to undo. */
  isUntouched(element) {
    return element === this.element && element.value === this.#put;
  }
}
