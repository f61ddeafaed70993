// A live video: it begins with the story of the node and goes on without a fixed end, and its prompts are typed while it
// plays. The server writes each of them into the story, see nodes/host/browser/performed.py.
import { app } from "../../../scripts/app.js";
import { queuePart } from "../queue_part.js";
import { listen, playsGrowing } from "../server_events.js";
import { button, demoOf, isOpen, make, post, put, putValues } from "../shared.js";
import { t } from "../texts.js";
import { plainTime, startSeconds } from "../timeline/segments.js";
import { smallPicture } from "../timeline/pictures.js";
/** @import {Grid, GraphNode, LiveFacts, ToldStory} from "../types.js" */
/** @import {Player} from "../player/player.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */

const EVENT = "headforcing.story";
const PICTURE_HEIGHT = 34; // of a scene, in pixels
const SHOWN_AFTER = 0.6; // seconds of a scene before its picture is taken
const SLOW = 0.95; // of the frames a second that are played: a model that makes fewer is too slow
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
  #drawn = ""; // the scenes that are shown
  /** The words of the embedded model, by what they say. @type {Record<string, string[]>} */
  #words = {};
  #chipsOf = ""; // the prompt whose words are pressed

  /**
   * @param {(sentence: string) => void} say
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
    this.state = make("div", { class: "hf-live-state", role: "status" });
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
  }

  /**
   * @param {GraphNode | null} storyNode
   * @param {GraphNode | null} sampler
   * @param {Player | null} player
   * @param {TimelineEditor | null} editor
   */
  bind(storyNode, sampler, player, editor) {
    this.#storyNode = storyNode;
    this.#sampler = sampler;
    this.#player = player;
    this.#editor = editor;
    put(this.begin, { disabled: !storyNode || !sampler });
    this.#show();
  }

  /** Whether the live video that runs is that of the open story. */
  get isOn() {
    return this.#running !== null && isOpen(this.#running.workflow) && String(this.#storyNode?.id) === this.#running.node_id;
  }

  #show() {
    this.#grid.classList.toggle("hf-is-live", this.isOn);
  }

  /** @param {ToldStory & {live?: LiveFacts}} told */
  #hear(told) {
    if (!told.live) return;
    if (!told.running) return this.#over(told.prompt_id);
    const isNew = told.prompt_id !== this.#running?.prompt_id;
    this.#running = { ...told, live: told.live };
    if (isNew) {
      this.#pictures.clear();
      this.#next = null;
      this.#drawn = "";
      this.#chipsOf = "";
      this.#learnWords();
    }
    this.#show();
    if (isNew && this.isOn) this.field.focus({ preventScroll: true });
  }

  /** The video has ended. @param {string} [prompt_id] */
  #over(prompt_id) {
    if (!this.#running || (prompt_id && prompt_id !== this.#running.prompt_id)) return;
    const { why } = this.#running.live;
    if (why) this.#say(t("The video has ended: %1", why));
    this.#running = null;
    put(this.begin, { disabled: !this.#storyNode || !this.#sampler });
    this.#show();
  }

  /** Ask for the words of the embedded model. */
  async #learnWords() {
    this.chips.replaceChildren();
    if (!this.#sampler || !demoOf(this.#sampler)) return;
    const answer = await app.api.fetchApi("/headforcing/words");
    if (answer.ok) this.#words = await answer.json();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    event.stopPropagation();
    if (event.key === "Enter" && !event.isComposing && this.field.value.trim()) this.#perform(this.field.value);
    if (event.key === "Escape") this.field.value = "";
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
    put(this.begin, { disabled: true });
    await this.#editor?.settled();
    putValues(this.#sampler, { seed: Math.floor(Math.random() * HIGHEST_SEED) });
    const error = await queuePart(this.#sampler, { live: true });
    if (!error) return;
    this.#say(error);
    put(this.begin, { disabled: false });
  }

  async #end() {
    put(this.stop, { disabled: true });
    await this.#ask({ stop: true });
  }

  /** Give the server a prompt; an error is said, and null returned. @param {Record<string, unknown>} body */
  async #ask(body) {
    if (!this.#running) return null;
    const ids = { client_id: app.api.clientId, prompt_id: this.#running.prompt_id };
    const answer = await post("/headforcing/perform", { ...ids, ...body }, t("No answer from the server."));
    if (!answer.error) return answer;
    this.#say(answer.error);
    return null;
  }

  /** @param {string} words @param {number | null} [recall] @param {string} [tag] */
  async #perform(words, recall = null, tag = this.#way) {
    const typed = this.field.value;
    this.field.value = "";
    this.#say("");
    const beats = this.onBeats.ariaPressed === "true" ? this.#beats() : null;
    const answer = await this.#ask({ words: words.trim(), tag: recall ? "" : tag, recall, beats });
    if (answer) this.#next = { seconds: answer.seconds, words: words || t("same again") };
    else if (words === typed && !this.field.value) this.field.value = typed; // to be mended
  }

  /** Show what comes and what can come back; called some times a second. */
  look() {
    if (!this.isOn || !this.#player) return;
    const { live } = this.#running;
    const { video, place } = this.#player;
    const at = Math.max(0, video.currentTime - place.lead);
    if (this.#next && at >= this.#next.seconds) this.#next = null;
    put(this.stop, { disabled: Boolean(live.ends) });
    put(this.field, { disabled: Boolean(live.ends) });
    put(this.onBeats, { hidden: !this.#beats() });
    put(this.state, { textContent: this.#sentence(at, live) });
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

  /** @param {number[]} kept by the number of a prompt, the last one first */
  #drawScenes(kept) {
    const segments = this.#editor?.timeline?.segments ?? [];
    const scenes = kept.filter((number) => segments[number - 1]);
    const drawn = scenes.map((number) => `${number} ${this.#pictures.has(segments[number - 1].start_block)}`).join();
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const buttons = scenes.toReversed().map((number) => {
      const { text, start_block } = segments[number - 1];
      const label = t("Back to scene %1: %2", number, text);
      const back = make("button", { class: "hf-live-scene", title: label, "aria-label": label });
      back.append(make("span", {}, String(number)));
      const picture = this.#pictures.get(start_block);
      if (picture) back.prepend(picture);
      back.addEventListener("click", () => this.#perform(text, number));
      return back;
    });
    this.scenes.replaceChildren(...buttons);
  }

  /** Buttons of the words that the embedded model knows: each changes one word of the last prompt. */
  #drawChips() {
    const kinds = Object.values(this.#words);
    const text = this.#editor?.timeline?.segments.at(-1)?.text ?? "";
    if (!kinds.length || text === this.#chipsOf) return;
    this.#chipsOf = text;
    const spoken = text.split(" ");
    const groups = kinds.map((words) => {
      const now = words.find((word) => word && spoken.includes(word));
      const chips = words.filter(Boolean).map((word) => {
        const changed = spoken.map((each) => (each === now ? word : each)).join(" ");
        const chip = button(word, t("Change this word"), () => this.#perform(changed));
        chip.ariaPressed = String(word === now);
        return chip;
      });
      return now ? make("span", { class: "hf-live-group" }, ...chips) : "";
    });
    this.chips.replaceChildren(...groups);
  }
}
