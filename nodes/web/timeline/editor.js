// The timeline editor: bars, the fields of the selected prompt, undo. The text is the one truth; the server, which has
// the only grammar, turns it into segments and changed segments into text.
import { keepFromCanvas, make } from "../shared.js";
import { t } from "../texts.js";
import { Answers } from "./answers.js";
import { Bars } from "./bars.js";
import { History } from "./history.js";
import { isShortcut } from "./keys.js";
import { Lane } from "./lane.js";
import { Panel } from "./panel.js";
import { Edits } from "./edits.js";
import { changed, joined, plainTime, startSeconds, timeText } from "./segments.js";
import { Tools } from "./tools.js";
import { Ways } from "./ways.js";
import { Writer } from "./writer.js";

const MOST_BARS = 500;
const HEIGHT = { closed: 138, open: 270, lane: 28 }; // in pixels, without and with the fields of a prompt
const OFFLINE_MS = 3000;

/** What undo brings back. */
const stepOf = ({ text, seconds }) => JSON.stringify({ prompts: text, seconds });

/**
 * `host`: read() gives the node's text and settings (`storyOf`); linked(name) tells whether a widget's value comes from
 * another node; write({prompts, seconds}) sets widgets; ask(body) resolves to the server's answer to a text or to
 * segments; history(step) is what the node's undo goes through, if it holds the step; run(inFront) queues the graph,
 * before all others if so; resized() hears that the element's height changes; showPanel() opens the story panel,
 * undefined if there is none.
 */
export class TimelineEditor {
  edits = new Edits(this);
  /** Where it stands in its node. @type {import("./home.js").Home | undefined} */
  home;
  open = false; // whether the fields of the selected prompt are shown; closed first, as the saved node sizes are
  #host;
  #isDocked = false;
  #history = new History();
  #hasHistory = false; // whether the history is that of the node, which it is once its text was read
  /** @type {import("./segments.js").View | null} */
  view = null; // the server's answer to the text, null before the first
  #values = null; // of the node, that it answers to
  segments = []; // those of the view, or changed ones that the server has not answered yet
  #shared = ""; // the words that stand before every prompt
  selected = 0;
  #hasBars = false; // whether the last answer can be shown as bars
  #asked = null; // the node's values, as JSON, that the server was asked about last
  #lastRead = Promise.resolve(); // ends when the server has answered to them
  #answers = new Answers();
  #player = null; // what plays the story
  #shownHeight = HEIGHT.closed;
  #lostChange = ""; // what to say about a change that could not be taken, until the next one is
  #writer;

