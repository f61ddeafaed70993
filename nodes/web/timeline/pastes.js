// What a person puts into the text of a story from elsewhere: a paste, or a file that is dropped. It is translated into
// the written form at once.

/** @import {GraphNode, Host} from "../types.js" */

const MOST_MS = 3000; // from a paste until the text of its node is looked at
const MOST_BYTES = 1 << 20;
const NAMES = /\.(srt|vtt|txt|md|json|csv|tsv|sub|ass|lrc)$/i;

/** The last paste into a text box. @type {{field: HTMLTextAreaElement, words: string, time: number} | null} */
let last = null;

/** @param {string} text without the line ends of other systems */
const plain = (text) => text.replace(/\r\n?/g, "\n").trim();

window.addEventListener(
  "paste",
  (event) => {
    const words = plain(event.clipboardData?.getData("text/plain") ?? "");
    if (event.target instanceof HTMLTextAreaElement && words) last = { field: event.target, words, time: Date.now() };
  },
  true,
);

/** The text box that this text was pasted into just now, which is told once; undefined for no paste. @param {string} text */
export function pastedInto(text) {
  const isIt = last !== null && Date.now() - last.time < MOST_MS && plain(text).includes(last.words);
  const field = isIt ? last.field : undefined;
  if (isIt) last = null;
  return field;
}

/**
 * Put a translation in place of the text that was translated: as typing does where it was pasted, so that the undo of the
 * text box brings it back, too.
 * @param {Host} host
 * @param {string} text
 * @param {string} before
 * @param {HTMLTextAreaElement} [field] that it was pasted into
 */
export function replaceText(host, text, before, field) {
  if (field && document.activeElement === field && field.value === before) {
    field.select();
    document.execCommand("insertText", false, text);
  }
  if (host.read().text !== text) host.write({ prompts: text });
}

/** Whether a file that can be a text is dragged. @param {DragEvent} event */
const hasFile = ({ dataTransfer }) => {
  const [item] = dataTransfer?.items ?? [];
  return item?.kind === "file" && !/^(image|video|audio)\//.test(item.type);
};

/** Whether a file has the name of one that can hold a story. @param {File} file */
export const isText = (file) => NAMES.test(file.name);

/** Whether a text is too long for a story. @param {File} file */
export const isTooLong = (file) => file.size > MOST_BYTES;

/** The text of a file, with the line ends of this system. @param {File} file */
export const textOf = async (file) => (await file.text()).replace(/^\ufeff/, "").replace(/\r\n?/g, "\n");

/**
 * Let an element, and a node where the frontend asks it, take text files.
 * @param {{element: HTMLElement | undefined, node?: GraphNode, take: (text: string) => void}} by
 */
export function takeFiles({ element, node, take }) {
  /** @param {DragEvent} event whether it is taken */
  const drop = (event) => {
    const [file] = event.dataTransfer?.files ?? [];
    if (!file || !isText(file) || isTooLong(file)) return false;
    textOf(file).then(take);
    return true;
  };
  element?.addEventListener("dragover", (event) => {
    if (hasFile(event)) event.preventDefault();
  });
  element?.addEventListener("drop", (event) => {
    if (!drop(event)) return;
    event.preventDefault();
    event.stopPropagation();
  });
  if (node) Object.assign(node, { onDragOver: hasFile, onDragDrop: drop });
}
