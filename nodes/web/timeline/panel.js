// The fields of the selected prompt: its words, how it follows the prompt before it, and its seed.
import { button, make } from "../shared.js";
import { startSeconds, timeText } from "./segments.js";

const KINDS = ["reset", "recache", "flush"];
const MOST_BLEND = 16;
const NEW_SCENE = "new scene";
const TYPING_MS = 150;

/** `change(index, fields, key)` gets what was changed of a segment. */
export class Panel {
  #change;
  #index = 0;
  #segment = null;
  #node = null;
  #timer = null;

  constructor(change) {
    this.#change = change;
    this.title = make("div", { class: "hf-title" });
    this.text = make("textarea", { class: "hf-text", rows: 3, "aria-label": "Words of the selected prompt" });
    this.text.addEventListener("input", () => this.#typed());
    this.text.addEventListener("change", () => this.flush());
    this.text.addEventListener("blur", () => {
      if (this.#timer) this.flush();
      else this.text.value = this.#segment?.text ?? "";
    });
    const options = [["", "node"], ...KINDS.map((kind) => [kind, kind])];
    this.kind = make("select", { "aria-label": "Prompt switch", title: "What the new prompt does to the caches" });
    this.kind.append(...options.map(([value, label]) => make("option", { value }, label)));
    this.kind.addEventListener("change", () => this.#switched({ kind: this.kind.value }));
    this.anchor = make("input", { type: "checkbox" });
    this.anchor.addEventListener("change", () => this.#switched({ re_anchor: this.anchor.checked }));
    this.recall = make("select", {
      "aria-label": "Recall",
      title: "The scene of an earlier prompt comes back; with head_forcing and echo_forcing",
    });
    this.recall.addEventListener("change", () => {
      const { value } = this.recall;
      const recall = value === "" || value === NEW_SCENE ? null : Number(value);
      this.#switched({ recall, new_scene: value === NEW_SCENE });
    });
    this.blend = make("input", { type: "number", min: 0, max: MOST_BLEND, step: 1, "aria-label": "Blend, in blocks" });
    this.blend.addEventListener("change", () => this.#switched({ blend_blocks: this.#blendBlocks() }));
    this.dice = button("⚄", "Re-roll from this prompt on: set a new seed", () => this.#seeded(newSeed()));
    this.seed = make("input", { type: "text", inputmode: "numeric", maxlength: 20, "aria-label": "Seed from here on" });
    this.seed.addEventListener("change", () => this.#seeded(this.seed.value.trim() || null));
    this.noSeed = button("×", "Remove the seed: go on with the one before", () => this.#seeded(null));
    const fields = make(
      "div",
      { class: "hf-fields" },
      make("label", {}, "switch", this.kind),
      make("label", { title: "A scene cut: the attention sink is taken from this scene" }, this.anchor, "re-anchor"),
      make("label", {}, "recall", this.recall),
      make("label", { title: "Blocks over which the prompt is blended in" }, "blend", this.blend),
      make(
        "span",
        { class: "hf-seed", title: "Take: new noise from this prompt on" },
        this.dice,
        this.seed,
        this.noSeed,
      ),
    );
    this.element = make("div", { class: "hf-panel" }, this.title, this.text, fields);
  }

  /** Show a segment. Words that are being typed, or were refused (`keepWords`), are left alone. */
  show({ view, segments, selected, enabled }, node, keepWords) {
    const segment = segments[selected];
    const same = this.#index === selected;
    this.#index = selected;
    this.#segment = segment;
    this.#node = node;
    const last = segment.end_block - 1;
    const ends = Math.min(startSeconds(view, segment.end_block), view.seconds);
    const times = `${timeText(startSeconds(view, segment.start_block))} to ${timeText(ends)}`;
    const blocks = `blocks ${segment.start_block} to ${last}`;
    this.title.textContent = `Prompt ${selected + 1} of ${segments.length}, ${times}, ${blocks}`;
    const typing = same && document.activeElement === this.text;
    const mine = keepWords || this.#timer || this.text.value.split(/\s+/).join(" ").trim() === segment.text;
    if (!(typing && mine)) this.text.value = segment.text;
    const way = segment.switch;
    const first = selected === 0;
    this.kind.options[0].textContent = first ? "none (first)" : `node: ${node.switch}`;
    this.kind.value = way?.kind ?? "";
    this.anchor.checked = !first && (way ?? node).re_anchor;
    const earlier = segments.slice(0, selected).map(({ text }, number) => [number + 1, `${number + 1}: ${cut(text)}`]);
    const scenes = [["", "nothing"], ["0", "the most alike"], ...earlier, [NEW_SCENE, "no, a new scene"]];
    this.recall.replaceChildren(...scenes.map(([value, label]) => make("option", { value }, label)));
    const asked = way?.new_scene ? NEW_SCENE : way?.recall;
    this.recall.value = (first ? null : asked) ?? "";
    if (document.activeElement !== this.blend) this.blend.value = first ? 0 : (way ?? node).blend_blocks;
    const seeded = segment.seed != null;
    if (document.activeElement !== this.seed) this.seed.value = segment.seed ?? "";
    this.seed.hidden = this.noSeed.hidden = !seeded;
    for (const field of [this.kind, this.anchor, this.recall, this.blend]) field.disabled = first || !enabled;
    for (const field of [this.text, this.dice, this.seed, this.noSeed]) field.disabled = !enabled;
  }

  edit() {
    this.text.focus({ preventScroll: true }); // the canvas stays where it is
    this.text.select();
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
    clearTimeout(this.#timer?.id);
    this.#timer = { index: this.#index, id: setTimeout(() => this.flush(), TYPING_MS) };
  }

  #switched(part) {
    if (part.kind === "") return this.#change(this.#index, { switch: null }, null);
    const { switch: kind, blend_blocks, re_anchor } = this.#node;
    const before = this.#segment.switch ?? { kind, blend_blocks, re_anchor, recall: null, new_scene: false };
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
