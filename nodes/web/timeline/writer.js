// Writes changed prompts into the text of a node. The server makes the text and may answer late: until then a change
// waits, and what is changed in the node's other widgets meanwhile stays.
import { t } from "../texts.js";
import { fieldsForServer, lengthWith } from "./segments.js";
/** @import {Change, Host, StoryValues, Timeline, Unwritten} from "../types.js" */

const OFFLINE_MS = 3000; // until a server that did not answer is asked again

/**
 * What becomes of changes.
 * @typedef {object} WriterEvents
 * @property {(answer: Timeline, values: StoryValues, change: Change) => void} written with the values of the node that the
 *   server's answer belongs to
 * @property {(sentence: string, before?: Unwritten) => void} refused with the change that is shown again; undefined if the
 *   text holds all
 * @property {(sentence: string) => void} waits while the server is away
 */

export class Writer {
  #host;
  #on;
  /** Changes without an answer, the newest last, which holds those before it. @type {Change[]} */
  #waiting = [];
  /** The server's answer to the node's text, which they change. @type {Timeline | null} */
  #timeline = null;
  /** The values of the node that it answers to. @type {StoryValues | null} */
  #values = null;
  #latestRequest = 0; // answers to earlier ones are ignored
  #last = Promise.resolve(); // ends when the newest is answered

  /**
   * @param {Host} host that of the editor
   * @param {WriterEvents} on
   */
  constructor(host, on) {
    this.#host = host;
    this.#on = on;
  }

  /** Whether changes wait for an answer, and the node's text is still the one that they change. @param {string} text */
  isWaiting(text) {
    return this.#waiting.length > 0 && text === this.#values.text;
  }

  /** Give up the changes that wait, since something else is asked; the result tells whether nothing was asked since. */
  giveUp() {
    this.#waiting = [];
    return this.#beginRequest();
  }

  /** The result tells whether no other request has begun since. */
  #beginRequest() {
    const request = ++this.#latestRequest;
    return () => request === this.#latestRequest;
  }

  /** Wait until the server has answered the last change, also one that is made meanwhile, or was offline. */
  async settled() {
    let awaited = null;
    while (awaited !== this.#last) {
      awaited = this.#last;
      await awaited;
    }
  }

  /**
   * Send a change of a timeline, which answers to `values`; false, and refused, if it needs another length and that comes
   * from another node.
   * @param {Change} change
   * @param {Timeline} timeline
   * @param {StoryValues} values
   */
  write(change, timeline, values) {
    this.#timeline = timeline;
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

  /** The other length that the video gets with a change; undefined if it keeps its own. @param {Change} change */
  #lengthOf({ segments, keepsSeconds }) {
    const length = lengthWith(segments, this.#timeline);
    // with seconds 0 the video is as long as its prompts; a story longer than its seconds waits for a choice of a person
    const follows = this.#values.seconds !== 0 && !keepsSeconds && this.#timeline.beyond === undefined;
    return follows && length !== this.#timeline.seconds ? length : undefined;
  }

  /** Send the newest change. @param {Change} change */
  async #send(change) {
    const { segments, shared, keepsSeconds } = change;
    const values = this.#values;
    const { text, ...settings } = values;
    const other = this.#lengthOf(change);
    const seconds = other ?? values.seconds;
    const length = keepsSeconds ? values.seconds : lengthWith(segments, this.#timeline);
    const isLatest = this.#beginRequest();
    const answer = await this.#host.ask({ ...settings, seconds, length, shared, segments: segments.map(fieldsForServer) });
    if (!isLatest()) return;
    const now = this.#host.read();
    if (now.text !== text) {
      this.#waiting = [];
      return;
    }
    if (answer.offline) {
      this.#on.waits(t("The server does not answer; this change waits for it."));
      setTimeout(() => {
        if (isLatest()) this.#last = this.#send(change);
      }, OFFLINE_MS);
      return;
    }
    if (answer.error) {
      await this.#refuse(answer.error);
      return;
    }
    this.#waiting = [];
    const changesLength = other !== undefined && now.seconds === values.seconds; // else it was chosen since
    this.#host.write(changesLength ? { prompts: answer.text, seconds } : { prompts: answer.text });
    this.#on.written(answer, { ...values, text: answer.text, seconds }, change);
  }

  /** The newest change cannot be: the one before it, which has no answer either, is sent again. @param {string} sentence */
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
