// A visual timeline on Prompt Timeline. The text widget stays the only thing that is saved and sent.
import { app } from "../../../scripts/app.js";
import { editors, isLinked, make, openId, placeOf, post, putValues, storyOf, whileInGraph, widgetOf } from "../shared.js";
import { t } from "../texts.js";
import { TimelineEditor } from "./editor.js";
import { ownerOf, storyNodeIn } from "./face.js";
import { History } from "./history.js";
import { Home } from "./home.js";
import { takeFiles } from "./pastes.js";
import { PageStories, storedStories, WorkflowStories } from "./left.js";
import { addElement } from "../widgets.js";
/** @import {GraphNode, Host, Owner} from "../types.js" */

/** The story panel, as far as an editor needs it. @typedef {{isThere: () => boolean, open: (node: GraphNode) => void}} Panel */

/** @type {Panel} */
let panel = { isThere: () => false, open() {} };
/** Open the story panel with this; `headforcing.js` hands it in. @param {Panel} given */
export const usePanel = (given) => { panel = given; };

const WIDTH = 420; // of a new node
const TEXT = 90; // height that its text gets above the least
const POLL_MS = 200;
const LEFT = "headforcing.stories"; // in the storage of this tab, between two loads of the page

const ofPage = new PageStories(sessionStorage.getItem(LEFT));
sessionStorage.removeItem(LEFT);
const ofWorkflows = new WorkflowStories();
/**
 * By workflow and node: the undo of the graph makes all nodes anew. Each with the id of the graph that was open.
 * @type {Map<string, {history: History, id: string}>}
 */
const histories = new Map();
/** The editors of this workflow, by node. @type {Map<GraphNode, {editor: TimelineEditor, owner: Owner, place: string}>} */
const open = new Map();

// ComfyUI's draft of a workflow, which is opened next, does not hold what was typed in the last seconds
window.addEventListener("pagehide", () => {
  const stories = [...open].map(([node, { editor, owner }]) => {
    const { unwritten } = editor;
    const { text, seconds } = storyOf(node, owner);
    return { graph: String(node.graph?.id), node: String(node.id), values: { prompts: text, seconds }, unwritten };
  });
  if (stories.length) sessionStorage.setItem(LEFT, storedStories(stories));
});

/**
 * Put back what the page, or the workflow of a node, was left with.
 * @param {GraphNode} node
 * @param {TimelineEditor} editor
 * @param {Owner} owner
 */
function putBack(node, editor, owner) {
  const found = ofPage.take(node.graph?.id, String(node.id));
  if (found) putValues(node, found.values, owner);
  const unwritten = found?.unwritten ?? ofWorkflows.take(placeOf(node), storyOf(node, owner).text);
  if (unwritten) editor.put(unwritten);
}

/** Wait until the texts of this workflow hold all changes that its editors show, also what was typed last. */
export const settled = () => Promise.all([...open.values()].map(({ editor }) => editor.settled()));

/** Load the style sheet of the editors, once for all editors. */
function addStyle() {
  const href = new URL("./timeline.css", import.meta.url).href;
  if (![...document.querySelectorAll("link")].some((link) => link.href === href))
    document.head.append(make("link", { rel: "stylesheet", href }));
}

/**
 * The history of a node that holds what it shows now; another workflow may have had a node of its id.
 * @param {GraphNode} node
 * @param {string} step
 */
function historyOf(node, step) {
  const place = placeOf(node);
  const id = openId();
  const known = histories.get(place);
  // the graph's undo may bring a text that is no step here, as one of several letters that were typed
  if (known && (known.history.holds(step) || (id && id === known.id))) return known.history;
  const history = new History();
  histories.set(place, { history, id });
  return history;
}

/**
 * A node as its editor sees it.
 * @param {GraphNode} node
 * @param {Owner} owner
 * @returns {Host}
 */
function hostOf(node, owner) {
  let grown = 0; // by how much the node is higher than it was, for fields that are open now
  return {
    read: () => storyOf(node, owner),
    linked: (name) => isLinked(...owner(name)),
    history: (step) => historyOf(node, step),
    write: (values) => putValues(node, values, owner),
    ask: (body) => post("/headforcing/timeline", body, t("The server does not answer; the text is unchanged.")),
    run: (first) => app.queuePrompt(first ? -1 : 0),
    showPanel: panel.isThere() ? () => panel.open(node) : undefined,
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

/**
 * Add the editor of a story to a node.
 * @param {GraphNode} node
 * @param {Owner} owner
 */
function addEditor(node, owner) {
  addStyle();
  const editor = new TimelineEditor(hostOf(node, owner));
  editor.home = new Home(editor, () => panel.open(node));
  const take = editor.take.bind(editor);
  takeFiles({ element: editor.home.element, node: node.isSubgraphNode?.() ? undefined : node, take });
  takeFiles({ element: widgetOf(...owner("prompts"))?.element, take });
  const height = () => editor.height;
  addElement(node, "timeline", editor.home.element, { getMinHeight: height, getMaxHeight: height });
  return editor;
}

/**
 * Call a function again and again while a node is in a graph, since values change in many ways (typing, loading, undo
 * of the graph, a subgraph's face), and the two renderers report them differently; looking is the same for all.
 * @param {GraphNode} node
 * @param {() => void} look
 */
function watch(node, look) {
  let timer = 0; // none
  const begin = () => {
    if (!timer) timer = setInterval(look, POLL_MS);
  };
  const end = () => {
    clearInterval(timer);
    timer = 0;
    const known = open.get(node);
    open.delete(node);
    if (known) ofWorkflows.keep(known.place, known.editor.timeline?.text, known.editor.leave());
  };
  whileInGraph(node, begin, end);
}

/**
 * Let the editor of a node look at its values.
 * @param {GraphNode} node
 * @param {TimelineEditor} editor
 * @param {Owner} owner
 */
function lookAt(node, editor, owner) {
  open.set(node, { editor, owner, place: placeOf(node) });
  putBack(node, editor, owner);
  editor.refresh();
}

/**
 * Show the editor on the face of a subgraph while that shows the text of a Prompt Timeline in it.
 * @param {GraphNode} face
 */
function watchFace(face) {
  /** @type {TimelineEditor | undefined} */
  let editor;
  /** @type {Owner} */
  let owner;
  watch(face, () => {
    const storyNode = storyNodeIn(face);
    if (storyNode && !editor) {
      owner = (name) => ownerOf(face, storyNodeIn(face) ?? storyNode, name);
      editor = addEditor(face, owner);
      if (!LiteGraph.vueNodesMode) face.setSize([face.size[0], Math.max(face.size[1], face.computeSize()[1])]);
    }
    if (storyNode && editor) editors.set(storyNode, editor); // players in the subgraph show there where they are
    if (editor) lookAt(face, editor, owner);
  });
}

/** @param {GraphNode} node */
export function nodeCreated(node) {
  if (node.isSubgraphNode?.()) {
    watchFace(node);
    return;
  }
  if (node.comfyClass !== "HeadForcingPromptTimeline") return;
  /** @type {Owner} */
  const owner = (name) => [node, name];
  const editor = addEditor(node, owner);
  editors.set(node, editor);
  const [width, low] = node.size;
  // a saved node gets its own size after this; one that is drawn too low grows, which is a step of the graph's undo
  const least = LiteGraph.vueNodesMode ? low : Math.max(low, node.computeSize()[1]);
  node.setSize([Math.max(width, WIDTH), least + TEXT]);
  watch(node, () => lookAt(node, editor, owner));
}
