// What several scripts need: elements without HTML in strings, nodes of the open workflow, questions to the server.
import { app } from "../../scripts/app.js";
/** @import {FileName, GraphNode, Owner, Reference, StoryValues} from "./types.js" */
/** @import {TimelineEditor} from "./timeline/editor.js" */

/**
 * A new element.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} attributes those whose names begin with "on" are event listeners
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/**
 * Set properties of an element where they have other values: a browser draws anew what is set, also to what it was.
 * @param {HTMLElement} element
 * @param {Record<string, any>} values
 */
export function put(element, values) {
  const known = /** @type {Record<string, any>} */ (/** @type {unknown} */ (element));
  for (const [name, value] of Object.entries(values)) if (known[name] !== value) known[name] = value;
}

/**
 * A button. As an <input>, since ComfyUI leaves the keys of those alone: Ctrl+Z on a <button> would undo the graph.
 * @param {string} label
 * @param {string} title
 * @param {(event: Event) => unknown} onclick
 */
export function button(label, title, onclick) {
  return make("input", { type: "button", value: label, title, "aria-label": title, onclick });
}

/**
 * Keep presses on an element from the canvas, which would drag the node below.
 * @param {HTMLElement} element
 */
export function keepFromCanvas(element) {
  for (const name of ["pointerdown", "mousedown", "dblclick"])
    element.addEventListener(name, (event) => event.stopPropagation());
}

/** The open workflow, whichever of its subgraphs is shown. */
export const rootGraph = () => app.rootGraph ?? app.graph;

/**
 * The id of a workflow as the server tells it: none is all zeros in the editor.
 * @param {{id?: string} | undefined} workflow
 */
export function idOf(workflow) {
  const id = String(workflow?.id ?? "");
  return /[^0-]/.test(id) ? id : "";
}

/** The id of the open workflow. */
export const openId = () => idOf(rootGraph());

/**
 * Whether the workflow of this id is open; one without an id, as when a script queued it, may be any.
 * @param {string} workflow
 */
export function isOpen(workflow) {
  const open = rootGraph()?.id;
  return !workflow || !open || workflow === open;
}

/**
 * The place of a node in a workflow, which stays when the undo of the graph makes the node anew.
 * @param {GraphNode} node
 */
export function placeOf(node) {
  const root = rootGraph();
  // not by the root's id, which some graphs get when they are undone first
  const inner = node.graph === root ? "" : node.graph?.id;
  return `${app.extensionManager?.workflow?.activeWorkflow?.path ?? root?.id} ${inner} ${node.id}`;
}

/**
 * The node with this id in the queued graph, "5" or, in a subgraph, "12:5"; undefined where it is not open.
 * @param {string | number} id
 */
export function nodeOf(id) {
  let graph = rootGraph();
  /** @type {GraphNode | undefined} */
  let node;
  for (const part of String(id).split(":")) {
    /** @type {GraphNode[]} */
    const nodes = graph?.nodes ?? [];
    node = nodes.find((each) => String(each.id) === part);
    graph = node?.subgraph;
  }
  return node;
}

/**
 * The node of a class that an input comes from, through nodes in between: their input of that name, or their first.
 * @param {GraphNode | null} node
 * @param {string} input
 * @param {string} comfyClass
 * @returns {GraphNode | null}
 */
function sourceOf(node, input, comfyClass) {
  let at = node;
  for (let hops = 0; at?.graph && hops < 8; hops++) {
    if (at.comfyClass === comfyClass) return at;
    const inputs = at.inputs ?? [];
    const slot = inputs.findIndex(({ name }) => name === input);
    if (slot < 0 && (at === node || !inputs.length)) return null;
    at = at.getInputNode(Math.max(slot, 0));
  }
  return null;
}

/** The Prompt Timeline whose story a node renders. @param {GraphNode} node */
export const storyNodeOf = (node) => sourceOf(node, "positive", "HeadForcingPromptTimeline");

/** The node of the embedded model that a sampler renders with; null for other models. @param {GraphNode} node */
export const demoOf = (node) => sourceOf(node, "model", "HeadForcingLoadDemo");

/**
 * The file of the sound that a Prompt Timeline gets from Load Audio, and the second of the story at which it begins.
 * @param {GraphNode} storyNode
 */
export function audioOf(storyNode) {
  const load = sourceOf(storyNode, "audio", "LoadAudio");
  return { name: String((load && valueOf(load, "audio")) || ""), offset: Number(valueOf(storyNode, "audio_offset") ?? 0) };
}

/**
 * The pictures that a Prompt Timeline gets from Scene References, with the file of those that come from Load Image.
 * @param {GraphNode} storyNode
 * @returns {Reference[]}
 */
export function referencesOf(storyNode) {
  const node = sourceOf(storyNode, "references", "HeadForcingReferences");
  if (!node) return [];
  const linked = (node.inputs ?? []).filter(({ name, link }) => name.startsWith("image_") && link != null);
  return linked.map((input) => {
    const load = sourceOf(node, input.name, "LoadImage");
    const named = String(valueOf(node, input.name.replace("image", "name")) ?? "");
    const file = load && fileOf(String(valueOf(load, "image")));
    return { name: named.trim().replace(/^@/, ""), file };
  });
}

/** A file as ComfyUI's loaders name it: `[subfolder/]name [folder]`. @param {string} named @returns {FileName} */
function fileOf(named) {
  const [, path, type = "input"] = /^(.*?)(?: \[(\w+)\])?$/.exec(named) ?? [];
  const parts = (path ?? "").split("/");
  return { filename: parts.at(-1) ?? "", subfolder: parts.slice(0, -1).join("/"), type };
}

