// The timeline editor: bars, the fields of the selected prompt, undo. The text is the one truth; the server, which has
// the only grammar, turns it into segments and changed segments into text.
import { button, make } from "../shared.js";
import { Bars } from "./bars.js";
import { History } from "./history.js";
import { Panel } from "./panel.js";
import { changed, divided, joined, startSeconds, timeText, without } from "./segments.js";

const MOST_BARS = 500;
const OFFLINE_MS = 3000;
const HELP =
  "Arrow left and right move the start by a block, with Shift by ten. Arrow up and down go to other prompts. " +
  "Enter edits the words and Escape ends that, Delete removes the prompt, plus and minus zoom, 0 shows all, " +
  "Control Z undoes.";
let editors = 0;

/** Load the style sheet beside this file, once for all editors. */
function addStyle() {
  const href = new URL("./timeline.css", import.meta.url).href;
  if (![...document.querySelectorAll("link")].some((link) => link.href === href))
    document.head.append(make("link", { rel: "stylesheet", href }));
}

/**
 * `host`: read() gives text, seconds, shared_prompt, switch, blend_blocks, re_anchor; linked() tells whether the text
 * comes from another node; write(text); ask(body) asks the server; run(first) presses Run; resized(open) hears that
 * the element needs another height.
 */
export class TimelineEditor {
  open = false; // whether the fields of the selected prompt are shown; a loaded workflow keeps its node sizes
  #host;
  #history = new History();
  #bars;
  #panel;
  #view = null; // the server's answer to the text, null before the first
  #segments = []; // those of the view, or changed ones that the server has not answered yet
  #selected = 0;
  #valid = false; // whether the text, as it is now, is a timeline
  #seen = null; // the values that were asked about last
  #request = 0;
  #player = null; // what plays the story
  #lost = ""; // what to say about a change that could not be taken, until the next one is
  #written = Promise.resolve(); // ends when the last change is in the text

