// The sound of a story below its bars: waveform, onsets of low notes, beats of its tempo.
//
// The server reads the file, see nodes/host/browser/sounds.py. A scene begins at a block, so that a beat is met only
// about: the lane says how far the chosen scene is from the nearest one.
import { app } from "../../../scripts/app.js";
import { audioOf, button, make, put, putProperty, putValues } from "../shared.js";
import { t } from "../texts.js";
import { startSeconds } from "../timeline/segments.js";
/** @import {GraphNode, Grid, Heard, Say, Segment, Timeline} from "../types.js" */
/** @import {Player} from "../player/player.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */

const HEIGHT = 44; // of the lane, in pixels
const TEMPO = "headforcing_tempo"; // the property of Prompt Timeline with what a person has set, by name of the sound
const NEAR_SECONDS = 1; // of the nearest onset, to be told
const BEAT_PIXELS = 6; // between two beats that are drawn
const AWAY_MS = 3000; // until a server that did not answer is asked again,
const REFUSED_MS = 30_000; // and one that cannot read the sound
const COLOURS = ["wave", "onset", "beat", "start"]; // what the style sheet has a colour for, by ComfyUI's theme

export class SoundLane {
  #say;
  /** @type {GraphNode | null} */
  #storyNode = null;
  /** @type {TimelineEditor | null} */
  #editor = null;
  /** @type {Player | null} */
  #player = null;
  /** By name; null while one is read and until it is asked for again. @type {Map<string, Heard | null>} */
  #sounds = new Map();
  /** Why sounds could not be read, by name. @type {Map<string, string>} */
  #refused = new Map();
  #name = "";
  #offset = 0;
  #drawn = "";
  /** @type {Record<string, string>} */
  #colours = {};
  #listening = new AbortController();

