// What a timeline shows of a player.
/** @import {Place, ShownPlace} from "../types.js" */

const LAST_FRAME = 0.01; // seconds before the end of a video, where it shows its last frame
const HAS_FRAME = 2; // the state of an element that shows a frame of its video

/**
 * What a player plays.
 * @typedef {object} Played
 * @property {Place} place
 * @property {HTMLVideoElement} video
 * @property {boolean} isOfStory whether its scenes are those of the timeline: a take of another text has other ones
 * @property {boolean} playsThatRender whether it is the video of the render of `place`; if not, it is an earlier one
 * @property {string | undefined} url its address
 * @property {Map<number, HTMLCanvasElement> | null} made its pictures, if the server makes them
 * @property {boolean} isBehind whether the server has made more pictures than were read by now
 */

/**
 * The place that a timeline shows of what is played.
 * @param {Played} played
 * @returns {ShownPlace}
 */
export function placeToShow({ place, video, isOfStory, playsThatRender, url, made, isBehind }) {
  if (!isOfStory) return { ...place, done: 0, at: null, file: undefined, video, made: null };
  if (!playsThatRender) return { ...place, at: null, file: undefined, video, made };
  const waitsForPictures = made !== null && isBehind; // nothing has to look through the file for them
  const file = waitsForPictures ? undefined : url;
  return { ...place, at: secondsShown(video, place.lead), file, video, made };
}

/**
 * The second of the story that a video shows, which begins after `lead` seconds; null if it shows nothing.
 * @param {HTMLVideoElement} video
 * @param {number} lead
 */
function secondsShown({ currentTime, duration, readyState, src }, lead) {
  if (readyState < HAS_FRAME || !src) return null;
  return Math.min(currentTime, duration - LAST_FRAME) - lead;
}
