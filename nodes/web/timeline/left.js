// Stories that are left before the text of their node holds all that was typed: with the page, or with their workflow.
// They are put back when their nodes are there again.
/** @import {Unwritten} from "../types.js" */

const ALL_MS = 3000; // from the first of them on, all nodes of a workflow that was open are back
const LOAD_MS = 60_000; // from the load of the page on, such a workflow is open

/**
 * A story that was left.
 * @typedef {object} LeftStory
 * @property {string} graph id of the graph of its node
 * @property {string} node
 * @property {{prompts: string, seconds: number}} values of the node
 * @property {Unwritten | null} unwritten what its text does not hold
 */

/** Stories that the page was left with, as JSON, for the next load of the page. @param {LeftStory[]} stories */
export const storedStories = (stories) => JSON.stringify(lastOfEach(stories));

/** Stories, the last one of each node. @param {LeftStory[]} stories */
function lastOfEach(stories) {
  /** @type {Map<string, LeftStory>} */
  const byNode = new Map();
  for (const story of stories) byNode.set(`${story.graph} ${story.node}`, story);
  return [...byNode.values()];
}

/** The stories that the page was left with when it was loaded. */
export class PageStories {
  /** @type {LeftStory[]} */
  #stories;

  /** @param {string | null} stored JSON of `storedStories` */
  constructor(stored) {
    this.#stories = lastOfEach(stored === null ? [] : JSON.parse(stored));
    if (this.#stories.length) this.#endAfter(LOAD_MS);
  }

  /** @param {number} milliseconds */
  #endAfter(milliseconds) {
    setTimeout(() => {
      this.#stories = [];
    }, milliseconds);
  }

  /**
   * Take the story of a node out; undefined without one. A graph without an id (all zeros) gets one when it is loaded.
   * @param {string | undefined} graph
   * @param {string} node
   */
  take(graph, node) {
    /** @param {LeftStory} story */
    const isOfGraph = (story) => story.graph === graph || !/[^0-]/.test(story.graph);
    const found = this.#stories.find((story) => story.node === node && isOfGraph(story));
    if (!found) return undefined;
    this.#stories = this.#stories.filter((each) => each !== found);
    this.#endAfter(ALL_MS);
    return found;
  }
}

/** Prompts that no text held when their nodes left with a workflow, by place of the node; see `placeOf`. */
export class WorkflowStories {
  /** @type {Map<string, {text: string | undefined, unwritten: Unwritten, end?: ReturnType<typeof setTimeout>}>} */
  #changes = new Map();

  /**
   * Keep what `unwritten` of an editor gives, a change of a text; null: there is nothing to keep.
   * @param {string} place
   * @param {string | undefined} text
   * @param {Unwritten | null} unwritten
   */
  keep(place, text, unwritten) {
    if (unwritten) this.#changes.set(place, { text, unwritten });
  }

  /**
   * Take out what was kept of the node at a place, if it has the text that was changed; else null. The node may get its
   * text a moment after it is there; then nothing is kept any more.
   * @param {string} place
   * @param {string} text
   */
  take(place, text) {
    const change = this.#changes.get(place);
    if (!change) return null;
    if (change.text === text) {
      this.#changes.delete(place);
      return change.unwritten;
    }
    change.end ??= setTimeout(() => {
      if (this.#changes.get(place) === change) this.#changes.delete(place);
    }, ALL_MS);
    return null;
  }
}
