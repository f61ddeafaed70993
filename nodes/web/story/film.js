// Film strips in the bars of the story panel, and a larger picture at the pointer.
//
// A picture is kept for each second that the player has shown; those of a finished file that it has not shown are read
// from the file. Pictures belong to one render, and each to a scene of it: a bar shows those of the scene with its words.
import { MIDDLE } from "../player/sprite.js";
import { make } from "../shared.js";
import { picturesIn, smallPicture } from "../timeline/pictures.js";
import { plainTime, startSeconds } from "../timeline/segments.js";

const HEIGHT = 96; // of a picture, in pixels
const MOST_READ = 90; // pictures that are read from a finished file
const EARLY = 0.2; // seconds at the beginning of a second whose frame may be one of the scene before
const KEPT_RENDERS = 4;
const CHANGED = 0.3; // opacity of the pictures of a scene whose words have been changed since

export class Film {
  #view = null;
  #editor = null;
  #reels = new Map(); // by render: pictures by second of the story
  #read = new Set(); // files that were read
  #listening = new AbortController();
  #drawn = "";

  constructor() {
    this.canvas = make("canvas", { class: "hf-story-film", "aria-hidden": "true" });
    this.large = make("canvas");
    this.time = make("span");
    this.hover = make("div", { class: "hf-story-hover", hidden: true }, this.large, this.time);
  }

  /** Draw into the bars of an editor what a player shows; none where both are null. */
  bind(view, editor) {
    this.#listening.abort();
    if (this.#view) this.#view.onFrame = undefined;
    this.canvas.remove();
    this.hover.remove();
    this.#view = view;
    this.#editor = editor;
    this.#drawn = "";
    if (!editor) return;
    editor.bars.track.prepend(this.canvas);
    editor.element.closest(".hf-story")?.append(this.hover);
    this.#listening = new AbortController();
    const { signal } = this.#listening;
    editor.bars.element.addEventListener("scroll", () => this.draw(), { signal }); // after the bars' own listener
    editor.bars.track.addEventListener("pointermove", (event) => this.#peek(event), { signal });
    editor.bars.track.addEventListener("pointerleave", () => (this.hover.hidden = true), { signal });
    if (view) view.onFrame = (mediaTime) => this.#keep(mediaTime);
  }

  /** The pictures of the render that is played. */
  get #reel() {
    const render = this.#view?.source;
    if (!render) return new Map();
    if (!this.#reels.has(render)) this.#reels.set(render, new Map());
    while (this.#reels.size > KEPT_RENDERS) this.#reels.delete(this.#reels.keys().next().value);
    return this.#reels.get(render);
  }

  #keep(mediaTime) {
    const { video, place, made } = this.#view;
    if (made) return;
    const seconds = mediaTime - place.lead;
    const second = Math.floor(seconds);
    if (second < 0 || seconds - second < EARLY || video.seeking || this.#reel.has(second)) return;
    this.#reel.set(second, smallPicture(video, HEIGHT));
    this.draw();
  }

  /** Take what the server has made, which is nearer to the middle of its second than what was shown. */
  #takeMade() {
    const { made, place } = this.#view ?? {};
    if (!made) return;
    const reel = this.#reel;
    for (const [second, picture] of made) {
      const shows = Math.floor(second + MIDDLE - place.lead);
      if (shows >= 0) reel.set(shows, picture);
    }
  }

  /** Read the seconds of a finished file that were not shown. */
  async #fill() {
    const { url, source, place, files } = this.#view ?? {};
    const length = Math.floor(this.#editor.view.seconds);
    if (!url || !files || this.#view.made || this.#read.has(url)) return;
    this.#read.add(url);
    const reel = this.#reel;
    const every = Math.max(1, Math.ceil(length / MOST_READ));
    const missing = [];
    for (let second = 0; second < length; second += every) if (!reel.has(second)) missing.push(second);
    const times = missing.map((second) => second + MIDDLE + place.lead);
    await picturesIn(url, times, HEIGHT, (picture, index) => {
      reel.set(missing[index], picture);
      if (source === this.#view?.source) this.draw();
    });
  }

  draw() {
    if (!this.#editor?.view) return;
    this.#takeMade();
    this.#fill();
    const { bars, view, segments } = this.#editor;
    const { left: scrollLeft, width: clientWidth, pixels: all } = bars;
    const reel = this.#reel;
    const places = segments.map(({ start_block, words }) => [start_block, words]);
    const what = JSON.stringify([scrollLeft, clientWidth, all, reel.size, this.#view?.made?.size, this.#view?.source, places]);
    if (what === this.#drawn || !clientWidth) return;
    this.#drawn = what;
    this.canvas.style.left = `${scrollLeft}px`;
    this.canvas.width = clientWidth;
    const height = bars.track.clientHeight;
    this.canvas.height = height;
    if (!reel.size) return;
    const context = this.canvas.getContext("2d");
    const total = startSeconds(view, view.blocks);
    const pixels = all / total;
    const seconds = [...reel.keys()].toSorted((a, b) => a - b);
    for (const segment of segments) {
      const found = bars.playhead.sceneFor(segment);
      if (!found) continue;
      const from = startSeconds(view, segment.start_block);
      const left = from * pixels - scrollLeft;
      const right = startSeconds(view, segment.end_block) * pixels - scrollLeft;
      if (right < 0 || left > clientWidth) continue;
      const scene = { from: startSeconds(view, found.scene.start_block), until: startSeconds(view, found.scene.end_block) };
      const own = seconds.filter((second) => second + MIDDLE >= scene.from && second + MIDDLE < scene.until);
      context.globalAlpha = found.isSame ? 1 : CHANGED;
      if (own.length) drawStrip(context, { left, right, height, pixels }, own, scene.from, reel);
    }
  }

  #peek(event) {
    const { bars, view, segments } = this.#editor;
    const seconds = bars.secondsAt(event);
    const segment = segments[bars.indexAt(seconds)];
    const found = segment && bars.playhead.sceneFor(segment);
    const startOf = ({ start_block }) => startSeconds(view, start_block);
    const picture = found && this.#reel.get(Math.floor(seconds - startOf(segment) + startOf(found.scene)));
    const root = this.hover.parentElement?.getBoundingClientRect();
    if (!picture || !root || event.buttons) {
      this.hover.hidden = true;
      return;
    }
    this.large.width = picture.width;
    this.large.height = picture.height;
    this.large.getContext("2d").drawImage(picture, 0, 0);
    this.time.textContent = plainTime(seconds);
    this.hover.hidden = false;
    const half = this.hover.offsetWidth / 2;
    const x = Math.min(Math.max(event.clientX - root.left, half + 4), root.width - half - 4);
    this.hover.style.left = `${x}px`;
    this.hover.style.top = `${bars.element.getBoundingClientRect().top - root.top}px`;
  }
}

/** Pictures side by side from `left` to `right`; each is the one nearest to the middle of its place. */
function drawStrip(context, { left, right, height, pixels }, own, from, reel) {
  const first = reel.get(own[0]);
  const width = Math.max(1, (height * first.width) / first.height);
  context.save();
  context.beginPath();
  context.rect(left, 0, right - left, height);
  context.clip();
  for (let x = left; x < right; x += width) {
    if (x + width < 0 || x > context.canvas.width) continue;
    const wanted = from + (Math.min(x + width / 2, right) - left) / pixels;
    const far = (second) => Math.abs(second + MIDDLE - wanted);
    const nearest = own.reduce((best, second) => (far(second) < far(best) ? second : best));
    context.drawImage(reel.get(nearest), x, 0, width, height);
  }
  context.restore();
}
