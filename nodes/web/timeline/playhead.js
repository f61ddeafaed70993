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

const keyOf = ({ start_block, text }) => `${start_block} ${text}`;

export class Playhead {
  #place = nowhere;
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
   * in which the story begins after `lead` seconds.
   */
  move(place) {
    if (place.render !== this.#place.render) this.#pictures.clear();
    this.#place = place;
  }

  /** The first block that a running render has not begun; 0 where none runs. */
  get free() {
    return this.#place.running ? this.#place.done + 1 : 0;
  }

  /** Take the picture of the scene that a video shows in this moment, `mediaTime` seconds after its beginning. */
  frame(video, mediaTime) {
    if (!this.#drawn || video.seeking) return;
    const [{ view, segments }] = this.#drawn;
    const seconds = mediaTime - this.#place.lead;
    const segment = segments.find(
      ({ start_block, end_block }) => startSeconds(view, start_block) <= seconds && seconds < startSeconds(view, end_block),
    );
    if (!segment) return;
    const far = Math.abs(seconds - middleOf(view, segment));
    const known = this.#pictures.get(keyOf(segment));
    if (known && (known.final || far > known.far - NEARER)) return;
    this.#pictures.set(keyOf(segment), { picture: pictureOf(video), far, final: false });
    this.draw(...this.#drawn);
  }

  draw({ view, segments }, bars) {
    this.#drawn = [{ view, segments }, bars];
    const { done, at, video } = this.#place;
    const total = startSeconds(view, view.blocks);
    const percent = (seconds) => `${(100 * Math.min(seconds, total)) / total}%`;
    this.rendered.style.width = percent(startSeconds(view, Math.min(done, view.blocks)));
    this.line.hidden = at === null;
    this.line.style.left = percent(at ?? 0);
    const [width, beside] = [this.line.parentNode.clientWidth, HEIGHT * (video?.videoWidth / video?.videoHeight || 1)];
    this.line.parentNode.style.setProperty("--hf-beside", `${beside + 6}px`); // where the words of a long bar begin
    segments.forEach((segment, index) => {
      const [bar, tag] = bars[index];
      const [from, to] = [segment.start_block, segment.end_block].map((block) => startSeconds(view, block));
      const [begun, playing] = [segment.start_block < this.free, at !== null && from <= at && at < to];
      for (const part of [bar, tag]) part.classList.toggle("hf-begun", begun);
      bar.setAttribute("aria-readonly", begun);
      tag.dataset.begun = `${t("begun")} `;
      bar.classList.toggle("hf-playing", playing);
      const picture = this.#pictures.get(keyOf(segment))?.picture;
      bar.style.backgroundImage = picture ? `url(${picture})` : "";
      bar.classList.toggle("hf-pictured", Boolean(picture) && (width * (to - from)) / total > 2 * beside);
    });
    this.#look(view, segments, bars);
  }

  /** Look through a finished file for the middle of every scene. */
  async #look(view, segments, bars) {
    const { file, lead, render } = this.#place;
    const isThere = ({ start_block }) => lead + startSeconds(view, start_block) >= 0; // a file may begin with a scene
    const missing = segments.filter((segment) => !this.#pictures.get(keyOf(segment))?.final && isThere(segment));
    const looked = JSON.stringify([file, missing.map(keyOf)]);
    if (!file || !missing.length || looked === this.#looked) return;
    this.#looked = looked;
    const pictures = await picturesIn(
      file,
      missing.map((segment) => lead + middleOf(view, segment)),
    );
    if (render !== this.#place.render) return;
    missing.forEach((segment, index) => {
      const picture = pictures[index];
      if (picture) this.#pictures.set(keyOf(segment), { picture, far: 0, final: true });
    });
    this.draw({ view, segments }, bars);
  }
}

/** What a video element shows, as the address of a small picture; empty where it shows nothing. */
function pictureOf(video) {
  if (!video?.videoWidth) return "";
  const canvas = make("canvas", { height: HEIGHT, width: Math.round((HEIGHT * video.videoWidth) / video.videoHeight) });
  canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.8);
}

/** Pictures of a video file at some seconds; none of those that it cannot show. */
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
