// The tab *Story* in the bottom panel of ComfyUI: a monitor, the timeline of the prompts as wide as the window, the takes.
//
// There is one editor of a story, one player and one list of takes. Their elements are lent to the panel while it is open,
// and go back to their nodes when it is closed, in app mode, and where the frontend has no bottom panel.
import { app } from "../../../scripts/app.js";
import { liveStoryOf } from "../live_story.js";
import { playerOf } from "../player/messages.js";
import { button, editors, make, placeOf, put, rootGraph, storyNodeOf } from "../shared.js";
import { shelfOf } from "../takes/shelf.js";
import { nameOf } from "../takes/store.js";
import { t } from "../texts.js";
import { storyNodeIn } from "../timeline/face.js";
import { isShortcut } from "../timeline/keys.js";
import { startSeconds } from "../timeline/segments.js";
import { takeDrops } from "./drops.js";
import { takeToExport } from "./export.js";
import { Film } from "./film.js";
import { Forecast } from "./forecast.js";
import { Layouts } from "./layouts.js";
import { LivePanel } from "./live.js";
import { Menu } from "./menu.js";
import { Markers } from "./markers.js";
import { Monitor } from "./monitor.js";
import { References } from "./references.js";
import { Script } from "./script.js";
import { snap } from "./snap.js";
import { SoundLane } from "./sound.js";
/** @import {GraphNode, Say, Take} from "../types.js" */
/** @import {TimelineEditor} from "../timeline/editor.js" */

const TAB = "headforcing.story";
const COMMAND = "HeadForcing.Story";
const TIMELINE = "HeadForcingPromptTimeline";
const SAMPLER = "HeadForcingSampler";
const SAID_MS = 8000; // that the sentence of an error stays in the corner
const LOOK_MS = 200; // the frontend does not tell when another workflow, node or mode is shown
const KEYS = ["keyup", "keypress", "copy", "cut", "paste"]; // the graph has uses of its own for them

const store = () => app.extensionManager?.bottomPanel;

/** All nodes of the open workflow, those in subgraphs, too; those of the graph that is shown come first. */
function allNodes() {
  /** @type {Set<GraphNode>} */
  const nodes = new Set();
  /** @param {{nodes: GraphNode[]} | undefined} graph */
  const visit = (graph) => {
    for (const node of graph?.nodes ?? []) {
      if (nodes.has(node)) continue;
      nodes.add(node);
      visit(node.subgraph);
    }
  };
  visit(app.canvas?.graph);
  visit(rootGraph());
  return [...nodes];
}

/** The Prompt Timeline that a node renders, is, or shows on its face as a subgraph. @param {GraphNode} node */
const storyNodeFor = (node) => storyNodeOf(node) ?? (node.subgraph && storyNodeIn(node));

class StoryPanel {
  /** The element that the frontend gave last. @type {HTMLElement | null} */
  #host = null;
  #wasThere = false; // whether the panel was seen in the page since then
  #timer = 0; // 0: the panel is closed
  /** The nodes whose elements are lent. @type {GraphNode | null} */
  #storyNode = null;
  /** @type {GraphNode | null} */
  #sampler = null;
  /** @type {TimelineEditor | null} */
  #editor = null;
  /** @type {ReturnType<typeof shelfOf> | null} */
  #shelf = null;
  /** @type {ReturnType<typeof liveStoryOf>} */
  #live;
  /** The node whose button opened the panel. @type {GraphNode | null} */
  #opener = null;
  /** The chosen prompt by workflow and node: the graph's undo makes all nodes anew. @type {Map<string, number>} */
  #selected = new Map();

