// The line that says what Run would do with the story as it is: what is kept, what is rendered, and about how long that
// takes. The server compares the blocks, see nodes/host/browser/forecast.py.
import { app } from "../../../scripts/app.js";
import { queuedId } from "../queue_part.js";
import { graphNow } from "../queued_graph.js";
import { make, post, put, storyOf } from "../shared.js";
import { t } from "../texts.js";
import { plainTime } from "../timeline/segments.js";
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
    this.element = make("output", { class: "hf-story-forecast" });
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
    this.element.textContent = "";
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
    if (isBusy || values !== this.#queried) put(this.element, { textContent: "" }); // it was said of another story
    if (isBusy || !isStill || values === this.#queried) return;
    this.#queried = values;
    this.#ask(values);
  }

  /** @param {string} values */
  async #ask(values) {
    const answer = await this.#answer();
    if (values === this.#queried) put(this.element, { textContent: sentence(answer) });
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
  if (renders === 0) return t("All of it is rendered.");
  const rendered = plainTime(renders);
  const about = takes == null ? "" : duration(takes);
  if (kept && about) return t("Run keeps the video until %1 and renders %2, in about %3.", plainTime(kept), rendered, about);
  if (kept) return t("Run keeps the video until %1 and renders %2.", plainTime(kept), rendered);
  return about ? t("Run renders %1, in about %2.", rendered, about) : t("Run renders %1.", rendered);
}
