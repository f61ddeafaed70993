// Plays a video inside the node that makes it: the growing file while it is rendered, then the finished one. Above
// it stands what the node says, which stays there when the job has ended. Nothing here can stop a render.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { isOpen, make, nodeOf, openId } from "./shared.js";

const NAME = "head_forcing_player";
const MESSAGE = "head_forcing.progress"; // nodes/host/player.py
const NODES = ["HeadForcingSampler", "HeadForcingCompareMethods"];
const PIECE = 1 << 20; // bytes of one request
// the last one of each node of a workflow, the newest at the end: nodes are made anew when another workflow was open
const messages = new Map();
const views = new WeakMap(); // a node's View

/** A file that is still written, as the source of a video element. */
class GrowingFile {
  constructor(video, file) {
    [this.video, this.id, this.address, this.read, this.written] = [video, file.id, address(file), 0, 0];
    this.media = new MediaSource();
    this.url = URL.createObjectURL(this.media);
    this.opened = new Promise((done, fail) => {
      const open = () => {
        URL.revokeObjectURL(this.url); // now, since nothing says when a node is made anew; the element keeps its source
        done();
      };
      this.media.addEventListener("sourceopen", open, { once: true });
      video.addEventListener("error", () => fail(video.error), { once: true });
    });
    this.opened.catch(() => {}); // told where it is waited for, which is nowhere if there was nothing left to read
    video.src = this.url;
  }

  /** Read on, up to the bytes that are written by now. */
  async grow(written, complete) {
    [this.written, this.complete] = [Math.max(written, this.written), complete];
    if (this.busy) return;
    this.busy = true;
    try {
      while (this.read < this.written && !this.closed) {
        const range = `bytes=${this.read}-${Math.min(this.read + PIECE, this.written) - 1}`;
        const headers = { Range: range };
        const answer = await api.fetchApi(this.address, { headers, cache: "no-store" }).catch(() => null);
        if (answer?.status !== 206) break; // finished under another name, or no answer: the next message tries again
        const bytes = await answer.arrayBuffer();
        await this.append(bytes);
        this.read += bytes.byteLength;
      }
      if (this.complete && this.media.readyState === "open" && this.buffer) this.media.endOfStream();
    } catch (error) {
      if (!this.closed) refuse(error);
      this.closed = true;
    } finally {
      this.busy = false;
    }
  }

  async append(bytes) {
    await this.opened;
    this.buffer ??= this.media.addSourceBuffer(`video/mp4; codecs="${codec(new Uint8Array(bytes))}"`);
    try {
      this.buffer.appendBuffer(bytes);
    } catch (error) {
      if (error.name !== "QuotaExceededError") throw error;
      this.buffer.remove(0, Math.max(this.video.currentTime - 5, 0.1)); // room for a long video: forget what was played
      await this.updated();
      this.buffer.appendBuffer(bytes);
    }
    await this.updated();
    const { buffered } = this.buffer;
    if (!buffered.length || this.media.readyState !== "open") return;
    this.media.duration = buffered.end(buffered.length - 1); // else it is infinite
    if (this.video.currentTime < buffered.start(0)) this.video.currentTime = buffered.start(0);
  }

  updated() {
    return new Promise((done, fail) => {
      this.buffer.addEventListener("updateend", done, { once: true });
      this.buffer.addEventListener("error", fail, { once: true });
    });
  }

  close() {
    this.closed = true;
    URL.revokeObjectURL(this.url);
  }
}

/** The codec of an MP4 for a media source, from the decoder's configuration at the file's beginning. */
function codec(bytes) {
  const at = bytes.findIndex((_, i) => String.fromCharCode(...bytes.subarray(i, i + 4)) === "avcC");
  if (at < 0) throw new Error("no H.264 video");
  const hex = (value) => value.toString(16).padStart(2, "0");
  return `avc1.${[...bytes.subarray(at + 5, at + 8)].map(hex).join("")}`;
}

