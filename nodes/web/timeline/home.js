// Where an editor stands in its node: the editor itself, or a strip of its prompts while the story panel shows it.
import { keepFromCanvas, make } from "../shared.js";
import { t } from "../texts.js";
/** @import {TimelineEditor} from "./editor.js" */

export class Home {
  #editor;
  #drawn = ""; // the prompts that the strip shows, as JSON

  /**
   * @param {TimelineEditor} editor
   * @param {() => void} show opens the story panel
   */
  constructor(editor, show) {
    this.#editor = editor;
    const about = { class: "hf-strip", type: "button", title: t("Show the story panel (Alt+Y)"), onclick: show };
    this.prompts = make("span", { class: "hf-strip-prompts" });
    this.strip = make("button", about, this.prompts, t("The timeline is in the story panel."));
    this.element = make("div", { class: "hf-home" }, editor.element);
    keepFromCanvas(this.element);
  }

  /** Show the editor in another place, with the fields of a prompt; the node keeps its height. @param {HTMLElement} place */
  lend(place) {
    const height = this.element.offsetHeight || this.#editor.height; // 0 before the node is drawn
    this.element.style.minHeight = `${height}px`; // in Nodes 2.0 a node is as high as what it holds
    place.replaceChildren(this.#editor.element);
    this.element.replaceChildren(this.strip);
    this.#editor.setDocked(true);
  }

  takeBack() {
    this.element.style.minHeight = "";
    this.element.replaceChildren(this.#editor.element);
    this.#editor.setDocked(false);
  }

  /** Draw the prompts of the text into the strip, as wide as they last. */
  draw() {
    const { timeline, selected } = this.#editor;
    const segments = timeline?.segments ?? [];
    const drawn = JSON.stringify([segments.map(({ start_block }) => start_block), selected]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const parts = segments.map(({ start_block, end_block, text }, index) => {
      const style = `flex: ${end_block - start_block} 0 0; --hf-hue: ${(205 + index * 67) % 360}`;
      return make("i", { title: text, style, class: index === selected && "hf-selected" });
    });
    this.prompts.replaceChildren(...parts);
  }
}
