// The elements of a player.
import { make } from "../shared.js";
import { t } from "../texts.js";

const TEXT = 48; // height of the text, three lines, in pixels
const STAGE = 300; // of the pictures and names of takes, also without one: a node that grows is a step of the graph's undo
const HEIGHT = TEXT + 4 + STAGE;
const MARGIN = 20; // of a widget
export const WIDGET_HEIGHT = HEIGHT + MARGIN;
const ENLARGED = 2; // from this factor on, a video is enlarged without blur, as that of the demo model

const COLUMN = "display: flex; flex-direction: column";
const FILL = "flex: 1 1 0; min-height: 0; min-width: 0";
const PICTURE = `${FILL}; width: 100%; object-fit: contain`;

/**
 * A text, and below it a row with what is shown: an image, or the stage of a video.
 * @param {string} title of the node
 */
export function makeLayout(title) {
  const text = make("div", { style: `flex: none; height: ${TEXT}px; font-size: 12px; line-height: 16px; overflow: auto` });
  const image = make("img", { style: PICTURE });
  const video = make("video", { style: PICTURE, "aria-label": t("Video of %1", title) });
  Object.assign(video, { controls: true, muted: true, autoplay: true, playsInline: true });
  const stage = make("div", { style: `${FILL}; display: flex; gap: 2px` }, video);
  const shown = make("div", { style: `flex: 1 1 0; min-width: 0; min-height: 0; ${COLUMN}` }, image, stage);
  const away = make("div", { class: "hf-away", style: "margin: auto; font-size: 12px; opacity: 0.7", hidden: true });
  away.textContent = t("The video is in the story panel.");
  const row = make("div", { style: "flex: 1 1 0; min-height: 0; display: flex; gap: 4px" }, shown, away);
  image.style.display = "none";
  stage.style.display = "none";
  const style = `${COLUMN}; gap: 4px; width: 100%; min-height: ${HEIGHT}px; color: var(--input-text)`;
  const root = make("div", { style }, text, row);
  return { root, text, image, video, stage, shown, away, row };
}

/**
 * Enlarge videos without blur where the first of them is enlarged much.
 * @param {HTMLVideoElement[]} videos
 */
export function sharpen(videos) {
  const { clientWidth, clientHeight, videoWidth, videoHeight } = videos[0];
  const factor = Math.min(clientWidth / videoWidth, clientHeight / videoHeight);
  for (const video of videos) video.style.imageRendering = factor > ENLARGED ? "pixelated" : "";
}