  constructor(host) {
    this.#host = host;
    this.#writer = new Writer(host, {
      written: (answer, values, change) => this.#written(answer, values, change),
      refused: (sentence, before) => this.#refuse(sentence, before),
      waits: (sentence) => this.#say(sentence, true),
    });
    const actions = {
      select: (index) => this.select(index),
      preview: (segments, selected) => this.#preview(segments, selected),
      dropped: (index) => this.#show(this.view, index),
      commit: (segments, key, selected) => this.commit(segments, key, selected),
      locked: (index) => this.locked(index),
      open: () => this.#setOpen(true),
      seek: (seconds) => this.#player?.seek(seconds),
      edit: () => this.edit(),
      step: (by) => this.#undo(by),
      divide: (text) => this.edits.divide(text),
      duplicate: () => this.edits.duplicate(),
      remove: () => this.edits.remove(),
      share: () => this.#toggleShared(),
      showPanel: this.#host.showPanel,
    };
    this.bars = new Bars(actions);
    this.tools = new Tools(actions, this.bars);
    this.panel = new Panel((index, fields, key) => this.commit(changed(this.segments, index, fields), key));
    this.lane = new Lane((words) => this.commit(this.segments, "shared", this.selected, words));
    this.status = make("div", { class: "hf-status", role: "status", "aria-live": "polite" });
    this.ways = new Ways(
      (shortened) => this.#shorten(shortened),
      (seconds) => {
        this.#host.write({ seconds });
        this.refresh();
      },
    );
    const about = { class: "hf-timeline", role: "region", "aria-label": t("Timeline of the prompts") };
    const parts = [this.tools, this.lane, this.bars, this.panel].map(({ element }) => element);
    this.element = make("div", about, ...parts, make("div", { class: "hf-foot" }, this.status, this.ways.element));
    this.element.addEventListener("keydown", (event) => this.#onKey(event));
    keepFromCanvas(this.element);
    this.#draw();
  }

  /** Whether the story panel shows the editor, with the fields of a prompt; its node keeps its height. */
  setDocked(isDocked) {
    this.#isDocked = this.bars.zoomsByWheel = isDocked;
    this.#draw();
  }

  /** Show where a render of the story is, see `Playhead.move`; a click on a bar calls `player.seek(seconds)`. */
  follow(player, place) {
    this.#player = player;
    this.bars.follow(place);
  }

  /** A frame that a player shows, see `Playhead.frame`; those of the player that is followed count. */
  frame(video, mediaTime) {
    if (video === this.#player?.video && this.isCurrent) this.bars.frame(video, mediaTime);
  }

  /** Where the selected prompt begins and ends, in seconds of the story; null where the text is no timeline. */
  get scene() {
    const { start_block, end_block } = (this.#hasBars && this.segments[this.selected]) || {};
    if (end_block === undefined) return null;
    return { from: startSeconds(this.view, start_block), until: startSeconds(this.view, end_block) };
  }

  /** Look at the node's values and, where they changed, show them; after changes that the text will hold in a moment. */
  refresh() {
    const values = this.#host.read();
    if (this.#writer.isWaiting(values.text)) return this.#writer.settled();
    const asked = this.#askedFor(values);
    if (asked !== this.#asked) this.#lastRead = this.#readNode(values, asked);
    return this.#lastRead;
  }

  #askedFor(values) {
    return JSON.stringify([values, this.#host.linked("prompts")]);
  }

  /** Prompts that the text does not hold yet, typed letters too, and their shared words; null if it holds all. */
  get unwritten() {
    this.panel.flush();
    const isWritten = !this.#hasBars || this.segments === this.view.segments;
    return isWritten ? null : { segments: this.segments, shared: this.#shared };
  }

  /** The node is gone: what its text does not hold, as `unwritten`, is written into it no more. */
  leave() {
    const { unwritten } = this;
    this.#writer.giveUp();
    return unwritten;
  }

  /** Write prompts into the text, as `unwritten` gives them. */
  async put({ segments, shared }) {
    await this.refresh();
    if (this.isCurrent) this.commit(segments, null, this.selected, shared);
  }

  /** The height that the element needs, in pixels. */
  get height() {
    const isOpen = this.open && !this.#isDocked;
    return (isOpen ? HEIGHT.open : HEIGHT.closed) + (this.lane.element.hidden ? 0 : HEIGHT.lane);
  }

  async #readNode(values, asked) {
    this.#asked = asked;
    const isLatest = this.#writer.giveUp();
    if (this.#host.linked("prompts")) return this.#fail(t("The text comes from another node; change it there."));
    if (!this.#hasHistory) this.#history = this.#host.history(stepOf(values));
    this.#hasHistory = true;
    this.#history.record(stepOf(values), "outside", false);
    const known = this.#answers.of(asked);
    const answer = known ?? (await this.#host.ask(values));
    if (!isLatest()) return;
    if (answer.offline) setTimeout(() => (this.#asked = null), OFFLINE_MS); // so that the next refresh asks again
    if (answer.error) return this.#fail(answer.error);
    this.#values = values;
    this.#show(this.#answers.keep(asked, answer));
  }

  /** Whether the bars are those of the text as it is now. */
  get isCurrent() {
    return this.#hasBars && this.#host.read().text === this.view.text;
  }

  /**
   * Write changed segments into the text. If the text was changed elsewhere, just before or meanwhile, that change stays.
   * Changes in a row with the same `key` are one step of undo; null is a step of its own. With `keepsSeconds` the video
   * keeps its length.
   */
  commit(segments, key, selected = this.selected, shared = this.#shared, keepsSeconds = false) {
    if (!this.isCurrent) {
      this.#lostChange = `${t("The last change was not taken: the text was changed elsewhere.")} `;
      this.#asked = null;
      this.refresh();
      return;
    }
    const change = { segments: joined(segments), shared, key, keepsSeconds };
    if (!this.#writer.write(change, this.view, this.#values)) return;
    this.segments = change.segments;
    this.selected = selected;
    this.#shared = shared;
    this.#draw();
  }

  /** Show what the server has made of a change, which the text holds now. */
  #written(answer, values, { key, refused }) {
    this.#lostChange = "";
    this.#values = values;
    this.#asked = this.#askedFor(values);
    this.#history.record(stepOf(this.#host.read()), key, true);
    this.#show(this.#answers.keep(this.#asked, answer), this.selected, refused !== undefined);
    if (refused) this.#say(refused, true);
  }

  /** Go back to what was there before a change: the one before it, or the text as it is. */
  #refuse(sentence, { segments, shared } = this.view) {
    this.segments = segments;
    this.#shared = shared;
    this.selected = Math.min(this.selected, this.segments.length - 1);
    this.#say(sentence, true);
    this.#draw(true);
  }

  #show(view, selected = this.selected, keepWords = false) {
    this.#hasBars = view.segments.length <= MOST_BARS;
    this.view = view;
    this.#shared = view.shared;
    this.segments = this.#hasBars ? view.segments : [];
    this.selected = Math.max(0, Math.min(selected, this.segments.length - 1));
    const long = t("%1 prompts are too many for bars; edit the text.", view.segments.length);
    const about = this.#hasBars ? plainTime(view.seconds) : long;
    this.status.title = t("%1 blocks, %2", view.blocks, timeText(view.seconds));
    const isProblem = !this.#hasBars || this.#lostChange !== "" || view.refusal !== undefined;
    this.#say(this.#lostChange + (view.refusal ?? about), isProblem);
    this.ways.show(view, this.#host.linked("seconds"));
    this.#draw(keepWords);
  }

  /** Write fewer or shorter prompts, which fit into the node's seconds: what `shortened` makes of the view. */
  async #shorten(shortened) {
    await this.settled();
    const segments = shortened(this.view);
    this.commit(segments, null, Math.min(this.selected, segments.length - 1), this.#shared, true);
  }

  #fail(sentence) {
    this.#hasBars = false;
    this.#say(sentence, true);
    this.#draw();
  }

  #say(sentence, isError = false) {
    this.status.textContent = sentence;
    this.status.classList.toggle("hf-error", isError);
  }

  #draw(keepWords = false) {
    const segment = this.segments[this.selected];
    const enabled = this.#hasBars && segment !== undefined;
    this.bars.element.hidden = segment === undefined;
    this.panel.element.hidden = segment === undefined || !(this.open || this.#isDocked);
    if (this.view) this.lane.show(this.#shared, this.#host.read(), enabled);
    if (this.#shownHeight !== this.height) this.#host.resized((this.#shownHeight = this.height));
    if (segment) {
      const state = { view: this.view, segments: this.segments, selected: this.selected, enabled };
      this.bars.draw(state);
      this.panel.show(state, keepWords);
    }
    const blocks = enabled ? segment.end_block - segment.start_block : 0;
    if (this.#isDocked) this.home.draw();
    this.tools.draw({ blocks, prompts: this.segments.length, history: this.#history });
  }

  select(index) {
    if (index === this.selected) return;
    this.panel.flush();
    this.selected = index;
    this.#draw();
  }

  #setOpen(open) {
    if (open === this.open || this.#isDocked) return; // there the fields are always shown
    this.open = open;
    this.#draw();
  }

  edit(all = false) {
    this.#setOpen(true);
    this.panel.edit(all);
  }

  /** Show segments while they are dragged; nothing is written. */
  #preview(segments, selected) {
    this.segments = joined(segments);
    this.selected = selected;
    const { start_block } = this.segments[this.selected];
    const time = timeText(Math.round(10 * startSeconds(this.view, start_block)) / 10);
    this.#say(t("Prompt %1 begins at %2", this.selected + 1, time));
    this.#draw();
  }

  /** Say that a prompt cannot be changed any more. */
  locked(index) {
    this.#say(t("Prompt %1 has begun; it stays in its place until the render ends.", index + 1), true);
  }

  #toggleShared() {
    this.lane.opened = !this.lane.opened;
    this.#draw();
    if (this.lane.opened) this.lane.words.element.focus({ preventScroll: true });
  }

  /** Wait until the server has answered the last change, also of what was typed last or meanwhile, or was offline. */
  settled() {
    this.panel.flush();
    return this.#writer.settled();
  }

  async #undo(by) {
    await this.settled();
    const step = this.#history.step(by);
    if (step === null) return;
    this.#host.write(JSON.parse(step));
    this.refresh();
    this.#draw();
  }

  /** Run, as Ctrl+Enter does anywhere, but with the letters that were typed last. */
  async #run(inFront) {
    await this.settled();
    this.#host.run(inFront);
  }

  /** Keys that hold in the whole editor. A field with typed letters keeps its own Ctrl+Z. */
  #onKey(event) {
    const isField = event.target.matches("textarea, select, input:not([type=button])");
    const isTyping = isField && ![this.panel.words, this.lane.words].some((words) => words.isUntouched(event.target));
    const key = event.key.toLowerCase();
    const isControl = event.ctrlKey || event.metaKey;
    const isOurs = event.target.matches("textarea, input"); // of others ComfyUI's undo takes the key, too
    const undoes = isControl && isOurs && !isTyping && ["z", "y"].includes(key);
    const runs = isControl && key === "enter";
    if (!undoes && !runs && (isControl || isShortcut(event))) return;
    if (isControl) event.preventDefault();
    event.stopPropagation(); // Delete would delete the node
    if (undoes) this.#undo(key === "y" || event.shiftKey ? 1 : -1);
    else if (runs) this.#run(event.shiftKey);
    else if (key === "escape") {
      this.bars.focus(this.selected);
      this.#setOpen(false);
    }
  }
}
