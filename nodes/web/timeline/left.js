// Stories that are left before the text of their node holds all that was typed: with the page, or with their workflow.
// They are put back when their nodes are there again.

const ALL_MS = 3000; // from the first of them on, all nodes of a workflow that was open are back
const LOAD_MS = 60_000; // from the load of the page on, such a workflow is open

/**
 * @typedef {object} Story
 * @property {string} graph id of the graph of its node
 * @property {string} node
 * @property {{prompts: string, seconds: number}} values of the node
 * @property {{segments: object[], shared: string} | null} unwritten what its text does not hold
 */

/** Stories that the page was left with, as JSON, for the next load of the page. */
export const storedStories = (stories) => JSON.stringify(lastOfEach(stories));

/** Stories, the last one of each node. */
function lastOfEach(stories) {
  return [...new Map(stories.map((story) => [`${story.graph} ${story.node}`, story])).values()];
}

/** The stories that the page was left with when it was loaded. */
export class PageStories {
  /** @type {Story[]} */
  #stories;

  /** @param {string | null} stored JSON of `storedStories` */
  constructor(stored) {
    this.#stories = lastOfEach(JSON.parse(stored ?? "[]"));
    if (this.#stories.length) this.#endAfter(LOAD_MS);
  }

  #endAfter(milliseconds) {
    setTimeout(() => (this.#stories = []), milliseconds);
  }

  /**
   * Take the story of a node out; undefined without one. A graph without an id (all zeros) gets one when it is loaded.
   * @param {string | undefined} graph
   * @param {string} node
   */
  take(graph, node) {
    const found = this.#stories.find((each) => each.node === node && (each.graph === graph || !/[^0-]/.test(each.graph)));
    if (!found) return undefined;
    this.#stories = this.#stories.filter((each) => each !== found);
    this.#endAfter(ALL_MS);
    return found;
  }
}

/** Prompts that no text held when their nodes left with a workflow, by place of the node; see `placeOf`. */
export class WorkflowStories {
  #changes = new Map();

  /** Keep what `unwritten` of an editor gives, a change of a text; null: there is nothing to keep. */
  keep(place, text, unwritten) {
    if (unwritten) this.#changes.set(place, { text, unwritten });
  }

  /**
   * Take out what was kept of the node at a place, if it has the text that was changed; else null. The node may get its
   * text a moment after it is there; then nothing is kept any more.
   */
  take(place, text) {
    const change = this.#changes.get(place);
    if (!change) return null;
    if (change.text === text) {
      this.#changes.delete(place);
      return change.unwritten;
    }
    change.end ??= setTimeout(() => this.#changes.get(place) === change && this.#changes.delete(place), ALL_MS);
    return null;
  }
}
