// Drawn over the bars: how far the story is rendered, where the player plays it, which prompts have begun; and in each
// bar a picture of its scene.
import { MIDDLE } from "../player/sprite.js";
import { make } from "../shared.js";
import { picturesIn, smallPicture } from "./pictures.js";
import { blocksInCommon, isRenderedAs, startSeconds } from "./segments.js";
/** @import {EditorState, Segment, ShownPlace, Timeline} from "../types.js" */
/** @import {Bar} from "./bar.js" */

const HEIGHT = 46; // of a bar, in pixels
/** @type {ShownPlace} */
const NOWHERE = { done: 0, lead: 0, running: false, render: "", at: null };

const NEARER = 0.5; // seconds by which another picture is nearer to the middle of its scene than the one that is shown

/**
 * A picture of a scene.
 * @typedef {object} ScenePicture
 * @property {string} picture its address
 * @property {number} far seconds from the middle of the scene
 * @property {boolean} final whether no other is looked for
 */

/**
 * The middle of a scene, in seconds of the story.
 * @param {Timeline} timeline
 * @param {Segment} scene
 */
function middleOf(timeline, { start_block, end_block }) {
  const end = Math.min(startSeconds(timeline, end_block), timeline.seconds);
  return (startSeconds(timeline, start_block) + end) / 2;
}

/** @param {Segment} scene */
const keyOf = ({ start_block, words }) => `${start_block} ${words}`;

export class Playhead {
  #place = NOWHERE;
  /** The prompts when this render was seen first, where it does not tell its own. @type {Segment[] | null} */
  #scenes = null;
  /** Pictures of the scenes of this render, by their block and words. @type {Map<string, ScenePicture>} */
  #pictures = new Map();
  #looked = ""; // the file and the scenes that were looked through last
  /** What was drawn last. @type {{state: EditorState, bars: Map<number, Bar>, width: number} | null} */
  #drawn = null;

  /** @param {HTMLElement} track */
  constructor(track) {
    this.rendered = make("span", { class: "hf-rendered", "aria-hidden": "true" });
    this.line = make("span", { class: "hf-playhead", "aria-hidden": "true", hidden: true });
    track.append(this.rendered, this.line);
  }

  /** Where the render and its player are. @param {ShownPlace} place */
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

  /**
   * The scene of what is played that a prompt has become: the nearest of those with its words, else the one that begins
   * where it does, whose words have been changed since (`isSame` is false); null where there is none.
   * @param {Segment} segment
   * @returns {{scene: Segment, isSame: boolean} | null}
   */
  sceneFor({ start_block, words }) {
    /** @param {Segment} scene */
    const far = (scene) => Math.abs(scene.start_block - start_block);
    const [same] = this.#played.filter((each) => each.words === words).toSorted((a, b) => far(a) - far(b));
    if (same) return { scene: same, isSame: true };
    const there = this.#played.find((each) => each.start_block === start_block);
    return there ? { scene: there, isSame: false } : null;
  }

  /** Whether the render counts blocks of the same length as a timeline. @param {EditorState} state */
  #hasBlocksOf({ timeline }) {
    return (this.#place.fps ?? timeline.fps) === timeline.fps;
  }

