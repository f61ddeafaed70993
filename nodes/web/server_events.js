// What the server tells about renders of the open workflow: whenever something happens, and when this page asks, as
// after it was loaded, after another workflow was opened, and when the server is back. See nodes/host/browser/pages.py.
import { app } from "../../scripts/app.js";
import { openId } from "./shared.js";
/** @import {ServerEvent} from "./types.js" */

/**
 * A part that hears an event of the server.
 * @typedef {object} Listener
 * @property {(about: any, isAnswer?: boolean) => void} take hears what is told, and whether this page has asked for it
 * @property {() => {prompt_id: string}[]} known those that were heard and are not over
 * @property {(about: any) => void} lose hears one that a server which was asked does not know
 */

/** What grows with a story: sent when it changes, else asked for. */
const LASTING = ["story", "scenes"];

/** @type {(Listener & {event: string})[]} */
const listeners = [];
/** The events that are heard. @type {Set<string>} */
const heard = new Set();
/** What is known of `LASTING`, and since when, by event, workflow and node. @type {Map<string, Record<string, any>>} */
const lasting = new Map();
/** The last event of those for which it is asked. @type {Map<string, {about: any, isAnswer?: boolean}>} */
const waiting = new Map();
let lastQuery = ""; // what was asked about last, and as whom
let grows = "MediaSource" in globalThis; // whether this browser plays growing files; all play finished ones

/**
 * Hear an event of the server.
 * @param {string} event
 * @param {Listener} listener
 */
export function listen(event, { take, known, lose }) {
  listeners.push({ event, take, known, lose });
  if (heard.has(event)) return;
  heard.add(event);
  app.api.addEventListener(event, (/** @type {ServerEvent} */ { detail }) => hand(event, detail));
}

/**
 * Hand an event on to all its listeners, with all that is known of `LASTING`.
 * @param {string} event
 * @param {any} about
 * @param {boolean} [isAnswer]
 */
async function hand(event, about, isAnswer) {
  const { workflow, since } = about;
  const node = about.node ?? about.node_id;
  const key = `${event} ${workflow} ${node}`;
  const sent = LASTING.filter((name) => about[name] != null);
  if (sent.length) lasting.set(key, Object.fromEntries([...sent, "since"].map((name) => [name, about[name]])));
  if (sent.length || since === undefined || lasting.get(key)?.since === since) {
    waiting.delete(key); // it is overtaken
    tell(event, { ...about, ...(since !== undefined && lasting.get(key)) }, isAnswer);
    return;
  }
  const isAskedFor = waiting.has(key);
  waiting.set(key, { about, isAnswer });
  if (isAskedFor) return;
  const query = new URLSearchParams({ client: app.api.clientId, workflow, event, node });
  try {
    const answer = await app.api.fetchApi(`/headforcing/renders/story?${query}`);
    if (answer.ok && waiting.has(key)) lasting.set(key, await answer.json());
  } catch {
    // it is handed on without
  }
  const last = waiting.get(key);
  waiting.delete(key);
  if (last) tell(event, { ...last.about, ...lasting.get(key) }, last.isAnswer);
}

/** @param {string} event @param {any} about @param {boolean} [isAnswer] */
function tell(event, about, isAnswer) {
  for (const listener of listeners) if (listener.event === event) listener.take(about, isAnswer);
}

/** Ask, unless the same was asked already. */
export async function ask() {
  const { api } = app;
  if (!api.clientId) return;
  const query = new URLSearchParams({ client: api.clientId, workflow: openId(), grows: String(grows) }).toString();
  if (query === lastQuery) return;
  lastQuery = query;
  const before = listeners.map(({ known }) => known());
  try {
    const answer = await api.fetchApi(`/headforcing/renders?${query}`);
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const told = await answer.json();
    for (const [index, listener] of listeners.entries()) loseOthers(told, listener, before[index]);
    for (const [event, about] of told) if (heard.has(event)) hand(event, about, true);
  } catch (error) {
    lastQuery = ""; // the next status asks again
    console.warn("Head Forcing: renders of this workflow are not shown", error);
  }
}

/**
 * Tell a part what it knew when the server was asked, and the server does not know.
 * @param {[string, any][]} told events, each with what it is about
 * @param {Listener & {event: string}} listener
 * @param {{prompt_id: string}[]} before
 */
function loseOthers(told, { event, lose }, before) {
  const ours = told.filter(([name]) => name === event);
  const confirmed = new Set(ours.map(([, { prompt_id }]) => prompt_id));
  for (const about of before) if (!confirmed.has(about.prompt_id)) lose(about);
}

/** Ask for previews until files are finished: this page cannot play what grows. */
export function playsNoGrowing() {
  grows = false;
  return ask();
}

export const playsGrowing = () => grows;

export function setup() {
  app.api.addEventListener("status", ask); // its first one says who this is
  app.api.addEventListener("reconnected", () => {
    lastQuery = ""; // perhaps a new server
    return ask();
  });
  ask();
}

/** The frontend waits for the hook before it says which workflow is open: a click meanwhile would belong to the last. */
export function afterConfigureGraph() {
  ask();
}
