// The buttons above the bars.
import { button, make } from "../shared.js";
import { t } from "../texts.js";
/** @import {Actions} from "../types.js" */
/** @import {Bars} from "./bars.js" */
/** @import {History} from "./history.js" */

const STEP = 1.5; // of the zoom

export class Tools {
  /**
   * @param {Actions} actions
   * @param {Bars} bars which zoom and ripple
   */
  constructor(actions, bars) {
    this.undo = button("↶", t("Undo (Ctrl+Z)"), () => actions.step(-1));
    this.redo = button("↷", t("Redo (Ctrl+Shift+Z)"), () => actions.step(1));
    const adds = t("Add a prompt in the second half of this one");
    this.add = button(t("add"), adds, () => actions.divide(t("New prompt")));
    this.split = button(t("split"), t("Split this prompt in two"), () => actions.divide(null));
    this.copy = button(t("copy"), t("Duplicate this prompt; the later ones move on (D)"), () => actions.duplicate());
    this.delete = button(t("delete"), t("Delete this prompt (Delete)"), () => actions.remove());
    this.ripple = button(t("ripple"), t("Move all later prompts, too (or hold Ctrl)"), () => {
      bars.ripples = !bars.ripples;
      this.ripple.setAttribute("aria-pressed", String(bars.ripples));
    });
    this.ripple.setAttribute("aria-pressed", "false");
    this.share = button(t("shared"), t("Words that every prompt keeps"), () => actions.share());
    const zooms = [
      button("−", t("Zoom out (-)"), () => bars.zoom(1 / STEP)),
      button("+", t("Zoom in (+)"), () => bars.zoom(STEP)),
      button(t("all"), t("Show the whole video (0)"), () => bars.showAll()),
    ];
    this.panel = button("⤢", t("Show the story panel (Alt+Y)"), () => actions.showPanel?.());
    this.panel.hidden = !actions.showPanel;
    const gap = () => make("span", { class: "hf-gap" });
    const edits = [this.add, this.split, this.copy, this.delete, gap(), this.ripple, this.share];
    this.end = gap(); // what comes and goes stands behind it, and moves nothing
    const all = [this.undo, this.redo, gap(), ...edits, this.end, ...zooms, this.panel];
    this.element = make("div", { class: "hf-tools", role: "toolbar", "aria-label": t("Timeline") }, ...all);
  }

  /**
   * Enable what can be done: with the selected prompt of so many `blocks`, 0 for none, of so many `prompts`.
   * @param {{blocks: number, prompts: number, history: History}} state
   */
  draw({ blocks, prompts, history }) {
    this.add.disabled = this.split.disabled = blocks < 2;
    this.copy.disabled = this.share.disabled = blocks === 0;
    this.delete.disabled = blocks === 0 || prompts < 2;
    this.undo.disabled = !history.canUndo;
    this.redo.disabled = !history.canRedo;
  }
}
