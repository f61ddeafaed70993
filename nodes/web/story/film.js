// Film strips in the bars of the story panel, whose pictures are shown larger at the pointer, too.
//
// There is a picture for each second of a render: made by the server, else taken while the player shows that second, else
// read from the finished file. A bar shows those of the rendered scene with its words, or paler those of the scene that
// begins where it does. Times are seconds of the story; in a file it begins `place.lead` seconds after the beginning.
import { MIDDLE } from "../player/sprite.js";
import { make } from "../shared.js";
import { picturesIn, smallPicture } from "../timeline/pictures.js";
import { startSeconds } from "../timeline/segments.js";
import { Hover } from "./hover.js";
/** @import {Segment} from "../types.js" */
/** @import {Player} from "../player/player.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */

const PICTURE_HEIGHT = 96; // in pixels
const MOST_READ = 90; // pictures that are read from a finished file
const EARLY = 0.2; // no picture is taken in the first part of a second: it may still show the scene before
const KEPT_RENDERS = 4; // whose pictures are kept
const CHANGED_OPACITY = 0.3; // of the pictures of a scene whose words have been changed since

/**
 * The pictures of a render.
 * @typedef {object} Reel
 * @property {Map<number, HTMLCanvasElement>} pictures by second
 * @property {Set<string>} filesRead addresses of files that were looked through
 */

/**
 * The rendered scene of a bar.
 * @typedef {object} FilmScene
 * @property {number} start when it begins
 * @property {number[]} seconds its seconds that have pictures
 * @property {boolean} hasSameWords whether it has the words of the bar
 */

/** @returns {Reel} */
const emptyReel = () => ({ pictures: new Map(), filesRead: new Set() });

export class Film {
  /** @type {Player | null} */
  #player = null;
  /** @type {TimelineEditor | null} */
  #editor = null;
  /** By render. @type {Map<string, Reel>} */
  #reels = new Map();
  #listening = new AbortController();
  #drawn = ""; // what the canvas shows, as JSON