  constructor(host) {
    this.#host = host;
    addStyle();
    const helpId = `hf-timeline-help-${++editors}`;
    this.#bars = new Bars({
      select: (index) => this.#select(index),
      preview: (segments) => this.#preview(segments),
      commit: (segments, key) => this.#commit(segments, key),
      open: () => this.#open(true),
      seek: (seconds) => this.#player?.seek(seconds),
      edit: () => this.#edit(),
      remove: () => this.#remove(),
    });
    this.#bars.helpId = helpId;
    this.#panel = new Panel((index, fields, key) => this.#commit(changed(this.#segments, index, fields), key));
    this.undo = button("↶", "Undo (Ctrl+Z)", () => this.#step(-1));
    this.redo = button("↷", "Redo (Ctrl+Shift+Z)", () => this.#step(1));
    this.add = button("Add", "Add a prompt in the second half of this one", () => this.#divide("New prompt"));
    this.split = button("Split", "Split this prompt in two", () => this.#divide(null));
    this.delete = button("Delete", "Delete this prompt (Delete)", () => this.#remove());
    const zooms = [
      button("−", "Zoom out (-)", () => this.#bars.zoom(1 / 1.5)),
      button("+", "Zoom in (+)", () => this.#bars.zoom(1.5)),
      button("all", "Show the whole video (0)", () => this.#bars.zoom(0)),
    ];
    const gap = () => make("span", { class: "hf-gap" });
    const tools = [this.undo, this.redo, gap(), this.add, this.split, this.delete, gap(), ...zooms];
    this.status = make("div", { class: "hf-status", role: "status", "aria-live": "polite" });
    this.element = make(
      "div",
      { class: "hf-timeline", role: "region", "aria-label": "Timeline of the prompts" },
      make("div", { class: "hf-tools", role: "toolbar", "aria-label": "Timeline" }, ...tools),
      this.#bars.element,
      this.#panel.element,
      this.status,
      make("span", { id: helpId, hidden: true }, HELP),
    );
    this.element.addEventListener("keydown", (event) => this.#key(event));
    // the canvas and the node below would be dragged
    for (const name of ["pointerdown", "mousedown", "dblclick"])
      this.element.addEventListener(name, (event) => event.stopPropagation());
    this.#draw();
  }

  /** Show where a render of the story is, see `Playhead.move`; a click on a bar calls `player.seek(seconds)`. */
  follow(player, place) {
    this.#player = player;
    this.#bars.follow(place);
  }

  /** Look at the node's values and, where they changed, show them. */
  refresh() {
    const values = this.#host.read();
    const seen = JSON.stringify([values, this.#host.linked()]);
    if (seen !== this.#seen) this.#read(values, seen);
  }

  async #read(values, seen) {
    this.#seen = seen;
    const request = ++this.#request;
    if (this.#host.linked()) {
      this.#fail("The text comes from another node; change it there.");
      return;
    }
    this.#history.record(values.text, "outside", false);
    const answer = await this.#host.ask(values);
    if (request !== this.#request) return;
    if (answer.offline) setTimeout(() => (this.#seen = null), OFFLINE_MS); // look again
    if (answer.error) this.#fail(answer.error);
    else this.#show(answer);
  }

  /** Write changed segments into the text. A text that was changed elsewhere, just before or meanwhile, stays. */
  #commit(segments, key, selected = this.#selected) {
    if (this.#valid && this.#host.read().text === this.#view.text)
      this.#written = this.#send(segments, key, selected);
    else {
      this.#lost = "The last change was not taken: the text was changed elsewhere. ";
      this.#seen = null;
      this.refresh();
    }
    return this.#written;
  }

  async #send(segments, key, selected) {
    const { text, ...node } = this.#host.read();
    this.#segments = joined(segments, this.#view.blocks);
    this.#selected = selected;
    this.#draw();
    const request = ++this.#request;
    const fields = this.#segments.map(({ text: words, start_block, switch: way, seed, asked = null }) => ({
      text: words,
      start_block,
      switch: way,
      seed,
      asked,
    }));
    const answer = await this.#host.ask({ ...node, segments: fields, length: this.#view.seconds });
    if (request !== this.#request || this.#host.read().text !== text) return;
    if (answer.offline) {
      this.#say("The server does not answer; this change waits for it.", true);
      setTimeout(() => request === this.#request && this.#send(segments, key, selected), OFFLINE_MS);
      return;
    }
    if (answer.error) {
      this.#segments = this.#view.segments;
      this.#selected = Math.min(this.#selected, this.#segments.length - 1);
      this.#say(answer.error, true);
      this.#draw(true);
      return;
    }
    this.#lost = "";
    this.#write(answer.text);
    this.#history.record(answer.text, key, true);
    this.#show(answer);
  }

  #write(text) {
    this.#host.write(text);
    this.#seen = JSON.stringify([this.#host.read(), this.#host.linked()]);
  }

  #show(view) {
    this.#valid = view.segments.length <= MOST_BARS;
    this.#view = view;
    this.#segments = this.#valid ? view.segments : [];
    this.#selected = Math.max(0, Math.min(this.#selected, this.#segments.length - 1));
    const long = `${view.segments.length} prompts are too many for bars; edit the text.`;
    const about = this.#valid ? `${view.blocks} blocks, ${timeText(view.seconds)}` : long;
    this.#say(this.#lost + about, !this.#valid || this.#lost !== "");
    this.#draw();
  }

  #fail(sentence) {
    this.#valid = false;
    this.#say(sentence, true);
    this.#draw();
  }

  #say(sentence, isError = false) {
    this.status.textContent = sentence;
    this.status.classList.toggle("hf-error", isError);
  }

  #draw(keepWords = false) {
    const segment = this.#segments[this.#selected];
    const enabled = this.#valid && segment !== undefined;
    this.#bars.element.hidden = segment === undefined;
    this.#panel.element.hidden = segment === undefined || !this.open;
    if (segment) {
      const state = { view: this.#view, segments: this.#segments, selected: this.#selected, enabled };
      this.#bars.draw(state);
      this.#panel.show(state, this.#host.read(), keepWords);
    }
    const isLong = enabled && segment.end_block - segment.start_block > 1;
    this.add.disabled = this.split.disabled = !isLong;
    this.delete.disabled = !enabled || this.#segments.length < 2;
    this.undo.disabled = !this.#history.canUndo;
    this.redo.disabled = !this.#history.canRedo;
  }

  #select(index) {
    if (index === this.#selected) return;
    this.#panel.flush();
    this.#selected = index;
    this.#draw();
  }

  #open(open) {
    if (open === this.open) return;
    this.open = open;
    this.#draw();
    this.#host.resized(open);
  }

  #edit() {
    this.#open(true);
    this.#panel.edit();
  }

  /** Show segments while they are dragged; nothing is written. */
  #preview(segments) {
    const blocks = this.#view.blocks;
    this.#segments = joined(segments, blocks);
    const { start_block } = this.#segments[this.#selected];
    const time = timeText(startSeconds(this.#view, start_block));
    this.#say(`Prompt ${this.#selected + 1} begins at ${time}, block ${start_block}`);
    this.#draw();
  }

  #divide(text) {
    const index = this.#selected;
    const segments = divided(this.#segments, index, text ?? this.#segments[index].text);
    if (!segments) return;
    this.#commit(segments, null, index + 1);
    if (text) this.#edit();
    else this.#bars.focus(index + 1);
  }

  #remove() {
    if (this.#segments.length < 2) return;
    const index = this.#selected;
    const next = Math.max(index - 1, 0);
    this.#commit(without(this.#segments, index), null, next);
    this.#bars.focus(next);
  }

  /** Wait until the text holds the last change, and what was typed last. */
  async settled() {
    await (this.#panel.flush() ?? this.#written);
  }

  async #step(by) {
    await this.settled();
    const text = this.#history.step(by);
    if (text === null) return;
    this.#host.write(text);
    this.refresh();
    this.#draw();
  }

  /** Run, as Ctrl+Enter does anywhere, but with the letters that were typed last. */
  async #run(first) {
    await this.settled();
    this.#host.run(first);
  }

  #key(event) {
    const typing = event.target.matches("textarea, select, input:not([type=button])");
    const key = event.key.toLowerCase();
    if (event.ctrlKey || event.metaKey) {
      const undoes = !typing && ["z", "y"].includes(key);
      if (!undoes && key !== "enter") return;
      event.preventDefault();
      event.stopPropagation();
      if (undoes) this.#step(key === "y" || event.shiftKey ? 1 : -1);
      else this.#run(event.shiftKey);
    } else {
      if (key === "escape") {
        this.#bars.focus(this.#selected);
        this.#open(false);
      }
      event.stopPropagation(); // Delete would delete the node
    }
  }
}
