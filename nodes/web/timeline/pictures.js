// Small pictures of a video.
import { make } from "../shared.js";

/**
 * What a video element shows, so many pixels high; null where it shows nothing.
 * @param {HTMLVideoElement} video
 * @param {number} height
 * @returns {HTMLCanvasElement | null}
 */
export function smallPicture(video, height) {
  if (!video?.videoWidth) return null;
  const canvas = make("canvas", { height, width: Math.round((height * video.videoWidth) / video.videoHeight) });
  canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/**
 * Read pictures of a video file at some seconds; none of those that it cannot show.
 * @param {string} file
 * @param {number[]} times
 * @param {number} height
 * @param {(picture: HTMLCanvasElement, index: number) => void} take
 */
export async function picturesIn(file, times, height, take) {
  const video = make("video", { preload: "auto", src: file });
  video.muted = true;
  /** @param {string} event */
  const next = (event) =>
    new Promise((done, fail) => {
      video.addEventListener(event, done, { once: true });
      video.addEventListener("error", fail, { once: true });
    });
  try {
    await next("loadeddata");
    for (const [index, time] of times.entries()) {
      if (time >= video.duration) continue;
      video.currentTime = time;
      await next("seeked");
      const picture = smallPicture(video, height);
      if (picture) take(picture, index);
    }
  } catch {
    // a file that is gone: bars without pictures
  }
  video.removeAttribute("src");
  video.load();
}
