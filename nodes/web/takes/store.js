// The takes that the server lists, for all nodes that show them, and what is drawn of one.
import { app } from "../../../scripts/app.js";
import { address, make, post, whileInGraph } from "../shared.js";
import { sentenceOf, t } from "../texts.js";
/** @import {FileName, GraphNode, Take} from "../types.js" */

/** The takes, the newest first. @type {Take[]} */
export let takes = [];
/** Called with every new list. @type {Set<() => void>} */
const shows = new Set();
let wanted = false; // whether a node has asked for them

/**
 * While a node is in a graph, call `show` with every new list of takes and `look` again and again.
 * @param {GraphNode} node
 * @param {() => void} show
 * @param {() => void} look
 * @param {number} milliseconds
 */
export function watchInGraph(node, show, look, milliseconds) {
  let timer = 0; // none
  const begin = () => {
    if (timer) return;
    shows.add(show);
    timer = setInterval(look, milliseconds);
  };
  const end = () => {
    shows.delete(show);
    clearInterval(timer);
    timer = 0;
  };
  whileInGraph(node, begin, end);
}

/** @param {Take[]} listed */
function set(listed) {
  takes = listed;
  shows.forEach((show) => show());
}

/** Ask the server for the takes; without an answer those that are shown stay. */
export async function fetchTakes() {
  wanted = true;
  try {
    const answer = await app.api.fetchApi("/headforcing/takes");
    if (answer.ok) set((await answer.json()).takes);
  } catch {
    // the server is away
  }
}

/** Ask the server for the story of a take, once; without an answer it stays unknown. @param {Take} take */
export async function fetchStory(take) {
  if (take.written !== undefined) return;
  try {
    const answer = await app.api.fetchApi(`/headforcing/takes/story?${new URLSearchParams({ take: take.name })}`);
    if (answer.ok) take.written = (await answer.json()).written;
  } catch {
    // the server is away
  }
}

/**
 * Ask the server to change a take; the sentence of an error, empty if it is done.
 * @param {"label" | "delete"} what
 * @param {Take} take
 * @param {{title?: string, starred?: boolean}} values
 */
export async function change(what, take, values = {}) {
  const body = { take: take.name, ...values };
  const answer = await post(`/headforcing/takes/${what}`, body, t("The server does not answer; nothing is changed."));
  if (answer.takes) set(answer.takes);
  return answer.error ?? "";
}

/**
 * "Take 2", with its name if it has one.
 * @param {Take} take
 */
export function nameOf({ take, title }) {
  const number = t("Take %1", take);
  return title ? `${number} ${title}` : number;
}

/** The take that a video file was written or reused for; undefined without one. @param {FileName | undefined} file */
export const takeOfFile = (file) => file && takes.find((take) => take.file && address(take.file) === address(file));

/** What tells a take from the one before it, else its first words. @param {Take} take */
export const storyOfTake = ({ differs, story }) => (differs === undefined ? story : sentenceOf(differs));

/**
 * What a list says of a take beside its pictures; its seed where another take has the same story.
 * @param {Take} take
 */
export function factsOf(take) {
  const { length, size, date, starred, draft, seed } = take;
  const isAlike = takes.some((other) => other !== take && other.story_key === take.story_key);
  const facts = [
    starred && "★",
    nameOf(take),
    draft && t("draft"),
    isAlike && seed !== null && t("seed %1", seed),
    length,
    size,
    date,
  ];
  return facts.filter(Boolean).join(" · ");
}

/**
 * @param {number} bytes
 */
export const megabytes = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

/**
 * @param {string} name
 * @param {string} text
 */
export const line = (name, text) => make("div", { class: name, title: text }, text ?? "");

/**
 * The row of a take's pictures: first that of the scene that differs from the take before it, then some of its length.
 * @param {Take} take
 */
export function pictures(take) {
  const strip = make("div", { class: "pictures" });
  if (take.scene !== undefined) strip.append(picture(take, { scene: take.scene }));
  for (let number = strip.children.length; number < take.pictures; number++) strip.append(picture(take, { number }));
  return strip;
}

