// A visual timeline on Prompt Timeline. The text widget stays the only thing that is saved and sent.
import { app } from "../../scripts/app.js";
import { editors, isLinked, make, post, putStory, storyOf, whileInGraph } from "./shared.js";
import { t } from "./texts.js";
import { TimelineEditor } from "./timeline/editor.js";
import { ownerOf, storyIn } from "./timeline/face.js";
import { addElement } from "./widgets.js";

const [WIDTH, TEXT] = [420, 90]; // of a new node, and what its text gets above the least height
const POLL_MS = 200;
const LEFT = "headforcing.stories"; // in the storage of this tab, between two loads of the page
const LEFT_MS = 60000; // until a workflow that was open is open again

let left = JSON.parse(sessionStorage.getItem(LEFT) ?? "[]"); // { graph, node, story } of each node
sessionStorage.removeItem(LEFT);
setTimeout(() => (left = []), LEFT_MS);
const open = new Map(); // the editors of this workflow, by node

window.addEventListener("pagehide", () => {
  const leave = ([{ graph, id }, editor]) => ({ graph: String(graph?.id ?? ""), node: String(id), story: editor.leave() });
  const stories = [...open].map(leave).filter(({ story }) => story);
  if (stories.length) sessionStorage.setItem(LEFT, JSON.stringify(stories));
});

/** What the page was left with of a node's story, once; a graph without an id (all zeros) gets one when it is loaded. */
function storyLeft({ graph, id }) {
  const isIts = (each) => each.node === String(id) && (each.graph === graph?.id || !/[^0-]/.test(each.graph));
  const found = left.find(isIts);
  left = left.filter((each) => each !== found);
  return found?.story;
}

/** Load the style sheet of the editors, once for all editors. */
function addStyle() {
  const href = new URL("./timeline/timeline.css", import.meta.url).href;
  if (![...document.querySelectorAll("link")].some((link) => link.href === href))
    document.head.append(make("link", { rel: "stylesheet", href }));
}

/** What the editor sees of its node: its widgets' values, what to write, and the server to ask. */
function hostOf(node, owner) {
  let grown = 0; // by how much the node is higher than it was, for fields that are open now
  return {
    read: () => storyOf(node, owner),
    linked: (name) => isLinked(...owner(name)),
    write: (values) => putStory(node, values, owner),
    ask: (body) => post("/headforcing/timeline", body, t("The server does not answer; the text is unchanged.")),
    run: (first) => app.queuePrompt(first ? -1 : 0),
    resized() {
      if (LiteGraph.vueNodesMode) return; // there a node is as high as what it holds
      const [width, height] = node.size;
      const own = height - grown; // the text above gives what it has to spare
      grown = Math.max(0, node.computeSize()[1] - own);
      node.setSize([width, own + grown]);
      node.graph?.setDirtyCanvas?.(true, true);
    },
  };
}

/** Add the editor of a story to a node; `owner(name)` gives the node and the name of the widget that holds a value. */
function addEditor(node, owner) {
  addStyle();
  const editor = new TimelineEditor(hostOf(node, owner));
  const height = () => editor.height;
  addElement(node, "timeline", editor.element, { getMinHeight: height, getMaxHeight: height });
  return editor;
}

/** Call a function again and again while a node is in a graph, since values change in many ways (typing, loading, undo
 * of the graph, a subgraph's face), and the two renderers report them differently; looking is the same for all. */
function watch(node, look) {
  let timer = null;
  const begin = () => (timer ??= setInterval(look, POLL_MS));
  whileInGraph(node, begin, () => {
    clearInterval(timer);
    timer = null;
    open.delete(node);
  });
}

/** Let the editor of a node look at its values; the first time those come back that the page was left with. */
function lookAt(node, editor) {
  open.set(node, editor);
  const story = storyLeft(node);
  if (story) editor.comeBack(story);
  else editor.refresh();
}

/** Show the editor on the face of a subgraph while that shows the text of a Prompt Timeline in it. */
function watchFace(face) {
  let editor = null;
  watch(face, () => {
    const story = storyIn(face);
    if (story && !editor) {
      editor = addEditor(face, (name) => ownerOf(face, storyIn(face) ?? story, name));
      if (!LiteGraph.vueNodesMode) face.setSize([face.size[0], Math.max(face.size[1], face.computeSize()[1])]);
    }
    if (story) editors.set(story, editor); // players in the subgraph show there where they are
    if (editor) lookAt(face, editor);
  });
}

export function nodeCreated(node) {
  if (node.isSubgraphNode?.()) return watchFace(node);
  if (node.comfyClass !== "HeadForcingPromptTimeline") return;
  const editor = addEditor(node, (name) => [node, name]);
  editors.set(node, editor);
  const [width, low] = node.size;
  node.setSize([Math.max(width, WIDTH), low + TEXT]); // a saved node gets its own size after this
  watch(node, () => lookAt(node, editor));
}
