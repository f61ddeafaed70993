// Ctrl+C, Ctrl+X and Ctrl+V of scenes, from one story to another, too. Other programs get their words, a line each.
/** @import {CopiedScene, Segment} from "../types.js" */

const TYPE = "application/x-headforcing-scenes";
const MOST_BLOCKS = 5000; // of a scene

/**
 * A scene to be pasted elsewhere: there no earlier scene has its number.
 * @param {Segment} segment
 * @returns {CopiedScene}
 */
function copied({ text, start_block, end_block, switch: way, seed }) {
  return { text, blocks: end_block - start_block, switch: way && { ...way, recall: null }, seed };
}

/**
 * The scenes of a text that was copied; empty if it is of another program. The server checks the rest.
 * @param {string} json
 * @returns {CopiedScene[]}
 */
export function scenesIn(json) {
  try {
    const scenes = JSON.parse(json);
    return scenes.filter((/** @type {CopiedScene} */ { text, blocks }) => {
      return typeof text === "string" && Number.isInteger(blocks) && blocks > 0 && blocks <= MOST_BLOCKS;
    });
  } catch {
    return [];
  }
}

/**
 * Let an element copy, cut and paste scenes while one of its bars has the focus.
 * @param {HTMLElement} element
 * @param {{isBar: (target: EventTarget | null) => boolean, chosen: () => Segment[], remove: () => void,
 *   paste: (scenes: CopiedScene[]) => void}} story
 */
export function copyScenes(element, { isBar, chosen, remove, paste }) {
  /** @param {ClipboardEvent} event */
  const copy = (event) => {
    if (!isBar(event.target)) return false;
    const scenes = chosen();
    event.clipboardData?.setData(TYPE, JSON.stringify(scenes.map(copied)));
    event.clipboardData?.setData("text/plain", scenes.map(({ text }) => text).join("\n"));
    take(event);
    return true;
  };
  element.addEventListener("copy", copy);
  element.addEventListener("cut", (event) => {
    if (copy(event)) remove();
  });
  element.addEventListener("paste", (event) => {
    const scenes = isBar(event.target) ? scenesIn(event.clipboardData?.getData(TYPE) ?? "") : [];
    if (!scenes.length) return;
    take(event);
    paste(scenes);
  });
}

/** Keep an event from the graph, which copies and pastes nodes. @param {Event} event */
function take(event) {
  event.preventDefault();
  event.stopPropagation();
}
