// "Apply from the next block" on Prompt Timeline: other prompts for the render that runs, see nodes/host/live_story.py.
import { app } from "../../scripts/app.js";
import { button, editors, isLinked, isOpen, make, nodeOf, post, storyOf, whileInGraph } from "./shared.js";

const HEIGHT = 62; // in pixels, while the story can be changed
const EVENT = "headforcing.story";
const HINT = "Prompts that have not begun take what this node holds now.";
const OFFLINE = "No answer from the server; the text may still be taken at the next block.";

let running = null; // what the server told of the render whose story can be changed
const parts = new Map(); // by Prompt Timeline node

/** Show the button on the node whose story is rendered, if it is written there, and on no other. */
function update(told) {
  running = told;
  const node = running && isOpen(running.workflow) ? nodeOf(running.node_id) : null;
  for (const [each, part] of parts) part.show(each === node && !isLinked(each, "prompts"));
}

/** The node's own values for the route; of the others the render keeps those that it has. */
function ownStory(node) {
  const { text, ...values } = storyOf(node);
  return { text, ...Object.fromEntries(Object.entries(values).filter(([name]) => !isLinked(node, name))) };
}

class LiveStory {
  #node;
  #height = null; // of the node without the button

  constructor(node) {
    this.#node = node;
    this.shown = false;
    this.button = button("apply from the next block", HINT, () => this.#apply());
    this.status = make("div", { role: "status", style: "font-size: 11px; overflow: hidden; opacity: 0.8" });
    this.button.style.cssText =
      "width: 100%; height: 26px; cursor: pointer; border: 1px solid var(--border-color, #4e4e4e); " +
      "border-radius: 6px; background: var(--comfy-input-bg, #222); " +
      "color: var(--input-text, #ddd); font: inherit; font-size: 12px";
    this.element = make("div", { class: "hf-live-story", hidden: true }, this.button, this.status);
    this.widget = node.addDOMWidget("live_story", "headforcing_live_story", this.element, {
      serialize: false,
      getMinHeight: () => (this.shown ? HEIGHT : 0),
      getMaxHeight: () => (this.shown ? HEIGHT : 0),
      getValue: () => "",
    });
    this.widget.serialize = false; // after all that is saved, so that the values of workflows stay in their places
    this.widget.hidden = true;
  }

  show(shown) {
    if (shown === this.shown) return;
    this.shown = shown;
    this.element.hidden = this.widget.hidden = !shown;
    if (shown) {
      this.status.textContent = HINT;
      this.#height = this.#node.size[1];
      this.#node.setSize([this.#node.size[0], this.#height + HEIGHT]);
    } else if (this.#height !== null) {
      this.#node.setSize([this.#node.size[0], Math.max(this.#height, this.#node.size[1] - HEIGHT)]);
    }
    this.#node.graph?.setDirtyCanvas?.(true, true);
  }

  async #apply() {
    if (!running) return;
    const { prompt_id, node_id } = running;
    this.status.textContent = "Waits for the next block.";
    await editors.get(this.#node)?.settled();
    if (isLinked(this.#node, "prompts")) return this.show(false); // since the last block
    const body = { client_id: app.api.clientId, prompt_id, node_id, ...ownStory(this.#node) };
    const answer = await post("/headforcing/story", body, OFFLINE);
    const place = `from ${answer.time} on, block ${answer.block} of ${answer.blocks}`;
    const [severity, words] = answer.error ? ["error", answer.error] : ["success", `The video takes it ${place}.`];
    this.status.textContent = this.status.title = words;
    const toast = { severity, summary: "Prompt Timeline", detail: words, life: 8000 };
    app.extensionManager?.toast?.add?.(toast);
  }
}

app.registerExtension({
  name: "HeadForcing.LiveStory",
  setup() {
    app.api.addEventListener(EVENT, ({ detail }) => {
      if (detail.running) update(detail);
      else if (detail.prompt_id === running?.prompt_id) update(null);
    });
    for (const outcome of ["success", "error", "interrupted"])
      app.api.addEventListener(`execution_${outcome}`, () => update(null));
  },
  nodeCreated(node) {
    if (node.comfyClass !== "HeadForcingPromptTimeline") return;
    const part = new LiveStory(node);
    whileInGraph(
      node,
      () => parts.set(node, part),
      () => parts.delete(node),
    );
  },
});
