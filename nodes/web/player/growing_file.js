// A file that is still written, as the source of a video element.
import { app } from "../../../scripts/app.js";
import { codecsOf } from "./codecs.js";
import { playsNoGrowing } from "../server_events.js";

const PIECE = 8 << 20; // bytes of one request
const APART_MS = 1000; // between two requests
const BEHIND = 5; // seconds that were played and are not forgotten when there is no more room
const LATER = [0, 0.1, 0.3, 1, 3]; // seconds by which sound or pictures may end after the other

export class GrowingFile {
  complete = false; // whether nothing more will be written
  busy = false; // whether it is being read
  closed = false;
  /** @type {SourceBuffer | undefined} */
  buffer;
  /** Ends what `updated` waits for. @type {() => void} */
  done = () => {};
  #lastRequest = -Infinity; // when the last request was sent, in milliseconds of the page
  #roomFrom = 0; // from this second of the video on there is room for more
  /** @type {(reason: unknown) => void} */
  fail = () => {};

  /**
   * @param {HTMLVideoElement} video shows it
   * @param {string} id of the file
   * @param {boolean} atEnd begin with the newest second
   */
  constructor(video, id, atEnd = false) {
    this.video = video;
    this.id = id;
    this.address = `/headforcing/growing?${new URLSearchParams({ id })}`;
    this.read = 0;
    this.written = 0;
    this.atEnd = atEnd;
    this.media = new MediaSource();
    this.url = URL.createObjectURL(this.media);
    /** @type {Promise<void>} */
    this.opened = new Promise((done, fail) => {
      const open = () => {
        URL.revokeObjectURL(this.url); // now, since nothing says when a node is made anew; the element keeps its source
        done();
      };
      this.media.addEventListener("sourceopen", open, { once: true });
      video.addEventListener("error", () => fail(video.error), { once: true });
    });
    this.opened.catch(() => {}); // told where it is waited for, which is nowhere if there was nothing left to read
    video.src = this.url;
  }

  /**
   * Show what is written by now.
   * @param {number} written bytes
   * @param {boolean} complete
   */
  async grow(written, complete) {
    this.written = Math.max(written, this.written);
    this.complete = complete;
    if (this.busy || this.closed) return;
    this.busy = true;
    try {
      await this.readOn();
    } catch (error) {
      if (!this.closed) {
        console.info("Head Forcing: this page cannot play a growing video", error); // as with --disable-api-nodes
        playsNoGrowing();
      }
      this.closed = true;
    } finally {
      this.busy = false;
    }
  }

  /** Read up to the bytes that are written by now. @returns {Promise<void>} */
  async readOn() {
    if (this.video.currentTime < this.#roomFrom) return;
    while (this.read < this.written && !this.closed) {
      await this.#untilNext();
      if (this.closed) break;
      const bytes = await this.#nextPiece();
      if (bytes === null) break; // the next message says more
      if (!(await this.append(bytes))) {
        this.#waitForRoom();
        return;
      }
      this.read += bytes.byteLength;
    }
    if (this.complete && this.media.readyState === "open" && this.buffer) this.media.endOfStream();
  }

  /**
   * The bytes that come next; null if the file is finished under another name, or the server does not answer.
   * @returns {Promise<ArrayBuffer | null>}
   */
  async #nextPiece() {
    const end = Math.min(this.read + PIECE, this.written);
    const options = { headers: { Range: `bytes=${this.read}-${end - 1}` }, cache: "no-store" };
    let answer;
    try {
      answer = await app.api.fetchApi(this.address, options);
    } catch {
      return null;
    }
    return answer?.status === 206 ? answer.arrayBuffer() : null;
  }

  /** Wait until a second after the last request: a fast render writes several fragments in one. */
  async #untilNext() {
    const left = this.#lastRequest + APART_MS - performance.now();
    if (left > 0) await new Promise((done) => setTimeout(done, left));
    this.#lastRequest = performance.now();
  }

  /** Read on when the video has been played further. */
  #waitForRoom() {
    this.#roomFrom = Math.max(this.video.currentTime, BEHIND) + BEHIND;
    const look = () => {
      if (!this.closed && this.video.currentTime < this.#roomFrom) return;
      this.video.removeEventListener("timeupdate", look);
      this.#roomFrom = 0;
      this.grow(this.written, this.complete);
    };
    this.video.addEventListener("timeupdate", look);
  }

  /**
   * Add bytes to what is played; false where there is no room for them, even without what was played.
   * @param {ArrayBuffer} bytes
   */
  async append(bytes) {
    await this.opened;
    this.buffer ??= this.newBuffer(codecsOf(new Uint8Array(bytes)));
    let isPut = this.#put(bytes);
    if (!isPut && (await this.#forget())) isPut = this.#put(bytes);
    if (!isPut) return false;
    await this.updated();
    this.#follow(bytes);
    return true;
  }

  /** Begin to add bytes; false where the browser has no room for them. @param {ArrayBuffer} bytes */
  #put(bytes) {
    try {
      this.buffer.appendBuffer(bytes);
      return true;
    } catch (/** @type {any} */ error) {
      if (error.name !== "QuotaExceededError") throw error;
      return false;
    }
  }

  /** Forget what was played, or what is skipped; false where that is nothing. */
  async #forget() {
    const { buffered } = this.buffer;
    const end = buffered.length ? buffered.end(buffered.length - 1) : 0;
    const until = this.atEnd ? end - 1 : this.video.currentTime - BEHIND;
    if (until <= 0) return false;
    this.buffer.remove(0, until);
    await this.updated();
    return true;
  }

  /** Set the length of the video, and play on where there is something to play. @param {ArrayBuffer} bytes */
  #follow(bytes) {
    const { buffered } = this.buffer;
    if (!buffered.length || this.media.readyState !== "open") return;
    this.setLength(buffered.end(buffered.length - 1));
    if (this.video.currentTime < buffered.start(0)) this.video.currentTime = buffered.start(0);
    if (this.atEnd && this.read + bytes.byteLength >= this.written) {
      this.video.currentTime = Math.max(buffered.start(0), buffered.end(buffered.length - 1) - 1);
      this.atEnd = false;
    }
  }

  /**
   * Say how long the video is, which is infinite else: where its pictures or its sound end, which is a little later.
   * @param {number} end
   */
  setLength(end) {
    for (const more of LATER)
      try {
        this.media.duration = end + more;
        return;
      } catch (/** @type {any} */ error) {
        if (error.name !== "InvalidStateError") throw error; // one of the two is buffered beyond that
      }
  }

  /** @param {string} codecs */
  newBuffer(codecs) {
    const buffer = this.media.addSourceBuffer(`video/mp4; codecs="${codecs}"`);
    buffer.addEventListener("updateend", () => this.done());
    buffer.addEventListener("error", (event) => this.fail(event));
    return buffer;
  }

  /** The end of what the buffer does now. */
  updated() {
    /** @type {Promise<void>} */
    const ended = new Promise((done, fail) => {
      this.done = done;
      this.fail = fail;
    });
    return ended;
  }

  close() {
    this.closed = true;
    URL.revokeObjectURL(this.url);
  }
}
