// The takes of Load Head Forcing Run as a list with pictures. The widget "run" stays all that is saved and sent.
import { app } from "../../scripts/app.js";
import { make, whileInGraph } from "./shared.js";
import { addElement } from "./widgets.js";

const HEIGHT = 240; // of the list, in pixels
const POLL_MS = 300;
const WIDTH = 380; // of a new node, in which a row of pictures fits

const STYLE = `
.hf-takes { height: 100%; max-height: 480px; box-sizing: border-box; overflow-y: auto; outline-offset: -1px;
  font: 12px sans-serif; color: var(--input-text, #ddd); background: var(--comfy-input-bg, #222); border-radius: 6px; }
.hf-takes [role=option] { padding: 4px 6px; cursor: pointer; border-left: 3px solid transparent; }
.hf-takes [role=option]:hover { background: color-mix(in srgb, var(--p-primary-color, #4a90d9) 12%, transparent); }
.hf-takes [role=option][aria-selected=true] { border-left-color: var(--p-primary-color, #4a90d9);
  background: color-mix(in srgb, var(--p-primary-color, #4a90d9) 25%, transparent); }
.hf-takes .pictures { display: flex; gap: 2px; height: 44px; }
.hf-takes img { height: 44px; min-width: 0; max-width: 19%; object-fit: cover; border-radius: 3px; }
.hf-takes .facts, .hf-takes .story { overflow: hidden; text-overflow: ellipsis; margin-top: 2px; }
.hf-takes .facts { white-space: nowrap; }
.hf-takes .story { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; }
.hf-takes .story, .hf-takes .none { opacity: 0.75; }
.hf-takes .none { padding: 8px; }
`;

let takes = []; // as the server lists them, shared by all nodes
const lists = new Set();
let wanted = false; // whether there has been a node with takes

/** An entry as people read it: without the name of the run, which tells takes apart. */
const labelOf = ({ take, length, story, size, date }) =>
  [`Take ${take}`, length, story, size, date].filter(Boolean).join(" · ");

/** The take that a value of the widget means, in any of the forms that lists have had. */
const takeOf = (value) =>
  takes.find(({ name }) => value === name || value.startsWith(`${name} `) || value.endsWith(` (${name})`));

async function fetchTakes() {
  try {
    const answer = await app.api.fetchApi("/headforcing/takes");
    if (answer.ok) takes = (await answer.json()).takes;
  } catch {
    return; // the server is away: what is shown stays
  }
  for (const list of lists) list.show();
}

function pictures(take) {
  const strip = make("div", { class: "pictures" });
  for (let number = 0; number < take.pictures; number++) {
    const query = new URLSearchParams({ run: take.name, number });
    const src = app.api.apiURL(`/headforcing/takes/picture?${query}`);
    strip.append(make("img", { loading: "lazy", alt: "", src, onerror: ({ target }) => target.remove() }));
  }
  return strip;
}

const line = (name, text) => make("div", { class: name, title: text }, text ?? "");

/** Show the entries of a combo widget as people read them; its values stay what they are. */
function label(combo) {
  combo.options.getOptionLabel = (value) => {
    const take = takeOf(String(value ?? ""));
    return take ? labelOf(take) : String(value ?? "");
  };
}

/** A list box beside a combo widget: it shows the widget's value and sets it. */
class TakeList {
  constructor(node, combo) {
    Object.assign(this, { node, combo, shown: null, drawn: "" });
    this.element = make("div", {
      class: "hf-takes",
      tabindex: 0,
      "data-capture-wheel": "true", // Nodes 2.0: the list scrolls, not the canvas
      role: "listbox",
      "aria-label": "Takes",
      onkeydown: (event) => this.onKey(event),
      onwheel: (event) => event.stopPropagation(),
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
      const facts = [`Take ${take.take}`, take.length, take.size, take.date].filter(Boolean).join(" · ");
      const about = { role: "option", id: `hf-take-${this.node.id}-${place}`, onclick: () => this.choose(take) };
      return make("div", about, pictures(take), line("facts", facts), line("story", take.story));
    });
    const list = rows.length ? rows : [line("none", "No runs are stored yet.")];
    this.element.replaceChildren(make("style", {}, STYLE), ...list);
    this.rows = rows;
    this.mark(true);
  }

  /** Mark the row of the widget's value. */
  mark(always = false) {
    const value = String(this.combo.value ?? "");
    if (value === this.shown && !always) return;
    this.shown = value;
    const place = takes.indexOf(takeOf(value));
    for (const [number, row] of (this.rows ?? []).entries()) row.setAttribute("aria-selected", number === place);
    const row = this.rows?.[place];
    if (row) this.element.setAttribute("aria-activedescendant", row.id);
    else this.element.removeAttribute("aria-activedescendant");
    row?.scrollIntoView?.({ block: "nearest" });
  }

  choose(take) {
    app.canvas?.emitBeforeChange?.(); // for the undo of the graph
    this.combo.value = take.value;
    this.combo.callback?.(take.value);
    app.canvas?.emitAfterChange?.();
    this.node.graph?.setDirtyCanvas?.(true, true);
    this.mark();
  }

  onKey(event) {
    const place = takes.indexOf(takeOf(String(this.combo.value ?? "")));
    const last = takes.length - 1;
    const places = { ArrowDown: Math.min(place + 1, last), ArrowUp: Math.max(place - 1, 0), Home: 0, End: last };
    if (!(event.key in places) || last < 0) return;
    event.preventDefault();
    event.stopPropagation(); // the canvas has shortcuts of its own
    this.choose(takes[places[event.key]]);
  }
}

export function setup() {
  for (const end of ["success", "error", "interrupted"]) {
    app.api.addEventListener(`execution_${end}`, () => wanted && fetchTakes());
  }
}

export function refreshComboInNodes() {
  if (wanted) return fetchTakes();
}

export function nodeCreated(node) {
  const combo = node.widgets?.find((widget) => widget.name === "run");
  if (!["HeadForcingLoadRun", "HeadForcingDecodeVideo"].includes(node.comfyClass) || !combo) return;
  wanted = true;
  fetchTakes();
  if (node.comfyClass === "HeadForcingDecodeVideo") return label(combo);
  const list = new TakeList(node, combo);
  addElement(node, "takes", list.element, { getMinHeight: () => HEIGHT });
  node.setSize?.([Math.max(node.size[0], WIDTH), node.size[1]]); // a saved node gets its own size after this

  let timer = null;
  const begin = () => {
    lists.add(list);
    timer ??= setInterval(() => list.mark(), POLL_MS); // values change in many ways; looking is the same for all
  };
  whileInGraph(node, begin, () => {
    clearInterval(timer);
    timer = null;
    lists.delete(list);
  });
  list.show();
}