  constructor() {
    this.markers = new Markers();
    /** @type {Say} */
    const say = (sentence, isError) => this.say(sentence, isError);
    this.monitor = new Monitor(say, (seconds) => this.#editor && this.markers.add(seconds));
    this.title = make("div", { class: "hf-story-title" });
    this.empty = make("p", { class: "hf-story-empty" });
    this.place = make("div", { class: "hf-story-place" });
    this.takes = make("div", { class: "hf-story-takes hf-shelf", role: "region", "aria-label": t("Takes") });
    this.showTakes = button(t("takes"), t("Show the takes of this workflow"), () => this.#toggleTakes()); // of a low panel
    this.showTakes.classList.add("hf-story-show-takes");
    this.showTakes.ariaPressed = "false";
    const exports = button(t("export"), t("Download the story of the video that is played for other programs"), () =>
      this.#openFormats(exports, takeToExport(this.#sampler ? playerOf(this.#sampler).played : undefined)),
    );
    exports.classList.add("hf-story-export");
    this.monitor.buttons.append(exports, this.showTakes);
    this.said = make("div", { class: "hf-story-said", role: "status" });
    this.grid = make("div", { class: "hf-story-grid" });
    this.grid.append(this.title, this.monitor.element, this.place, this.takes, this.said, this.empty);
    this.root = make("div", { class: "hf-story", role: "region", "aria-label": t("Story"), tabindex: -1 }, this.grid);
    this.livePanel = new LivePanel(say, this.grid, () => this.sound.beats);
    this.monitor.buttons.prepend(this.livePanel.begin);
    this.grid.append(this.livePanel.element);
    this.film = new Film();
    this.forecast = new Forecast();
    this.otherStory = make("output", { class: "hf-story-other" });
    this.references = new References();
    this.script = new Script();
    this.grid.append(this.script.element);
    this.sound = new SoundLane(say);
    this.menu = new Menu(this.root, say);
    this.root.addEventListener("keydown", (event) => this.monitor.key(event), { capture: true });
    this.root.addEventListener("keydown", (event) => {
      if (!isShortcut(event)) event.stopPropagation();
    });
    for (const name of KEYS) this.root.addEventListener(name, (event) => event.stopPropagation());
    this.root.addEventListener("contextmenu", (event) => this.#openMenu(event));
    this.root.addEventListener("fullscreenchange", () => this.film.draw());
    const shown = () => ({ storyNode: this.#storyNode, sampler: this.#sampler, editor: this.#editor });
    takeDrops(this.root, shown, say);
    this.layouts = new Layouts(this.root, this.grid);
  }

  /** A low panel has room for the takes or for a wide timeline. */
  #toggleTakes() {
    const areShown = this.grid.classList.toggle("hf-story-with-takes");
    this.showTakes.ariaPressed = String(areShown);
  }

  /**
   * The frontend calls this at any time, again for the same element, and before the element is in the page.
   * @param {HTMLElement} host
   */
  show(host) {
    if (host !== this.#host) this.#wasThere = false;
    this.#host = host;
    host.style.height = "100%";
    if (this.root.parentNode !== host) host.replaceChildren(this.root); // another pack's tab may have left its own
    if (!this.#timer) this.#timer = setInterval(() => this.#look(), LOOK_MS);
    this.#look();
  }

  /** Not called when another tab is chosen: `#look` notices that. */
  hide() {
    clearInterval(this.#timer);
    this.#timer = 0;
    this.#host = null;
    this.#giveBack();
    this.root.remove();
  }

  /** Show the story of a node; without one open the panel, or close it. @param {GraphNode} [node] */
  toggle(node) {
    const panel = store();
    if (!panel) return;
    this.#opener = node ?? null;
    const isOpen = panel.bottomPanelVisible && panel.activeBottomPanelTab?.id === TAB;
    if (!isOpen || !node) panel.toggleBottomPanelTab(TAB);
  }

  /** Show a sentence; that of an error in the corner, too, where there is room for all of it. @type {Say} */
  say(sentence, isError = false) {
    this.said.textContent = sentence;
    this.said.title = sentence;
    this.said.classList.toggle("hf-error", isError);
    const toast = { severity: "error", summary: t("Story"), detail: sentence, life: SAID_MS };
    if (sentence && isError) app.extensionManager?.toast?.add?.(toast);
  }

  /** Offer the formats of an export below a button. @param {HTMLElement} owner @param {Take | undefined} take */
  #openFormats(owner, take) {
    this.menu.openFormats(owner, take, this.markers.all);
  }

  /** Lend what belongs to the nodes that are meant now, and give back what does not. */
  #look() {
    if (this.root.isConnected) this.#wasThere = true;
    else if (this.#wasThere) return this.hide();
    // in app mode the panel stays in the page without a size
    if (!this.root.isConnected || !(this.root.checkVisibility?.() ?? true)) return this.#giveBack();
    this.#lendChosen(allNodes());
    this.#editor?.refresh();
    this.monitor.look();
    this.film.draw();
    this.sound.look();
    this.livePanel.look();
    this.markers.look();
    this.references.look();
    this.script.look();
    this.forecast.look();
    this.#sayWhatPlays();
    if (this.#editor) this.#selected.set(placeOf(this.#storyNode), this.#editor.selected);
  }

  /** Say that a take of another story plays: the bars are not those of its scenes. */
  #sayWhatPlays() {
    const player = this.#sampler && playerOf(this.#sampler);
    const sentence = t("%1 plays; the bars show the story as it is now.", player?.take ? nameOf(player.take) : "");
    const said = player?.playsOtherStory ? sentence : "";
    put(this.otherStory, { textContent: said, title: said });
  }

  /** Lend what belongs to the chosen ones of the nodes, and say whose it is. @param {GraphNode[]} nodes */
  #lendChosen(nodes) {
    const storyNodes = nodes.filter(({ comfyClass }) => comfyClass === TIMELINE);
    const storyNode = this.#chosenStoryNode(nodes, storyNodes);
    const samplers = nodes.filter((node) => node.comfyClass === SAMPLER && storyNodeOf(node) === storyNode);
    const sampler = this.#chosen(samplers, this.#sampler);
    const editor = storyNode ? (editors.get(storyNode) ?? null) : null;
    if (storyNode !== this.#storyNode || sampler !== this.#sampler || editor !== this.#editor) {
      this.#giveBack();
      this.#lend(storyNode, sampler, editor);
    }
    this.grid.classList.toggle("hf-story-none", !editor);
    const none = t("This workflow has no Prompt Timeline. Add one, or open a template of Head Forcing.");
    put(this.empty, { textContent: editor ? "" : none });
    const isOneOfMany = storyNode !== null && storyNodes.length > 1;
    put(this.title, { textContent: isOneOfMany ? t("Story of %1 (node %2)", storyNode.title, storyNode.id) : "" });
  }

  /**
   * The story of the node whose button was pressed, else of a selected node, else the one that is shown, else the first.
   * @param {GraphNode[]} nodes
   * @param {GraphNode[]} storyNodes those of them that are Prompt Timelines
   * @returns {GraphNode | null}
   */
  #chosenStoryNode(nodes, storyNodes) {
    const ofOpener = this.#opener && nodes.includes(this.#opener) ? storyNodeFor(this.#opener) : null;
    this.#opener = null;
    if (ofOpener) return ofOpener;
    for (const item of app.canvas?.selectedItems ?? []) {
      const storyNode = item.comfyClass && storyNodeFor(item); // groups have no class
      if (storyNode) return storyNode;
    }
    return this.#chosen(storyNodes, this.#storyNode);
  }

  /**
   * Of some nodes the selected one, else the one that is shown, also if it was made anew, else the first.
   * @param {GraphNode[]} nodes
   * @param {GraphNode | null} shown
   */
  #chosen(nodes, shown) {
    const selected = nodes.find((node) => app.canvas?.selectedItems?.has?.(node));
    const again = nodes.find((node) => node === shown) ?? nodes.find(({ id }) => id === shown?.id);
    return selected ?? again ?? nodes[0] ?? null;
  }

  /** @param {GraphNode | null} storyNode @param {GraphNode | null} sampler @param {TimelineEditor | null} editor */
  #lend(storyNode, sampler, editor) {
    this.#storyNode = storyNode;
    this.#sampler = sampler;
    this.#editor = editor;
    if (editor) {
      editor.home.lend(this.place);
      this.#live = liveStoryOf(storyNode);
      this.#live?.lend(editor.tools.end);
      const selected = this.#selected.get(placeOf(storyNode));
      if (selected !== undefined) editor.select(selected);
    }
    const player = sampler ? playerOf(sampler) : null;
    this.monitor.bind(player, editor, sampler, storyNode && placeOf(storyNode));
    this.film.bind(player, editor);
    this.livePanel.bind(storyNode, sampler, player, editor);
    this.sound.bind(storyNode, editor, player);
    this.references.bind(storyNode, editor);
    this.script.bind(editor);
    this.forecast.bind(storyNode, editor, player);
    editor?.status.element.before(this.otherStory);
    /** @type {(seconds: number, event: PointerEvent) => number} */
    const jump = (seconds, event) => this.#snap(seconds, event);
    if (editor) editor.bars.snap = jump;
    this.markers.bind(storyNode, editor, { seek: (seconds) => player?.seek(seconds), snap: jump });
    this.#shelf = sampler ? shelfOf(sampler) : null;
    this.#shelf?.lend(this.takes, {
      say: (sentence, isError) => this.say(sentence, isError),
      openFormats: (owner, take) => this.#openFormats(owner, take),
    });
    player?.showPlace();
  }

