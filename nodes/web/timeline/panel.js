// The fields of the selected prompt: its words, how it follows the prompt before it, and its seed.
import { button, make } from "../shared.js";
import { t } from "../texts.js";
import { newSeed } from "./edits.js";
import { plainTime, startSeconds, timeText } from "./segments.js";
import { Words } from "./words.js";
/** @import {EditorState, Segment, Switch, Timeline} from "../types.js" */

/** What each kind of switch is called; its tag has the kind's own name. @type {() => Record<string, string>} */
const kinds = () => ({
  reset: t("keep going"),
  recache: t("keep going, change sooner"),
  flush: t("keep going, forget the scene before"),
});
const MOST_BLEND = 16;
const NEW_SCENE = "new scene";
const TYPING_MS = 150;

export class Panel {
  #change;
  #index = 0;
  #count = 0; // of prompts
  /** @type {Segment | null} */
  #segment = null;
  /** The switch without a tag. @type {Switch | null} */
  #default = null;
  #blockSeconds = 1;
  #offered = ""; // the scenes that can be brought back
  /** Words that were typed in the last moment. @type {{index: number, id: ReturnType<typeof setTimeout>} | null} */
  #typing = null;

  /** @param {(index: number, fields: Partial<Segment>, key: string | null) => void} change hears what was changed */
  constructor(change) {
    this.#change = change;
    this.title = make("div", { class: "hf-title" });
    this.words = new Words(() => this.#newText());
    const options = [["", ""], ...Object.entries(kinds())];
    this.kind = make("select", {
      "aria-label": t("How it follows the prompt before"),
      title: t("The picture changes as the new words ask: slowly, sooner, or without what was seen before."),
    });
    this.kind.append(...options.map(([value, label]) => make("option", { value }, label)));
    this.kind.addEventListener("change", () => this.#setSwitch({ kind: this.kind.value }));
    this.anchor = make("input", { type: "checkbox" });
    this.anchor.addEventListener("change", () => this.#setSwitch({ re_anchor: this.anchor.checked }));
    this.recall = make("select", {
      "aria-label": t("Bring back"),
      title: t("The scene of an earlier prompt comes back; with head_forcing and echo_forcing"),
    });
    this.recall.addEventListener("change", () => {
      const { value } = this.recall;
      const recall = value === "" || value === NEW_SCENE ? null : Number(value);
      this.#setSwitch({ recall, new_scene: value === NEW_SCENE });
    });
    const blend = t("Dissolve, in seconds");
    this.blend = make("input", { type: "number", min: 0, step: "any", "aria-label": blend });
    this.blend.addEventListener("change", () => this.#setSwitch({ blend_blocks: this.#blendBlocks() }));
    this.dice = button(`⚄ ${t("other seed")}`, t("Another seed for this scene and those after it"), () => this.#setSeed(newSeed()));
    this.seed = make("input", {
      type: "text",
      inputmode: "numeric",
      maxlength: 20,
      "aria-label": t("Seed from here on"),
    });
    this.seed.addEventListener("change", () => this.#setSeed(this.seed.value.trim() || null));
    this.noSeed = button("×", t("Remove the seed: go on with the one before"), () => this.#setSeed(null));
    const cuts = t("A new scene begins: what comes is held to its first pictures, not to those of the video");
    const dissolves = t("Seconds over which the words change, as near as the model can");
    const seeds = { class: "hf-seed", title: t("Take: another video from this prompt on") };
    this.fields = make(
      "div",
      { class: "hf-fields" },
      make("label", {}, this.kind),
      make("label", { title: cuts }, this.anchor, t("cut")),
      make("label", { title: dissolves }, t("dissolve"), this.blend, "s"),
      make("label", {}, t("bring back"), this.recall),
      make("span", seeds, this.dice, this.seed, this.noSeed),
    );
    this.element = make("div", { class: "hf-panel" }, this.title, this.words.element, this.fields);
  }

  #newText() {
    const text = make("textarea", { class: "hf-text", rows: 3, "aria-label": t("Words of the selected prompt") });
    text.addEventListener("input", () => this.#flushSoon());
    text.addEventListener("change", () => this.flush());
    text.addEventListener("blur", () => {
      if (text !== this.words.element) return; // its place was taken
      if (this.#typing) this.flush();
      else this.words.put(this.#segment?.text ?? "");
    });
    return text;
  }

  /**
   * Show the selected prompt. Words that are being typed, or were refused (`keepWords`), are left alone.
   * @param {EditorState} state
   * @param {boolean} keepWords
   */
  show(state, keepWords) {
    const { timeline, segments, selected, enabled } = state;
    const segment = segments[selected];
    const isSame = this.#index === selected && this.#count === segments.length;
    this.#index = selected;
    this.#count = segments.length;
    this.#segment = segment;
    this.#default = timeline.default;
    this.#blockSeconds = timeline.block_seconds;
    this.#showTitle(state);
    this.#showWords(segment.text, isSame, keepWords);
    const isFirst = selected === 0;
    this.#showSwitch(timeline, segment.switch, isFirst);
    this.#showRecall(segments, selected);
    if (document.activeElement !== this.seed) this.seed.value = String(segment.seed ?? "");
    this.seed.hidden = this.noSeed.hidden = segment.seed == null;
    for (const each of [this.kind, this.anchor, this.recall, this.blend]) each.disabled = isFirst || !enabled;
    for (const each of [this.words.element, this.dice, this.seed, this.noSeed]) each.disabled = !enabled;
  }

  /** Show the number of the prompt and its times. @param {EditorState} state */
  #showTitle({ timeline, segments, selected }) {
    const { start_block, end_block } = segments[selected];
    const from = startSeconds(timeline, start_block);
    const until = Math.min(startSeconds(timeline, end_block), timeline.seconds);
    const place = t("Prompt %1 of %2", selected + 1, segments.length);
    this.title.textContent = `${place}, ${t("%1 to %2", plainTime(from), plainTime(until))}`;
    const exact = t("%1 to %2", timeText(from), timeText(until));
    this.title.title = `${exact}, ${t("blocks %1 to %2", start_block, end_block - 1)}`;
  }

  /**
   * Show the words of a prompt, unless others are being typed into the field.
   * @param {string} text
   * @param {boolean} isSame whether the field shows this prompt already
   * @param {boolean} keepWords
   */
  #showWords(text, isSame, keepWords) {
    const field = this.words.element;
    const isFocused = isSame && document.activeElement === field;
    const isTyped = keepWords || this.#typing !== null || field.value.split(/\s+/).join(" ").trim() === text;
    if (isFocused && isTyped) return;
    this.words.put(text, !isSame);
  }

  /**
   * Show how the prompt follows the one before it.
   * @param {Timeline} timeline
   * @param {Switch | null} own the switch of its tag
   * @param {boolean} isFirst
   */
  #showSwitch(timeline, own, isFirst) {
    const way = own ?? timeline.default;
    const usual = kinds()[timeline.default.kind];
    this.kind.options[0].textContent = isFirst ? t("begins the video") : t("as all prompts: %1", usual);
    this.kind.value = own?.kind ?? "";
    this.anchor.checked = !isFirst && way.re_anchor;
    const seconds = isFirst ? 0 : way.blend_blocks * timeline.block_seconds;
    if (document.activeElement !== this.blend) this.blend.value = String(seconds);
  }

  /**
   * Offer the scenes that can be brought back, and show the one that is.
   * @param {Segment[]} segments
   * @param {number} selected
   */
  #showRecall(segments, selected) {
    const scenes = [["", t("nothing")], ["0", t("the most alike")]];
    for (const [index, { text }] of segments.slice(0, selected).entries())
      scenes.push([String(index + 1), `${index + 1}: ${shorten(text)}`]);
    scenes.push([NEW_SCENE, t("no, a new scene")]);
    const offered = JSON.stringify(scenes);
    if (offered !== this.#offered)
      this.recall.replaceChildren(...scenes.map(([value, label]) => make("option", { value }, label)));
    this.#offered = offered;
    this.recall.value = selected === 0 ? "" : recallValue(segments[selected].switch);
  }

  /** Put the cursor behind the words, or select them all. */
  edit(all = false) {
    const { element } = this.words;
    element.focus({ preventScroll: true }); // the canvas stays where it is
    element.setSelectionRange(all ? 0 : element.value.length, element.value.length);
  }

  get isTyping() {
    return this.#typing !== null;
  }

  /** Hand on words that were typed in the last moment. */
  flush() {
    if (!this.#typing) return;
    clearTimeout(this.#typing.id);
    const { index } = this.#typing;
    this.#typing = null;
    this.#change(index, { text: this.words.element.value }, `text ${index}`);
  }

  /** Hand on what was typed when no more is. */
  #flushSoon() {
    clearTimeout(this.#typing?.id);
    this.#typing = { index: this.#index, id: setTimeout(() => this.flush(), TYPING_MS) };
  }

  /** Change how the prompt follows the one before; the kind "" is that of the node. @param {Partial<Switch>} part */
  #setSwitch(part) {
    const before = this.#segment.switch ?? this.#default;
    const way = part.kind === "" ? null : { ...before, ...part };
    this.#change(this.#index, { switch: way }, null);
  }

  #blendBlocks() {
    const blocks = (Number(this.blend.value) || 0) / this.#blockSeconds;
    return blocks > 0 ? Math.min(Math.max(Math.round(blocks), 1), MOST_BLEND) : 0;
  }

  /** @param {string | null} seed */
  #setSeed(seed) {
    this.#change(this.#index, { seed }, null);
  }
}

/** @param {string} text */
function shorten(text) {
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}

/** The option for the scene that a switch brings back. @param {Switch | null} way */
function recallValue(way) {
  if (way?.new_scene) return NEW_SCENE;
  return String(way?.recall ?? "");
}
