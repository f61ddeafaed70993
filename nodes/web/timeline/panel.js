// The fields of the selected prompt: its words, how it follows the prompt before it, and its seed.
import { button, make } from "../shared.js";
import { t } from "../texts.js";
import { plainTime, startSeconds, timeText } from "./segments.js";

const KINDS = ["reset", "recache", "flush"];
const MOST_BLEND = 16;
const NEW_SCENE = "new scene";
const TYPING_MS = 150;

/** `change(index, fields, key)` gets what was changed of a segment. */
export class Panel {
  #change;
  #index = 0;
  #count = 0; // of prompts
  #edited = false; // whether something was typed into the field
  #segment = null;
  #default = null; // the switch without a tag
  #timer = null;

  constructor(change) {
    this.#change = change;
    this.title = make("div", { class: "hf-title" });
    this.text = this.#newText();
    const options = [["", ""], ...KINDS.map((kind) => [kind, kind])];
    this.kind = make("select", {
      "aria-label": t("Prompt switch"),
      title: t("What the new prompt does to the caches"),
    });
    this.kind.append(...options.map(([value, label]) => make("option", { value }, label)));
    this.kind.addEventListener("change", () => this.#switched({ kind: this.kind.value }));
    this.anchor = make("input", { type: "checkbox" });
    this.anchor.addEventListener("change", () => this.#switched({ re_anchor: this.anchor.checked }));
    this.recall = make("select", {
      "aria-label": t("Recall"),
      title: t("The scene of an earlier prompt comes back; with head_forcing and echo_forcing"),
    });
    this.recall.addEventListener("change", () => {
      const { value } = this.recall;
      const recall = value === "" || value === NEW_SCENE ? null : Number(value);
      this.#switched({ recall, new_scene: value === NEW_SCENE });
    });
    const blend = t("Blend, in blocks");
    this.blend = make("input", { type: "number", min: 0, max: MOST_BLEND, step: 1, "aria-label": blend });
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
    const fields = make(
      "div",
      { class: "hf-fields" },
      make("label", {}, t("switch"), this.kind),
      make("label", { title: t("A scene cut: the attention sink is taken from this scene") }, this.anchor, "re-anchor"),
      make("label", {}, t("recall"), this.recall),
      make("label", { title: t("Blocks over which the prompt is blended in") }, t("blend"), this.blend),
      make(
        "span",
        { class: "hf-seed", title: t("Take: new noise from this prompt on") },
        this.dice,
        this.seed,
        this.noSeed,
      ),
    );
    this.element = make("div", { class: "hf-panel" }, this.title, this.text, fields);
  }

  /** A field for words. Each prompt gets a new one: the browser's undo knows a field, not the prompt in it. */
  #newText() {
    const text = make("textarea", { class: "hf-text", rows: 3, "aria-label": t("Words of the selected prompt") });
    text.addEventListener("input", () => this.#typed());
    text.addEventListener("change", () => this.flush());
    text.addEventListener("blur", () => {
      if (this.#timer) this.flush();
      else text.value = this.#segment?.text ?? "";
    });
    this.#edited = false;
    return text;
  }

  /** Whether an element is the field for words and nothing was typed into it, so that its undo has nothing to undo. */
  isUntouched(element) {
    return element === this.text && !this.#edited;
  }

  /** Show a segment. Words that are being typed, or were refused (`keepWords`), are left alone. */
  show({ view, segments, selected, enabled }, keepWords) {
    const segment = segments[selected];
    const same = this.#index === selected && this.#count === segments.length;
    if (!same) {
      const focused = document.activeElement === this.text;
      const next = this.#newText();
      this.text.replaceWith(next);
      this.text = next;
      if (focused) next.focus({ preventScroll: true });
    }
    this.#index = selected;
    this.#count = segments.length;
    this.#segment = segment;
    this.#default = view.default;
    const last = segment.end_block - 1;
    const ends = Math.min(startSeconds(view, segment.end_block), view.seconds);
    const from = startSeconds(view, segment.start_block);
    const place = t("Prompt %1 of %2", selected + 1, segments.length);
    this.title.textContent = `${place}, ${t("%1 to %2", plainTime(from), plainTime(ends))}`;
    this.title.title = `${t("%1 to %2", timeText(from), timeText(ends))}, ${t("blocks %1 to %2", segment.start_block, last)}`;
    const typing = same && document.activeElement === this.text;
    const mine = keepWords || this.#timer || this.text.value.split(/\s+/).join(" ").trim() === segment.text;
    if (!(typing && mine)) this.text.value = segment.text;
    const way = segment.switch;
    const first = selected === 0;
    this.kind.options[0].textContent = first ? t("none (first)") : t("node: %1", view.default.kind);
    this.kind.value = way?.kind ?? "";
    this.anchor.checked = !first && (way ?? view.default).re_anchor;
    const earlier = segments.slice(0, selected).map(({ text }, number) => [number + 1, `${number + 1}: ${cut(text)}`]);
    const scenes = [["", t("nothing")], ["0", t("the most alike")], ...earlier, [NEW_SCENE, t("no, a new scene")]];
    this.recall.replaceChildren(...scenes.map(([value, label]) => make("option", { value }, label)));
    const asked = way?.new_scene ? NEW_SCENE : way?.recall;
    this.recall.value = (first ? null : asked) ?? "";
    if (document.activeElement !== this.blend) this.blend.value = first ? 0 : (way ?? view.default).blend_blocks;
    const seeded = segment.seed != null;
    if (document.activeElement !== this.seed) this.seed.value = segment.seed ?? "";
    this.seed.hidden = this.noSeed.hidden = !seeded;
    for (const field of [this.kind, this.anchor, this.recall, this.blend]) field.disabled = first || !enabled;
    for (const field of [this.text, this.dice, this.seed, this.noSeed]) field.disabled = !enabled;
  }

  /** Put the cursor behind the words, or select them all. */
  edit(all = false) {
    this.text.focus({ preventScroll: true }); // the canvas stays where it is
    const { length } = this.text.value;
    this.text.setSelectionRange(all ? 0 : length, length);
  }

  /** Hand on words that were typed in the last moment. */
  flush() {
    if (!this.#timer) return undefined;
    clearTimeout(this.#timer.id);
    const { index } = this.#timer;
    this.#timer = null;
    return this.#change(index, { text: this.text.value }, `text ${index}`);
  }

  #typed() {
    this.#edited = true;
    clearTimeout(this.#timer?.id);
    this.#timer = { index: this.#index, id: setTimeout(() => this.flush(), TYPING_MS) };
  }

  #switched(part) {
    if (part.kind === "") return this.#change(this.#index, { switch: null }, null);
    const before = this.#segment.switch ?? this.#default;
    return this.#change(this.#index, { switch: { ...before, ...part } }, null);
  }

  #blendBlocks() {
    return Math.min(Math.max(Math.round(Number(this.blend.value) || 0), 0), MOST_BLEND);
  }

  #seeded(seed) {
    this.#change(this.#index, { seed }, null);
  }
}

function cut(text) {
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}

function newSeed() {
  return String(crypto.getRandomValues(new Uint32Array(1))[0]);
}
