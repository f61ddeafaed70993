// "Put the changes into the video" on Prompt Timeline: other prompts for the render that runs, see
// nodes/host/browser/live_story.py.
import { app } from "../../scripts/app.js";
import { listen } from "./server_events.js";
import { button, editors, holds, isLinked, isOpen, make, nodeOf, noteChanges, post, put } from "./shared.js";
import { putValues, storyOf, takeValues, whileInGraph } from "./shared.js";
import { t } from "./texts.js";
import { plainTime } from "./timeline/segments.js";
import { addElement } from "./widgets.js";
/** @import {GraphNode, ToldStory} from "./types.js" */

const HEIGHT = 62; // in pixels
const EVENT = "headforcing.story";
const LOOK_MS = 300; // a node's values change in many ways; looking is the same for all
const NOTHING = () => t("A prompt that has not begun can still be changed.");
const WAITS = () => t("Your changes are not in the video yet.");
const OTHERS = () => t("Another page has changed the story; the button puts this node's text in its place.");
const OFFLINE = () => t("No answer from the server; the text may still be taken at the next block.");

/** The story that can be changed, of the render that runs. @type {ToldStory | null} */
let running = null;
/** By Prompt Timeline node. @type {Map<GraphNode, LiveStory>} */
const parts = new Map();

/**
 * Show the button on the node whose story is rendered, if its text is its own, and on no other.
 * @param {ToldStory | null} told
 */
function update(told) {
  running = told;
  const node = running && isOpen(running.workflow) ? nodeOf(running.node_id) : null;
  for (const [each, part] of parts) part.show(each === node && !isLinked(each, "prompts"), told);
}

/** The node's own values for the route; of the others the render keeps those that it has. @param {GraphNode} node */
function ownStory(node) {
  const { text, ...values } = storyOf(node);
  const own = Object.entries(values).filter(([name]) => !isLinked(node, name));
  return { text, ...Object.fromEntries(own) };
}

/** The button of a Prompt Timeline; undefined for other nodes. @param {GraphNode | null} node */
export const liveStoryOf = (node) => parts.get(node);

class LiveStory {
  #node;
  #prompt = ""; // id of the render that was heard of last,
  /** And the values that it has. @type {Record<string, unknown>} */
  #story = {};
  #performed = ""; // id of the live video whose story this node has
  #isLent = false; // whether the story panel shows the button
  #replaces = false; // whether another page's change is not in this node
  #waits = false; // whether the node has a change that the render does not have
  #isApplying = false;
  #timer = 0; // looks at the node while its story is rendered

