// A live video: it begins with the story of the node and goes on without a fixed end, and its prompts are typed while it
// plays. The server writes each of them into the story, see nodes/host/browser/performed.py.
import { app } from "../../../scripts/app.js";
import { queuePart } from "../queue_part.js";
import { listen, playsGrowing } from "../server_events.js";
import { button, demoOf, isOpen, make, nodeOf, post, put, putValues } from "../shared.js";
import { t } from "../texts.js";
import { plainTime, startSeconds } from "../timeline/segments.js";
import { smallPicture } from "../timeline/pictures.js";
/** @import {Grid, GraphNode, LiveFacts, Say, ToldStory} from "../types.js" */
/** @import {Player} from "../player/player.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */

const EVENT = "headforcing.story";
const PICTURE_HEIGHT = 34; // of a scene, in pixels
const SHOWN_AFTER = 0.6; // seconds of a scene before its picture is taken
const SLOW = 0.95; // of the frames a second that are played: a model that makes fewer is too slow
const EXACT = 0.001; // seconds that a time of the server may be too early
const RESTS_MS = 300; // after the last letter, before the words are sent to be encoded
const HIGHEST_SEED = 2 ** 31;
/** How the next prompt follows, by the words of its tag. @type {Record<string, () => string>} */
const WAYS = {
  "": () => t("go on"),
  "dissolve 1.5s": () => t("dissolve"),
  cut: () => t("cut"),
};

export class LivePanel {
  #say;
  #grid;
  #beats;
  /** @type {GraphNode | null} */
  #storyNode = null;
  /** @type {GraphNode | null} */
  #sampler = null;
  /** @type {Player | null} */
  #player = null;
  /** @type {TimelineEditor | null} */
  #editor = null;
  /** What the server has told last of the live video that runs. @type {(ToldStory & {live: LiveFacts}) | null} */
  #running = null;
  #way = "";
  /** The prompt that was taken last and is not seen yet. @type {{seconds: number, words: string} | null} */
  #next = null;
  /** Of scenes, by their first block. @type {Map<number, HTMLCanvasElement>} */
  #pictures = new Map();
  /** The buttons of scenes, by the number of a prompt. @type {Map<number, HTMLElement>} */
  #backs = new Map();
  /** Of each kind of words of the embedded model a group of buttons; null before they are asked for. @type {Chips[] | null} */
  #chips = null;
  #isQueued = false; // whether a live video was queued here and has not begun
  #resting = 0; // a timer
  #isEnding = false; // whether its end is asked for

