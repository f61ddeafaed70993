// The takes of Load Head Forcing Run as a list with pictures. The widget "run" stays all that is saved and sent.
import { app } from "../../../scripts/app.js";
import { make } from "../shared.js";
import { factsOf, fetchTakes, line, pictures, storyOfTake, STYLE, takes, watchInGraph } from "./store.js";
import { t } from "../texts.js";
import { addElement } from "../widgets.js";
/** @import {GraphNode, Take, Widget} from "../types.js" */

const HEIGHT = 240; // of the list, in pixels
const POLL_MS = 300;
const WIDTH = 380; // of a new node, in which a row of pictures fits

/** The take that a value of the widget means, in any of the forms that lists have had. @param {string} value */
const takeOf = (value) => takes.find(({ name }) => value === name || value.endsWith(` (${name})`));

/** Show the entries of a combo widget as people read them; its values stay what they are. @param {Widget} combo */
function label(combo) {
  /** @param {unknown} value */
  combo.options.getOptionLabel = (value) => {
    const take = takeOf(String(value ?? ""));
    return take ? [factsOf(take), storyOfTake(take)].join(" · ") : String(value ?? "");
  };
}

/** A list box beside a combo widget: it shows the widget's value and sets it. */
class TakeList {
  /** @param {GraphNode} node @param {Widget} combo */
  constructor(node, combo) {
    this.node = node;
    this.combo = combo;
    /** The value whose row is highlighted. @type {string | null} */
    this.shown = null;
    this.drawn = ""; // the takes that are drawn, as JSON
    /** @type {HTMLElement[]} */
    this.rows = [];
    this.element = make("div", {
      class: "hf-takes",
      style: "height: 100%; max-height: 480px",
      tabindex: 0,
      "data-capture-wheel": "true", // Nodes 2.0: the list scrolls, not the canvas
      role: "listbox",
      "aria-label": t("Takes"),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.onKey(event),
      onwheel: (/** @type {Event} */ event) => event.stopPropagation(),
    });
    label(combo);
  }

  /** Draw what the server listed. */
  show() {
    if (takes.length) this.combo.options.values = takes.map((take) => take.value);
    const drawn = JSON.stringify(takes);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const rows = takes.map((take, place) => {
      const id = `hf-take-${this.node.id}-${place}`;
      const about = { class: "take", role: "option", id, onclick: () => this.choose(take) };
      return make("div", about, pictures(take), line("facts", factsOf(take)), line("story", storyOfTake(take)));
    });
    const list = rows.length ? rows : [line("none", t("No runs are stored yet."))];
    this.element.replaceChildren(make("style", {}, STYLE), ...list);
    this.rows = rows;
    this.highlight(true);
  }

  /** Highlight the row of the widget's value. */
  highlight(always = false) {
    const value = String(this.combo.value ?? "");
    if (value === this.shown && !always) return;
    this.shown = value;
    const place = takes.indexOf(takeOf(value));
    for (const [number, row] of this.rows.entries()) row.setAttribute("aria-selected", String(number === place));
    const row = this.rows[place];
    if (row) this.element.setAttribute("aria-activedescendant", row.id);
    else this.element.removeAttribute("aria-activedescendant");
    row?.scrollIntoView?.({ block: "nearest" });
  }

  /** @param {Take} take */
  choose(take) {
    app.canvas?.emitBeforeChange?.(); // for the undo of the graph
    this.combo.value = take.value;
    this.combo.callback?.(take.value);
    app.canvas?.emitAfterChange?.();
    this.node.graph?.setDirtyCanvas?.(true, true);
    this.highlight();
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const place = takes.indexOf(takeOf(String(this.combo.value ?? "")));
    const last = takes.length - 1;
    /** @type {Record<string, number>} */
    const places = { ArrowDown: Math.min(place + 1, last), ArrowUp: Math.max(place - 1, 0), Home: 0, End: last };
    if (!(event.key in places) || last < 0) return;
    event.preventDefault();
    event.stopPropagation(); // the canvas has shortcuts of its own
    this.choose(takes[places[event.key]]);
  }
}

/** @param {GraphNode} node */
export function nodeCreated(node) {
  const combo = node.widgets?.find((widget) => widget.name === "run");
  if (!["HeadForcingLoadRun", "HeadForcingDecodeVideo"].includes(node.comfyClass) || !combo) return;
  fetchTakes();
  if (node.comfyClass === "HeadForcingDecodeVideo") {
    label(combo);
    return;
  }
  const list = new TakeList(node, combo);
  addElement(node, "takes", list.element, { getMinHeight: () => HEIGHT });
  node.setSize?.([Math.max(node.size[0], WIDTH), node.size[1]]); // a saved node gets its own size after this

  watchInGraph(
    node,
    () => list.show(),
    () => list.highlight(), // values change in many ways; looking is the same for all
    POLL_MS,
  );
  list.show();
}
