// What the server tells about renders of the open workflow: whenever something happens, and when this page asks, as
// after it was loaded, after another workflow was opened, and when the server is back. See nodes/host/browser/pages.py.
import { app } from "../../scripts/app.js";
import { openId } from "./shared.js";

const listeners = [];
let asked = ""; // about what, and as whom
let grows = "MediaSource" in globalThis; // whether this browser plays growing files; all play finished ones

/**
 * Hear an event of the server: `take(about, whether this page has asked)`. `known()` are those that were heard and are
 * not over; `lose(about)` is called with one that a server which was asked does not know.
 */
export function listen(event, { take, known, lose }) {
  listeners.push({ event, take, known, lose });
  app.api.addEventListener(event, ({ detail }) => take(detail));
}

/** Ask, unless the same was asked already. */
export async function ask() {
  const { api } = app;
  if (!api.clientId) return;
  const about = new URLSearchParams({ client: api.clientId, workflow: openId(), grows: String(grows) }).toString();
  if (about === asked) return;
  asked = about;
  const before = listeners.map(({ known }) => known());
  try {
    const answer = await api.fetchApi(`/headforcing/renders?${about}`);
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const told = await answer.json();
    for (const [place, { event, take, lose }] of listeners.entries()) {
      const ours = told.filter(([name]) => name === event).map(([, each]) => each);
      const confirmed = new Set(ours.map(({ prompt_id }) => prompt_id));
      before[place].filter((each) => !confirmed.has(each.prompt_id)).forEach(lose);
      ours.forEach((each) => take(each, true));
    }
  } catch (error) {
    asked = ""; // the next status asks again
    console.warn("Head Forcing: renders of this workflow are not shown", error);
  }
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
    asked = ""; // perhaps a new server
    return ask();
  });
  ask();
}

/** The frontend waits for the hook before it says which workflow is open: a click meanwhile would belong to the last. */
export function afterConfigureGraph() {
  ask();
}
