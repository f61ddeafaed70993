// The story of a take as a file for other programs, which the page downloads.
import { make, openId, post } from "../shared.js";
import { takes } from "../takes/store.js";
import { t } from "../texts.js";
/** @import {Entry, Marker, Take} from "../types.js" */

/** The ends of the files by what their formats are called. */
const FORMATS = {
  SRT: ".srt",
  WebVTT: ".vtt",
  CSV: ".csv",
  OpenTimelineIO: ".otio",
  "Final Cut Pro 7 XML": ".xml",
  EDL: ".edl",
};

/**
 * An entry for each format.
 * @param {Take | undefined} played the last take of the workflow where none is chosen
 * @param {Marker[]} markers
 * @param {(sentence: string) => void} say
 * @returns {Entry[]}
 */
export function exportEntries(played, markers, say) {
  const own = takes.filter(({ workflow, file, draft }) => workflow === openId() && file && !draft);
  const take = played ?? own[0];
  const others = own.filter(({ name }) => name !== take?.name).map(({ name }) => name);
  return Object.entries(FORMATS).map(([format, end]) => {
    const act = async () => say(take ? await download(take, end, markers, others) : t("No takes of this workflow yet."));
    return [format, act];
  });
}

/**
 * Let the browser download the file; a sentence says which, or why there is none.
 * @param {Take} take
 * @param {string} end
 * @param {Marker[]} markers
 * @param {string[]} others names of other takes, which get tracks of their own where a file has some
 */
async function download(take, end, markers, others) {
  const body = { take: take.name, end, markers, takes: others };
  const answer = await post("/headforcing/takes/export", body, t("The server does not answer; nothing is exported."));
  if (answer.error) return answer.error;
  const href = URL.createObjectURL(new Blob([answer.text], { type: "text/plain" }));
  make("a", { href, download: `${answer.name}${end}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000); // a browser may ask the person first
  return t("%1 is downloaded.", `${answer.name}${end}`);
}
