// The line that says what Run would do with the story as it is: what is kept, what is rendered, and about how long that
// takes. The server compares the blocks, see nodes/host/browser/forecast.py.
import { app } from "../../../scripts/app.js";
import { queuedId } from "../queue_part.js";
import { graphNow } from "../queued_graph.js";
import { button, isLinked, make, post, put, putValues, storyOf } from "../shared.js";
import { t } from "../texts.js";
import { newSeed } from "../timeline/edits.js";
import { changed, plainTime } from "../timeline/segments.js";
/** @import {GraphNode} from "../types.js" */
/** @import {Player} from "../player/player.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */

const MOST_SECONDS = 90; // of a duration that is told in seconds

/**
 * What the server answers; empty if it does not know.
 * @typedef {{kept?: number, renders?: number, takes?: number | null}} Answer
 */

export class Forecast {
  /** @type {TimelineEditor | null} */
  #editor = null;
  /** @type {GraphNode | null} */
  #storyNode = null;
  /** @type {Player | null} */
  #player = null;
  #before = ""; // the values that were seen last, as JSON,
  #queried = ""; // and those for which the server was asked
  #changes = 0; // of the graph

  constructor() {
    this.line = make("output", {});
    const hint = t("Render the same story again with another seed");
    this.again = button(t("another take"), hint, () => this.#renderAnother());
    this.again.hidden = true;
    this.element = make("span", { class: "hf-story-forecast" }, this.line, this.again);
    app.api.addEventListener("graphChanged", () => this.#changes++);
  }

  /**
   * Show it below the bars of an editor, for the sampler of a player; none where one is null.
   * @param {GraphNode | null} storyNode
   * @param {TimelineEditor | null} editor
   * @param {Player | null} player
   */
  bind(storyNode, editor, player) {
    this.element.remove();
    this.#say({});
    this.#before = this.#queried = "";
    this.#storyNode = storyNode;
    this.#editor = player && editor;
    this.#player = player;
    this.#editor?.status.element.before(this.element);
  }

  /** Ask again when the values of both nodes or the graph have changed, or a run has ended; nothing is said while one goes on. */
  look() {
    if (!this.#editor || !this.#player) return;
    const { node, told } = this.#player;
    const isBusy = told?.state === "running" || !this.#editor.isCurrent;
    const widgets = node.widgets?.map(({ value }) => (typeof value === "object" ? null : value));
    const values = JSON.stringify([isBusy, storyOf(this.#storyNode), widgets, told?.prompt_id, told?.state, this.#changes]);
    const isStill = values === this.#before; // nobody types or drags
    this.#before = values;
    if (isBusy || values !== this.#queried) this.#say({}); // it was said of another story
    if (isBusy || !isStill || values === this.#queried) return;
    this.#queried = values;
    this.#ask(values);
  }

  /** @param {Answer} answer */
  #say(answer) {
    const isAll = answer.renders === 0;
    const ways = t("All of it is rendered. Change a prompt, or make another take:");
    const said = isAll && this.#canVary ? ways : sentence(answer);
    put(this.line, { textContent: said, title: said });
    put(this.again, { hidden: !isAll || !this.#canVary });
  }

  /** Whether the seed or the text is in a widget of its node. */
  get #canVary() {
    return Boolean(this.#player && !(isLinked(this.#player.node, "seed") && isLinked(this.#storyNode, "prompts")));
  }

  /** Run with a new seed: the sampler's, unless the first prompt has one, or it comes from another node. */
  async #renderAnother() {
    const { node } = this.#player;
    const editor = this.#editor;
    await editor.settled();
    const { segments } = editor;
    const isInText = segments[0]?.seed != null || isLinked(node, "seed");
    if (isInText) editor.commit(changed(segments, 0, { seed: newSeed() }), null);
    else putValues(node, { seed: Number(newSeed()) });
    app.queuePrompt(0); // which waits for the text
  }

  /** @param {string} values */
  async #ask(values) {
    const answer = await this.#answer();
    if (values === this.#queried) this.#say(answer);
  }

  /** @returns {Promise<Answer>} */
  async #answer() {
    try {
      const { output } = await graphNow();
      const node = queuedId(this.#player?.node, output);
      return node ? await post("/headforcing/forecast", { output, node }, "") : {};
    } catch {
      return {}; // another workflow was opened, or a node has no value: Run says so
    }
  }
}

/** @param {number} seconds */
const duration = (seconds) => (seconds < MOST_SECONDS ? t("%1 s", Math.max(1, Math.round(seconds))) : plainTime(seconds));

/** @param {Answer} answer */
function sentence({ kept, renders, takes }) {
  if (kept === undefined || renders === undefined) return "";
  if (renders === 0) return t("All of it is rendered. Change a prompt.");
  const rendered = plainTime(renders);
  const about = takes == null ? "" : duration(takes);
  if (kept && about) return t("Run keeps the video until %1 and renders %2, in about %3.", plainTime(kept), rendered, about);
  if (kept) return t("Run keeps the video until %1 and renders %2.", plainTime(kept), rendered);
  return about ? t("Run renders %1, in about %2.", rendered, about) : t("Run renders %1.", rendered);
}
