// Plays a video inside the node that makes it: the growing file while it is rendered, then the finished one. Above
// it stands what the node says, which stays there when the job has ended. Nothing here can stop a render.
import { app } from "../../../scripts/app.js";
import { Player } from "./player.js";
import { listen } from "../server_events.js";
import { address, idOf, isOpen, nodeOf, openId, rootGraph } from "../shared.js";
import { sentenceOf, t } from "../texts.js";
/** @import {FileName, GraphNode, Message, ServerEvent} from "../types.js" */

const DROPPED_MS = 10000; // until a dropped file that brings no workflow is forgotten
const DIALOG = "comfy-file-input"; // the id that the frontend gives to the field of its dialog for workflows
const MESSAGE = "head_forcing.progress"; // nodes/host/browser/player.py
/** How loud the text of a message is told besides, by its state. @type {Record<string, string>} */
const SHOUTS = { stopped: "info", failed: "error" };
/**
 * The last message of each node of a workflow, the newest at the end: nodes are made anew when another workflow was open.
 * @type {Map<string, Message>}
 */
const messages = new Map();
/** By node. @type {WeakMap<GraphNode, Player>} */
const players = new WeakMap();
/** Prompt ids of all runs that this page knows. @type {Set<string>} */
const heard = new Set();
/** The workflow of each run, by prompt id: another may be open when something is told of it. @type {Map<string, string>} */
const queued = new Map();

/**
 * Whether a node has a player: those of the pack that write a video.
 * @param {GraphNode | null | undefined} node
 */
function plays(node) {
  if (!node?.comfyClass?.startsWith("HeadForcing")) return false;
  const { output_node, output } = /** @type {any} */ (node.constructor).nodeData ?? {};
  return Boolean(output_node && output?.includes("VIDEO"));
}

/**
 * Whether a message is about the open graph's run: a graph that was dropped as a file names its own until the next.
 * @param {Message} message
 */
function isOfRun({ prompt_id }) {
  const extra = rootGraph()?.extra ?? {};
  if (!heard.has(prompt_id)) delete extra.head_forcing_run; // a new one has begun
  return (extra.head_forcing_run ?? prompt_id) === prompt_id;
}

/** @param {Message} message */
function show(message) {
  if (!isOpen(message.workflow) || !isOfRun(message)) return;
  const node = nodeOf(message.node);
  if (plays(node)) playerOf(node).update(message);
}

/** The player of a node, made where it has none yet. @param {GraphNode} node @returns {Player} */
export function playerOf(node) {
  const known = players.get(node);
  if (known) return known;
  const made = new Player(node);
  players.set(node, made);
  return made;
}

/** @param {Pick<Message, "workflow" | "node">} message */
const placeOf = ({ workflow, node }) => `${workflow} ${node}`;

/**
 * The workflow of a run: the open one where it is not known yet, as in the moment in which it is queued.
 * @param {string} prompt_id
 */
const workflowOf = (prompt_id) => queued.get(prompt_id) ?? openId();

/** Note the workflow of each run that this page queues. */
function noteQueued() {
  const { api } = app;
  const { queuePrompt } = api;
  /** @param {any[]} args */
  api.queuePrompt = async function (...args) {
    const workflow = idOf(args[1]?.workflow);
    const answer = await queuePrompt.apply(this, args);
    if (answer?.prompt_id) queued.set(answer.prompt_id, workflow);
    return answer;
  };
}

/** @param {Message} message @param {boolean} isAnswer whether this page has asked for it */
function remember(message, isAnswer = false) {
  const { preview, ...kept } = message;
  const place = placeOf(message);
  messages.delete(place);
  messages.set(place, kept);
  if (isAnswer) heard.add(message.prompt_id);
  show(message);
  heard.add(message.prompt_id);
  queued.set(message.prompt_id, message.workflow);
}

/**
 * A message about a render of a workflow that this page shows.
 * @param {Message} message
 * @param {boolean} [isAnswer]
 */
function onProgress(message, isAnswer) {
  const known = messages.get(placeOf(message));
  if (message.time < known?.time) return; // an answer that was overtaken
  if (message.said) message.text = sentenceOf(message.said);
  remember(message, isAnswer);
  if (isAnswer || message.raised || message.text === known?.text) return; // what a node raised ComfyUI shows itself
  if (SHOUTS[message.state]) toast(message); // the text may be out of sight where the node is
}

/** @param {Pick<Message, "state" | "text">} message */
function toast({ state, text }) {
  app.extensionManager?.toast?.add({ severity: SHOUTS[state], summary: "Head Forcing", detail: text, life: 15000 });
}

/** The server does not answer: what was told of its renders holds no longer. */
function onReconnecting() {
  for (const message of messages.values()) {
    const node = message.state === "running" && isOpen(message.workflow) ? nodeOf(message.node) : null;
    if (plays(node)) playerOf(node).say(t("No answer from the server. The finished part is kept."), true);
  }
}