  /** @param {Say} say */
  constructor(say) {
    this.#say = say;
    this.canvas = make("canvas", { class: "hf-story-wave", "aria-hidden": "true" });
    this.bpm = make("output", { class: "hf-story-bpm" });
    this.near = make("span", { class: "hf-story-near" });
    const slower = button("/2", t("Half as many beats"), () => this.#setTempo({ factor: 0.5 }));
    const faster = button("x2", t("Twice as many beats"), () => this.#setTempo({ factor: 2 }));
    const first = button(t("first beat here"), t("Put a beat where the video is now"), () => this.#firstBeat());
    const length = button(t("length of the sound"), t("Let the story end with the sound"), () => this.#takeLength());
    this.tempo = make("span", { class: "hf-story-beats" }, this.bpm, slower, faster, first);
    const tools = { class: "hf-story-sound-tools", role: "toolbar", "aria-label": t("Sound") };
    this.tools = make("div", tools, this.tempo, length, this.near);
    this.element = make("div", { class: "hf-story-sound", hidden: true }, this.canvas, this.tools);
    this.element.style.height = `${HEIGHT}px`;
  }

  /**
   * Show the sound of a story below the bars of its editor; none where both are null.
   * @param {GraphNode | null} storyNode
   * @param {TimelineEditor | null} editor
   * @param {Player | null} player
   */
  bind(storyNode, editor, player) {
    this.#listening.abort();
    this.element.remove();
    this.#storyNode = storyNode;
    this.#editor = editor;
    this.#player = player;
    this.#drawn = "";
    if (!editor) return;
    this.#listening = new AbortController();
    const { signal } = this.#listening;
    editor.bars.inner.append(this.element);
    editor.bars.element.addEventListener("scroll", () => this.draw(), { signal });
    this.canvas.addEventListener("click", (event) => player?.seek(editor.bars.secondsAt(event)), { signal });
    this.look();
  }

  /** Look which sound the story has, and draw it. */
  look() {
    if (!this.#editor) return;
    const { name, offset } = audioOf(this.#storyNode);
    this.#name = name;
    this.#offset = offset;
    if (name && !this.#sounds.has(name)) this.#read(name);
    put(this.element, { hidden: !this.#heard });
    const style = getComputedStyle(this.element);
    for (const part of COLOURS) this.#colours[part] = style.getPropertyValue(`--hf-${part}`);
    this.draw();
  }

  /** @returns {Heard | null} */
  get #heard() {
    return this.#sounds.get(this.#name) ?? null;
  }

  /** @param {string} name */
  async #read(name) {
    this.#sounds.set(name, null);
    try {
      const answer = await app.api.fetchApi(`/headforcing/sound?${new URLSearchParams({ name })}`);
      const told = await answer.json();
      if (told.error) {
        this.#refuse(name, told.error);
        return;
      }
      const peaks = Uint8Array.from(atob(told.peaks), (letter) => letter.charCodeAt(0));
      this.#sounds.set(name, { ...told, peaks });
      this.look();
    } catch {
      this.#askAgain(name, AWAY_MS);
    }
  }

  /** Say why a sound cannot be read, once. @param {string} name @param {string} sentence */
  #refuse(name, sentence) {
    if (this.#refused.get(name) !== sentence) this.#say(sentence, true);
    this.#refused.set(name, sentence);
    this.#askAgain(name, REFUSED_MS);
  }

  /** @param {string} name @param {number} milliseconds until then */
  #askAgain(name, milliseconds) {
    setTimeout(() => this.#sounds.delete(name), milliseconds);
  }

  /**
   * By how much a person has made the tempo of the sound faster, and the second of a beat in the sound; null: as found.
   * @returns {{factor: number, first: number | null}}
   */
  get #tempoSet() {
    const { factor, first } = this.#storyNode.properties?.[TEMPO]?.[this.#name] ?? {};
    return { factor: factor > 0 ? Number(factor) : 1, first: Number.isFinite(first) ? first : null };
  }

  /**
   * Seconds between two beats, and the second of the story of one of them, as found or as set; null: there are none.
   * @returns {Grid | null}
   */
  get beats() {
    const heard = this.#heard;
    if (heard?.tempo == null) return null;
    const { factor, first } = this.#tempoSet;
    const beat = first ?? heard.first_beat ?? 0;
    return { every: 60 / (heard.tempo * factor), first: beat + this.#offset };
  }

  /** Keep a change of the tempo with the workflow. @param {{factor?: number, first?: number | null}} change */
  #setTempo({ factor = 1, first = null }) {
    const known = this.#tempoSet;
    const changed = { factor: known.factor * factor, first: first ?? known.first };
    putProperty(this.#storyNode, TEMPO, { ...this.#storyNode.properties?.[TEMPO], [this.#name]: changed });
    this.draw();
  }

  #firstBeat() {
    if (!this.#player?.video.readyState) {
      this.#say(t("There is no video yet."), true);
      return;
    }
    this.#setTempo({ first: this.#player.seconds - this.#offset });
  }

  #takeLength() {
    const seconds = Math.round(1000 * (this.#heard.seconds + this.#offset)) / 1000;
    if (seconds > 0) putValues(this.#storyNode, { seconds });
  }

  /** The nearest onset in seconds of the story; null without one. @param {number} seconds */
  nearest(seconds) {
    const onsets = this.#heard?.onsets ?? [];
    const at = seconds - this.#offset;
    const after = onsets.findIndex((onset) => onset >= at);
    const around = after < 0 ? onsets.slice(-1) : onsets.slice(Math.max(0, after - 1), after + 1);
    const [near] = around.toSorted((a, b) => Math.abs(a - at) - Math.abs(b - at));
    return near === undefined ? null : near + this.#offset;
  }

  draw() {
    const heard = this.#heard;
    if (!heard || !this.#editor?.timeline || !this.#editor.bars.shownWidth) return;
    const { timeline, bars, segments, selected } = this.#editor;
    const starts = segments.map(({ start_block }) => start_block);
    const sizes = [bars.scrollLeft, bars.shownWidth, bars.wholeWidth, timeline.blocks];
    const drawn = JSON.stringify([this.#name, this.#offset, sizes, starts, selected, this.beats, this.#colours]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    this.canvas.style.left = this.tools.style.left = `${bars.scrollLeft}px`;
    this.canvas.width = bars.shownWidth;
    this.canvas.height = HEIGHT;
    const pixels = bars.wholeWidth / startSeconds(timeline, timeline.blocks); // of a second
    const context = this.canvas.getContext("2d");
    /** @param {number} seconds */
    const place = (seconds) => seconds * pixels - bars.scrollLeft;
    this.#drawWave(context, heard, pixels);
    this.#drawBeats(context, place, pixels);
    context.fillStyle = this.#colours.onset;
    for (const onset of heard.onsets) {
      const x = place(onset + this.#offset);
      if (x >= 0 && x < bars.shownWidth) context.fillRect(x, HEIGHT - 8, 1.5, 8);
    }
    context.fillStyle = this.#colours.start;
    for (const block of starts.slice(1)) context.fillRect(place(startSeconds(timeline, block)), 0, 1, HEIGHT);
    this.#tell(timeline, segments[selected]);
  }

  /** @param {CanvasRenderingContext2D} context @param {Heard} heard @param {number} pixels of a second */
  #drawWave(context, { peaks, peaks_a_second, seconds }, pixels) {
    const { scrollLeft, shownWidth } = this.#editor.bars;
    const middle = HEIGHT / 2;
    const begin = Math.max(0, Math.floor(this.#offset * pixels - scrollLeft));
    const end = Math.min(shownWidth, (this.#offset + seconds) * pixels - scrollLeft);
    context.fillStyle = this.#colours.wave;
    for (let x = begin; x < end; x++) {
      const at = ((x + scrollLeft) / pixels - this.#offset) * peaks_a_second;
      const until = Math.max(at + 1, at + peaks_a_second / pixels);
      let loudest = 0;
      for (let index = Math.max(0, Math.floor(at)); index < until && index < peaks.length; index++)
        loudest = Math.max(loudest, peaks[index]);
      const half = Math.max(0.5, (loudest / 255) * (middle - 2));
      context.fillRect(x, middle - half, 1, 2 * half);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {(seconds: number) => number} place of a second of the story, in pixels
   * @param {number} pixels of a second
   */
  #drawBeats(context, place, pixels) {
    const { beats } = this;
    this.tempo.hidden = !beats;
    if (!beats) return;
    const { every, first } = beats;
    this.bpm.textContent = `${Math.round(600 / every) / 10} bpm`;
    if (every * pixels < BEAT_PIXELS) return;
    const { scrollLeft, shownWidth } = this.#editor.bars;
    context.fillStyle = this.#colours.beat;
    const inSight = Math.ceil((scrollLeft / pixels - first) / every); // the number of the first one
    for (let beat = inSight; place(first + beat * every) <= shownWidth; beat++)
      context.fillRect(place(first + beat * every), 0, 1, HEIGHT);
  }

  /**
   * Say how far the beginning of the chosen scene is from the nearest onset.
   * @param {Timeline} timeline
   * @param {Segment | undefined} segment
   */
  #tell(timeline, segment) {
    this.near.textContent = "";
    if (!segment?.start_block) return; // the first one begins the video
    const start = startSeconds(timeline, segment.start_block);
    const near = this.nearest(start);
    if (near === null || Math.abs(start - near) >= NEAR_SECONDS) return;
    const seconds = Math.abs(start - near).toFixed(2);
    const before = t("begins %1 s before the beat", seconds);
    const after = t("begins %1 s after the beat", seconds);
    this.near.textContent = start < near ? before : after;
  }
}
