// The video of a story, large, with what plays it and the in and out points of the part to render.
import { queuePart } from "../queue_part.js";
import { button, make, put } from "../shared.js";
import { t } from "../texts.js";
import { startSeconds, timeText } from "../timeline/segments.js";
/** @import {GraphNode, Say} from "../types.js" */
/** @import {Player} from "../player/player.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */

const FASTEST = 8; // times the usual rate
const BACK_MS = 100; // no browser plays backwards: a step back so often
const NEWEST_JUMP_SECONDS = 1.5; // behind the newest frame at which *newest* jumps to it
const NEWEST_DELAY_SECONDS = 0.3; // that it stays behind
const SCENE_BEGIN_SECONDS = 0.5; // of a scene, in which a jump back goes to the scene before
const USUAL_FPS = 16; // video frames a second before a story is read
const ROUNDED = 0.01; // of a video frame, by which times are rounded
const WHOLE_SECOND_REACH = 0.25; // seconds around a whole second in which a point is set at it

export class Monitor {
  #say;
  #addMarker;
  /** The player that is shown. @type {Player | null} */
  #player = null;
  /** @type {TimelineEditor | null} */
  #editor = null;
  /** @type {GraphNode | null} */
  #sampler = null;
  #listening = new AbortController();
  #back = 0; // how much faster than usual it goes backwards
  #backTimer = 0; // 0: it does not go backwards
  #range = noRange();
  /** By workflow and node of the story. @type {Map<string, PartRange>} */
  #ranges = new Map();
  #followsNewest = false;