  /**
   * @param {Say} say
   * @param {HTMLElement} grid of the panel
   * @param {() => (Grid | null)} beats of the sound of the story
   */
  constructor(say, grid, beats) {
    this.#say = say;
    this.#grid = grid;
    this.#beats = beats;
    const href = new URL("./live.css", import.meta.url).href;
    document.head.append(make("link", { rel: "stylesheet", href }));
    const hint = t("Begin a video without a fixed end, and type what happens while it plays");
    this.begin = button(t("● Live"), hint, () => this.#begin());
    this.begin.classList.add("hf-live-begin");
    this.stop = button(t("■ Stop"), t("End the video with the next block"), () => this.#end());
    const next = { type: "text", placeholder: t("What happens next? Enter shows it"), "aria-label": t("What happens next") };
    this.field = /** @type {HTMLInputElement} */ (make("input", { class: "hf-live-words", ...next }));
    this.field.addEventListener("keydown", (event) => this.#key(event));
    this.field.addEventListener("input", () => this.#expect());
    this.state = make("div", { class: "hf-live-state" }); // no role=status: it counts down
    this.ways = make("span", { class: "hf-live-ways", role: "group", "aria-label": t("How it follows") });
    for (const [way, name] of Object.entries(WAYS))
      this.ways.append(button(name(), t("How it follows"), () => this.#choose(way)));
    this.again = button(t("same again"), t("The same words with another seed"), () => this.#perform(""));
    this.onBeats = button(t("on beats"), t("Begin a prompt near a beat of the sound"), () => this.#toggleBeats());
    this.onBeats.ariaPressed = "false";
    this.scenes = make("span", { class: "hf-live-scenes", role: "group", "aria-label": t("Scenes that can come back") });
    this.chips = make("div", { class: "hf-live-chips" });
    const row = make("div", { class: "hf-live-row" }, this.ways, this.again, this.onBeats, this.scenes);
    const top = make("div", { class: "hf-live-row" }, this.field, this.stop);
    const name = { class: "hf-live", role: "region", "aria-label": t("Live") };
    this.element = make("div", name, top, this.state, row, this.chips);
    this.#choose("");
    listen(EVENT, {
      take: (/** @type {any} */ told) => this.#hear(told),
      known: () => (this.#running && isOpen(this.#running.workflow) ? [this.#running] : []),
      lose: () => this.#over(),
    });
    for (const outcome of ["success", "error", "interrupted"])
      app.api.addEventListener(`execution_${outcome}`, () => this.#over());
    app.api.addEventListener("status", (/** @type {any} */ { detail }) => {
      if (!detail?.exec_info?.queue_remaining) this.#isQueued = false;
    });
  }

  /**
   * @param {GraphNode | null} storyNode
   * @param {GraphNode | null} sampler
   * @param {Player | null} player
   * @param {TimelineEditor | null} editor
   */
  bind(storyNode, sampler, player, editor) {
    if (this.#editor) this.#editor.isPerformed = false;
    this.#storyNode = storyNode;
    this.#sampler = sampler;
    this.#player = player;
    this.#editor = editor;
    this.#show();
  }

  /** Whether the live video that runs is that of the open story. */
  get isOn() {
    const running = this.#running;
    return running !== null && isOpen(running.workflow) && nodeOf(running.node_id) === this.#storyNode;
  }

  #show() {
    const { isOn } = this;
    this.#grid.classList.toggle("hf-is-live", isOn);
    put(this.begin, { disabled: !this.#storyNode || !this.#sampler || this.#isQueued || isOn });
    if (this.#editor) this.#editor.isPerformed = isOn;
  }

  /** @param {ToldStory & {live?: LiveFacts}} told */
  #hear(told) {
    if (!told.live) return;
    if (!told.running) return this.#over(told.prompt_id);
    const isNew = told.prompt_id !== this.#running?.prompt_id;
    this.#running = { ...told, live: told.live };
    this.#isQueued = false;
    if (isNew) {
      this.#pictures.clear();
      this.#backs.clear();
      this.#next = null;
      this.#chips = null;
      this.#isEnding = false;
    }
    this.#show();
    if (isNew && this.isOn) this.field.focus({ preventScroll: true });
  }

  /** The video has ended. @param {string} [prompt_id] */
  #over(prompt_id) {
    this.#isQueued = false;
    if (!this.#running || (prompt_id && prompt_id !== this.#running.prompt_id)) return;
    const { why } = this.#running.live;
    if (why) this.#say(t("The video has ended: %1", why));
    else if (this.isOn) this.#say(t("The story is what was performed; one undo brings back the one from before."));
    this.#running = null;
    this.#show();
  }

  /** Make the buttons of the words that the embedded model knows. */
  async #learnWords() {
    this.#chips = [];
    this.chips.replaceChildren();
    const answer = await app.api.fetchApi("/headforcing/words").catch(console.warn);
    if (!answer?.ok) return;
    const kinds = /** @type {string[][]} */ (Object.values(await answer.json()));
    this.#chips = kinds.map((kind) => {
      const words = kind.filter(Boolean);
      const chips = words.map((word) => button(word, t("Change this word"), () => this.#change(words, word)));
      return { words, chips, group: make("span", { class: "hf-live-group" }, ...chips) };
    });
    this.chips.replaceChildren(...this.#chips.map(({ group }) => group));
    this.#drawChips();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    event.stopPropagation();
    if (event.key === "Enter" && !event.isComposing && this.field.value.trim()) this.#performTyped();
    if (event.key === "Escape") this.field.value = "";
  }

  /** Let the server encode what is being typed when the hand rests. */
  #expect() {
    clearTimeout(this.#resting);
    this.#resting = setTimeout(() => {
      const words = this.field.value.trim();
      if (words) this.#post({ words, expected: true });
    }, RESTS_MS);
  }

  async #performTyped() {
    const typed = this.field.value;
    this.field.value = "";
    const isTaken = await this.#perform(typed);
    if (!isTaken && !this.field.value) this.field.value = typed; // to be mended
  }

  /** @param {string} way */
  #choose(way) {
    this.#way = way;
    for (const [index, each] of Object.keys(WAYS).entries())
      this.ways.children[index].ariaPressed = String(each === way);
  }

  #toggleBeats() {
    this.onBeats.ariaPressed = String(this.onBeats.ariaPressed !== "true");
  }

  /** Queue the sampler with the story of the node and a new seed: stored blocks would not wait for prompts. */
  async #begin() {
    this.#isQueued = true;
    this.#show();
    await this.#editor?.settled();
    putValues(this.#sampler, { seed: Math.floor(Math.random() * HIGHEST_SEED) });
    const error = await queuePart(this.#sampler, { live: true });
    if (error) this.#isQueued = false;
    this.#say(error, true);
  }

  async #end() {
    this.#isEnding = true;
    this.look();
    if (!(await this.#ask({ stop: true }))) this.#isEnding = false;
  }

  /** @param {Record<string, unknown>} body */
  #post(body) {
    const ids = { client_id: app.api.clientId, prompt_id: this.#running?.prompt_id };
    return post("/headforcing/perform", { ...ids, ...body }, t("No answer from the server."));
  }

  /** Give the server a prompt; an error is said, and null returned. @param {Record<string, unknown>} body */
  async #ask(body) {
    if (!this.#running) return null;
    const answer = await this.#post(body);
    if (!answer.error) return answer;
    this.#say(answer.error, true);
    return null;
  }

  /**
   * Let words begin with the next block; whether the render has taken them.
   * @param {string} words
   * @param {number | null} [recall]
   */
  async #perform(words, recall = null) {
    this.#say("");
    const beats = this.onBeats.ariaPressed === "true" ? this.#beats() : null;
    const answer = await this.#ask({ words: words.trim(), tag: recall ? "" : this.#way, recall, beats });
    if (answer) this.#next = { seconds: answer.seconds, words: words || t("same again") };
    return answer !== null;
  }

  /** Show what comes and what can come back; called some times a second. */
  look() {
    this.#show();
    if (!this.isOn || !this.#player) return;
    const { live } = this.#running;
    const at = Math.max(0, this.#player.seconds);
    if (this.#next && at >= this.#next.seconds) this.#next = null;
    put(this.stop, { disabled: this.#isEnding || Boolean(live.ends) });
    put(this.field, { disabled: Boolean(live.ends) });
    put(this.onBeats, { hidden: !this.#beats() });
    const sentence = this.#sentence(at, live);
    put(this.state, { textContent: sentence, title: sentence });
    this.#takePicture(at);
    this.#drawScenes(live.kept ?? []);
    this.#drawChips();
  }

  /** @param {number} at @param {LiveFacts} live */
  #sentence(at, live) {
    if (!playsGrowing()) return t("This page cannot play a live video: start ComfyUI without --disable-api-nodes.");
    if (live.ends) return t("The video ends at %1", live.end);
    if (this.#next) return t("in %1 s: %2", Math.max(0, this.#next.seconds - at).toFixed(1), this.#next.words);
    if (live.made && live.fps && live.made < SLOW * live.fps) {
      const made = live.made.toFixed(0);
      return t("This machine makes %1 of %2 frames a second; a smaller size or a tiny decoder helps.", made, live.fps);
    }
    return t("live, %1", plainTime(at));
  }

  /** Keep a picture of the scene that is shown. @param {number} at */
  #takePicture(at) {
    const timeline = this.#editor?.timeline;
    if (!timeline) return;
    const begun = timeline.segments.filter(({ start_block }) => startSeconds(timeline, start_block) <= at);
    const scene = begun.at(-1);
    if (!scene || this.#pictures.has(scene.start_block)) return;
    if (at - startSeconds(timeline, scene.start_block) < SHOWN_AFTER) return;
    const picture = smallPicture(this.#player.video, PICTURE_HEIGHT);
    if (picture) this.#pictures.set(scene.start_block, picture);
  }

  /** Show a button for each scene that can come back. @param {number[]} kept by the number of a prompt */
  #drawScenes(kept) {
    const segments = this.#editor?.timeline?.segments ?? [];
    const numbers = kept.filter((number) => segments[number - 1]).toSorted((one, other) => one - other);
    for (const [number, back] of this.#backs) {
      if (numbers.includes(number)) continue;
      back.remove();
      this.#backs.delete(number);
    }
    for (const [place, number] of numbers.entries()) {
      const { text, start_block } = segments[number - 1];
      const back = this.#backOf(number);
      const label = t("Back to scene %1: %2", number, text);
      put(back, { title: label, ariaLabel: label });
      const picture = this.#pictures.get(start_block);
      if (picture && picture.parentNode !== back) back.prepend(picture);
      if (this.scenes.children[place] !== back) this.scenes.insertBefore(back, this.scenes.children[place] ?? null);
    }
    while (this.scenes.children.length > numbers.length) this.scenes.lastElementChild.remove(); // of the video before
  }

  /** The button of a scene, which stays while it is shown: it may be below the pointer. @param {number} number */
  #backOf(number) {
    const known = this.#backs.get(number);
    if (known) return known;
    const onclick = () => this.#perform(this.#editor?.timeline?.segments[number - 1]?.text ?? "", number);
    const back = make("button", { class: "hf-live-scene", onclick }, make("span", {}, String(number)));
    this.#backs.set(number, back);
    return back;
  }

  /** Show which of the embedded model's words the prompt has; none for other models. */
  #drawChips() {
    const isOfDemo = Boolean(this.#sampler && demoOf(this.#sampler));
    this.chips.style.display = isOfDemo ? "" : "none";
    if (!isOfDemo) return;
    if (!this.#chips) this.#learnWords();
    const spoken = this.#spoken;
    for (const { words, chips, group } of this.#chips) {
      const now = words.find((word) => spoken.includes(word));
      group.style.display = now ? "" : "none";
      for (const [place, word] of words.entries()) put(chips[place], { ariaPressed: String(word === now) });
    }
  }

  /** The words of the prompt that comes next, else of the one that is shown. */
  get #spoken() {
    const timeline = this.#editor?.timeline;
    const at = this.#next?.seconds ?? this.#player.seconds;
    const shown = timeline?.segments.findLast(({ start_block }) => startSeconds(timeline, start_block) <= at + EXACT);
    return (shown?.text ?? "").split(" ");
  }

  /** Perform this prompt with another of these words. @param {string[]} words @param {string} word */
  #change(words, word) {
    const spoken = this.#spoken;
    const now = words.find((each) => spoken.includes(each));
    this.#perform(spoken.map((each) => (each === now ? word : each)).join(" "));
  }
}

/** Words of one kind, their buttons in the same order, and those together. @typedef {{words: string[], chips: HTMLElement[], group: HTMLElement}} Chips */
