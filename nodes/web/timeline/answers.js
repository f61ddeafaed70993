// The server's answers to texts, so that an undo shows its bars at once and they can be edited at once.

const MOST = 200;

export class Answers {
  #kept = new Map();

  /** The answer to these values of the node; undefined where they are new. */
  of(values) {
    return this.#kept.get(values);
  }

  /** Keep an answer, which is returned. */
  keep(values, answer) {
    if (this.#kept.size === MOST) this.#kept.delete(this.#kept.keys().next().value);
    this.#kept.set(values, answer);
    return answer;
  }
}
