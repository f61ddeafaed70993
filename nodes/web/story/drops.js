// Files that are dropped on the story panel: a text becomes the story; a sound, a picture or a video goes to ComfyUI's input
// folder, and the node that loads it is made and connected, as one step of the graph's undo.
import { app } from "../../../scripts/app.js";
import { widgetOf } from "../shared.js";
import { t } from "../texts.js";
import { isText, isTooLong, textOf } from "../timeline/pastes.js";
/** @import {GraphNode, Say} from "../types.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */

const APART = 60; // pixels between a new node and the one that it is connected to

/**
 * How a kind of file is loaded, and which input of the story or the sampler gets it.
 * @typedef {object} Way
 * @property {string} loader class of the node
 * @property {string} widget of that node, with the file's name
 * @property {string} input
 * @property {(name: string) => string} done says what was done
 */

/** By the first part of a file's type. @type {Record<string, Way>} */
const WAYS = {
  audio: { loader: "LoadAudio", widget: "audio", input: "audio", done: (name) => t("%1 is the sound of the story.", name) },
  image: {
    loader: "LoadImage",
    widget: "image",
    input: "start_image",
    done: (name) => t("The video begins with %1.", name),
  },
  video: { loader: "LoadVideo", widget: "file", input: "start_video", done: (name) => t("The video begins with %1.", name) },
};

/**
 * The nodes and the editor that the panel shows.
 * @typedef {{storyNode: GraphNode | null, sampler: GraphNode | null, editor: TimelineEditor | null}} Shown
 */

/**
 * Let the panel take files.
 * @param {HTMLElement} root
 * @param {() => Shown} shown
 * @param {Say} say
 */
export function takeDrops(root, shown, say) {
  root.addEventListener("dragover", (event) => {
    if (![...(event.dataTransfer?.items ?? [])].some(({ kind }) => kind === "file")) return;
    event.preventDefault();
    event.stopPropagation();
  });
  root.addEventListener("drop", async (event) => {
    const [file] = event.dataTransfer?.files ?? [];
    if (!file) return;
    event.preventDefault(); // else ComfyUI opens it, or the browser does
    event.stopPropagation();
    await take(file, shown(), say);
  });
}

/**
 * Take a file, and say what was done with it.
 * @param {File} file
 * @param {Shown} shown
 * @param {Say} say
 */
async function take(file, { storyNode, sampler, editor }, say) {
  if (isText(file)) {
    if (isTooLong(file)) return say(t("%1 is longer than 1 MB.", file.name), true);
    if (editor?.isTextLinked) return say(t("The text comes from another node; change it there."), true);
    editor?.take(await textOf(file)); // the line below the bars says what was read
    return say("");
  }
  const way = WAYS[file.type.split("/")[0]];
  if (!way) return say(t("%1 is no sound, picture, video or text.", file.name), true);
  const target = [storyNode, sampler].find((node) => node?.inputs?.some(({ name }) => name === way.input));
  if (!target) return say(t("No node of this workflow takes %1.", file.name), true);
  const name = await upload(file);
  if (name === null) return say(t("%1 could not be uploaded.", file.name), true);
  load(target, way, name);
  say(way.done(file.name));
}

/** Put a file into ComfyUI's input folder; its name as loaders have it, null without one. @param {File} file */
async function upload(file) {
  const body = new FormData();
  body.append("image", file); // as the route is called, for every kind
  try {
    const answer = await app.api.fetchApi("/upload/image", { method: "POST", body });
    const { name, subfolder } = await answer.json();
    return subfolder ? `${subfolder}/${name}` : name;
  } catch {
    return null;
  }
}

/**
 * Let a node get a file from the loader that it is connected to, or from a new one.
 * @param {GraphNode} target
 * @param {Way} way
 * @param {string} name
 */
function load(target, { loader, widget, input }, name) {
  const slot = target.inputs.findIndex((each) => each.name === input);
  app.canvas?.emitBeforeChange?.();
  try {
    const known = target.getInputNode(slot);
    const node = known?.comfyClass === loader ? known : added(target, loader);
    const combo = widgetOf(node, widget);
    if (Array.isArray(combo.options.values) && !combo.options.values.includes(name)) combo.options.values.push(name);
    combo.value = name;
    combo.callback?.(name);
    if (node !== known) node.connect(0, target, slot);
  } finally {
    app.canvas?.emitAfterChange?.();
  }
  target.graph?.setDirtyCanvas?.(true, true);
}

/** A new node left of another. @param {GraphNode} target @param {string} kind @returns {GraphNode} */
function added(target, kind) {
  const { createNode } = /** @type {any} */ (LiteGraph);
  const node = createNode.call(LiteGraph, kind);
  target.graph.add(node);
  node.pos = [target.pos[0] - node.size[0] - APART, target.pos[1] + target.size[1] / 2];
  return node;
}
