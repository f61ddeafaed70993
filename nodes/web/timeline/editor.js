// The timeline editor: bars, the fields of the selected prompt, undo. The text is the one truth; the server, which has
// the only grammar, turns it into segments and changed segments into text.
import { keepFromCanvas, make } from "../shared.js";
import { t } from "../texts.js";
import { Answers } from "./answers.js";
import { Bars } from "./bars.js";
import { Choice } from "./choice.js";
import { pressEditorKey } from "./editor_keys.js";
import { Lane } from "./lane.js";
import { Panel } from "./panel.js";
import { pastedInto, replaceText } from "./pastes.js";
import { Edits } from "./edits.js";
import { copyScenes } from "./scene_clipboard.js";
import { changed, joined, startSeconds, timeText } from "./segments.js";
import { Status } from "./status.js";
import { Tools } from "./tools.js";
import { Undo } from "./undo.js";
import { Ways } from "./ways.js";
import { Writer } from "./writer.js";
/** @import {Actions, Change, Host, Segment, ShownPlace, StoryValues, Timeline, Unwritten} from "../types.js" */
/** @import {Player} from "../player/player.js" */
/** @import {Home} from "./home.js" */

const MOST_BARS = 500;
const HEIGHT = { closed: 138, open: 270, lane: 28 }; // in pixels, without and with the fields of a prompt
const OFFLINE_MS = 3000;
const PERFORMED = () => t("A live video runs: type what happens next there.");

export class TimelineEditor {
  edits = new Edits(this);
  /** Where it stands in its node. @type {Home | undefined} */
  home;
  isPerformed = false; // whether a live video runs: the server writes its prompts into the text
  open = false; // whether the fields of the selected prompt are shown; closed first, as the saved node sizes are
  #host;
  #isDocked = false;
  #undo;
  /** The server's answer to the text, null before the first. @type {Timeline | null} */
  timeline = null;
  /** Of the node, that it answers to. @type {StoryValues | null} */
  #values = null;
  /** Those of the timeline, or changed ones that the server has not answered yet. @type {Segment[]} */
  segments = [];
  #shared = ""; // the words that stand before every prompt
  choice = new Choice();
  #hasBars = false; // whether the last answer can be shown as bars
  /** The node's values, as JSON, that the server was asked about last. @type {string | null} */
  #valuesJson = null;
  /** The text of a file that was dropped just now. @type {string | null} */
  #dropped = null;
  #lastRead = Promise.resolve(); // ends when the server has answered to them
  #answers = new Answers();
  /** Plays the story. @type {Player | null} */
  #player = null;
  #shownHeight = HEIGHT.closed;
  #writer;

