// The whole story as its text, which a high panel has room for: what is typed there is the text of the node.
import { make, put } from "../shared.js";
import { t } from "../texts.js";
/** @import {TimelineEditor} from "../timeline/editor.js" */

export class Script {
  /** @type {TimelineEditor | null} */
  #editor = null;

  constructor() {
    const label = t("The whole story as text");
    this.element = make("textarea", { class: "hf-story-script", spellcheck: "false", "aria-label": label, title: label });
    this.element.addEventListener("input", () => this.#editor?.writeText(this.element.value));
    this.element.addEventListener("blur", () => this.look());
  }

  /** Show the text of an editor; none where it is null. @param {TimelineEditor | null} editor */
  bind(editor) {
    this.#editor = editor;
    this.look();
  }

  /** Show the text as it is now, unless it is being typed. */
  look() {
    const readOnly = !this.#editor || this.#editor.isTextLinked || this.#editor.isPerformed;
    if (document.activeElement === this.element && !readOnly) return;
    put(this.element, { value: this.#editor?.text ?? "", readOnly });
  }
}