  /**
   * The time of the story to which one under the pointer jumps; Alt jumps to nothing.
   * @param {number} seconds
   * @param {PointerEvent} event
   */
  #snap(seconds, { altKey }) {
    const { timeline, bars } = this.#editor;
    if (altKey) return seconds;
    const times = [...this.monitor.times, this.sound.nearest(seconds), ...this.markers.times];
    return snap(seconds, { times, beats: this.sound.beats }, bars.wholeWidth / startSeconds(timeline, timeline.blocks));
  }

  /** @param {PointerEvent} event */
  #openMenu(event) {
    this.menu.open(event, this.#editor, this.#sampler, this.markers);
  }

  #giveBack() {
    this.menu.close();
    this.film.bind(null, null);
    this.livePanel.bind(null, null, null, null);
    this.sound.bind(null, null, null);
    this.references.bind(null, null);
    this.script.bind(null);
    this.forecast.bind(null, null, null);
    this.otherStory.remove();
    this.markers.bind(null, null, { seek: () => {}, snap: (seconds) => seconds });
    this.monitor.bind(null, null, null, null);
    this.#shelf?.takeBack();
    this.#live?.takeBack();
    this.#editor?.home.takeBack();
    if (this.#editor) this.#editor.bars.snap = undefined;
    this.#storyNode = null;
    this.#sampler = null;
    this.#editor = null;
    this.#shelf = null;
    this.#live = undefined;
  }
}

