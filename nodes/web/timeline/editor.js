// The timeline editor: bars, the fields of the selected prompt, undo. The text is the one truth; the server, which has
// the only grammar, turns it into segments and changed segments into text.
import { button, make } from "../shared.js";
import { t } from "../texts.js";
import { Answers } from "./answers.js";
import { Bars } from "./bars.js";
import { History } from "./history.js";
import { Lane } from "./lane.js";
import { Panel } from "./panel.js";
import { changed, cutAt, divided, duplicated, joined, lengthWith, plainTime } from "./segments.js";
import { scaledTo, startSeconds, timeText, without } from "./segments.js";

const MOST_BARS = 500;
const HEIGHT = { closed: 138, open: 270, lane: 28 }; // in pixels, without and with the fields of a prompt
const OFFLINE_MS = 3000;

/** Load the style sheet beside this file, once for all editors. */
function addStyle() {
  const href = new URL("./timeline.css", import.meta.url).href;
  if (![...document.querySelectorAll("link")].some((link) => link.href === href))
    document.head.append(make("link", { rel: "stylesheet", href }));
}

/** What the server needs of a segment. */
const written = ({ text, start_block, switch: way, seed, asked = null }) => {
  return { text, start_block, switch: way, seed, asked };
};

/** What undo brings back. */
const stepOf = ({ text, seconds }) => JSON.stringify({ prompts: text, seconds });

/**
 * `host`: read() gives text, seconds, shared_prompt, switch, blend_blocks, re_anchor, model_family; linked(name) tells
 * whether a widget's value comes from another node; write({prompts, seconds}); ask(body) asks the server; run(first)
 * presses Run; resized() hears that the element needs another height.
 */
export class TimelineEditor {
  open = false; // whether the fields of the selected prompt are shown; a loaded workflow keeps its node sizes
  #host;
  #history = new History();
  #bars;
  #panel;
  #view = null; // the server's answer to the text, null before the first
  #segments = []; // those of the view, or changed ones that the server has not answered yet
  #shared = ""; // and the words of all of them
  #selected = 0;
  #valid = false; // whether the text, as it is now, is a timeline
  #seen = null; // the values that were asked about last
  #answers = new Answers();
  #request = 0;
  #player = null; // what plays the story
  #fitting = 0; // length of the last story that fitted into the video, in seconds
  #height = HEIGHT.closed;
  #lost = ""; // what to say about a change that could not be taken, until the next one is
  #written = Promise.resolve(); // ends when the last change is in the text

