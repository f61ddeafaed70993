// Plays a video inside the node that makes it: the growing file while it is rendered, then the finished one. Above
// it stands what the node says, which stays there when the job has ended. Nothing here can stop a render.
import { app } from "../../scripts/app.js";
import { address, GrowingFile } from "./growing_file.js";
import { listen, playsGrowing } from "./renders.js";
import { editors, isOpen, make, nodeOf, openId, rootGraph, storyNodeOf } from "./shared.js";
import { addElement } from "./widgets.js";

const NAME = "player";
const LINE = 16; // height of a line of text, in pixels
const MESSAGE = "head_forcing.progress"; // nodes/host/player.py
const NODES = ["HeadForcingSampler", "HeadForcingCompareMethods", "HeadForcingDecodeVideo"];
const LOST = "not rendered any more, since the server was started anew; Run goes on from the blocks that are kept";
// the last one of each node of a workflow, the newest at the end: nodes are made anew when another workflow was open
const messages = new Map();
const SHOUTS = { stopped: "info", failed: "error" }; // how loud the text is told besides
const views = new WeakMap(); // a node's View
const heard = new Set(); // prompt ids of all runs that this page knows

/** What a node shows: a line of text, and below it a preview or a video. */
class View {
  constructor(node) {
    this.node = node;
    const styled = (tag, style) => make(tag, { style });
    const picture = "flex: 1 1 0; min-height: 0; width: 100%; object-fit: contain; display: none";
    this.root = styled("div", "display: none; flex-direction: column; gap: 4px; width: 100%; color: var(--input-text)");
    this.text = styled("div", `flex: none; font-size: 12px; line-height: ${LINE}px; overflow: auto`);
    [this.image, this.video] = [styled("img", picture), styled("video", picture)];
    this.video.setAttribute("aria-label", `Video of ${node.title}`);
    Object.assign(this.video, { controls: true, muted: true, autoplay: true, playsInline: true });
    this.root.append(this.text, this.image, this.video);
    this.image.addEventListener("load", () => this.show(this.image, this.image.naturalWidth, this.image.naturalHeight));
    for (const event of ["loadedmetadata", "resize"])
      this.video.addEventListener(event, () => this.show(this.video, this.video.videoWidth, this.video.videoHeight));
    for (const event of ["loadeddata", "timeupdate", "seeked"]) this.video.addEventListener(event, () => this.mark());
    this.video.addEventListener("ended", () => this.files && this.play(this.files.indexOf(this.file) + 1));
    this.root.addEventListener("wheel", (event) => {
      if (!LiteGraph.vueNodesMode) app.canvas.processMouseWheel?.(event); // zoom, as over the rest of the node
    });
    addElement(node, NAME, this.root, { hideOnZoom: false, getMinHeight: () => this.height() });
  }

  update({ text, state, video, preview, files, place, prompt_id }) {
    this.place = { done: 0, lead: 0, ...place, running: state === "running", render: prompt_id };
    this.text.textContent = this.text.title = text;
    const room = LINE * (SHOUTS[state] ? 6 : 2);
    const grew = this.root.style.display === "none" || room !== this.room;
    this.room = room;
    this.text.style.maxHeight = `${room}px`;
    this.root.style.display = "flex";
    if (grew) this.fit();
    if (files?.length) this.finish(files);
    else if (files) this.clear();
    else if (video?.bytes && playsGrowing()) this.follow(video, state !== "running");
    else if (preview) {
      this.stop(); // what an earlier render has made
      this.image.src = preview;
    }
    this.mark();
  }

  /** Show on the timeline of this node's story how far it is rendered and where it is played. */
  mark() {
    const { lead } = this.place;
    const at = this.video.readyState >= 2 && this.video.src ? this.video.currentTime - lead : null;
    const file = this.file && app.api.apiURL(address(this.file));
    editors.get(storyNodeOf(this.node))?.follow(this, { ...this.place, at, file, video: this.video });
  }

  /** Play from a second of the story, if the video has come that far. */
  seek(seconds) {
    const time = seconds + this.place.lead;
    if (time < this.video.duration) this.video.currentTime = time;
  }

  /** Play a file that grows. */
  follow(video, complete) {
    if (this.growing?.id !== video.id) {
      this.stop();
      this.video.autoplay = true;
      this.growing = new GrowingFile(this.video, video);
    }
    this.growing.grow(video.bytes, complete);
  }

  /** Play finished files: the last of them, which grew here, from where it has come to, then all in turn. */
  finish(files) {
    if (this.files && address(this.files[0]) === address(files[0])) return;
    const { currentTime, paused, ended } = this.video;
    const [grew, stays] = [this.growing !== undefined, paused && !ended && currentTime > 0];
    this.stop();
    this.files = files;
    this.video.autoplay = !(grew && stays);
    this.play(grew ? files.length - 1 : 0, grew ? currentTime : 0);
  }

  play(place, from = 0) {
    this.file = this.files[place % this.files.length];
    this.video.loop = this.files.length === 1;
    this.video.src = app.api.apiURL(address(this.file)) + (app.getRandParam?.() ?? "");
    this.video.currentTime = from; // where it will begin
  }

