// A field for words. Other words than those that were typed in it come with a new element: the browser's undo knows an
// element, not whose words stand in it.

/**
 * @template {HTMLInputElement | HTMLTextAreaElement} Field
 */
export class Words {
  #create;
  #put = ""; // the words that were shown last

  /** @param {() => Field} create makes an empty element with its listeners */
  constructor(create) {
    this.#create = create;
    this.element = create();
  }

  /**
   * Show words.
   * @param {string} words
   * @param {boolean} isOther of another prompt, even if they are the same
   */
  put(words, isOther = false) {
    if (!isOther && words === this.element.value) {
      this.#put = words;
      return;
    }
    const before = this.element;
    const isFocused = document.activeElement === before;
    this.element = this.#create();
    this.element.value = words;
    this.#put = words;
    this.element.disabled = before.disabled;
    before.replaceWith(this.element);
    if (isFocused) this.element.focus({ preventScroll: true });
  }

  /**
   * Whether an element is this one and holds what was put into it, so that its own undo has nothing to undo.
   * @param {EventTarget | null} element
   */
  isUntouched(element) {
    return element === this.element && this.element.value === this.#put;
  }
}
