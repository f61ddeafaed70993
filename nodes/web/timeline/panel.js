// The fields of the selected prompt: its words, how it follows the prompt before it, and its seed.
import { button, make } from "../shared.js";
import { t } from "../texts.js";
import { newSeed } from "./edits.js";
import { plainTime, startSeconds, timeText } from "./segments.js";
import { Words } from "./words.js";

/** What each kind of switch is called; its tag has the kind's own name. */
const kinds = () => ({
  reset: t("keep going"),
  recache: t("keep going, change sooner"),
  flush: t("keep going, forget the scene before"),
});
const MOST_BLEND = 16;
const NEW_SCENE = "new scene";
const TYPING_MS = 150;

/** `change(index, fields, key)` gets what was changed of a segment. */
export class Panel {
  #change;
  #index = 0;
  #count = 0; // of prompts
  #segment = null;
  #default = null; // the switch without a tag
  #blockSeconds = 1;
  #offered = ""; // the scenes that can be brought back
  #timer = null;

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
    this.kind.addEventListener("change", () => this.#switched({ kind: this.kind.value }));
    this.anchor = make("input", { type: "checkbox" });
    this.anchor.addEventListener("change", () => this.#switched({ re_anchor: this.anchor.checked }));
    this.recall = make("select", {
      "aria-label": t("Bring back"),
      title: t("The scene of an earlier prompt comes back; with head_forcing and echo_forcing"),
    });
    this.recall.addEventListener("change", () => {
      const { value } = this.recall;
      const recall = value === "" || value === NEW_SCENE ? null : Number(value);
      this.#switched({ recall, new_scene: value === NEW_SCENE });
    });
    const blend = t("Dissolve, in seconds");
    this.blend = make("input", { type: "number", min: 0, step: "any", "aria-label": blend });
    this.blend.addEventListener("change", () => this.#switched({ blend_blocks: this.#blendBlocks() }));
    this.dice = button("⚄", t("Re-roll from this prompt on: set a new seed"), () => this.#seeded(newSeed()));
    this.seed = make("input", {
      type: "text",
      inputmode: "numeric",
      maxlength: 20,
      "aria-label": t("Seed from here on"),
    });
    this.seed.addEventListener("change", () => this.#seeded(this.seed.value.trim() || null));
    this.noSeed = button("×", t("Remove the seed: go on with the one before"), () => this.#seeded(null));
    this.fields = make(
      "div",
      { class: "hf-fields" },
      make("label", {}, this.kind),
      make("label", { title: t("A new scene begins: what comes is held to its first pictures, not to those of the video") }, this.anchor, t("cut")),
      make("label", { title: t("Seconds over which the words change, as near as the model can") }, t("dissolve"), this.blend, "s"),
      make("label", {}, t("bring back"), this.recall),
      make(
        "span",
        { class: "hf-seed", title: t("Take: another video from this prompt on") },
        this.dice,
        this.seed,
        this.noSeed,
      ),
    );
    this.element = make("div", { class: "hf-panel" }, this.title, this.words.element, this.fields);
  }

  #newText() {
    const text = make("textarea", { class: "hf-text", rows: 3, "aria-label": t("Words of the selected prompt") });
    text.addEventListener("input", () => this.#typed());
    text.addEventListener("change", () => this.flush());
    text.addEventListener("blur", () => {
      if (text !== this.words.element) return; // its place was taken
      if (this.#timer) this.flush();
      else this.words.put(this.#segment?.text ?? "");
    });
    return text;
  }

  /** Show a segment. Words that are being typed, or were refused (`keepWords`), are left alone. */
  show({ view, segments, selected, enabled }, keepWords) {
    const segment = segments[selected];
    const same = this.#index === selected && this.#count === segments.length;
    this.#index = selected;
    this.#count = segments.length;
    this.#segment = segment;
    this.#default = view.default;
    this.#blockSeconds = view.block_seconds;
    const last = segment.end_block - 1;
    const ends = Math.min(startSeconds(view, segment.end_block), view.seconds);
    const from = startSeconds(view, segment.start_block);
    const place = t("Prompt %1 of %2", selected + 1, segments.length);
    this.title.textContent = `${place}, ${t("%1 to %2", plainTime(from), plainTime(ends))}`;
    const exact = t("%1 to %2", timeText(from), timeText(ends));
    this.title.title = `${exact}, ${t("blocks %1 to %2", segment.start_block, last)}`;
    const field = this.words.element;
    const typing = same && document.activeElement === field;
    const mine = keepWords || this.#timer || field.value.split(/\s+/).join(" ").trim() === segment.text;
    if (!(typing && mine)) this.words.put(segment.text, !same);
    const way = segment.switch;
    const first = selected === 0;
    const usual = kinds()[view.default.kind];
    this.kind.options[0].textContent = first ? t("begins the video") : t("as the node says: %1", usual);
    this.kind.value = way?.kind ?? "";
    this.anchor.checked = !first && (way ?? view.default).re_anchor;
    const earlier = segments.slice(0, selected).map(({ text }, number) => [number + 1, `${number + 1}: ${cut(text)}`]);
    const scenes = [["", t("nothing")], ["0", t("the most alike")], ...earlier, [NEW_SCENE, t("no, a new scene")]];
    const offered = JSON.stringify(scenes);
    if (offered !== this.#offered)
      this.recall.replaceChildren(...scenes.map(([value, label]) => make("option", { value }, label)));
    this.#offered = offered;
    const asked = way?.new_scene ? NEW_SCENE : way?.recall;
    this.recall.value = (first ? null : asked) ?? "";
    const blend = first ? 0 : (way ?? view.default).blend_blocks * view.block_seconds;
    if (document.activeElement !== this.blend) this.blend.value = String(blend);
    const seeded = segment.seed != null;
    if (document.activeElement !== this.seed) this.seed.value = segment.seed ?? "";
    this.seed.hidden = this.noSeed.hidden = !seeded;
    for (const each of [this.kind, this.anchor, this.recall, this.blend]) each.disabled = first || !enabled;
    for (const each of [this.words.element, this.dice, this.seed, this.noSeed]) each.disabled = !enabled;
  }

  /** Put the cursor behind the words, or select them all. */
  edit(all = false) {
    const { element } = this.words;
    element.focus({ preventScroll: true }); // the canvas stays where it is
    element.setSelectionRange(all ? 0 : element.value.length, element.value.length);
  }

  /** Hand on words that were typed in the last moment. */
  flush() {
    if (!this.#timer) return;
    clearTimeout(this.#timer.id);
    const { index } = this.#timer;
    this.#timer = null;
    this.#change(index, { text: this.words.element.value }, `text ${index}`);
  }

  #typed() {
    clearTimeout(this.#timer?.id);
    this.#timer = { index: this.#index, id: setTimeout(() => this.flush(), TYPING_MS) };
  }

  #switched(part) {
    if (part.kind === "") return this.#change(this.#index, { switch: null }, null);
    const before = this.#segment.switch ?? this.#default;
    return this.#change(this.#index, { switch: { ...before, ...part } }, null);
  }

  #blendBlocks() {
    const blocks = (Number(this.blend.value) || 0) / this.#blockSeconds;
    return blocks > 0 ? Math.min(Math.max(Math.round(blocks), 1), MOST_BLEND) : 0;
  }

  #seeded(seed) {
    this.#change(this.#index, { seed }, null);
  }
}

function cut(text) {
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}