  /** @param {GraphNode} node */
  constructor(node) {
    this.#node = node;
    this.shown = false;
    this.button = button(t("put the changes into the video"), NOTHING(), () => this.#apply());
    this.status = make("div", { role: "status" });
    this.button.disabled = true;
    this.row = make("div", { class: "hf-live-story" }, this.button, this.status);
    this.element = make("div", { class: "hf-live-place" }, this.row);
    const height = () => HEIGHT; // also while nothing runs: a node that grows is a step of the graph's undo
    addElement(node, "live_story", this.element, { getMinHeight: height, getMaxHeight: height });
  }

  /** Show the button in the story panel, behind an element, while the story is rendered. @param {HTMLElement} before */
  lend(before) {
    this.element.style.minHeight = `${this.element.offsetHeight}px`; // in Nodes 2.0 a node is as high as what it holds
    this.#isLent = true;
    before.after(this.row);
    this.row.hidden = !this.shown;
  }

  takeBack() {
    this.#isLent = false;
    this.row.hidden = false;
    this.element.append(this.row);
    this.element.style.minHeight = "";
  }

  /** @param {boolean} shown @param {ToldStory | null} [told] */
  show(shown, told) {
    if (shown) this.#hear(told);
    if (shown === this.shown) return;
    this.shown = shown;
    this.row.hidden = this.#isLent && !shown;
    clearInterval(this.#timer);
    if (shown) this.#timer = setInterval(() => this.#look(), LOOK_MS);
    this.#waits = false;
    this.#say(shown ? NOTHING() : "");
    this.#look();
  }

  /** Enable the button while the node has other values than the render. */
  #look() {
    const isChanging = editors.get(this.#node)?.isChanging ?? false;
    const waits = this.shown && (isChanging || !holds(this.#node, this.#story));
    put(this.button, { disabled: !waits || this.#isApplying });
    if (waits === this.#waits) return;
    this.#waits = waits;
    if (waits) this.#say(this.#replaces ? OTHERS() : WAITS());
    else if (this.status.textContent === WAITS()) this.#say(NOTHING());
  }

  /** @param {string} sentence @param {string} [title] */
  #say(sentence, title = sentence, isError = false) {
    put(this.status, { textContent: sentence, title });
    this.status.classList.toggle("hf-error", isError);
  }

  /**
   * Take over what another page has told the render, unless this node holds something else that was not sent.
   * @param {ToldStory} told
   */
  #hear({ prompt_id, story, changed_by }) {
    const before = prompt_id === this.#prompt ? this.#story : story;
    this.#prompt = prompt_id;
    this.#story = story;
    if (JSON.stringify(story) === JSON.stringify(before) || changed_by === app.api.clientId) return;
    const isChanged = !holds(this.#node, before);
    if (!changed_by) return this.#take(prompt_id, story, isChanged);
    this.#replaces = isChanged;
    if (!this.#replaces) putValues(this.#node, story);
    this.#say(this.#replaces ? OTHERS() : t("Another page has changed the story; this is its text."));
  }

  /**
   * Take over what the server of a live video has written. All that it writes is one step of undo, which brings back the
   * story from before the video.
   * @param {string} prompt_id
   * @param {Record<string, unknown>} story
   * @param {boolean} isChanged whether this node holds something else, which is a step of its own
   */
  #take(prompt_id, story, isChanged) {
    const isFirst = this.#performed !== prompt_id;
    this.#performed = prompt_id;
    noteChanges();
    if (isFirst || isChanged) putValues(this.#node, story);
    else takeValues(this.#node, story);
    if (!isChanged) editors.get(this.#node)?.tookText(isFirst);
  }

  async #apply() {
    if (!running) return;
    const { prompt_id, node_id } = running;
    this.#isApplying = true;
    this.#look();
    this.#say(t("Waits for the next block."));
    await this.#send(prompt_id, node_id);
    this.#isApplying = false;
    this.#look();
  }

  /** @param {string} prompt_id @param {string} node_id */
  async #send(prompt_id, node_id) {
    await editors.get(this.#node)?.settled();
    if (isLinked(this.#node, "prompts")) {
      this.show(false); // since the last block
      return;
    }
    const body = { client_id: app.api.clientId, prompt_id, node_id, ...ownStory(this.#node) };
    const answer = await post("/headforcing/story", body, OFFLINE());
    if (answer.error) {
      this.#tell("error", answer.error, answer.error);
      return;
    }
    const from = plainTime(answer.seconds);
    const taken = this.#replaces
      ? t("The video takes it from %1 on, in place of what another page has changed.", from)
      : t("The video takes it from %1 on.", from);
    this.#replaces = false;
    this.#tell("success", taken, `${answer.time}, ${t("block %1", answer.block)}`);
  }

  /** @param {"error" | "success"} severity @param {string} sentence @param {string} title */
  #tell(severity, sentence, title) {
    this.#say(sentence, title, severity === "error");
    const toast = { severity, summary: t("Prompt Timeline"), detail: sentence, life: 8000 };
    app.extensionManager?.toast?.add?.(toast);
  }
}

export function setup() {
  listen(EVENT, {
    take(/** @type {ToldStory} */ told) {
      if (told.running && told.story) update(told);
      else if (told.prompt_id === running?.prompt_id) update(null);
    },
    known: () => (running && isOpen(running.workflow) ? [running] : []),
    lose: () => update(null),
  });
  for (const outcome of ["success", "error", "interrupted"])
    app.api.addEventListener(`execution_${outcome}`, () => update(null));
}

/** @param {GraphNode} node */
export function nodeCreated(node) {
  if (node.comfyClass !== "HeadForcingPromptTimeline") return;
  const before = node.computeSize()[1];
  const part = new LiveStory(node);
  const [width, height] = node.size;
  if (!LiteGraph.vueNodesMode) node.setSize([width, height + node.computeSize()[1] - before]);
  whileInGraph(
    node,
    () => parts.set(node, part),
    () => {
      parts.delete(node);
      part.show(false);
    },
  );
}