  constructor() {
    this.canvas = make("canvas", { class: "hf-story-film", "aria-hidden": "true" });
    this.hover = new Hover((segment, seconds) => this.#pictureAt(segment, seconds));
  }

  /**
   * Draw into the bars of an editor what a player has shown. Without an editor nothing is drawn.
   * @param {Player | null} player
   * @param {TimelineEditor | null} editor
   */
  bind(player, editor) {
    this.#listening.abort();
    if (this.#player) this.#player.onFrame = undefined;
    this.canvas.remove();
    this.hover.bind(editor);
    this.#player = player;
    this.#editor = editor;
    this.#drawn = "";
    if (!editor) return;
    editor.bars.track.prepend(this.canvas);
    this.#listening = new AbortController();
    const { signal } = this.#listening;
    editor.bars.element.addEventListener("scroll", () => this.draw(), { signal }); // `bars.scrollLeft` is set by then
    if (player) player.onFrame = (mediaTime) => this.#takeShown(mediaTime);
  }

  /** The pictures of the render that is played, and the files that were read for it; those of old renders are dropped. */
  #reel() {
    const render = this.#player?.source;
    if (!render) return emptyReel();
    const reel = this.#reels.get(render) ?? emptyReel();
    this.#reels.set(render, reel);
    const [oldest] = this.#reels.keys();
    if (this.#reels.size > KEPT_RENDERS) this.#reels.delete(oldest);
    return reel;
  }

  /** Keep what the player shows as the picture of its second, if there is none. @param {number} mediaTime */
  #takeShown(mediaTime) {
    const { video, place, made } = this.#player;
    if (made) return; // the server's pictures are of the middle of their seconds
    const { pictures } = this.#reel();
    const seconds = mediaTime - place.lead;
    const second = Math.floor(seconds);
    if (second < 0 || seconds - second < EARLY || video.seeking || pictures.has(second)) return;
    const picture = smallPicture(video, PICTURE_HEIGHT);
    if (!picture) return;
    pictures.set(second, picture);
    this.draw();
  }

  /** Take the pictures that the server has made, by second of the file. */
  #takeMade() {
    if (!this.#player?.made) return;
    const { made, place } = this.#player;
    const { pictures } = this.#reel();
    for (const [fileSecond, picture] of made) {
      const second = Math.floor(fileSecond + MIDDLE - place.lead);
      if (second >= 0) pictures.set(second, picture);
    }
  }

  /** Seconds between two pictures that are read from a finished file. */
  get #spacing() {
    return Math.max(1, Math.ceil(Math.floor(this.#editor.timeline.seconds) / MOST_READ));
  }

  /** Read from a finished file, once, the pictures that are missing. */
  async #readFile() {
    if (!this.#player) return;
    const { url, source, place, files, made } = this.#player;
    const { pictures, filesRead } = this.#reel();
    const isFinished = Boolean(source && url && files);
    if (!isFinished || made || filesRead.has(url)) return;
    filesRead.add(url);
    const length = Math.floor(this.#editor.timeline.seconds);
    /** @type {number[]} */
    const missing = [];
    for (let second = 0; second < length; second += this.#spacing) if (!pictures.has(second)) missing.push(second);
    const times = missing.map((second) => second + MIDDLE + place.lead);
    await picturesIn(url, times, PICTURE_HEIGHT, (picture, index) => {
      pictures.set(missing[index], picture);
      if (source === this.#player?.source) this.draw();
    });
  }

  /** Draw the strips that can be seen, if anything has changed. */
  draw() {
    if (!this.#editor?.timeline) return;
    this.#takeMade();
    this.#readFile();
    const { bars, timeline, segments } = this.#editor;
    const { scrollLeft, shownWidth, wholeWidth } = bars;
    const { pictures } = this.#reel();
    const beginnings = segments.map(({ start_block, words }) => [start_block, words]);
    const sizes = [scrollLeft, shownWidth, wholeWidth, pictures.size, this.#player?.made?.size];
    const { running, done, scenes } = this.#player?.place ?? {};
    const drawn = JSON.stringify([sizes, this.#player?.source, beginnings, running && done, scenes]);
    if (drawn === this.#drawn || !shownWidth) return;
    this.#drawn = drawn;
    this.canvas.style.left = `${scrollLeft}px`;
    this.canvas.width = shownWidth; // which clears it
    const height = bars.track.clientHeight;
    this.canvas.height = height;
    if (!pictures.size) return;
    const context = this.canvas.getContext("2d");
    const pixelsPerSecond = wholeWidth / startSeconds(timeline, timeline.blocks);
    for (const segment of segments) {
      const left = startSeconds(timeline, segment.start_block) * pixelsPerSecond - scrollLeft;
      const right = startSeconds(timeline, segment.end_block) * pixelsPerSecond - scrollLeft;
      if (right < 0 || left > shownWidth) continue;
      const found = this.#sceneOf(segment);
      if (!found?.seconds.length) continue;
      context.globalAlpha = found.hasSameWords ? 1 : CHANGED_OPACITY;
      let rendered = right;
      if (running && segment.end_block > done) rendered = left + (Math.max(...found.seconds) + 1 - found.start) * pixelsPerSecond;
      drawStrip(context, { left, right: Math.min(right, rendered), height, pixelsPerSecond }, found, pictures);
    }
  }

  /**
   * The rendered scene of a bar; null where there is none.
   * @param {Segment} segment
   * @returns {FilmScene | null}
   */
  #sceneOf(segment) {
    const { bars, timeline } = this.#editor;
    const found = bars.playhead.sceneFor(segment);
    if (!found) return null;
    const start = startSeconds(timeline, found.scene.start_block);
    const end = startSeconds(timeline, found.scene.end_block);
    /** @param {number} second */
    const isIn = (second) => second + MIDDLE >= start && second + MIDDLE < end;
    return { start, seconds: [...this.#reel().pictures.keys()].filter(isIn), hasSameWords: found.isSame };
  }

  /**
   * The picture of a bar at a time of the story; null if that is not rendered, or not read, so far.
   * @param {Segment} segment
   * @param {number} seconds
   */
  #pictureAt(segment, seconds) {
    const found = this.#sceneOf(segment);
    if (!found?.seconds.length) return null;
    const start = startSeconds(this.#editor.timeline, segment.start_block);
    const wanted = found.start + seconds - start; // as far into the scene as into the bar
    const second = nearestTo(wanted, found.seconds);
    const most = this.#player?.made ? 1 : this.#spacing;
    if (Math.abs(second + MIDDLE - wanted) > most) return null;
    return this.#reel().pictures.get(second);
  }
}

/**
 * Of seconds with pictures the one whose middle is nearest to a time.
 * @param {number} time
 * @param {number[]} seconds
 */
function nearestTo(time, seconds) {
  let nearest = seconds[0];
  for (const second of seconds)
    if (Math.abs(second + MIDDLE - time) < Math.abs(nearest + MIDDLE - time)) nearest = second;
  return nearest;
}

/**
 * Pictures of a scene side by side from `left` to `right`; each is nearest to the time at its middle.
 * @param {CanvasRenderingContext2D} context
 * @param {{left: number, right: number, height: number, pixelsPerSecond: number}} box
 * @param {FilmScene} scene
 * @param {Map<number, HTMLCanvasElement>} pictures
 */
function drawStrip(context, { left, right, height, pixelsPerSecond }, { start, seconds }, pictures) {
  const first = pictures.get(seconds[0]);
  const width = Math.max(1, (height * first.width) / first.height);
  context.save();
  context.beginPath();
  context.rect(left, 0, right - left, height);
  context.clip();
  for (let x = left; x < right; x += width) {
    if (x + width < 0 || x > context.canvas.width) continue;
    const middle = start + (Math.min(x + width / 2, right) - left) / pixelsPerSecond;
    context.drawImage(pictures.get(nearestTo(middle, seconds)), x, 0, width, height);
  }
  context.restore();
}