  stop() {
    this.growing?.close();
    this.growing = this.files = this.file = undefined;
    this.video.removeAttribute("src");
    this.video.load(); // else the element plays on
  }

  /** Show the text alone: the frontend shows these files itself. */
  clear() {
    this.stop();
    this.show(null);
  }

  /** Show one of image and video, of that size, or neither. */
  show(shown, width = 1, height = 0) {
    if (shown === this.image && (this.growing || this.files)) return;
    this.ratio = height / width || 0;
    for (const element of [this.image, this.video]) element.style.display = element === shown ? "" : "none";
    this.fit();
  }

  height() {
    if (this.root.style.display === "none") return 0;
    return 24 + this.room + Math.min((this.node.size[0] - 20) * (this.ratio ?? 0), 360); // text, margins, picture
  }

  /** Make the node as tall as it must be, never wider or lower. */
  fit() {
    this.root.style.minHeight = `${this.height() - 20}px`;
    if (LiteGraph.vueNodesMode) return;
    this.node.setSize([this.node.size[0], Math.max(this.node.size[1], this.node.computeSize()[1])]);
    this.node.graph?.setDirtyCanvas(true, true);
  }
}

/** Whether a message is about the open graph's run: a graph that was dropped as a file names its own until the next. */
function isOfRun({ prompt_id }) {
  const extra = rootGraph()?.extra ?? {};
  if (!heard.has(prompt_id)) delete extra.head_forcing_run; // a new one has begun
  return (extra.head_forcing_run ?? prompt_id) === prompt_id;
}

function show(message) {
  if (!isOpen(message.workflow) || !isOfRun(message)) return;
  const node = nodeOf(message.node);
  if (NODES.includes(node?.comfyClass)) viewOf(node).update(message);
}

function viewOf(node) {
  if (!views.has(node)) views.set(node, new View(node));
  return views.get(node);
}

const placeOf = ({ workflow, node }) => `${workflow} ${node}`;

function remember(message, asked = false) {
  const { preview, ...kept } = message;
  const place = placeOf(message);
  messages.delete(place);
  messages.set(place, kept);
  if (asked) heard.add(message.prompt_id);
  show(message);
  heard.add(message.prompt_id);
}

/** A message about a render of a workflow that this page shows. */
function onProgress(message, asked) {
  const known = messages.get(placeOf(message));
  if (message.time < known?.time) return; // an answer that was overtaken
  remember(message, asked);
  if (asked || message.text === known?.text || !SHOUTS[message.state]) return;
  // the text would be out of sight where the node is
  const toast = { severity: SHOUTS[message.state], summary: "Head Forcing", detail: message.text, life: 15000 };
  app.extensionManager?.toast?.add(toast);
}

/** A run begins: nothing has failed in it. */
function onStart({ detail }) {
  for (const message of messages.values())
    if (message.state === "failed" && isOpen(message.workflow) && message.prompt_id !== detail.prompt_id)
      remember({ ...message, state: "done", text: "" });
}

/** A node of the pack failed that has no player: the players of the open workflow say why nothing comes. */
function onError({ detail }) {
  const failed = nodeOf(detail.node_id);
  if (!failed?.comfyClass?.startsWith("HeadForcing") || NODES.includes(failed.comfyClass)) return;
  const text = `failed in ${failed.title}: ${String(detail.exception_message).trim()}`;
  for (const node of rootGraph().nodes.filter(({ comfyClass }) => NODES.includes(comfyClass)))
    remember({ node: String(node.id), workflow: openId(), prompt_id: detail.prompt_id, state: "failed", text });
}

/** The outputs of a node that has not run, since ComfyUI had them; one that ran has told them in a message. */
function onExecuted({ detail }) {
  const { node: ran, prompt_id, output } = detail;
  if ([...messages.values()].some((told) => told.prompt_id === prompt_id && told.node === String(ran))) return;
  const id = String(detail.display_node ?? ran);
  const node = nodeOf(id);
  if (!NODES.includes(node?.comfyClass)) return;
  if (output?.video?.length) {
    const message = { node: id, workflow: openId(), prompt_id, state: "done", text: "", files: output.video };
    const known = messages.get(placeOf(message)); // its text may be that of another render
    if (known?.files?.length && address(known.files[0]) === address(message.files[0])) message.text = known.text;
    remember(message);
  } else if (output?.images) views.get(node)?.clear();
}

export function setup() {
  listen(MESSAGE, {
    take: onProgress,
    known: () => [...messages.values()].filter(({ state, workflow }) => state === "running" && isOpen(workflow)),
    lose: (message) => remember({ ...message, state: "failed", text: LOST }),
  });
  app.api.addEventListener("executed", onExecuted);
  app.api.addEventListener("execution_start", onStart);
  app.api.addEventListener("execution_error", onError);
}

export function nodeCreated(node) {
  // the first Nodes 2.0 showed no widgets that came later; the canvas would leave room for an empty one
  if (LiteGraph.vueNodesMode && NODES.includes(node.comfyClass)) viewOf(node);
}

export function afterConfigureGraph() {
  messages.forEach(show);
}
