// Undo and redo over whole texts, so that an undo also brings back what the bars would write differently. The undo of the
// graph goes through the same texts: it is a way through this history, and no change of its own.

const MOST = 200;
const SAME_CHANGE_MS = 1000;

export class History {
  /** @type {string[]} */
  #texts = [];
  #at = -1; // the place of the current text
  /** The last change. @type {{key: string | null, time: number}} */
  #last = { key: null, time: 0 };
  #isEdited = false; // whether there was a change of the editor

  /**
   * Note a text. Changes with the same key within a second are one; nothing is undone before the first real change.
   * @param {string} text
   * @param {string | null} key
   * @param {boolean} byEditor
   */
  record(text, key, byEditor) {
    if (text === this.#texts[this.#at]) return;
    if (!byEditor && this.#goTo(text)) return;
    const now = Date.now();
    const isAlike = key !== null && key === this.#last.key;
    const same = isAlike && now - this.#last.time < SAME_CHANGE_MS && this.#at > 0;
    this.#last = { key, time: now };
    if (isAlike && key.startsWith("text") && text === this.#texts[this.#at - 1]) {
      this.#at--; // the words' own undo took all of it back
      return;
    }
    if (!this.#isEdited && !byEditor) {
      this.#texts = [text]; // a workflow's value on its way in
      this.#at = 0;
      return;
    }
    this.#isEdited = true;
    const kept = Math.max(same ? this.#at : this.#at + 1, 0);
    this.#texts = [...this.#texts.slice(0, kept), text].slice(-MOST);
    this.#at = this.#texts.length - 1;
  }

  /** Put a text in place of the current one, as no step. @param {string} text */
  replace(text) {
    if (this.#at >= 0) this.#texts[this.#at] = text;
  }

  /** Whether a text is one of those that can be come back to. @param {string} text */
  holds(text) {
    return this.#texts.includes(text);
  }

  /** Go to a text that is here already, the nearest one; false without one. @param {string} text */
  #goTo(text) {
    let nearest = -1;
    let leastAway = Infinity;
    for (const [place, each] of this.#texts.entries()) {
      const away = Math.abs(place - this.#at);
      if (each !== text || away >= leastAway) continue;
      nearest = place;
      leastAway = away;
    }
    if (nearest < 0) return false;
    this.#at = nearest;
    this.#last.key = null;
    return true;
  }

  get canUndo() {
    return this.#at > 0;
  }

  get canRedo() {
    return this.#at < this.#texts.length - 1;
  }

  /** The text before (-1) or after (+1) the current one, null where there is none. @param {number} by */
  step(by) {
    const text = this.#texts[this.#at + by];
    if (text === undefined) return null;
    this.#at += by;
    this.#last.key = null;
    return text;
  }
}
