// Small pictures of a video, one a second, which the server makes while it writes the video: see
// headforcing_core/video/pictures.py. Nothing has to seek through the video for them.
import { app } from "../../../scripts/app.js";
import { make } from "../shared.js";

export const MIDDLE = 0.5; // of its second, where the server takes a picture
const COLUMNS = 10;
const ROWS = 6;
const A_SHEET = COLUMNS * ROWS; // pictures
const FULL_SIZE = 600; // pictures; those of an hour would take hundreds of megabytes
const APART_MS = 1000; // between two requests

export class Sprite {
  /** The pictures by second of the file. @type {Map<number, HTMLCanvasElement>} */
  pictures = new Map();
  #changed;
  #wanted = 0;
  #timer = 0;
  #isReading = false;

  /**
   * @param {string} id of the render's file
   * @param {() => void} changed is called with new pictures
   */
  constructor(id, changed) {
    this.id = id;
    this.#changed = changed;
  }

  /** Whether the server has made more than was read by now. */
  get isBehind() {
    return this.pictures.size < this.#wanted;
  }

  /** Read what is new of so many pictures, at most one sheet in a second. @param {number} count */
  read(count) {
    this.#wanted = Math.max(count, this.#wanted);
    if (this.#timer || this.#isReading || !this.isBehind) return;
    this.#isReading = true;
    this.#timer = window.setTimeout(() => {
      this.#timer = 0;
      if (!this.#isReading) this.read(0);
    }, APART_MS);
    this.#readSheet(Math.floor(this.pictures.size / A_SHEET));
  }

  /** @param {number} sheet its number, from 0 */
  #readSheet(sheet) {
    const until = Math.min(this.#wanted, (sheet + 1) * A_SHEET);
    const query = new URLSearchParams({ id: this.id, sheet: String(sheet), count: String(until) });
    const image = new Image();
    image.addEventListener("load", () => {
      this.#cut(image, sheet * A_SHEET, until);
      this.#end();
    });
    image.addEventListener("error", () => {
      this.#wanted = this.pictures.size; // gone, or no answer: the next message tries again
      this.#end();
    });
    image.src = app.api.apiURL(`/headforcing/pictures?${query}`);
  }

  #end() {
    this.#isReading = false;
    this.#changed();
    if (!this.#timer) this.read(0);
  }

  /**
   * Cut the pictures of some seconds out of a sheet.
   * @param {HTMLImageElement} image
   * @param {number} first the second of the sheet's first picture
   * @param {number} until
   */
  #cut(image, first, until) {
    const width = image.naturalWidth / COLUMNS;
    const height = image.naturalHeight / ROWS;
    for (let second = this.pictures.size; second < until; second++) {
      const place = second - first;
      const left = (place % COLUMNS) * width;
      const top = Math.floor(place / COLUMNS) * height;
      const smaller = second < FULL_SIZE ? 1 : 2;
      const canvas = make("canvas", { width: width / smaller, height: height / smaller });
      canvas.getContext("2d").drawImage(image, left, top, width, height, 0, 0, canvas.width, canvas.height);
      this.pictures.set(second, canvas);
    }
  }
}
