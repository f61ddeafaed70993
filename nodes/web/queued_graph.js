// What is done to a graph before it is queued: it waits for changes of prompts that the server has not answered yet, and
// dates and values of widgets in a filename_prefix, such as %date:yyyy-MM-dd%, are filled in as for ComfyUI's save nodes.
import { app } from "../../scripts/app.js";
import { t } from "./texts.js";
import { settled } from "./timeline/node.js";

const NODES = new Set([
  "HeadForcingSampler", "HeadForcingDecodeVideo", "HeadForcingFinishVideo", "HeadForcingCompareMethods",
]);
const LONGEST_MS = 10_000; // that a run waits for the server to answer a change

/** The graph as it is now, for a question to the server: nothing is waited for and no prefix is filled in. */
export let graphNow = () => app.graphToPrompt();

/** Fill prefixes in when a graph is queued. The texts of the widgets stay; that of a subgraph's face is there, too. */
export function setup() {
  const graphToPrompt = app.graphToPrompt;
  graphNow = () => graphToPrompt.call(app);
  /** @param {any[]} args */
  app.graphToPrompt = async function (...args) {
    await waitForChanges();
    const prompt = await graphToPrompt.apply(this, args);
    for (const { class_type, inputs } of Object.values(prompt.output)) {
      const prefix = inputs.filename_prefix; // a link is no text
      if (NODES.has(class_type) && typeof prefix === "string") inputs.filename_prefix = fillPrefix(prefix);
    }
    return prompt;
  };
}

/**
 * Wait until all changes of prompts are in their texts; if that takes too long, say that they are left out. It is an error
 * to open another workflow meanwhile: that one would be rendered.
 */
async function waitForChanges() {
  const before = openPath();
  let timer;
  const tooLong = new Promise((end) => (timer = setTimeout(end, LONGEST_MS, "too long")));
  const outcome = await Promise.race([settled(), tooLong]);
  clearTimeout(timer);
  if (openPath() !== before) throw new Error(t("Another workflow was opened before the run began; nothing is queued."));
  if (outcome !== "too long") return;
  const detail = t("The server does not answer; the last change of the prompts is not in this run.");
  app.extensionManager?.toast?.add?.({ severity: "warn", summary: t("Prompt Timeline"), detail, life: 8000 });
}

const openPath = () => app.extensionManager?.workflow?.activeWorkflow?.path;

/** The prefix as the editor fills it in. @param {string} prefix */
function fillPrefix(prefix) {
  const fill = window.comfyAPI?.utils?.applyTextReplacements;
  return fill ? fill(app, prefix) : prefix;
}
