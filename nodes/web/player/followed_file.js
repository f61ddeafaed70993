// The file of a live video, which is read frame by frame while it is written: with each request the page tells where it
// plays, and the server makes the next block when that is near the end.
import { app } from "../../../scripts/app.js";
import { GrowingFile } from "./growing_file.js";

const APART_MS = 30; // between two requests
const NO_ANSWER_MS = 500; // before the next request if the server does not answer
const NO_ROOM_MS = 1000; // before the next request if the browser has no room for more
/** Rates of playing by the seconds that are left, so that the picture moves slower before it stands. */
const SLOWER = [
  { below: 0.35, rate: 0.5 },
  { below: 0.6, rate: 0.7 },
  { below: 0.85, rate: 0.85 },
];

/** @param {number} left seconds that can be played */
export function rateFor(left) {
  return SLOWER.find(({ below }) => left < below)?.rate ?? 1;
}

/** Whether it is the rate of a video that this file has slowed. @param {number} given */
const isSlower = (given) => SLOWER.some(({ rate }) => rate === given);

/** @param {number} milliseconds @returns {Promise<void>} */
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

export class FollowedFile extends GrowingFile {
  #at;

  /**
   * @param {HTMLVideoElement} video
   * @param {string} id
   * @param {boolean} atEnd
   * @param {() => number} at the second of the story that is played
   */
  constructor(video, id, atEnd, at) {
    super(video, id, atEnd);
    this.#at = at;
  }

  /** Read until the file is complete. @override */
  async readOn() {
    try {
      while (!this.closed && !this.complete) await this.#readNext();
    } finally {
      if (isSlower(this.video.playbackRate)) this.video.playbackRate = 1;
    }
  }

  /** Ask for what comes next, and show it. */
  async #readNext() {
    const bytes = await this.#ask();
    if (this.closed) return;
    if (bytes?.byteLength) {
      if (!(await this.append(bytes))) return wait(NO_ROOM_MS);
      this.read += bytes.byteLength;
    }
    this.#keepPace();
    await wait(bytes === null ? NO_ANSWER_MS : APART_MS);
  }

  /** The next bytes, empty if there are none yet; null if the server does not answer. @returns {Promise<ArrayBuffer | null>} */
  async #ask() {
    const { paused, playbackRate } = this.video;
    const query = new URLSearchParams({
      id: this.id,
      from: String(this.read),
      at: this.#at().toFixed(3),
      rate: String(paused ? 0 : playbackRate),
      client: app.api.clientId,
    });
    try {
      const answer = await app.api.fetchApi(`/headforcing/follow?${query}`, { cache: "no-store" });
      return answer.ok ? await answer.arrayBuffer() : null;
    } catch {
      return null;
    }
  }

  /** Play slower where little is left; a rate that somebody has chosen stays. */
  #keepPace() {
    const { video } = this;
    const { buffered, currentTime, playbackRate } = video;
    if (!buffered.length || (playbackRate !== 1 && !isSlower(playbackRate))) return;
    const rate = rateFor(buffered.end(buffered.length - 1) - currentTime);
    if (rate !== playbackRate) video.playbackRate = rate;
  }
}
