// The pictures of Scene References in the story panel, above the fields of the chosen prompt: those that its words name
// are shown as they are, the others pale; a click names one.
import { app } from "../../../scripts/app.js";
import { button, make, referencesOf } from "../shared.js";
import { t } from "../texts.js";
import { changed } from "../timeline/segments.js";

const NAMED = /(?<![\p{L}\p{N}_])@([\p{L}][\p{L}\p{N}_]*)/gu; // as headforcing_core/timeline/references.py

export class References {
  #story = null;
  #editor = null;
  #drawn = "";

  constructor() {
    this.element = make("div", { class: "hf-references", role: "group", "aria-label": t("Pictures"), hidden: true });
  }

  /** Show those of a story above the fields of its editor; none where both are null. */
  bind(story, editor) {
    this.element.remove();
    this.#story = story;
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
    const named = new Set([...text.matchAll(NAMED)].map(([, name]) => name.toLowerCase()));
    const all = referencesOf(this.#story);
    const drawn = JSON.stringify([all, [...named], selected]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    this.element.hidden = !all.length || !segments.length;
    this.element.replaceChildren(...all.map((each) => this.#picture(each, named.has(each.name.toLowerCase()))));
  }

  #picture({ name, file }, isNamed) {
    const about = isNamed ? t("The prompt holds %1", `@${name}`) : t("Put %1 into the words of the prompt", `@${name}`);
    const say = button(`@${name}`, about, () => this.#say(name));
    say.disabled = isNamed;
    const shown = file && make("img", { alt: "", src: app.api.apiURL(`/view?${new URLSearchParams(file)}`) });
    const place = make("span", { class: "hf-reference", title: about });
    place.classList.toggle("hf-named", isNamed);
    place.append(...[shown, say].filter(Boolean));
    place.addEventListener("click", ({ target }) => target !== say && !isNamed && this.#say(name));
    return place;
  }

  #say(name) {
    const { segments, selected } = this.#editor;
    const text = `${segments[selected].text} @${name}`.trim();
    this.#editor.commit(changed(segments, selected, { text }), null, selected);
  }
}