/** What a node shows: a line of text, and below it a preview or a video. */
class View {
  constructor(node) {
    this.node = node;
    const styled = (tag, style) => make(tag, { style });
    const picture = "flex: 1 1 0; min-height: 0; width: 100%; object-fit: contain; display: none";
    this.root = styled("div", "display: none; flex-direction: column; gap: 4px; width: 100%; color: var(--input-text)");
    this.text = styled("div", "flex: none; font-size: 12px; line-height: 16px; max-height: 32px; overflow: hidden");
    [this.image, this.video] = [styled("img", picture), styled("video", picture)];
    Object.assign(this.video, { controls: true, muted: true, autoplay: true, playsInline: true });
    this.root.append(this.text, this.image, this.video);
    this.image.addEventListener("load", () => this.show(this.image, this.image.naturalWidth, this.image.naturalHeight));
    for (const event of ["loadedmetadata", "resize"])
      this.video.addEventListener(event, () => this.show(this.video, this.video.videoWidth, this.video.videoHeight));
    this.video.addEventListener("ended", () => this.files && this.play(this.files.indexOf(this.file) + 1));
    this.root.addEventListener("wheel", (event) => {
      if (!LiteGraph.vueNodesMode) app.canvas.processMouseWheel?.(event); // zoom, as over the rest of the node
    });
    const options = { serialize: false, hideOnZoom: false, getMinHeight: () => this.height() };
    node.addDOMWidget(NAME, NAME, this.root, options).serialize = false;
  }

  update({ text, state, video, preview, files }) {
    this.text.textContent = this.text.title = text;
    if (this.root.style.display === "none") {
      this.root.style.display = "flex";
      this.fit();
    }
    if (files?.length) this.finish(files);
    else if (files) this.clear();
    else if (video?.bytes && grows) this.follow(video, state !== "running");
    else if (preview) {
      this.stop(); // what an earlier render has made
      this.image.src = preview;
    }
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
    this.video.src = api.apiURL(address(this.file)) + (app.getRandParam?.() ?? "");
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
    return 56 + Math.min((this.node.size[0] - 20) * (this.ratio ?? 0), 360); // two lines of text and the margins
  }

  /** Make the node as tall as it must be, never wider or lower. */
  fit() {
    this.root.style.minHeight = `${this.height() - 20}px`;
    if (LiteGraph.vueNodesMode) return;
    this.node.setSize([this.node.size[0], Math.max(this.node.size[1], this.node.computeSize()[1])]);
    this.node.graph?.setDirtyCanvas(true, true);
  }
}

function address({ filename, subfolder, type, id = "" }) {
  return `/view?${new URLSearchParams({ filename, subfolder, type, render: id })}`;
}

function show(message) {
  if (!isOpen(message.workflow)) return;
  const node = nodeOf(message.node);
  if (NODES.includes(node?.comfyClass)) viewOf(node).update(message);
}

function viewOf(node) {
  if (!views.has(node)) views.set(node, new View(node));
  return views.get(node);
}

const placeOf = ({ workflow, node }) => `${workflow} ${node}`;

function remember(message) {
  const { preview, ...kept } = message;
  const place = placeOf(message);
  messages.delete(place);
  messages.set(place, kept);
  show(message);
}

/** A message about a render, which the server sends to the editor that queued it. */
function onProgress({ detail }) {
  remember(detail);
  if (detail.state === "stopped") // the text would be out of sight where the node is
    app.extensionManager?.toast?.add({ severity: "info", summary: "Head Forcing", detail: detail.text, life: 15000 });
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

let registered;
let grows = "MediaSource" in globalThis; // whether this browser plays growing files; all play finished ones

/** Show previews until the file is finished, as where --disable-api-nodes forbids media that a page makes itself. */
function refuse(error) {
  console.info("Head Forcing: this page cannot play a growing video", error);
  grows = false;
  registered = undefined;
  register();
}

/** Tell the server that this editor has players; it answers with what a page that was loaded again has missed. */
async function register() {
  if (!api.clientId || registered === api.clientId) return;
  registered = api.clientId;
  try {
    const about = new URLSearchParams({ client: registered, grows });
    const answer = await api.fetchApi(`/headforcing/player?${about}`);
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    (await answer.json()).forEach(remember);
  } catch (error) {
    registered = undefined; // the next status asks again
    console.warn("Head Forcing: videos are not played on nodes", error);
  }
}

app.registerExtension({
  name: "HeadForcing.Player",
  async setup() {
    api.addEventListener(MESSAGE, onProgress);
    api.addEventListener("executed", onExecuted);
    api.addEventListener("status", register); // its first one says who this is
    api.addEventListener("reconnected", () => {
      registered = undefined; // perhaps a new server
      return register();
    });
    await register();
  },
  nodeCreated(node) {
    // the first Nodes 2.0 showed no widgets that came later; the canvas would leave room for an empty one
    if (LiteGraph.vueNodesMode && NODES.includes(node.comfyClass)) viewOf(node);
  },
  afterConfigureGraph() {
    messages.forEach(show);
  },
});
