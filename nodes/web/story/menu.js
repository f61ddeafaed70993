// The menu of a bar in the story panel.
import { queuePart } from "../queue_part.js";
import { make } from "../shared.js";
import { t } from "../texts.js";
import { isShortcut } from "../timeline/keys.js";
import { plainTime, startSeconds } from "../timeline/segments.js";

const MOST_SCENES = 12; // that can be brought back from the menu; the fields of a prompt list all

export class Menu {
  #root;
  #say;
  #element = null;
  #bar = null; // which it belongs to
  #listening = new AbortController();

  /** `root` is what the menu stands in, so that it is seen in full screen, too; `say` shows a sentence. */
  constructor(root, say) {
    this.#root = root;
    this.#say = say;
  }

  /**
   * Open it for the bar or the marker under the pointer, or the one with the focus where a key asked for it; `at` are the
   * seconds of the story that are played, null where nothing is.
   */
  open(event, editor, sampler, markers, at) {
    const ofMarker = markers.entries(event.target);
    if (ofMarker) return this.#show(event, ofMarker, t("Marker"));
    const index = editor?.bars.indexOf(event.target) ?? -1;
    if (index < 0) return;
    const seconds = editor.bars.secondsAt(event);
    const marked = at ?? seconds;
    const sets = [t("Set a marker at %1", plainTime(marked)), () => markers.add(marked)];
    const [renders, edits, returns] = this.#entries(editor, sampler, index, seconds);
    this.#show(event, [...renders, ...edits, sets, ...returns], t("Prompt %1", index + 1));
  }

  #show(event, entries, label) {
    event.preventDefault();
    event.stopPropagation();
    this.close();
    this.#bar = event.target;
    const items = entries.map((entry) => (entry ? this.#item(...entry) : make("hr")));
    this.#element = make("div", { class: "hf-story-menu", role: "menu", "aria-label": label }, ...items);
    this.#root.append(this.#element);
    this.#put(event.clientX, event.clientY);
    this.#element.querySelector("[role=menuitem]").focus({ preventScroll: true });
    this.#listening = new AbortController();
    const { signal } = this.#listening;
    this.#element.addEventListener("keydown", (key) => this.#key(key), { signal });
    const leave = ({ target }) => this.#element.contains(target) || this.close();
    window.addEventListener("pointerdown", leave, { signal, capture: true });
  }

  /** The keys belong to the bar again, if they belonged to the menu. */
  close() {
    this.#listening.abort();
    if (this.#element?.contains(document.activeElement)) this.#bar.focus({ preventScroll: true });
    this.#element?.remove();
    this.#element = null;
  }

  /** What renders, what changes prompts, and what brings scenes back. */
  #entries(editor, sampler, index, seconds) {
    const { view, segments, edits } = editor;
    const { start_block, end_block } = segments[index];
    const from_seconds = startSeconds(view, start_block);
    const until_seconds = startSeconds(view, end_block);
    const render = async (asked) => {
      await editor.settled();
      this.#say(await queuePart(sampler, asked));
    };
    const rerolled = () => {
      edits.reroll(index);
      return render({ from_seconds, until_seconds });
    };
    const renders = [
      [t("Render this scene"), () => render({ from_seconds, until_seconds })],
      [t("Re-roll and render"), rerolled],
      [t("Render up to here"), () => render({ until_seconds })],
      null,
    ];
    const scenes = segments.slice(0, index).slice(-MOST_SCENES);
    const first = index - scenes.length;
    const returns = scenes.map(({ text }, place) => {
      const label = t("Bring back scene %1: %2", first + place + 1, text.slice(0, 24));
      return [label, () => edits.bringBack(index, first + place + 1)];
    });
    const changes = [
      [t("Cut here, at %1", plainTime(seconds)), () => edits.cut(index, seconds)],
      [t("Duplicate"), () => edits.duplicate(index)],
      [t("Edit the words"), () => edits.words(index)],
      [t("Delete"), () => edits.remove(index)],
    ];
    return [sampler ? renders : [], changes, returns.length ? [null, ...returns] : []];
  }

  #item(label, act) {
    const chosen = () => {
      this.close();
      act();
    };
    return make("div", { role: "menuitem", tabindex: -1, onclick: chosen }, label);
  }

  #put(x, y) {
    const root = this.#root.getBoundingClientRect();
    const { width, height } = this.#element.getBoundingClientRect();
    this.#element.style.left = `${Math.max(4, Math.min(x - root.left, root.width - width - 4))}px`;
    this.#element.style.top = `${Math.max(4, Math.min(y - root.top, root.height - height - 4))}px`;
  }

  #key(event) {
    const items = [...this.#element.querySelectorAll("[role=menuitem]")];
    const at = items.indexOf(document.activeElement);
    const to = (place) => items.at(place % items.length).focus();
    const keys = {
      ArrowDown: () => to(at + 1),
      ArrowUp: () => to(at - 1),
      Home: () => to(0),
      End: () => to(-1),
      Enter: () => items[at]?.click(),
      Escape: () => this.close(),
      Tab: () => this.close(),
    };
    if (!isShortcut(event)) event.stopPropagation();
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }
}
