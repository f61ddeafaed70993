// Above the player of Head Forcing Sampler: buttons that render a part or a draft of the story, and its takes, to play
// one, two beside each other, to go back to one, to name, star and delete them.
import { app } from "../../../scripts/app.js";
import { queuePart } from "../queue_part.js";
import { address, button, demoOf, editors, isLinked, keepFromCanvas, make, openId } from "../shared.js";
import { put, putValues, storyNodeOf } from "../shared.js";
import { change, factsOf, fetchStory, fetchTakes, line, megabytes, nameOf, pictures } from "./store.js";
import { storyOfTake, STYLE, takes, watchInGraph } from "./store.js";
import { t } from "../texts.js";
import { addElement } from "../widgets.js";
/** @import {GraphNode, Part, Say, Take} from "../types.js" */
/** @import {Player} from "../player/player.js" */

/** The player of a node. @type {(node: GraphNode) => Player} */
let playerOf;
/** Show takes in these players; `headforcing.js` hands them in. @param {(node: GraphNode) => Player} given */
export const usePlayers = (given) => { playerOf = given; };

const HEIGHT = 34; // of the widget, in pixels
const SCENE = () => t("Choose a scene: a bar of the Prompt Timeline that is connected to positive.");
const DRAFT = () => t("Render a draft, half as wide and high; the video itself stays");
const NO_FILE = () => t("This take has no video file. Restore it and press Run.");
const NO_TEXT = () => t("This take was not made with Prompt Timeline; nothing is changed.");
const NOT_OWN = () => t("The text of Prompt Timeline comes from another node; nothing is changed.");
const SAID_MS = 8000;
const CHECK_MS = 500; // links change in many ways; looking is the same for all

/**
 * The story panel, as far as a list of takes needs it.
 * @typedef {object} ShelfHost
 * @property {Say} say
 * @property {(owner: HTMLElement, take: Take) => void} openFormats offers the formats of an export below a button
 */

/** @param {Event} event */
const stop = (event) => event.stopPropagation();

class Shelf {
  open = false;
  #everywhere = false; // whether takes of other workflows are listed, too
  /** Of the story panel, while it shows the list. @type {ShelfHost | null} */
  #host = null;
  /** The name of the take that is about to be deleted. @type {string | undefined} */
  #deleting;
  /** Ends the sentence that is shown. @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {GraphNode} node */
  constructor(node) {
    this.node = node;
    this.list = make("div", {
      class: "hf-takes",
      role: "list",
      "aria-label": t("Takes"),
      "data-capture-wheel": "true", // Nodes 2.0: the list scrolls, not the canvas
      onwheel: stop,
    });
    this.toggle = button(t("takes"), t("Show the takes of this workflow"), () => this.#toggle());
    this.draft = button(t("draft"), DRAFT(), () => this.#queue({ draft: true }));
    const tools = [
      this.toggle,
      button(t("this scene"), t("Render the scene of the chosen bar only, up to its end"), () => this.#renderScene(true)),
      button(t("up to here"), t("Render from the beginning to the end of the chosen bar"), () => this.#renderScene(false)),
      this.draft,
    ];
    this.status = make("div", { role: "status", class: "said" });
    this.element = make(
      "div",
      { class: "hf-shelf", onkeydown: stop }, // Delete would delete the node
      make("style", {}, STYLE),
      make("div", { class: "tools", role: "toolbar", "aria-label": t("Scenes and takes") }, ...tools, this.status),
    );
    const beside = "hf-shelf"; // the list stands beside the video, so that the node keeps its size
    this.panel = make("div", { class: beside, style: "flex: 0 0 52%; min-width: 0; min-height: 0", hidden: true }, this.list);
    this.panel.addEventListener("keydown", stop);
    keepFromCanvas(this.element);
    keepFromCanvas(this.panel);
  }

  /** A draft is smaller than the video, and the demo model has one size. */
  checkDraft() {
    const disabled = demoOf(this.node) !== null;
    put(this.draft, { disabled, title: disabled ? t("The demo model has one size: no draft") : DRAFT() });
  }

  /** Say it in the story panel, else beside the buttons and in ComfyUI's corner. @param {string} sentence empty: none @param {"warn" | "info"} severity */
  say(sentence, severity = "warn") {
    if (this.#host) {
      this.#host.say(sentence, severity === "warn");
      return;
    }
    this.status.textContent = sentence;
    this.status.title = sentence;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.status.textContent = "";
    }, SAID_MS);
    const toast = { severity, summary: "Head Forcing", detail: sentence, life: SAID_MS };
    if (sentence) app.extensionManager?.toast?.add?.(toast);
  }

  /** @param {Part} part */
  async #queue(part) {
    await editors.get(storyNodeOf(this.node))?.settled();
    this.say(await queuePart(this.node, part));
  }

  /** Render the chosen scene, `alone` or with what comes before it. @param {boolean} alone */
  async #renderScene(alone) {
    const editor = editors.get(storyNodeOf(this.node));
    await editor?.settled();
    const scene = editor?.scene;
    if (!scene) {
      this.say(SCENE());
      return;
    }
    const { from, until } = scene;
    await this.#queue(alone ? { from_seconds: from, until_seconds: until } : { until_seconds: until });
  }