/** @param {GraphNode} node @param {string} name */
export const widgetOf = (node, name) => node.widgets?.find((each) => each.name === name);

/** The value of a node's widget. @param {GraphNode} node @param {string} name */
const valueOf = (node, name) => widgetOf(node, name)?.value;

/**
 * Whether a node's input comes over a link, from another node or from around a subgraph: its widget is not used.
 * @param {GraphNode} node
 * @param {string} name
 */
export const isLinked = (node, name) =>
  Boolean(node.inputs?.some((input, slot) => input.widget?.name === name && node.isInputConnected(slot)));

/** The editors of Prompt Timeline nodes, by node. @type {WeakMap<GraphNode, TimelineEditor>} */
export const editors = new WeakMap();

/**
 * The widgets of Prompt Timeline, as the server's routes take them.
 * @param {GraphNode} node
 * @param {Owner} owner
 * @returns {StoryValues}
 */
export function storyOf(node, owner = (name) => [node, name]) {
  /** @param {string} name */
  const value = (name) => valueOf(...owner(name));
  return {
    text: String(value("prompts") ?? ""),
    seconds: Number(value("seconds") ?? 0),
    shared_prompt: String(value("shared_prompt") ?? ""),
    switch: String(value("switch") ?? "reset"),
    blend_blocks: Number(value("blend_blocks") ?? 0),
    re_anchor: Boolean(value("re_anchor")),
    model_family: String(value("model_family") ?? "auto"),
  };
}

/**
 * Whether a node's own widgets have these values; those that come over links are not its own.
 * @param {GraphNode} node
 * @param {Record<string, unknown>} values
 */
export const holds = (node, values) =>
  Object.entries(values).every(([name, value]) => isLinked(node, name) || valueOf(node, name) === value);

/**
 * Change a node's own widgets, as a step for the undo of the graph.
 * @param {GraphNode} node
 * @param {Record<string, unknown>} values
 * @param {Owner} owner
 */
export function putValues(node, values, owner = (name) => [node, name]) {
  app.canvas?.emitBeforeChange?.();
  setValues(node, values, owner);
  app.canvas?.emitAfterChange?.();
}

/** Let what a person has changed so far be a step for the undo of the graph. */
export function noteChanges() {
  app.canvas?.emitBeforeChange?.();
  app.canvas?.emitAfterChange?.();
}

/**
 * Change a node's own widgets to what the server has: the undo of the graph knows it, and gets no step.
 * @param {GraphNode} node
 * @param {Record<string, unknown>} values
 */
export function takeValues(node, values) {
  const tracker = app.extensionManager?.workflow?.activeWorkflow?.changeTracker;
  setValues(node, values, (name) => [node, name]);
  if (!tracker || tracker.changeCount) return; // a drag that goes on is a step as a whole
  tracker.activeState = JSON.parse(JSON.stringify(rootGraph().serialize()));
  tracker.updateModified?.();
}

/**
 * @param {GraphNode} node
 * @param {Record<string, unknown>} values
 * @param {Owner} owner
 */
function setValues(node, values, owner) {
  for (const [name, value] of Object.entries(values)) {
    const widget = widgetOf(...owner(name));
    if (!widget || value === widget.value || isLinked(...owner(name))) continue;
    widget.value = value;
    widget.callback?.(value);
    widget.value = value; // of a number the callback keeps one digit, which is no block's
  }
  node.graph?.setDirtyCanvas?.(true, true);
}

/**
 * Change a node's property, which is kept with the workflow, as a step for the undo of the graph.
 * @param {GraphNode} node
 * @param {string} name
 * @param {unknown} value
 */
export function putProperty(node, name, value) {
  app.canvas?.emitBeforeChange?.();
  node.setProperty(name, value);
  app.canvas?.emitAfterChange?.();
}

/**
 * What a route of the server answers to JSON; without an answer `{error, offline}`, with `offline` as the error.
 * @param {string} route
 * @param {unknown} body
 * @param {string} offline
 * @returns {Promise<any>}
 */
export async function post(route, body, offline) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  try {
    return await (await app.api.fetchApi(route, options)).json();
  } catch {
    return { error: offline, offline: true };
  }
}

/** Nodes that are in a graph, with what is called when they leave it. @type {Set<{node: GraphNode, removed: () => void}>} */
const present = new Set();

/**
 * Call `added` when a node comes into a graph and `removed` when it leaves it: copying makes nodes that never are.
 * @param {GraphNode} node
 * @param {() => void} added
 * @param {() => void} removed
 */
export function whileInGraph(node, added, removed) {
  const { onAdded, onRemoved } = node;
  const entry = { node, removed };
  if (node.graph) present.add(entry);
  /** @param {any[]} args */
  node.onAdded = function (...args) {
    onAdded?.apply(this, args);
    present.add(entry);
    added();
  };
  /** @param {any[]} args */
  node.onRemoved = function (...args) {
    onRemoved?.apply(this, args);
    present.delete(entry);
    removed();
  };
}

/** Nodes of subgraphs have left with their workflow, or with its undo: frontends tell those of the root alone. */
export function afterConfigureGraph() {
  const graphs = new Set([rootGraph(), ...(rootGraph().subgraphs?.values() ?? [])]);
  for (const entry of present) {
    if (graphs.has(entry.node.graph)) continue;
    present.delete(entry);
    entry.removed();
  }
}

/**
 * Where the server has a file.
 * @param {FileName} file
 */
export function address({ filename, subfolder, type }) {
  return `/view?${new URLSearchParams({ filename, subfolder, type })}`;
}
