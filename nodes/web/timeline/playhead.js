// Drawn over the bars: how far the story is rendered, where the player plays it, which prompts have begun; and in each
// bar a picture of its scene.
import { make } from "../shared.js";
import { t } from "../texts.js";
import { startSeconds } from "./segments.js";

const HEIGHT = 46; // of a bar, in pixels
const nowhere = { done: 0, running: false, at: null, render: "" };

const NEARER = 0.5; // seconds by which another picture is nearer to the middle of its scene than the one that is shown

/** The middle of a scene, in seconds of the story. */
const middleOf = (view, { start_block, end_block }) =>
  (startSeconds(view, start_block) + Math.min(startSeconds(view, end_block), view.seconds)) / 2;

const keyOf = ({ start_block, words }) => `${start_block} ${words}`;

export class Playhead {
  #place = nowhere;
  #scenes = null; // the prompts when this render was seen first, where it does not tell its own
  #pictures = new Map(); // of the scenes of this render, by their block and words: { picture, far, final }
  #looked = ""; // the file and the scenes that were looked through last
  #drawn = null; // what was drawn last: state and bars

  constructor(track) {
    this.rendered = make("span", { class: "hf-rendered", "aria-hidden": "true" });
    this.line = make("span", { class: "hf-playhead", "aria-hidden": "true", hidden: true });
    track.append(this.rendered, this.line);
  }

  /**
   * Where the render and its player are. `done` blocks of the story are finished; `at` are the seconds of the story
   * that are played, null where nothing is; `video` is the element that plays, `file` the address of a finished file,
   * in which the story begins after `lead` seconds; `scenes` are the prompts of the story that is rendered.
   */
  move(place) {
    if (place.render !== this.#place.render) {
      this.#pictures.clear();
      this.#scenes = null;
    }
    this.#place = place;
  }

  /** The prompts of what is played: those of the text may have been moved or changed since. */
  get #played() {
    return this.#place.scenes ?? this.#scenes ?? [];
  }

  /** The picture of the scene with a prompt's words, the nearest of several. */
  #pictureFor({ start_block, words }) {
    const far = (scene) => Math.abs(scene.start_block - start_block);
    const [scene] = this.#played.filter((each) => each.words === words).toSorted((a, b) => far(a) - far(b));
    return scene && this.#pictures.get(keyOf(scene))?.picture;
  }

  /** The first block that a running render has not begun; 0 where none runs. */
  get free() {
    return this.#place.running ? this.#place.done + 1 : 0;
  }

  /** Take the picture of the scene that a video shows in this moment, `mediaTime` seconds after its beginning. */
  frame(video, mediaTime) {
    if (!this.#drawn || video.seeking) return;
    const [{ view }] = this.#drawn;
    const seconds = mediaTime - this.#place.lead;
    const scene = this.#played.findLast(({ start_block }) => startSeconds(view, start_block) <= seconds);
    if (!scene) return;
    const far = Math.abs(seconds - middleOf(view, scene));
    const known = this.#pictures.get(keyOf(scene));
    if (known && (known.final || far > known.far - NEARER)) return;
    this.#pictures.set(keyOf(scene), { picture: pictureOf(video), far, final: false });
    this.draw(...this.#drawn);
  }

  draw({ view, segments }, bars) {
    this.#drawn = [{ view, segments }, bars];
    const { done, at, video, file } = this.#place;
    if (at !== null || file) this.#scenes ??= segments;
    const total = startSeconds(view, view.blocks);
    const percent = (seconds) => `${(100 * Math.min(seconds, total)) / total}%`;
    this.rendered.style.width = percent(startSeconds(view, Math.min(done, view.blocks)));
    this.line.hidden = at === null;
    this.line.style.left = percent(at ?? 0);
    const track = this.line.parentElement;
    const width = track.clientWidth;
    const beside = HEIGHT * (video?.videoWidth / video?.videoHeight || 1);
    track.style.setProperty("--hf-beside", `${beside + 6}px`); // where the words of a long bar begin
    segments.forEach((segment, index) => {
      const [bar, tag] = bars[index];
      const from = startSeconds(view, segment.start_block);
      const to = startSeconds(view, segment.end_block);
      const begun = segment.start_block < this.free;
      const playing = at !== null && from <= at && at < to;
      for (const part of [bar, tag]) part.classList.toggle("hf-begun", begun);
      bar.setAttribute("aria-readonly", begun);
      tag.dataset.begun = `${t("begun")} `;
      bar.classList.toggle("hf-playing", playing);
      const picture = this.#pictureFor(segment);
      bar.style.backgroundImage = picture ? `url(${picture})` : "";
      bar.classList.toggle("hf-pictured", Boolean(picture) && (width * (to - from)) / total > 2 * beside);
    });
    this.#look();
  }

  /** Look through a finished file for the middle of every scene. */
  async #look() {
    const { file, lead, render } = this.#place;
    const [{ view }] = this.#drawn;
    const isThere = ({ start_block }) => lead + startSeconds(view, start_block) >= 0; // a file may begin with a scene
    const missing = this.#played.filter((scene) => !this.#pictures.get(keyOf(scene))?.final && isThere(scene));
    const looked = JSON.stringify([file, missing.map(keyOf)]);
    if (!file || !missing.length || looked === this.#looked) return;
    this.#looked = looked;
    const pictures = await picturesIn(
      file,
      missing.map((scene) => lead + middleOf(view, scene)),
    );
    if (render !== this.#place.render) return;
    missing.forEach((scene, index) => {
      const picture = pictures[index];
      if (picture) this.#pictures.set(keyOf(scene), { picture, far: 0, final: true });
    });
    this.draw(...this.#drawn);
  }
}

/**
 * What a video element shows, as the address of a small picture; empty where it shows nothing.
 * @param {HTMLVideoElement} video
 */
function pictureOf(video) {
  if (!video?.videoWidth) return "";
  const canvas = make("canvas", { height: HEIGHT, width: Math.round((HEIGHT * video.videoWidth) / video.videoHeight) });
  canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.8);
}

/**
 * Pictures of a video file at some seconds; none of those that it cannot show.
 * @param {string} file
 * @param {number[]} times
 * @returns {Promise<string[]>}
 */
async function picturesIn(file, times) {
  const video = make("video", { preload: "auto", src: file });
  video.muted = true;
  const next = (event) =>
    new Promise((done, fail) => {
      video.addEventListener(event, done, { once: true });
      video.addEventListener("error", fail, { once: true });
    });
  const pictures = [];
  try {
    await next("loadeddata");
    for (const time of times.filter((each) => each < video.duration)) {
      video.currentTime = time;
      await next("seeked");
      pictures.push(pictureOf(video));
    }
  } catch {
    // a file that is gone: bars without pictures
  }
  video.removeAttribute("src");
  video.load();
  return pictures;
}
