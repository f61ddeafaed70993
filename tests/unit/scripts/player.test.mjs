// What players show of renders, without a browser: of cached runs, of other workflows, of files that are dropped, and of
// files that are larger than the browser's buffer.
import assert from "node:assert/strict";
import { test } from "node:test";

/** What the scripts ask of an element. */
class Element extends EventTarget {
  style = {};
  children = [];
  attributes = {};
  paused = false;
  currentTime = 0;
  duration = 60;
  readyState = 4;
  constructor(tag) {
    super();
    this.tag = tag;
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  removeAttribute(name) {
    delete this[name];
  }
  append(...children) {
    this.children.push(...children);
  }
  prepend(...children) {
    this.children.unshift(...children);
  }
  replaceChildren(...children) {
    this.children = children;
  }
  load() {}
  play() {
    return Promise.resolve();
  }
}
Object.assign(globalThis, {
  document: { createElement: (tag) => new Element(tag) },
  window: Object.assign(new EventTarget(), { setTimeout: () => 0 }),
  ResizeObserver: class {
    observe() {}
  },
  Image: class extends EventTarget {},
  LiteGraph: { vueNodesMode: true },
});
globalThis.MediaSource = class {};
const wait = globalThis.setTimeout;
globalThis.setTimeout = (call, ms) => (ms > 5000 ? wait(call, ms).unref() : wait(call, ms)); // no test waits for them
URL.createObjectURL = () => "blob:made";
URL.revokeObjectURL = () => {};

const { app } = await import("../scripts/app.js");
const root = { id: "aaaa-1", nodes: [], extra: {} };
let numbers = 0; // of runs
const queueing = { prompt_id: "" };
Object.assign(app, {
  rootGraph: root,
  canvas: { graph: root },
  api: Object.assign(new EventTarget(), {
    apiURL: (path) => path,
    queuePrompt: async () => queueing,
  }),
});
const shared = await import("../extensions/headforcing/shared.js");
const serverEvents = await import("../extensions/headforcing/server_events.js");
const messages = await import("../extensions/headforcing/player/messages.js");
const { GrowingFile } = await import("../extensions/headforcing/player/growing_file.js");
messages.setup();

const told = (name, detail) => app.api.dispatchEvent(Object.assign(new Event(name), { detail }));
const SCENES = [{ start_block: 20, end_block: 40, words: "a lake" }];
const file = (filename) => [{ filename, subfolder: "", type: "output" }];

class Node {
  constructor(id, comfyClass, source) {
    Object.assign(this, { id, comfyClass, title: comfyClass, graph: root, widgets: [], source });
    this.inputs = source ? [{ name: "positive" }] : [];
  }
  addDOMWidget(name, type, element) {
    this.widgets.push({ name, type, element });
    return this.widgets.at(-1);
  }
  getInputNode() {
    return this.source;
  }
}
class Sampler extends Node {
  static nodeData = { output_node: true, output: ["LATENT", "VIDEO"] };
}

/** Open a workflow with a story, samplers of it, and what is told to its timeline. */
function opened(workflow, samplers = 1) {
  Object.assign(root, { id: workflow, extra: {} });
  const story = new Node(4, "HeadForcingPromptTimeline");
  const follows = [];
  shared.editors.set(story, { follow: (player, place) => follows.push([player, place]), frame() {} });
  const ids = Array.from({ length: samplers }, (_, index) => 6 + index);
  const made = ids.map((id) => new Sampler(id, "HeadForcingSampler", story));
  root.nodes = [story, ...made];
  made.forEach(messages.nodeCreated);
  messages.afterConfigureGraph();
  return { players: made.map(messages.playerOf), follows };
}

/** The last message of a finished render. */
function rendered(workflow, node, filename, more = {}) {
  const message = { state: "done", text: `wrote ${filename}`, video: null, place: null, files: file(filename), ...more };
  numbers += 1;
  told("head_forcing.progress", { node: String(node), workflow, prompt_id: `r${numbers}`, time: numbers, ...message });
}

/** A run of a workflow that the page queues; its id. */
async function queued(workflow) {
  numbers += 1;
  queueing.prompt_id = `r${numbers}`;
  await app.api.queuePrompt(0, { output: {}, workflow: { id: workflow } });
  return `r${numbers}`;
}

test("a run that ComfyUI has cached keeps scenes, place, pictures and text of its file", async () => {
  const { players } = opened("cached-1");
  const place = { done: 40, lead: -14.25, fps: 16, scenes: SCENES };
  const video = { id: "file", bytes: 9, pictures: 3, sound: true };
  rendered("cached-1", 6, "part.mp4", { place, video });
  const prompt_id = await queued("cached-1");
  told("executed", { node: "6", prompt_id, output: { video: file("part.mp4") } });
  const [{ place: now, sprite, text, hasSound }] = players;
  assert.deepEqual(now, { ...place, running: false, render: prompt_id });
  assert.deepEqual([sprite.id, hasSound, text.textContent], ["file", true, "wrote part.mp4"]);
  const other = await queued("cached-1");
  told("executed", { node: "6", prompt_id: other, output: { video: file("other.mp4") } });
  assert.deepEqual([players[0].place.lead, players[0].text.textContent], [0, ""]);
});

test("videos and errors belong to the workflow that was queued, whichever is open", async () => {
  opened("one-1");
  rendered("one-1", 6, "one.mp4");
  const again = await queued("one-1");
  const fails = await queued("one-1");
  const { players } = opened("two-2");
  rendered("two-2", 6, "two.mp4");
  told("executed", { node: "6", prompt_id: again, output: { video: file("one.mp4") } });
  told("execution_error", { node_id: "4", prompt_id: fails, exception_message: "no text" });
  assert.deepEqual([players[0].file.filename, players[0].text.textContent], ["two.mp4", "wrote two.mp4"]);
  const [one] = opened("one-1").players;
  assert.equal(one.file.filename, "one.mp4");
  told("execution_error", { node_id: "4", prompt_id: await queued("one-1"), exception_message: "no text" });
  assert.equal(one.text.textContent, "failed in HeadForcingPromptTimeline: no text");
  told("execution_start", { prompt_id: await queued("two-2") });
  assert.ok(one.text.textContent.startsWith("failed"), "another workflow has begun");
  told("execution_start", { prompt_id: await queued("one-1") });
  assert.equal(one.text.textContent, "");
});

test("of two samplers the timeline follows the one that renders, or that a person plays", () => {
  const { players, follows } = opened("pair-1", 2);
  const [first, second] = players;
  const place = { done: 9, lead: 0, scenes: SCENES };
  const leader = (player) => {
    follows.length = 0;
    player?.video.dispatchEvent(new Event("timeupdate"));
    return follows.at(-1)?.[0];
  };
  rendered("pair-1", 6, "first.mp4", { place });
  rendered("pair-1", 7, "second.mp4", { place });
  assert.equal(leader(first), undefined, "its finished video plays in turn");
  assert.equal(leader(second), second);
  first.stage.dispatchEvent(new Event("pointerdown"));
  assert.deepEqual([leader(second), leader(first)], [undefined, first]);
  rendered("pair-1", 7, "second.mp4", { state: "running", files: undefined, place });
  assert.deepEqual([leader(first), leader(second)], [undefined, second]);
  first.lend(new Element("div"));
  assert.deepEqual([leader(second), leader(first)], [undefined, first]);
  rendered("pair-1", 7, "second.mp4", { state: "running", files: undefined, place });
  assert.deepEqual([leader(second), leader(first)], [undefined, first], "the panel shows the first");
  first.takeBack();
  rendered("pair-1", 7, "second.mp4", { state: "running", files: undefined, place });
  assert.deepEqual([leader(first), leader(second)], [undefined, second]);
  first.lend(new Element("div"));
  first.node.graph = null;
  assert.equal(leader(second), second, "the other one is deleted");
});

test("a video plays in the node if its workflow is opened, and not if a node takes it", () => {
  const [player] = opened("drop-1").players;
  const dropped = { name: "dropped.mp4", type: "video/mp4" };
  const drop = (more = {}) => {
    const target = { files: [], ...more };
    const event = Object.assign(new Event("drop"), { dataTransfer: { files: [dropped] } });
    Object.defineProperty(event, "target", { value: target });
    window.dispatchEvent(event);
    messages.afterConfigureGraph();
    return player.text.textContent ?? "";
  };
  assert.equal(drop(), "", "the graph is none of a file of this pack");
  root.extra.head_forcing_run = "an earlier run";
  const load = Object.assign(new Node(9, "LoadVideo"), { onDragDrop: () => true });
  root.nodes.push(load);
  app.dragOverNode = load;
  assert.equal(drop(), "");
  app.dragOverNode = null;
  assert.equal(drop({ closest: () => ({ dataset: { nodeId: "9" } }) }), "");
  assert.equal(drop(), "dropped.mp4");
});

test("nodes of a subgraph are told that they have left when another graph is open", () => {
  const inner = { id: "inner" };
  root.subgraphs = new Map([["inner", inner]]);
  const left = [];
  const nodes = [root, inner].map((graph) => ({ graph }));
  for (const node of nodes) {
    shared.whileInGraph(node, () => {}, () => left.push(node));
    node.onAdded(node.graph);
  }
  shared.afterConfigureGraph();
  assert.deepEqual(left, []);
  root.subgraphs = new Map([["inner", { id: "inner" }]]);
  shared.afterConfigureGraph();
  shared.afterConfigureGraph();
  assert.deepEqual(left, [nodes[1]]);
  delete root.subgraphs;
});

test("opening a workflow does not wait for the server", () => {
  let asked = 0;
  Object.assign(app.api, { clientId: "me", fetchApi: () => new Promise(() => (asked += 1)) });
  root.id = "slow-1";
  assert.deepEqual([serverEvents.afterConfigureGraph(), asked], [undefined, 1]);
  delete app.api.clientId;
});

test("a file larger than the browser's buffer is read on when it is played on", async () => {
  const MOST = 3; // pieces that there is room for
  const buffer = Object.assign(new EventTarget(), { pieces: [], gone: 0 });
  const later = () => setTimeout(() => buffer.dispatchEvent(new Event("updateend")));
  Object.defineProperty(buffer, "buffered", {
    get: () => ({ length: 1, start: () => buffer.gone, end: () => buffer.gone + 10 * buffer.pieces.length }),
  });
  buffer.appendBuffer = (bytes) => {
    if (buffer.pieces.length === MOST) throw Object.assign(new Error("full"), { name: "QuotaExceededError" });
    buffer.pieces.push(bytes);
    later();
  };
  buffer.remove = (_, until) => {
    const pieces = Math.floor((until - buffer.gone) / 10);
    buffer.pieces.splice(0, pieces);
    buffer.gone += 10 * pieces;
    later();
  };
  globalThis.MediaSource = class extends EventTarget {
    readyState = "open";
    isEnded = false;
    constructor() {
      super();
      setTimeout(() => this.dispatchEvent(new Event("sourceopen")));
    }
    addSourceBuffer = () => buffer;
    endOfStream() {
      this.isEnded = true;
    }
  };
  const head = new TextEncoder().encode("....avcC.ABC....mdat");
  let now = 0;
  const [asked, { now: clock }] = [[], performance];
  performance.now = () => (now += 2000); // no wait between two requests
  app.api.fetchApi = async (_, { headers }) => {
    asked.push(headers.Range);
    return { status: 206, arrayBuffer: async () => head.buffer };
  };
  const video = new Element("video");
  video.paused = true;
  const growing = new GrowingFile(video, "large");
  const written = 4 * head.length;
  for (const size of [1, 2, 3, 4]) await growing.grow(size * head.length, size === 4);
  await growing.grow(written, true);
  assert.deepEqual([asked.length, buffer.pieces.length, growing.closed], [4, 3, false]);
  assert.equal(growing.media.isEnded, false, "there is more to read");
  video.currentTime = 16;
  video.dispatchEvent(new Event("timeupdate"));
  while (growing.read < written) await new Promise((done) => setTimeout(done, 1));
  assert.equal(serverEvents.playsGrowing(), true);
  performance.now = clock;
});