  /** The number of first blocks that are rendered as the prompts are now. @param {EditorState} state */
  #renderedBlocks(state) {
    const done = Math.min(this.#place.done, state.timeline.blocks);
    if (!this.#played.length || !this.#hasBlocksOf(state)) return done;
    return Math.min(done, blocksInCommon(state.segments, this.#played));
  }

  /** Whether the render that runs does not have a prompt as it is now. @param {EditorState} state @param {Segment} segment */
  #waits(state, segment) {
    const { running, scenes } = this.#place;
    if (!running || !scenes || !this.#hasBlocksOf(state)) return false;
    return !scenes.some((scene) => isRenderedAs(segment, scene));
  }

  /** The picture of the scene with a prompt's words; empty where there is none. @param {Segment} segment */
  #pictureFor(segment) {
    const found = this.sceneFor(segment);
    if (!found?.isSame) return "";
    return this.#pictures.get(keyOf(found.scene))?.picture ?? "";
  }

  /** The first block that a running render has not begun; 0 where none runs. */
  get free() {
    return this.#place.running ? this.#place.done + 1 : 0;
  }

  /**
   * Take the picture of the scene that a video shows in this moment.
   * @param {HTMLVideoElement} video
   * @param {number} mediaTime seconds after the beginning of the file
   */
  frame(video, mediaTime) {
    if (!this.#drawn || video.seeking) return;
    const { timeline } = this.#drawn.state;
    const seconds = mediaTime - this.#place.lead;
    const scene = this.#played.findLast(({ start_block }) => startSeconds(timeline, start_block) <= seconds);
    if (!scene) return;
    const far = Math.abs(seconds - middleOf(timeline, scene));
    const known = this.#pictures.get(keyOf(scene));
    if (known && (known.final || far > known.far - NEARER)) return;
    this.#pictures.set(keyOf(scene), { picture: addressOf(smallPicture(video, HEIGHT)), far, final: false });
    this.#redraw();
  }

  #redraw() {
    const { state, bars, width } = this.#drawn;
    this.draw(state, bars, width);
  }

  /**
   * Draw it over bars, which have so many pixels in all.
   * @param {EditorState} state
   * @param {Map<number, Bar>} bars
   * @param {number} width
   */
  draw(state, bars, width) {
    const { timeline, segments } = state;
    this.#drawn = { state, bars, width };
    const { at, video, file } = this.#place;
    if (at !== null || file) this.#scenes ??= segments;
    this.#takeMade(timeline);
    const total = startSeconds(timeline, timeline.blocks);
    /** @param {number} seconds */
    const percent = (seconds) => `${(100 * Math.min(seconds, total)) / total}%`;
    this.rendered.style.width = percent(startSeconds(timeline, this.#renderedBlocks(state)));
    this.line.hidden = at === null;
    this.line.style.left = percent(at ?? 0);
    const track = this.line.parentElement;
    const beside = HEIGHT * (video?.videoWidth / video?.videoHeight || 1);
    track.style.setProperty("--hf-beside", `${beside + 6}px`); // where the words of a long bar begin
    for (const [index, bar] of bars) {
      const segment = segments[index];
      const from = startSeconds(timeline, segment.start_block);
      const to = startSeconds(timeline, segment.end_block);
      const begun = segment.start_block < this.free;
      const finished = segment.end_block <= this.#place.done;
      const playing = at !== null && from <= at && at < to;
      const picture = this.#pictureFor(segment);
      const isWide = picture !== "" && (width * (to - from)) / total > 2 * beside;
      bar.place({ begun, finished, waits: this.#waits(state, segment), playing, picture, isWide });
    }
    this.#look();
  }

  /** Take the pictures of scenes that the server has made. @param {Timeline} timeline */
  #takeMade(timeline) {
    const { made, lead } = this.#place;
    if (!made) return;
    for (const scene of this.#played) {
      if (this.#pictures.get(keyOf(scene))?.final) continue;
      const second = Math.floor(middleOf(timeline, scene) + lead);
      const shows = second + MIDDLE - lead;
      const [from, until] = [scene.start_block, scene.end_block].map((block) => startSeconds(timeline, block));
      const isOfScene = shows >= from && shows < until;
      const picture = isOfScene && made.get(second);
      if (picture) this.#pictures.set(keyOf(scene), { picture: addressOf(picture), far: 0, final: true });
    }
  }

  /** Look through a finished file for the middle of every scene. */
  async #look() {
    const { file, lead, render } = this.#place;
    const { timeline } = this.#drawn.state;
    /** @param {Segment} scene */
    const isThere = ({ start_block }) => lead + startSeconds(timeline, start_block) >= 0; // a file may begin with a scene
    const missing = this.#played.filter((scene) => !this.#pictures.get(keyOf(scene))?.final && isThere(scene));
    const looked = JSON.stringify([file, missing.map(keyOf)]);
    if (!file || !missing.length || looked === this.#looked) return;
    this.#looked = looked;
    const times = missing.map((scene) => lead + middleOf(timeline, scene));
    await picturesIn(file, times, HEIGHT, (picture, index) => {
      if (render !== this.#place.render) return;
      this.#pictures.set(keyOf(missing[index]), { picture: addressOf(picture), far: 0, final: true });
    });
    if (render === this.#place.render) this.#redraw();
  }
}

/** A picture as an address for CSS; empty where there is none. @param {HTMLCanvasElement | null} picture */
const addressOf = (picture) => picture?.toDataURL("image/jpeg", 0.8) ?? "";
