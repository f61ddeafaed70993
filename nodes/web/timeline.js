// A visual timeline on Prompt Timeline. The text widget stays the only thing that is saved and sent.
import { app } from "../../scripts/app.js";
import { editors, isLinked, post, putStory, storyOf, whileInGraph } from "./shared.js";
import { TimelineEditor } from "./timeline/editor.js";
import { addElement } from "./widgets.js";

const HEIGHT = { closed: 138, open: 270 }; // of the widget in pixels, without and with the fields of a prompt
const [WIDTH, TEXT] = [420, 90]; // of a new node, and what its text gets above the least height
const POLL_MS = 200;

/** What the editor sees of its node: its widgets' values, the text to write, and the server to ask. */
function hostOf(node) {
  let grown = 0; // by how much the node is higher for the open fields than it was
  return {
    read: () => storyOf(node),
    linked: () => isLinked(node, "prompts"),
    write: (prompts) => putStory(node, { prompts }),
    ask: (body) => post("/headforcing/timeline", body, "The server does not answer; the text is unchanged."),
    run: (first) => app.queuePrompt(first ? -1 : 0),
    resized(open) {
      if (LiteGraph.vueNodesMode) return; // there a node is as high as what it holds
      const [width, height] = node.size;
      const needed = Math.max(0, node.computeSize()[1] - height); // the text above gives what it has to spare
      node.setSize([width, open ? height + needed : height - grown]);
      grown = open ? needed : 0;
      node.graph?.setDirtyCanvas?.(true, true);
    },
  };
}

export function nodeCreated(node) {
  if (node.comfyClass !== "HeadForcingPromptTimeline") return;
  const editor = new TimelineEditor(hostOf(node));
  editors.set(node, editor);
  const height = () => (editor.open ? HEIGHT.open : HEIGHT.closed);
  addElement(node, "timeline", editor.element, { getMinHeight: height, getMaxHeight: height });
  const [width, low] = node.size;
  node.setSize([Math.max(width, WIDTH), low + TEXT]); // a saved node gets its own size after this

  // Values change in many ways (typing, loading, undo of the graph, a subgraph's promoted widget), and the two
  // renderers report them differently; looking is the same for all.
  let timer = null;
  const begin = () => (timer ??= setInterval(() => editor.refresh(), POLL_MS));
  whileInGraph(node, begin, () => {
    clearInterval(timer);
    timer = null;
  });
}