  #toggle() {
    this.open = !this.open;
    this.panel.hidden = !this.open;
    this.toggle.setAttribute("aria-expanded", String(this.open));
    if (this.open) this.#begin();
  }

  #begin() {
    playerOf(this.node).changed = () => this.draw();
    fetchTakes();
    this.draw();
  }

  /** Show the list in another place until `takeBack`. @param {HTMLElement} place @param {ShelfHost} host */
  lend(place, host) {
    place.replaceChildren(make("div", { class: "hf-story-head" }, t("Takes")), this.list);
    this.#host = host;
    if (this.open) this.#toggle();
    this.#begin();
  }

  takeBack() {
    this.#host = null;
    this.panel.append(this.list);
  }

  draw() {
    if (!this.open && !this.#host) return;
    const field = document.activeElement?.closest?.("input[type=text]");
    if (this.list.contains(field)) return; // a name is being typed
    const showsAll = this.#everywhere || !openId();
    const { played } = playerOf(this.node); // a video that another workflow has made first is reused
    const listed = takes.filter((take) => showsAll || take.workflow === openId() || take === played);
    const all = make("input", { type: "checkbox", checked: this.#everywhere });
    all.addEventListener("change", () => {
      this.#everywhere = all.checked;
      this.draw();
    });
    const rows = listed.map((take) => this.#row(take));
    if (!rows.length) rows.push(line("none", t("No takes of this workflow yet.")));
    this.list.replaceChildren(make("label", {}, all, t("of all workflows")), ...rows);
  }

  /** @param {Take} take */
  #row(take) {
    const player = playerOf(this.node);
    const isChosen = player.take?.name === take.name;
    const isPlayed = isChosen || player.played?.name === take.name;
    const isBeside = player.second?.name === take.name;
    const choose = () => (take.file ? player.choose(take) : this.say(NO_FILE()));
    const play = isChosen
      ? button(t("back to the newest"), t("Play the newest video again"), () => player.choose(null))
      : button(t("play"), t("Play %1 here", nameOf(take)), choose);
    const compare = () => (take.file ? player.compare(isBeside ? null : take) : this.say(NO_FILE()));
    const isAlone = isPlayed && !isBeside;
    const besides = isAlone ? t("This take plays: compare another one with it") : t("Play %1 beside the video, without its sound", nameOf(take));
    const beside = button(t("compare"), besides, compare);
    put(beside, { disabled: isAlone, ariaPressed: String(isBeside) });
    const does = this.#deleting === take.name ? this.#confirmation(take) : [play, beside, ...this.#edits(take)];
    const isOfOther = openId() && take.workflow !== openId();
    const facts = [factsOf(take), megabytes(take.bytes), isOfOther && t("of another workflow")].filter(Boolean);
    const lines = [line("facts", facts.join(" · ")), line("story", storyOfTake(take))];
    const onclick = isChosen || isBeside ? null : choose; // a shown take is left by its buttons
    const picture = make("div", { onclick }, pictures(take), ...lines);
    const row = { class: "take", role: "listitem", "aria-current": isPlayed || isBeside ? "true" : "false" };
    return make("div", row, picture, make("div", { class: "does" }, ...does));
  }

  /** What is done with a take besides playing it. @param {Take} take */
  #edits(take) {
    const restores = t("Put the story and the seed of %1 into the nodes", nameOf(take));
    const remove = button(t("delete"), t("Delete %1", nameOf(take)), () => this.#confirmDelete(take));
    remove.classList.add("apart");
    return [
      button(t("restore"), restores, () => this.#restore(take)),
      ...this.#files(take),
      button(take.starred ? "★" : "☆", t("Star"), () => this.#change("label", take, { starred: !take.starred })),
      this.#nameField(take),
      remove,
    ];
  }

  /** What downloads a take: its story, in the story panel, and its video. @param {Take} take */
  #files(take) {
    /** @type {HTMLElement[]} */
    const found = [];
    const title = t("Download the story of %1 for other programs", nameOf(take));
    const exports = button(t("export"), title, () => this.#host?.openFormats(exports, take));
    if (this.#host) found.push(exports);
    if (!take.file) return found;
    const { filename } = take.file;
    const href = app.api.apiURL(address(take.file));
    const onclick = () => this.say(t("%1 is downloaded.", filename), "info");
    return [...found, make("a", { href, download: filename, title: filename, onclick }, t("save MP4"))];
  }

  /** @param {Take} take */
  #nameField(take) {
    const field = make("input", { type: "text", value: take.title, placeholder: t("name"), "aria-label": t("Name") });
    field.addEventListener("change", async () => {
      field.blur();
      await this.#change("label", take, { title: field.value });
    });
    return field;
  }

  /** The question whether to delete a take. @param {Take} take */
  #confirmation(take) {
    const sure = async () => {
      const player = playerOf(this.node);
      if (player.second?.name === take.name) player.compare(null);
      if (player.take?.name === take.name) player.choose(null);
      await this.#change("delete", take);
      this.#confirmDelete(null);
    };
    const what = t("Delete %1? %2 become free; its MP4 stays.", nameOf(take), megabytes(take.own_bytes));
    const keep = button(t("keep"), t("Keep it"), () => this.#confirmDelete(null));
    return [what, button(t("delete it"), t("Delete %1 now", nameOf(take)), sure), keep];
  }

  /** Ask whether to delete a take; null: ask no more. @param {Take | null} take */
  #confirmDelete(take) {
    this.#deleting = take?.name;
    this.draw();
  }

  /**
   * @param {"label" | "delete"} what
   * @param {Take} take
   * @param {{title?: string, starred?: boolean}} [values]
   */
  async #change(what, take, values) {
    const error = await change(what, take, values);
    if (error) this.say(error);
  }

  /** @param {Take} take */
  async #restore(take) {
    const storyNode = storyNodeOf(this.node);
    await fetchStory(take);
    if (!take.written || !storyNode) {
      this.say(NO_TEXT());
      return;
    }
    if (isLinked(storyNode, "prompts")) {
      this.say(NOT_OWN());
      return;
    }
    putValues(storyNode, take.written);
    if (take.seed != null) putValues(this.node, { seed: take.seed });
    this.say(t("The nodes have the story and the seed of %1.", nameOf(take)), "info");
  }
}

/** By node. @type {WeakMap<GraphNode, Shelf>} */
const shelves = new WeakMap();

/** The takes of a sampler; undefined for other nodes. @param {GraphNode} node */
export const shelfOf = (node) => shelves.get(node);

/** @param {GraphNode} node */
export function nodeCreated(node) {
  if (node.comfyClass !== "HeadForcingSampler") return;
  const shelf = new Shelf(node);
  shelves.set(node, shelf);
  addElement(node, "takes", shelf.element, { getMinHeight: () => HEIGHT, getMaxHeight: () => HEIGHT });
  playerOf(node).row.append(shelf.panel);
  watchInGraph(
    node,
    () => shelf.draw(),
    () => shelf.checkDraft(),
    CHECK_MS,
  );
}