/** Made when it is opened first, since its texts are loaded before. @type {StoryPanel | null} */
let panel = null;

function thePanel() {
  if (!panel) {
    const href = new URL("./story.css", import.meta.url).href;
    document.head.append(make("link", { rel: "stylesheet", href }));
    panel = new StoryPanel();
  }
  return panel;
}

/** Whether the frontend has a place for the panel. */
export const isThere = () => Boolean(store()?.toggleBottomPanelTab);

/** Open the panel with the story of a node. @param {GraphNode} node */
export const open = (node) => thePanel().toggle(node);

/** What the extension registers. */
export const extension = {
  bottomPanelTabs: [
    {
      id: TAB,
      title: "Story",
      type: "custom",
      icon: "pi pi-video",
      render: (/** @type {HTMLElement} */ host) => thePanel().show(host),
      destroy: () => thePanel().hide(),
    },
  ],
  commands: [{ id: COMMAND, label: "Story panel", icon: "pi pi-video", function: () => thePanel().toggle() }],
  keybindings: ["y", "¥"].map((key) => ({ combo: { key, alt: true }, commandId: COMMAND })), // a Mac's Option+Y is ¥
  actionBarButtons: [
    { icon: "pi pi-video", label: "Story", tooltip: "Story panel (Alt+Y)", onClick: () => thePanel().toggle() },
  ],
};