/** A run begins: nothing has failed in it. @param {ServerEvent} event */
function onStart({ detail }) {
  const workflow = workflowOf(detail.prompt_id);
  for (const message of messages.values()) {
    const isOfEarlier = message.workflow === workflow && message.prompt_id !== detail.prompt_id;
    if (isOfEarlier && message.state === "failed") remember({ ...message, state: "done", text: "" });
  }
}

/**
 * A node of the pack failed that has no player: the players of the open workflow say why nothing comes.
 * @param {ServerEvent} event
 */
function onError({ detail }) {
  const workflow = workflowOf(detail.prompt_id);
  const failed = isOpen(workflow) ? nodeOf(detail.node_id) : null;
  if (!failed?.comfyClass?.startsWith("HeadForcing") || plays(failed)) return;
  const text = t("failed in %1: %2", failed.title, String(detail.exception_message).trim());
  for (const node of rootGraph().nodes.filter(plays))
    remember({ node: String(node.id), workflow, prompt_id: detail.prompt_id, state: "failed", text });
}

/**
 * The outputs of a node that has not run, since ComfyUI had them; one that ran has told them in a message.
 * @param {ServerEvent} event
 */
function onExecuted({ detail }) {
  const { node: ran, prompt_id, output } = detail;
  const hasTold = [...messages.values()].some((told) => told.prompt_id === prompt_id && told.node === String(ran));
  if (hasTold) return;
  const id = String(detail.display_node ?? ran);
  const workflow = workflowOf(prompt_id);
  const known = messages.get(placeOf({ workflow, node: id }));
  const node = isOpen(workflow) ? nodeOf(id) : null;
  if (node ? !plays(node) : !known) return;
  /** @type {FileName[]} */
  const files = output?.video ?? [];
  if (files.length) {
    const isSame = known?.files?.length && address(known.files[0]) === address(files[0]);
    const { text = "", place, video } = isSame ? known : {}; // else they may be those of another render
    remember({ node: id, workflow, prompt_id, state: "done", text, place, video, files });
  } else if (output?.images) players.get(node)?.clear();
}

const lost = () =>
  t("The server was restarted, which ended the render. Run goes on from the finished part.");

export function setup() {
  noteQueued();
  listen(MESSAGE, {
    take: onProgress,
    known: () => [...messages.values()].filter(({ state, workflow }) => state === "running" && isOpen(workflow)),
    lose(/** @type {Message} */ message) {
      remember({ ...message, state: "failed", text: lost() });
      toast({ state: "failed", text: lost() });
    },
  });
  app.api.addEventListener("reconnecting", onReconnecting);
  for (const event of ["drop", "change"]) window.addEventListener(event, noteVideo, { capture: true });
  app.api.addEventListener("executed", onExecuted);
  app.api.addEventListener("execution_start", onStart);
  app.api.addEventListener("execution_error", onError);
}

/** The video whose workflow is being opened. @type {File | null} */
let dropped = null;

/**
 * Whether a node takes what is dropped: then ComfyUI opens no workflow. In Nodes 2.0 it is noted after this event.
 * @param {Event} event
 */
function isTaken({ target }) {
  const element = /** @type {any} */ (target);
  if (element.closest?.(".hf-story")) return true; // the panel takes it
  const id = element.closest?.("[data-node-id]")?.dataset.nodeId;
  /** @type {GraphNode[]} */
  const nodes = app.canvas?.graph?.nodes ?? [];
  const node = app.dragOverNode ?? nodes.find((each) => String(each.id) === id);
  return Boolean(node?.onDragDrop);
}

/** The files that are dropped on the page or chosen in the dialog for workflows. @param {any} event @returns {FileList} */
function filesOf(event) {
  if (event.type !== "change") return isTaken(event) ? null : event.dataTransfer?.files;
  return event.target.id === DIALOG ? event.target.files : null;
}

/** Note a video that is opened as a workflow: ComfyUI opens the one in it. @param {Event} event */
function noteVideo(event) {
  const [file] = filesOf(event) ?? [];
  if (file?.type !== "video/mp4") return;
  dropped = file;
  setTimeout(() => {
    dropped = null;
  }, DROPPED_MS);
}

/** @param {GraphNode} node */
export function nodeCreated(node) {
  if (!plays(node)) return;
  playerOf(node);
  if (!LiteGraph.vueNodesMode) node.setSize([node.size[0], Math.max(node.size[1], node.computeSize()[1])]);
}

export function afterConfigureGraph() {
  messages.forEach(show);
  const isOurs = rootGraph().extra?.head_forcing_run; // noted in the workflows of all files of the pack
  const node = dropped && isOurs && rootGraph().nodes.find(plays);
  if (node) playerOf(node).playDropped(dropped);
  dropped = null;
}