/**
 * @param {Take} take
 * @param {{scene?: number, number?: number}} which
 */
function picture(take, which) {
  const [[name, value]] = Object.entries(which);
  const query = new URLSearchParams({ run: take.name, [name]: String(value) });
  const src = app.api.apiURL(`/headforcing/takes/picture?${query}`);
  const about = { class: name === "scene" && "differs", loading: "lazy", alt: "" };
  const element = make("img", { ...about, src, onerror: () => element.remove() });
  return element;
}

const ACCENT = "var(--p-primary-color, #4a90d9)";
export const STYLE = `
.hf-takes { box-sizing: border-box; overflow-y: auto; outline-offset: -1px; border-radius: 6px;
  font: 12px sans-serif; color: var(--input-text, #ddd); background: var(--comfy-input-bg, #222); }
.hf-takes .take { padding: 4px 6px; cursor: pointer; border-left: 3px solid transparent; }
.hf-takes .take:hover { background: color-mix(in srgb, ${ACCENT} 12%, transparent); }
.hf-takes .take:is([aria-selected=true], [aria-current=true]) { border-left-color: ${ACCENT};
  background: color-mix(in srgb, ${ACCENT} 25%, transparent); }
.hf-takes .pictures { display: flex; gap: 2px; height: 44px; }
.hf-takes img { height: 44px; min-width: 0; max-width: 19%; object-fit: cover; border-radius: 3px; }
.hf-takes img.differs { outline: 2px solid ${ACCENT}; outline-offset: -2px; }
.hf-takes .facts, .hf-takes .story { overflow: hidden; text-overflow: ellipsis; margin-top: 2px; }
.hf-takes .facts { white-space: nowrap; }
.hf-takes .story { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; }
.hf-takes .story, .hf-takes .none { opacity: 0.75; }
.hf-takes .none { padding: 8px; }
.hf-takes .does, .hf-shelf .tools { display: flex; flex-wrap: wrap; gap: 4px; margin-top: 3px; align-items: center; }
.hf-shelf { display: flex; flex-direction: column; gap: 4px; font: 12px sans-serif; color: var(--input-text, #ddd); }
.hf-shelf input[type=button] { cursor: pointer; height: 24px; padding: 0 8px; font: inherit; color: inherit;
  border: 1px solid var(--border-color, #4e4e4e); border-radius: 6px; background: var(--comfy-input-bg, #222); }
.hf-shelf input[type=button]:hover { background: color-mix(in srgb, ${ACCENT} 25%, transparent); }
.hf-shelf input[type=text] { width: 84px; height: 22px; font: inherit; color: inherit; box-sizing: border-box;
  border: 1px solid var(--border-color, #4e4e4e); border-radius: 6px; background: transparent; padding: 0 6px; }
.hf-shelf input:focus-visible, .hf-shelf a:focus-visible { outline: 2px solid ${ACCENT}; }
.hf-shelf a { color: inherit; padding: 0 8px; border: 1px solid var(--border-color, #4e4e4e); border-radius: 6px;
  background: var(--comfy-input-bg, #222); line-height: 22px; text-decoration: none; }
.hf-shelf a:hover { background: color-mix(in srgb, ${ACCENT} 25%, transparent); }
.hf-shelf input[aria-pressed=true] { background: ${ACCENT}; color: #fff; }
.hf-shelf .apart { margin-left: auto; }
.hf-shelf .said { flex: 1 0 60px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; opacity: 0.8; }
.hf-shelf[hidden] { display: none; }
.hf-shelf .hf-takes { flex: 1 1 0; min-height: 0; }
`;

export function setup() {
  for (const end of ["success", "error", "interrupted"])
    app.api.addEventListener(`execution_${end}`, () => wanted && fetchTakes());
}

export function refreshComboInNodes() {
  if (wanted) return fetchTakes();
}
