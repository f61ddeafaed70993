// A file that is still written, as the source of a video element.
import { app } from "../../../scripts/app.js";
import { playsNoGrowing } from "../server_events.js";

const PIECE = 8 << 20; // bytes of one request
const APART_MS = 1000; // between two requests
const BEHIND = 5; // seconds that were played and are not forgotten when there is no more room
const LATER = [0, 0.1, 0.3, 1, 3]; // seconds by which sound or pictures may end after the other

/** @typedef {{filename: string, subfolder: string, type: string}} VideoFileName as the server names a file */

/**
 * Where the server has a file.
 * @param {VideoFileName} file
 */
export function address({ filename, subfolder, type }) {
  return `/view?${new URLSearchParams({ filename, subfolder, type })}`;
}

export class GrowingFile {
  complete = false; // whether nothing more will be written
  busy = false; // whether it is being read
  closed = false;
  /** @type {SourceBuffer | undefined} */
  buffer;
  /** Ends what `updated` waits for. @type {(value?: unknown) => void} */
  done = () => {};
  #asked = -Infinity; // when the last request was sent, in milliseconds of the page
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

  /** Read on, up to the bytes that are written by now. */
  async grow(written, complete) {
    this.written = Math.max(written, this.written);
    this.complete = complete;
    if (this.busy || this.video.currentTime < this.#roomFrom) return;
    this.busy = true;
    try {
      while (this.read < this.written && !this.closed) {
        await this.#untilNext();
        if (this.closed) break;
        const range = `bytes=${this.read}-${Math.min(this.read + PIECE, this.written) - 1}`;
        const headers = { Range: range };
        const answer = await app.api.fetchApi(this.address, { headers, cache: "no-store" }).catch(() => null);
        if (answer?.status !== 206) break; // finished under another name, or no answer: the next message says more
        const bytes = await answer.arrayBuffer();
        if (!(await this.append(bytes))) return this.#waitForRoom();
        this.read += bytes.byteLength;
      }
      if (this.complete && this.media.readyState === "open" && this.buffer) this.media.endOfStream();
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

  /** Wait until a second after the last request: a fast render writes several fragments in one. */
  async #untilNext() {
    const left = this.#asked + APART_MS - performance.now();
    if (left > 0) await new Promise((done) => setTimeout(done, left));
    this.#asked = performance.now();
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

  /** Add bytes to what is played; false where there is no room for them, even without what was played. */
  async append(bytes) {
    await this.opened;
    this.buffer ??= this.newBuffer(codec(new Uint8Array(bytes)));
    const hasRoom = this.#put(bytes) || ((await this.#forget()) && this.#put(bytes));
    if (!hasRoom) return false;
    await this.updated();
    this.#follow(bytes);
    return true;
  }

  /** Begin to add bytes; false where the browser has no room for them. */
  #put(bytes) {
    try {
      this.buffer.appendBuffer(bytes);
      return true;
    } catch (error) {
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

  /** Set the length of the video, and play on where there is something to play. */
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

  /** Say how long the video is, which is infinite else: where its pictures or its sound end, which is a little later. */
  setLength(end) {
    for (const more of LATER)
      try {
        this.media.duration = end + more;
        return;
      } catch (error) {
        if (error.name !== "InvalidStateError") throw error; // one of the two is buffered beyond that
      }
  }

  newBuffer(name) {
    const buffer = this.media.addSourceBuffer(`video/mp4; codecs="${name}"`);
    buffer.addEventListener("updateend", () => this.done());
    buffer.addEventListener("error", (event) => this.fail(event));
    return buffer;
  }

  /** The end of what the buffer does now. */
  updated() {
    return new Promise((done, fail) => {
      this.done = done;
      this.fail = fail;
    });
  }

  close() {
    this.closed = true;
    URL.revokeObjectURL(this.url);
  }
}

const SOUNDS = { Opus: "opus", fLaC: "flac", "ac-3": "ac-3", "ec-3": "ec-3", alac: "alac" }; // codecs by their boxes
const OBJECT = 0x04; // the tag of what a box "esds" says of its decoder
const AAC = 0x40;

/** The codecs of an MP4 for a media source, from the configurations of its decoders at the file's beginning. */
function codec(bytes) {
  const end = placeOf(bytes, "mdat");
  const head = bytes.subarray(0, end < 0 ? bytes.length : end);
  const at = placeOf(head, "avcC");
  if (at < 0) throw new Error("no H.264 video");
  const hex = (value) => value.toString(16).padStart(2, "0");
  const picture = `avc1.${[...head.subarray(at + 5, at + 8)].map(hex).join("")}`;
  return [picture, soundCodec(head, hex)].filter(Boolean).join(",");
}

/** The codec of the sound; empty where there is none. */
function soundCodec(head, hex) {
  const [box] = Object.keys(SOUNDS).filter((name) => placeOf(head, name) >= 0);
  if (box) return SOUNDS[box];
  if (placeOf(head, "mp4a") < 0) return "";
  const object = objectType(head.subarray(placeOf(head, "esds") + 8));
  return object === AAC ? "mp4a.40.2" : `mp4a.${hex(object)}`;
}

/** The kind of decoder that the descriptors of a box "esds" ask for. */
function objectType(descriptors) {
  let at = 0;
  const skipHead = () => {
    at += 1; // the tag
    while (descriptors[at] & 0x80) at += 1; // the length has seven bits in each byte
    at += 1;
  };
  skipHead();
  at += 3; // number and flags of the stream
  if (descriptors[at] !== OBJECT) return AAC;
  skipHead();
  return descriptors[at];
}

/** Where four letters stand first; -1 where they do not. */
function placeOf(bytes, letters) {
  const [first, second, third, fourth] = [...letters].map((letter) => letter.charCodeAt(0));
  return bytes.findIndex(
    (byte, i) => byte === first && bytes[i + 1] === second && bytes[i + 2] === third && bytes[i + 3] === fourth,
  );
}
