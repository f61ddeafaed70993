// The pictures of Scene References in the story panel, above the fields of the chosen prompt: those that its words name
// are shown as they are, the others pale; a click names one.
import { app } from "../../../scripts/app.js";
import { address, button, make, referencesOf } from "../shared.js";
import { t } from "../texts.js";
import { changed } from "../timeline/segments.js";
/** @import {GraphNode, Reference} from "../types.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */

const NAMED = /(?<![\p{L}\p{M}\p{N}_])@([\p{L}][\p{L}\p{M}\p{N}_\u200c\u200d]*)/gu; // as headforcing_core/timeline/references.py

/** A name to compare, as `same_letters` of the core. @param {string} name */
const sameLetters = (name) => name.replace(/\u200c|\u200d|\ufe0e|\ufe0f/g, "").normalize("NFC").toLowerCase();

export class References {
  /** @type {GraphNode | null} */
  #storyNode = null;
  /** @type {TimelineEditor | null} */
  #editor = null;
  #drawn = "";

  constructor() {
    this.element = make("div", { class: "hf-references", role: "group", "aria-label": t("Pictures"), hidden: true });
  }

  /**
   * Show those of a story above the fields of its editor; none where both are null.
   * @param {GraphNode | null} storyNode
   * @param {TimelineEditor | null} editor
   */
  bind(storyNode, editor) {
    this.element.remove();
    this.#storyNode = storyNode;
    this.#editor = editor;
    this.#drawn = "";
    if (!editor) return;
    editor.panel.fields.before(this.element);
    this.look();
  }

  /** Draw them where the prompt, its words or the pictures are others than before. */
  look() {
    if (!this.#editor) return;
    const { segments, selected } = this.#editor;
    const text = segments[selected]?.text ?? "";
    const named = namesIn(text);
    const all = referencesOf(this.#storyNode);
    const drawn = JSON.stringify([all, named, selected]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    this.element.hidden = !all.length || !segments.length;
    const pictures = all.map((reference) => this.#picture(reference, named.includes(sameLetters(reference.name))));
    this.element.replaceChildren(...pictures);
  }

  /** @param {Reference} reference @param {boolean} isNamed by the words of the chosen prompt */
  #picture({ name, file }, isNamed) {
    const about = isNamed ? t("The prompt holds %1", `@${name}`) : t("Put %1 into the words of the prompt", `@${name}`);
    const names = button(`@${name}`, about, () => this.#addName(name));
    names.disabled = isNamed;
    const place = make("span", { class: "hf-reference", title: about });
    place.classList.toggle("hf-named", isNamed);
    if (file) place.append(make("img", { alt: "", src: app.api.apiURL(address(file)) }));
    place.append(names);
    place.addEventListener("click", ({ target }) => {
      if (target !== names && !isNamed) this.#addName(name);
    });
    return place;
  }

  /** Put the name of a picture behind the words of the chosen prompt. @param {string} name */
  #addName(name) {
    const { segments, selected } = this.#editor;
    const text = `${segments[selected].text} @${name}`.trim();
    this.#editor.commit(changed(segments, selected, { text }), null, selected);
  }
}

/** The names of pictures in words, each once. @param {string} words */
function namesIn(words) {
  const names = [...words.matchAll(NAMED)].map(([, name]) => sameLetters(name));
  return [...new Set(names)];
}
