// The story of a take as a file for other programs, which the page downloads.
import { app } from "../../../scripts/app.js";
import { make, openId, post } from "../shared.js";
import { takes } from "../takes/store.js";
import { t } from "../texts.js";
/** @import {Entry, Marker, Say, Take} from "../types.js" */

/** The ends of the files by what their formats are called. */
const FORMATS = {
  SRT: ".srt",
  WebVTT: ".vtt",
  CSV: ".csv",
  OpenTimelineIO: ".otio",
  "Final Cut Pro 7 XML": ".xml",
  EDL: ".edl",
};

/** The takes of the workflow with a video, the newest first. */
const ownTakes = () => takes.filter(({ workflow, file, draft }) => workflow === openId() && file && !draft);

/** The take that is exported where none is chosen: the one that is played, else the newest. @param {Take | undefined} played */
export const takeToExport = (played) => played ?? ownTakes()[0];

/**
 * An entry for each format; one that the server cannot write says what to install.
 * @param {Take} take
 * @param {Marker[]} markers
 * @param {Say} say
 * @returns {Promise<Entry[]>}
 */
export async function exportEntries(take, markers, say) {
  const others = ownTakes().filter(({ name }) => name !== take.name).map(({ name }) => name);
  const lacking = await missing();
  return Object.entries(FORMATS).map(([format, end]) => {
    const install = lacking[end] && t("needs OpenTimelineIO: %1", lacking[end]);
    return [format, () => download({ take: take.name, end, markers, takes: others }, say), install];
  });
}

/** How to install what formats need, by the ends of their files. @returns {Promise<Record<string, string>>} */
async function missing() {
  try {
    const answer = await app.api.fetchApi("/headforcing/takes/export/missing");
    return answer.ok ? await answer.json() : {};
  } catch {
    return {}; // the export says that the server is away
  }
}

/**
 * Let the browser download a file, and say which, or why there is none.
 * @param {{take: string, end: string, markers: Marker[], takes: string[]}} body the names of a take, and of others, which
 *   get tracks of their own where a file has some
 * @param {Say} say
 */
async function download(body, say) {
  const answer = await post("/headforcing/takes/export", body, t("The server does not answer; nothing is exported."));
  if (answer.error) return say(answer.error, true);
  const name = `${answer.name}${body.end}`;
  const href = URL.createObjectURL(new Blob([answer.text], { type: "text/plain" }));
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000); // a browser may ask the person first
  say(t("%1 is downloaded.", name));
}
