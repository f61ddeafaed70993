// Writes changed prompts into the text of a node. The server makes the text and may answer late: until then a change
// waits, and what is changed in the node's other widgets meanwhile stays.
import { t } from "../texts.js";
import { lengthWith, written } from "./segments.js";

const OFFLINE_MS = 3000; // until a server that did not answer is asked again

/**
 * @typedef {object} Change
 * @property {import("./segments.js").Segment[]} segments
 * @property {string} shared the words before every prompt
 * @property {string | null} key changes in a row with the same key are one step of undo; null is a step of its own
 * @property {boolean} keepsSeconds whether the video keeps its length
 * @property {string} [refused] why a later change was refused, after which this one is sent again
 */

export class Writer {
  #host;
  #on;
  /** Changes without an answer, the newest last, which holds those before it. @type {Change[]} */
  #waiting = [];
  #view = null; // what they change: the server's answer to the node's text,
  #values = null; // and the values of the node that it answers to
  #latestRequest = 0; // answers to earlier ones are ignored
  #last = Promise.resolve(); // ends when the newest is answered

  /**
   * `host` is that of the editor. `on` hears what becomes of changes: written(answer, values, change) with the values of
   * the node that it answers to; refused(sentence, before) with the change that is shown again, undefined if the text
   * holds all; waits(sentence) while the server is away.
   */
  constructor(host, on) {
    this.#host = host;
    this.#on = on;
  }

  /** Whether changes wait for an answer, and the node's text is still the one that they change. */
  isWaiting(text) {
    return this.#waiting.length > 0 && text === this.#values.text;
  }

  /** Give up the changes that wait, since something else is asked; the result tells whether nothing was asked since. */
  giveUp() {
    this.#waiting = [];
    return this.#begin();
  }

  #begin() {
    const request = ++this.#latestRequest;
    return () => request === this.#latestRequest;
  }

  /** Wait until the server has answered the last change, also one that is made meanwhile, or was offline. */
  async settled() {
    for (let last = null; last !== this.#last; await last) last = this.#last;
  }

  /**
   * Send a change of a view, which answers to `values`; false, and refused, if it needs another length and that comes
   * from another node.
   * @param {Change} change
   * @param {import("./segments.js").View} view
   * @param {ReturnType<typeof import("../shared.js").storyOf>} values
   */
  write(change, view, values) {
    this.#view = view;
    this.#values = values;
    const newest = this.#waiting.at(-1);
    if (this.#lengthOf(change) !== undefined && this.#host.linked("seconds")) {
      this.#on.refused(t("The length comes from another node; change it there."), newest);
      return false;
    }
    if (change.key !== null && change.key === newest?.key) this.#waiting.pop();
    this.#waiting.push(change);
    this.#last = this.#send(change);
    return true;
  }

  /** The other length that the video gets with a change; undefined if it keeps its own. */
  #lengthOf({ segments, keepsSeconds }) {
    const length = lengthWith(segments, this.#view);
    // with seconds 0 the video is as long as its prompts; a story longer than its seconds waits for a choice of a person
    const follows = this.#values.seconds !== 0 && !keepsSeconds && this.#view.beyond === undefined;
    return follows && length !== this.#view.seconds ? length : undefined;
  }

  /** Send the newest change. */
  async #send(change) {
    const { segments, shared, keepsSeconds } = change;
    const values = this.#values;
    const { text, ...settings } = values;
    const other = this.#lengthOf(change);
    const seconds = other ?? values.seconds;
    const length = keepsSeconds ? values.seconds : lengthWith(segments, this.#view);
    const isLatest = this.#begin();
    const answer = await this.#host.ask({ ...settings, seconds, length, shared, segments: segments.map(written) });
    if (!isLatest()) return;
    const now = this.#host.read();
    if (now.text !== text) {
      this.#waiting = [];
      return;
    }
    if (answer.offline) {
      this.#on.waits(t("The server does not answer; this change waits for it."));
      setTimeout(() => isLatest() && (this.#last = this.#send(change)), OFFLINE_MS);
      return;
    }
    if (answer.error) return this.#refuse(answer.error);
    this.#waiting = [];
    const changesLength = other !== undefined && now.seconds === values.seconds; // else it was chosen since
    this.#host.write({ prompts: answer.text, ...(changesLength && { seconds }) });
    this.#on.written(answer, { ...values, text: answer.text, seconds }, change);
  }

  /** The newest change cannot be: the one before it, which has no answer either, is sent again. */
  async #refuse(sentence) {
    this.#waiting.pop();
    const before = this.#waiting.pop();
    this.#on.refused(sentence, before);
    if (!before) return;
    const again = { ...before, refused: sentence };
    this.#waiting.push(again);
    await this.#send(again);
  }
}