  /** @param {Host} host */
  constructor(host) {
    this.#host = host;
    this.#undo = new Undo(host);
    this.#writer = new Writer(host, {
      written: (answer, values, change) => this.#written(answer, values, change),
      refused: (sentence, before) => this.#refuse(sentence, before),
      waits: (sentence) => this.status.say(sentence, true),
    });
    /** @type {Actions} */
    const actions = {
      select: (index) => this.select(index),
      choose: (index, how) => this.#choose(() => this.choice[how](index)),
      span: (first, count) => this.span(first, count),
      preview: (segments, selected, count) => this.#preview(segments, selected, count),
      dropped: (index) => this.#show(this.timeline, index),
      commit: (segments, key, selected) => this.commit(segments, key, selected),
      locked: (index) => this.locked(index),
      open: () => this.#setOpen(true),
      seek: (seconds) => this.#player?.seek(seconds),
      edit: () => this.edit(),
      step: (by) => this.#step(by),
      divide: (text) => this.edits.divide(text),
      duplicate: () => this.edits.duplicate(),
      remove: () => this.edits.remove(),
      share: () => this.#toggleShared(),
      showPanel: this.#host.showPanel,
      run: (isFirst) => this.#run(isFirst),
      close: () => {
        this.bars.focus(this.selected);
        this.#setOpen(false);
      },
    };
    this.bars = new Bars(actions);
    this.tools = new Tools(actions, this.bars);
    this.panel = new Panel((index, fields, key) => this.commit(this.#changed(index, fields), key));
    this.lane = new Lane((shared) => this.commit(this.segments, "shared", this.selected, { shared }));
    this.status = new Status();
    this.ways = new Ways(
      (shorter) => this.edits.shorten(shorter),
      (seconds) => {
        this.#host.write({ seconds });
        this.refresh();
      },
    );
    const about = { class: "hf-timeline", role: "region", "aria-label": t("Timeline of the prompts") };
    const parts = [this.tools, this.lane, this.bars, this.panel].map(({ element }) => element);
    this.element = make("div", about, ...parts, make("div", { class: "hf-foot" }, this.status.element, this.ways.element));
    const fields = [this.panel.words, this.lane.words];
    this.element.addEventListener("keydown", (event) => pressEditorKey(event, fields, actions));
    copyScenes(this.element, {
      isBar: (target) => this.isCurrent && this.bars.indexOf(target) >= 0,
      chosen: () => this.choice.indices.map((index) => this.segments[index]),
      remove: () => this.edits.remove(),
      paste: (scenes) => this.edits.paste(scenes),
    });
    keepFromCanvas(this.element);
    this.#draw();
  }

  /** Whether the story panel shows the editor; its node keeps its height. @param {boolean} isDocked */
  setDocked(isDocked) {
    this.#isDocked = this.bars.zoomsByWheel = isDocked;
    this.tools.panel.hidden = isDocked || !this.#host.showPanel;
    this.#draw();
  }

  /**
   * Show where a render of the story is; a double click on a bar plays from there.
   * @param {Player} player
   * @param {ShownPlace} place
   */
  follow(player, place) {
    this.#player = player;
    this.bars.follow(place);
  }

  /**
   * A frame that a player shows, see `Playhead.frame`; those of the player that is followed count.
   * @param {HTMLVideoElement} video
   * @param {number} mediaTime
   */
  frame(video, mediaTime) {
    if (video === this.#player?.video && this.isCurrent) this.bars.frame(video, mediaTime);
  }

  /** Where the selected prompt begins and ends, in seconds of the story; null where the text is no timeline. */
  get scene() {
    const segment = this.#hasBars ? this.segments[this.selected] : undefined;
    if (!segment) return null;
    const { start_block, end_block } = segment;
    return { from: startSeconds(this.timeline, start_block), until: startSeconds(this.timeline, end_block) };
  }

  /** Look at the node's values and, where they changed, show them; after changes that the text will hold in a moment. */
  refresh() {
    const values = this.#host.read();
    if (this.#writer.isWaiting(values.text)) return this.#writer.settled();
    const json = this.#jsonOf(values);
    if (json !== this.#valuesJson) this.#lastRead = this.#readNode(values, json);
    return this.#lastRead;
  }

  /** @param {StoryValues} values */
  #jsonOf(values) {
    return JSON.stringify([values, this.#host.linked("prompts")]);
  }

  /** What the text does not hold yet, typed letters too; null if it holds all. @returns {Unwritten | null} */
  get unwritten() {
    this.panel.flush();
    const isWritten = !this.#hasBars || this.segments === this.timeline.segments;
    return isWritten ? null : { segments: this.segments, shared: this.#shared };
  }

  /** Whether a change is not in the text yet, of typed letters, too. */
  get isChanging() {
    return this.panel.isTyping || (this.#hasBars && this.segments !== this.timeline.segments);
  }

  /** The node is gone: what its text does not hold, as `unwritten`, is written into it no more. */
  leave() {
    const { unwritten } = this;
    this.#writer.giveUp();
    return unwritten;
  }

  /** Write prompts into the text. @param {Unwritten} unwritten */
  async put({ segments, shared }) {
    await this.refresh();
    if (this.isCurrent) this.commit(segments, null, this.selected, { shared });
  }

  /** The height that the element needs, in pixels. */
  get height() {
    const isOpen = this.open && !this.#isDocked;
    const height = isOpen ? HEIGHT.open : HEIGHT.closed;
    return this.lane.element.hidden ? height : height + HEIGHT.lane;
  }

  /** @param {StoryValues} values @param {string} json of them, see `#jsonOf` */
  async #readNode(values, json) {
    this.#valuesJson = json;
    const isLatest = this.#writer.giveUp();
    if (this.#host.linked("prompts")) return this.#fail(t("The text comes from another node; change it there."));
    this.#undo.read(values);
    const known = this.#answers.of(json);
    const answer = known ?? (await this.#host.ask(values));
    if (!isLatest()) return;
    if (answer.offline) setTimeout(() => this.#forgetValues(), OFFLINE_MS);
    const field = pastedInto(values.text);
    if (answer.error) return this.#fail(answer.error);
    this.#values = values;
    this.#show(this.#answers.keep(json, answer));
    if (answer.written === undefined || !(field || this.#dropped === values.text)) return;
    replaceText(this.#host, answer.written, values.text, field);
    this.#dropped = null;
    this.#undo.change(null);
    await this.refresh();
    this.status.say(answer.read_as);
  }

  /** Take the text of a file in place of the story. @param {string} text */
  async take(text) {
    await this.settled();
    if (this.isPerformed) return this.status.say(PERFORMED(), true);
    this.#dropped = text;
    this.#host.write({ prompts: text });
    this.#undo.change(null);
    this.refresh();
  }

  /** The text of the node. */
  get text() {
    return this.#host.read().text;
  }

  /** Whether the text comes from another node. */
  get isTextLinked() {
    return this.#host.linked("prompts");
  }

  /** Put what is typed in place of the text of the node; the next look at the node asks the server. @param {string} text */
  writeText(text) {
    this.#host.write({ prompts: text });
    this.#undo.change("script");
  }

  /** The server has put another text into the node. @param {boolean} isStep whether it is one of undo */
  tookText(isStep) {
    if (isStep) this.#undo.change(null);
    else this.#undo.took();
  }

  /** Let the next refresh ask the server again. */
  #forgetValues() {
    this.#valuesJson = null;
  }

  /** Whether the bars are those of the text as it is now. */
  get isCurrent() {
    return this.#hasBars && this.#host.read().text === this.timeline.text;
  }

  /**
   * Write changed segments into the text. If the text was changed elsewhere, just before or meanwhile, that change stays
   * and this one is dropped, which the status says, and false returned. See `Change` for the key and the rest.
   * @param {Segment[]} segments
   * @param {string | null} key
   */
  commit(segments, key, selected = this.selected, { shared = this.#shared, keepsSeconds = false } = {}) {
    if (this.isPerformed) {
      this.#refuse(PERFORMED());
      return false;
    }
    if (!this.isCurrent) {
      this.status.hasLostChange = true;
      this.#forgetValues();
      this.refresh();
      return false;
    }
    const change = { segments: joined(segments), shared, key, keepsSeconds };
    if (!this.#writer.write(change, this.timeline, this.#values)) return false;
    this.segments = change.segments;
    this.selected = selected;
    this.#shared = shared;
    this.#draw();
    return true;
  }

  /**
   * Show what the server has made of a change, which the text holds now.
   * @param {Timeline} answer
   * @param {StoryValues} values
   * @param {Change} change
   */
  #written(answer, values, { key, refused }) {
    this.status.hasLostChange = false;
    this.#values = values;
    this.#valuesJson = this.#jsonOf(values);
    this.#undo.change(key);
    this.#show(this.#answers.keep(this.#valuesJson, answer), this.selected, refused !== undefined);
    if (refused) this.status.say(refused, true);
  }

  /**
   * Go back to what was there before a change: the one before it, or the text as it is.
   * @param {string} sentence
   * @param {Unwritten} before
   */
  #refuse(sentence, before = this.timeline) {
    this.segments = before.segments;
    this.#shared = before.shared;
    this.choice.limit(this.segments.length);
    this.status.say(sentence, true);
    this.#draw(true);
  }

  /** @param {Timeline} timeline */
  #show(timeline, selected = this.selected, keepWords = false) {
    this.#hasBars = timeline.segments.length <= MOST_BARS;
    this.timeline = timeline;
    this.#shared = timeline.shared;
    this.segments = this.#hasBars ? timeline.segments : [];
    this.selected = selected;
    this.choice.limit(this.segments.length);
    this.status.show(timeline, this.#hasBars);
    this.ways.show(timeline, this.#host.linked("seconds"));
    this.#draw(keepWords);
  }

  /** Show no bars, and why. @param {string} sentence */
  #fail(sentence) {
    this.#hasBars = false;
    this.status.say(sentence, true);
    this.#draw();
  }

  #draw(keepWords = false) {
    const segment = this.segments[this.selected];
    const enabled = this.#hasBars && segment !== undefined;
    this.bars.element.hidden = segment === undefined;
    this.panel.element.hidden = segment === undefined || !(this.open || this.#isDocked);
    if (this.timeline) this.lane.show(this.#shared, this.#host.read(), enabled);
    if (this.#shownHeight !== this.height) {
      this.#shownHeight = this.height;
      this.#host.resized();
    }
    if (segment) {
      const { timeline, segments, selected, choice } = this;
      const state = { timeline, segments, selected, choice, enabled };
      this.bars.draw(state);
      this.panel.show(state, keepWords);
    }
    const blocks = enabled ? segment.end_block - segment.start_block : 0;
    if (this.#isDocked) this.home.draw();
    this.tools.draw({ blocks, prompts: this.segments.length, history: this.#undo.history });
  }

  /** The index of the prompt whose words are shown. */
  get selected() {
    return this.choice.selected;
  }

  set selected(index) {
    if (index !== this.choice.selected) this.choice.only(index);
  }

  /** @param {number} index */
  select(index) {
    if (index !== this.selected) this.#choose(() => this.choice.only(index));
  }

  /** Choose prompts in a row. @param {number} first @param {number} count */
  span(first, count) {
    this.#choose(() => this.choice.span(first, count));
  }

  /** @param {() => void} change changes the choice */
  #choose(change) {
    this.panel.flush();
    change();
    this.choice.limit(this.segments.length);
    this.#draw();
  }

  /** @param {boolean} open */
  #setOpen(open) {
    if (open === this.open || this.#isDocked) return; // there the fields are always shown
    this.open = open;
    this.#draw();
  }

  edit(all = false) {
    this.#setOpen(true);
    this.panel.edit(all);
  }

  /** The prompts with other fields of one; a seed is that of all chosen ones. @param {number} index @param {Partial<Segment>} fields */
  #changed(index, fields) {
    const indices = "seed" in fields ? this.choice.indices : [index];
    return indices.reduce((segments, each) => changed(segments, each, fields), this.segments);
  }

  /**
   * Show segments while they are dragged; nothing is written.
   * @param {Segment[]} segments
   * @param {number} selected
   * @param {number} count of those that are dragged
   */
  #preview(segments, selected, count) {
    this.segments = joined(segments);
    if (count > 1) this.choice.span(selected, count);
    else this.selected = selected;
    const { start_block } = this.segments[this.selected];
    const time = timeText(Math.round(10 * startSeconds(this.timeline, start_block)) / 10);
    this.status.say(t("Prompt %1 begins at %2", this.selected + 1, time));
    this.#draw();
  }

  /** Say that a prompt cannot be changed any more. @param {number} index */
  locked(index) {
    this.status.say(t("Prompt %1 has begun; it stays in its place until the render ends.", index + 1), true);
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

  /** @param {number} by -1: undo; 1: redo */
  async #step(by) {
    await this.settled();
    if (this.isPerformed || !this.#undo.go(by)) return;
    this.refresh();
    this.#draw();
  }

  /** Run, as Ctrl+Enter does anywhere, but with the letters that were typed last. @param {boolean} isFirst */
  async #run(isFirst) {
    await this.settled();
    this.#host.run(isFirst);
  }
}