  constructor(host) {
    this.#host = host;
    addStyle();
    this.#bars = new Bars({
      select: (index) => this.#select(index),
      preview: (segments, selected) => this.#preview(segments, selected),
      commit: (segments, key, selected) => this.#commit(segments, key, selected),
      duplicate: () => this.#duplicate(),
      locked: (index) => this.#locked(index),
      open: () => this.#open(true),
      seek: (seconds) => this.#player?.seek(seconds),
      edit: () => this.#edit(),
      remove: () => this.#remove(),
    });
    this.#panel = new Panel((index, fields, key) => this.#commit(changed(this.#segments, index, fields), key));
    this.undo = button("↶", t("Undo (Ctrl+Z)"), () => this.#step(-1));
    this.redo = button("↷", t("Redo (Ctrl+Shift+Z)"), () => this.#step(1));
    this.add = button(t("Add"), t("Add a prompt in the second half of this one"), () => this.#divide(t("New prompt")));
    this.split = button(t("Split"), t("Split this prompt in two"), () => this.#divide(null));
    this.copy = button(t("Copy"), t("Duplicate this prompt; the later ones move on (D)"), () => this.#duplicate());
    this.ripple = button(t("Ripple"), t("Move all later prompts, too (or hold Ctrl)"), () => this.#ripple());
    this.ripple.setAttribute("aria-pressed", "false");
    this.share = button(t("Shared"), t("Words that every prompt keeps"), () => this.#share());
    this.lane = new Lane((words) => this.#commit(this.#segments, "shared", this.#selected, words));
    this.delete = button(t("Delete"), t("Delete this prompt (Delete)"), () => this.#remove());
    const zooms = [
      button("−", t("Zoom out (-)"), () => this.#bars.zoom(1 / 1.5)),
      button("+", t("Zoom in (+)"), () => this.#bars.zoom(1.5)),
      button(t("all"), t("Show the whole video (0)"), () => this.#bars.zoom(0)),
    ];
    const gap = () => make("span", { class: "hf-gap" });
    const edits = [this.add, this.split, this.copy, this.delete, gap(), this.ripple, this.share];
    const tools = [this.undo, this.redo, gap(), ...edits, gap(), ...zooms];
    this.status = make("div", { class: "hf-status", role: "status", "aria-live": "polite" });
    this.ways = make("div", { class: "hf-tools", role: "toolbar", "aria-label": t("Ways out"), hidden: true });
    this.element = make(
      "div",
      { class: "hf-timeline", role: "region", "aria-label": t("Timeline of the prompts") },
      make("div", { class: "hf-tools", role: "toolbar", "aria-label": t("Timeline") }, ...tools),
      this.lane.element,
      this.#bars.element,
      this.#panel.element,
      make("div", { class: "hf-foot" }, this.status, this.ways),
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

  /** A frame that the player shows, see `Playhead.frame`. */
  frame(video, mediaTime) {
    if (this.isCurrent) this.#bars.frame(video, mediaTime);
  }

  /** Where the selected prompt begins and ends, in seconds of the story; null where the text is no timeline. */
  get scene() {
    const { start_block, end_block } = (this.#valid && this.#segments[this.#selected]) || {};
    if (end_block === undefined) return null;
    return { from: startSeconds(this.#view, start_block), until: startSeconds(this.#view, end_block) };
  }

  /** Look at the node's values and, where they changed, show them. */
  refresh() {
    const values = this.#host.read();
    const seen = JSON.stringify([values, this.#host.linked("prompts")]);
    if (seen !== this.#seen) this.#read(values, seen);
  }

  /** The height that the element needs, in pixels. */
  get height() {
    return (this.open ? HEIGHT.open : HEIGHT.closed) + (this.lane.element.hidden ? 0 : HEIGHT.lane);
  }

  async #read(values, seen) {
    this.#seen = seen;
    const request = ++this.#request;
    if (this.#host.linked("prompts")) {
      this.#fail(t("The text comes from another node; change it there."));
      return;
    }
    this.#history.record(stepOf(values), "outside", false);
    const known = this.#answers.of(seen);
    const answer = known ?? (await this.#host.ask(values));
    if (request !== this.#request) return;
    if (answer.offline) setTimeout(() => (this.#seen = null), OFFLINE_MS); // look again
    if (answer.error) this.#fail(answer.error);
    else this.#show(this.#answers.keep(seen, answer));
  }

  /** Whether the bars are those of the text as it is now. */
  get isCurrent() {
    return this.#valid && this.#host.read().text === this.#view.text;
  }

  /** Write changed segments into the text. A text that was changed elsewhere, just before or meanwhile, stays. */
  #commit(segments, key, selected = this.#selected, shared = this.#shared) {
    if (this.isCurrent)
      this.#written = this.#send(joined(segments), key, selected, shared);
    else {
      this.#lost = `${t("The last change was not taken: the text was changed elsewhere.")} `;
      this.#seen = null;
      this.refresh();
    }
    return this.#written;
  }

  async #send(segments, key, selected, shared) {
    const { text, ...node } = this.#host.read();
    const isBeyond = this.#view.beyond !== undefined; // then the node's seconds stay, until a way out is chosen
    const length = this.#view.fits ? node.seconds : lengthWith(segments, this.#view);
    if (node.seconds && length !== this.#view.seconds && !isBeyond && !this.#view.fits) {
      if (this.#host.linked("seconds")) return this.#refuse(t("The length comes from another node; change it there."));
      node.seconds = length;
    }
    Object.assign(node, { length, shared });
    this.#segments = segments;
    [this.#selected, this.#shared] = [selected, shared];
    this.#draw();
    const request = ++this.#request;
    const answer = await this.#host.ask({ ...node, segments: segments.map(written) });
    if (request !== this.#request || this.#host.read().text !== text) return;
    if (answer.offline) {
      this.#say(t("The server does not answer; this change waits for it."), true);
      setTimeout(() => request === this.#request && this.#send(segments, key, selected, shared), OFFLINE_MS);
      return;
    }
    if (answer.error) return this.#refuse(answer.error);
    this.#lost = "";
    this.#host.write({ prompts: answer.text, seconds: node.seconds });
    const values = this.#host.read();
    this.#seen = JSON.stringify([values, this.#host.linked("prompts")]);
    this.#history.record(stepOf(values), key, true);
    this.#show(this.#answers.keep(this.#seen, answer));
  }

  /** Go back to the text as it is. */
  #refuse(sentence) {
    [this.#segments, this.#shared] = [this.#view.segments, this.#view.shared];
    this.#selected = Math.min(this.#selected, this.#segments.length - 1);
    this.#say(sentence, true);
    this.#draw(true);
  }

  #show(view) {
    this.#valid = view.segments.length <= MOST_BARS;
    this.#view = view;
    this.#shared = view.shared;
    this.#segments = this.#valid ? view.segments : [];
    this.#selected = Math.max(0, Math.min(this.#selected, this.#segments.length - 1));
    const long = t("%1 prompts are too many for bars; edit the text.", view.segments.length);
    if (view.beyond === undefined) this.#fitting = view.seconds;
    const about = this.#valid ? plainTime(view.seconds) : long;
    this.status.title = t("%1 blocks, %2", view.blocks, timeText(view.seconds));
    this.#say(this.#lost + (view.refusal ?? about), !this.#valid || this.#lost !== "" || view.refusal !== undefined);
    this.#offerWays(view);
    this.#draw();
  }

  /** Ways out of a story that is longer than the video. */
  #offerWays({ beyond }) {
    this.ways.hidden = beyond === undefined;
    if (beyond === undefined) return;
    const length = plainTime(beyond);
    const last = startSeconds(this.#view, this.#segments.at(-1).start_block);
    const back = this.#fitting > last ? this.#fitting : this.#view.seconds;
    const scaled = scaledTo(this.#segments, this.#view, beyond);
    this.ways.replaceChildren(
      button(t("cut at %1", length), t("Leave out the prompts that begin after the end of the video"), () =>
        this.#shorten(cutAt(this.#segments, this.#view, beyond)),
      ),
      ...(scaled ? [button(t("fit into %1", length), t("Shorten all prompts alike"), () => this.#shorten(scaled))] : []),
      button(t("back to %1", plainTime(back)), t("Make the video as long as the story"), () => {
        this.#host.write({ seconds: back });
        this.refresh();
      }),
    );
  }

  /** Write fewer or shorter prompts, which fit into the node's seconds. */
  #shorten(segments) {
    this.#view = { ...this.#view, beyond: undefined, fits: true };
    this.#commit(segments, null, Math.min(this.#selected, segments.length - 1));
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
    if (this.#view) this.lane.show(this.#shared, this.#host.read(), enabled);
    if (this.#height !== this.height) this.#host.resized((this.#height = this.height));
    if (segment) {
      const state = { view: this.#view, segments: this.#segments, selected: this.#selected, enabled };
      this.#bars.draw(state);
      this.#panel.show(state, keepWords);
    }
    const isLong = enabled && segment.end_block - segment.start_block > 1;
    this.add.disabled = this.split.disabled = !isLong;
    this.copy.disabled = this.share.disabled = !enabled;
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
  }

  #edit(all = false) {
    this.#open(true);
    this.#panel.edit(all);
  }

  /** Show segments while they are dragged; nothing is written. */
  #preview(segments, selected) {
    [this.#segments, this.#selected] = [joined(segments), selected];
    const { start_block } = this.#segments[this.#selected];
    const time = timeText(Math.round(10 * startSeconds(this.#view, start_block)) / 10);
    this.#say(t("Prompt %1 begins at %2", this.#selected + 1, time));
    this.#draw();
  }

  #divide(text) {
    const index = this.#selected;
    const segments = divided(this.#segments, index, text ?? this.#segments[index].text);
    if (!segments) return;
    this.#commit(segments, null, index + 1);
    if (text) this.#edit(true);
    else this.#bars.focus(index + 1);
  }

  #duplicate() {
    const index = this.#selected;
    const next = this.#segments[index + 1];
    if (next && this.#bars.isBegun(next)) return this.#locked(index + 1);
    this.#commit(duplicated(this.#segments, index), null, index + 1);
    this.#bars.focus(index + 1);
  }

  #locked(index) {
    this.#say(t("Prompt %1 has begun; it stays in its place until the render ends.", index + 1), true);
  }

  #ripple() {
    this.#bars.ripples = !this.#bars.ripples;
    this.ripple.setAttribute("aria-pressed", this.#bars.ripples);
  }

  #share() {
    this.lane.opened = !this.lane.opened;
    this.#draw();
    if (this.lane.opened) this.lane.words.focus({ preventScroll: true });
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
    const step = this.#history.step(by);
    if (step === null) return;
    this.#host.write(JSON.parse(step));
    this.refresh();
    this.#draw();
  }

  /** Run, as Ctrl+Enter does anywhere, but with the letters that were typed last. */
  async #run(first) {
    await this.settled();
    this.#host.run(first);
  }

  #key(event) {
    const isField = event.target.matches("textarea, select, input:not([type=button])");
    const typing = isField && !this.#panel.isUntouched(event.target);
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
