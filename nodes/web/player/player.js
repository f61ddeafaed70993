// Plays a video inside the node that makes it: the growing file while it is rendered, then the finished one. Above
// it stands what the node says, which stays there when the job has ended. Nothing here can stop a render.
import { app } from "../../../scripts/app.js";
import { address } from "./growing_file.js";
import { View } from "./view.js";
import { listen } from "../server_events.js";
import { idOf, isOpen, nodeOf, openId, rootGraph } from "../shared.js";
import { said, t } from "../texts.js";

const DROPPED_MS = 10000; // until a dropped file that brings no workflow is forgotten
const DIALOG = "comfy-file-input"; // the id that the frontend gives to the field of its dialog for workflows
const MESSAGE = "head_forcing.progress"; // nodes/host/browser/player.py
// the last one of each node of a workflow, the newest at the end: nodes are made anew when another workflow was open
const messages = new Map();
const SHOUTS = { stopped: "info", failed: "error" }; // how loud the text is told besides
/** Whether a node has a player: those of the pack that write a video. */
function plays(node) {
  const { output_node, output } = node?.constructor.nodeData ?? {};
  return node?.comfyClass?.startsWith("HeadForcing") && output_node && output?.includes("VIDEO");
}
const views = new WeakMap(); // a node's View
const heard = new Set(); // prompt ids of all runs that this page knows
const queued = new Map(); // the workflow of each run, by prompt id: another may be open when something is told of it

/** Whether a message is about the open graph's run: a graph that was dropped as a file names its own until the next. */
function isOfRun({ prompt_id }) {
  const extra = rootGraph()?.extra ?? {};
  if (!heard.has(prompt_id)) delete extra.head_forcing_run; // a new one has begun
  return (extra.head_forcing_run ?? prompt_id) === prompt_id;
}

function show(message) {
  if (!isOpen(message.workflow) || !isOfRun(message)) return;
  const node = nodeOf(message.node);
  if (plays(node)) viewOf(node).update(message);
}

/** The player of a node, made where it has none yet. */
export function viewOf(node) {
  if (!views.has(node)) views.set(node, new View(node));
  return views.get(node);
}

const placeOf = ({ workflow, node }) => `${workflow} ${node}`;

/** The workflow of a run: the open one where it is not known yet, as in the moment in which it is queued. */
const workflowOf = (prompt_id) => queued.get(prompt_id) ?? openId();

/** Note the workflow of each run that this page queues. */
function noteQueued() {
  const { api } = app;
  const { queuePrompt } = api;
  api.queuePrompt = async function (...given) {
    const workflow = idOf(given[1]?.workflow);
    const answer = await queuePrompt.apply(this, given);
    if (answer?.prompt_id) queued.set(answer.prompt_id, workflow);
    return answer;
  };
}

function remember(message, asked = false) {
  const { preview, ...kept } = message;
  const place = placeOf(message);
  messages.delete(place);
  messages.set(place, kept);
  if (asked) heard.add(message.prompt_id);
  show(message);
  heard.add(message.prompt_id);
  queued.set(message.prompt_id, message.workflow);
}

/** A message about a render of a workflow that this page shows. */
function onProgress(message, asked) {
  const known = messages.get(placeOf(message));
  if (message.time < known?.time) return; // an answer that was overtaken
  if (message.said) message.text = said(message.said);
  remember(message, asked);
  if (asked || message.raised || message.text === known?.text || !SHOUTS[message.state]) return;
  toast(message); // the text would be out of sight where the node is; ComfyUI shows what a node raised itself
}

function toast({ state, text }) {
  app.extensionManager?.toast?.add({ severity: SHOUTS[state], summary: "Head Forcing", detail: text, life: 15000 });
}

/** The server does not answer: what was told of its renders holds no longer. */
function onReconnecting() {
  for (const message of messages.values()) {
    const node = message.state === "running" && isOpen(message.workflow) ? nodeOf(message.node) : null;
    if (plays(node)) viewOf(node).say(t("No answer from the server. The finished part is kept."), true);
  }
}

/** A run begins: nothing has failed in it. */
function onStart({ detail }) {
  const workflow = workflowOf(detail.prompt_id);
  for (const message of messages.values())
    if (message.state === "failed" && message.workflow === workflow && message.prompt_id !== detail.prompt_id)
      remember({ ...message, state: "done", text: "" });
}

/** A node of the pack failed that has no player: the players of the open workflow say why nothing comes. */
function onError({ detail }) {
  const workflow = workflowOf(detail.prompt_id);
  const failed = isOpen(workflow) ? nodeOf(detail.node_id) : null;
  if (!failed?.comfyClass?.startsWith("HeadForcing") || plays(failed)) return;
  const text = t("failed in %1: %2", failed.title, String(detail.exception_message).trim());
  for (const node of rootGraph().nodes.filter(plays))
    remember({ node: String(node.id), workflow, prompt_id: detail.prompt_id, state: "failed", text });
}

/** The outputs of a node that has not run, since ComfyUI had them; one that ran has told them in a message. */
function onExecuted({ detail }) {
  const { node: ran, prompt_id, output } = detail;
  if ([...messages.values()].some((told) => told.prompt_id === prompt_id && told.node === String(ran))) return;
  const id = String(detail.display_node ?? ran);
  const workflow = workflowOf(prompt_id);
  const known = messages.get(placeOf({ workflow, node: id }));
  const node = isOpen(workflow) ? nodeOf(id) : null;
  if (node ? !plays(node) : !known) return;
  if (output?.video?.length) {
    const files = output.video;
    const isSame = known?.files?.length && address(known.files[0]) === address(files[0]);
    const { text = "", place, video } = isSame ? known : {}; // else they may be those of another render
    remember({ node: id, workflow, prompt_id, state: "done", text, place, video, files });
  } else if (output?.images) views.get(node)?.clear();
}

const lost = () =>
  t("The server was restarted, which ended the render. Run goes on from the finished part.");

export function setup() {
  noteQueued();
  listen(MESSAGE, {
    take: onProgress,
    known: () => [...messages.values()].filter(({ state, workflow }) => state === "running" && isOpen(workflow)),
    lose(message) {
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

let dropped = null; // the video whose workflow is being opened

/** Whether a node takes what is dropped: then ComfyUI opens no workflow. In Nodes 2.0 it is noted after this event. */
function isTaken({ target }) {
  const id = target.closest?.("[data-node-id]")?.dataset.nodeId;
  const node = app.dragOverNode ?? app.canvas?.graph?.nodes.find((each) => String(each.id) === id);
  return Boolean(node?.onDragDrop);
}

/** Note a video that is dropped on the page or chosen in the dialog for workflows: ComfyUI opens the one in it. */
function noteVideo(event) {
  const isDialog = event.type === "change";
  if (isDialog ? event.target.id !== DIALOG : isTaken(event)) return;
  const [file] = (isDialog ? event.target.files : event.dataTransfer?.files) ?? [];
  if (file?.type !== "video/mp4") return;
  dropped = file;
  setTimeout(() => (dropped = null), DROPPED_MS);
}

export function nodeCreated(node) {
  if (!plays(node)) return;
  viewOf(node);
  if (!LiteGraph.vueNodesMode) node.setSize([node.size[0], Math.max(node.size[1], node.computeSize()[1])]);
}

export function afterConfigureGraph() {
  messages.forEach(show);
  const isOurs = rootGraph().extra?.head_forcing_run; // noted in the workflows of all files of the pack
  const node = dropped && isOurs && rootGraph().nodes.find(plays);
  if (node) viewOf(node).playDropped(dropped);
  dropped = null;
}