  /**
   * @param {Say} say
   * @param {(seconds: number) => void} addMarker
   */
  constructor(say, addMarker) {
    this.#say = say;
    this.#addMarker = addMarker;
    this.screen = make("div", { class: "hf-story-screen" });
    this.none = make("div", { class: "hf-story-no-video" }, t("Run shows the first picture here."));
    this.screen.append(this.none);
    this.time = make("output", { class: "hf-story-time" }, "0:00");
    this.playing = button("▶", t("Play or pause (Space)"), () => this.#toggle());
    this.part = button(t("render in to out"), t("Render from the in point to the out point"), () => this.#renderPart());
    const hint = t("Follow the newest second that is rendered");
    this.newest = button(t("newest"), hint, () => this.#follow(!this.#followsNewest));
    this.rangeBar = make("span", { class: "hf-story-range", "aria-hidden": "true", hidden: true });
    this.sound = button(t("sound"), t("Sound on or off (M)"), () => this.#hear());
    const tools = [
      button("|◀", t("To the scene before (Up)"), () => this.#jump(-1)),
      button("◀◀", t("Backwards, again: faster (J)"), () => this.#shuttle(-1)),
      this.playing,
      button("▶▶", t("Forwards, again: faster (L)"), () => this.#shuttle(1)),
      button("▶|", t("To the next scene (Down)"), () => this.#jump(1)),
      this.time,
      make("span", { class: "hf-gap" }),
      button(t("in"), t("Set the in point (I; Alt+I removes it)"), () => this.#setPoint("in")),
      button(t("out"), t("Set the out point (O; Alt+O removes it)"), () => this.#setPoint("out")),
      this.part,
      this.newest,
      this.sound,
      button(t("full screen"), t("Full screen (F)"), () => this.#fullScreen()),
    ];
    const toolbar = { class: "hf-story-transport", role: "toolbar", "aria-label": t("Player") };
    this.buttons = make("div", toolbar, ...tools);
    this.element = make("div", { class: "hf-story-monitor" }, this.screen, this.buttons);
  }

  /**
   * Show the video of a sampler's player, which its node gets back when another or none is bound. The range is the one that
   * the story at `place` had.
   * @param {Player | null} player
   * @param {TimelineEditor | null} editor
   * @param {GraphNode | null} sampler
   * @param {string | null} place
   */
  bind(player, editor, sampler, place) {
    this.#listening.abort();
    this.#listening = new AbortController();
    this.#stopBack();
    if (this.#player && this.#player !== player) {
      this.#player.video.controls = true;
      this.#player.takeBack();
    }
    this.rangeBar.remove();
    this.#player = player;
    this.#editor = editor;
    this.#sampler = sampler;
    this.#range = (player && this.#ranges.get(place)) || noRange();
    if (player) this.#ranges.set(place, this.#range);
    this.element.classList.toggle("hf-story-without", !player);
    if (!player) return;
    player.lend(this.screen);
    const { signal } = this.#listening;
    for (const event of ["play", "pause", "seeked", "timeupdate", "loadeddata", "volumechange"])
      player.video.addEventListener(event, () => this.look(), { signal });
    player.video.controls = false;
    player.video.addEventListener("click", () => this.#toggle(), { signal });
    editor?.bars.inner.append(this.rangeBar);
    this.look();
  }

  /** Show where it plays, and the in and out points. */
  look() {
    if (!this.#player) return;
    const { video } = this.#player;
    const at = this.#at ?? 0;
    put(this.none, { hidden: video.readyState > 0 || this.#player.image.style.display !== "none" });
    put(this.time, { textContent: `${timeText(Math.floor(at * 10) / 10)} / ${timeText(Math.round(this.#total))}` });
    put(this.playing, { value: video.paused ? "▶" : "||" });
    put(this.sound, { ariaPressed: String(!this.#player.pair.isSilent), disabled: !this.#player.hasSound });
    put(this.part, { disabled: this.#range.out === null || !this.#sampler });
    const canFollow = Boolean(this.#player.growing) && !this.#player.isFollowed; // that one has a pace of its own
    put(this.newest, { ariaPressed: String(this.#followsNewest), disabled: !canFollow });
    if (this.#followsNewest && canFollow) this.#toNewest();
    this.#drawRange();
  }

  /** Keys of the panel, unless words are typed. @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.matches("textarea, select, input:not([type=button])")) return;
    if (event.ctrlKey || event.metaKey || target.closest("[role=menu]")) return;
    if (event.key.startsWith("Arrow") && target.closest(".hf-bar")) return; // the bars have these keys
    const key = keyOf(event);
    /** @type {Record<string, () => void>} */
    const keys = {
      " ": () => this.#toggle(),
      k: () => this.#pause(),
      j: () => this.#shuttle(-1),
      l: () => this.#shuttle(1),
      ",": () => this.#stepFrames(-1),
      ".": () => this.#stepFrames(1),
      arrowup: () => this.#jump(-1),
      arrowdown: () => this.#jump(1),
      i: () => this.#setPoint("in", event.altKey),
      o: () => this.#setPoint("out", event.altKey),
      f: () => this.#fullScreen(),
      m: () => this.#hear(),
      n: () => this.#addMarkerHere(),
      w: () => this.#player?.pair.wipe(),
    };
    const act = keys[key];
    const hasAlt = key === "i" || key === "o"; // which removes a point
    if (!act || (event.altKey && !hasAlt)) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  /** Seconds of the story that are played; null where nothing is. */
  get #at() {
    return this.#player.video.readyState ? Math.max(0, this.#player.seconds) : null;
  }

  get #total() {
    return this.#editor?.timeline?.seconds ?? 0;
  }

  /** Video frames a second of what is played; a file that was dropped on the page has those of its story. */
  get #fps() {
    return this.#player.place.fps ?? this.#editor?.timeline?.fps ?? USUAL_FPS;
  }

  /** Where the video stands, and the in and out points, in seconds of the story; null for those that are not there. */
  get times() {
    return [this.#player ? this.#at : null, this.#range.in, this.#range.out];
  }

  #play() {
    this.#stopBack();
    // a new file stops a video that is about to play
    this.#player.video.play().catch(() => {});
  }

  #pause() {
    this.#stopBack();
    this.#player?.video.pause();
  }

  #toggle() {
    if (!this.#player) return;
    const { video } = this.#player;
    video.playbackRate = 1;
    if (video.paused) this.#play();
    else this.#pause();
  }

  /** Play forwards, or go backwards, faster each time. @param {number} way 1 or -1 */
  #shuttle(way) {
    if (!this.#player) return;
    const { video } = this.#player;
    if (way > 0) {
      video.playbackRate = video.paused ? 1 : Math.min(video.playbackRate * 2, FASTEST);
      this.#play();
      return;
    }
    this.#follow(false);
    video.pause();
    this.#back = Math.min(this.#back ? this.#back * 2 : 1, FASTEST);
    if (this.#backTimer) return;
    this.#backTimer = setInterval(() => this.#step((-this.#back * BACK_MS) / 1000), BACK_MS);
  }

  #stopBack() {
    clearInterval(this.#backTimer);
    this.#backTimer = 0;
    this.#back = 0;
  }

  /** @param {number} seconds */
  #step(seconds) {
    const video = this.#player?.video;
    if (video?.readyState) video.currentTime = Math.max(0, video.currentTime + seconds);
  }

  /** Show the next video frame, or the one before. @param {number} by 1 or -1 */
  #stepFrames(by) {
    const video = this.#player?.video;
    if (!video?.readyState) return;
    this.#pause();
    const fps = this.#fps;
    const shown = Math.min(video.currentTime, video.duration - 0.5 / fps); // at its end a video shows its last frame
    const frame = Math.floor(shown * fps + ROUNDED) + by;
    video.currentTime = Math.max(0, (frame + 0.5) / fps); // the middle of its time: a browser rounds
  }

  /** Play from the beginning of the next scene, or of the one before. @param {number} by 1 or -1 */
  #jump(by) {
    const timeline = this.#editor?.timeline;
    if (!timeline || !this.#player) return;
    const starts = timeline.segments.map(({ start_block }) => startSeconds(timeline, start_block));
    const at = this.#at ?? 0;
    const after = starts.find((start) => start > at + 1 / this.#fps);
    const before = starts.findLast((start) => start < at - SCENE_BEGIN_SECONDS);
    const start = by > 0 ? after : before;
    this.#follow(false);
    if (start !== undefined) this.#player.seek(start);
  }

  /** Follow the newest second from now on, or no longer. @param {boolean} follows */
  #follow(follows) {
    this.#followsNewest = follows;
    if (follows) this.#play();
    this.look();
  }

  #toNewest() {
    const { video } = this.#player;
    const { buffered } = video;
    if (!buffered.length) return;
    const newest = buffered.end(buffered.length - 1) - NEWEST_DELAY_SECONDS;
    if (newest - video.currentTime > NEWEST_JUMP_SECONDS) video.currentTime = newest;
  }

  /**
   * Put the in or the out point where the video stands, or remove it; the other one goes where the two would not fit.
   * @param {"in" | "out"} which
   * @param {boolean} removes
   */
  #setPoint(which, removes = false) {
    const at = this.#player ? this.#at : null;
    this.#range[which] = removes || at === null ? null : nearWhole(at);
    const { in: from, out } = this.#range;
    const isEmpty = from !== null && out !== null && out <= from;
    if (isEmpty) this.#range[which === "in" ? "out" : "in"] = null;
    this.look();
  }

  #addMarkerHere() {
    const at = this.#player ? this.#at : null;
    if (at === null) this.#say(t("There is no video yet."), true);
    else this.#addMarker(at);
  }

  #drawRange() {
    const timeline = this.#editor?.timeline;
    const { in: from, out } = this.#range;
    put(this.rangeBar, { hidden: !timeline || (from === null && out === null) });
    if (this.rangeBar.hidden) return;
    const total = startSeconds(timeline, timeline.blocks);
    const left = from ?? 0;
    this.rangeBar.style.left = `${(100 * left) / total}%`;
    this.rangeBar.style.width = `${(100 * Math.max(0, (out ?? total) - left)) / total}%`;
  }

  async #renderPart() {
    const { in: from, out } = this.#range;
    await this.#editor?.settled();
    const part = from === null ? { until_seconds: out } : { from_seconds: from, until_seconds: out };
    this.#say(await queuePart(this.#sampler, part), true);
  }

  #hear() {
    if (!this.#player) return;
    const { pair } = this.#player;
    pair.hear(pair.isSilent);
    this.look();
  }

  #fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.element.closest(".hf-story").requestFullscreen();
  }
}

/** The points between which a part is rendered. @typedef {{in: number | null, out: number | null}} PartRange */

/** @returns {PartRange} */
function noRange() {
  return { in: null, out: null };
}

/** A whole second that is near, else the time itself. @param {number} seconds */
function nearWhole(seconds) {
  const whole = Math.round(seconds);
  return Math.abs(seconds - whole) < WHOLE_SECOND_REACH ? whole : seconds;
}

/**
 * The key of an event; with Alt that of its letter, of which a Mac's Option makes other characters.
 * @param {KeyboardEvent} event
 */
function keyOf({ key, code, altKey }) {
  const isOther = altKey && !/^[a-z]$/i.test(key);
  return (isOther ? code.replace("Key", "") : key).toLowerCase();
}
