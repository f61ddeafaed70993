// Keys that hold in the whole editor, whichever of its parts has the focus.
import { isShortcut } from "./keys.js";
/** @import {Actions} from "../types.js" */
/** @import {Words} from "./words.js" */

/**
 * @param {KeyboardEvent} event
 * @param {Words<any>[]} words the fields of the editor that have an undo of their own
 * @param {Actions} actions
 */
export function pressEditorKey(event, words, actions) {
  if (event.ctrlKey || event.metaKey) {
    pressControlKey(event, words, actions);
    return;
  }
  if (isShortcut(event)) return;
  event.stopPropagation(); // Delete would delete the node
  if (event.key.toLowerCase() === "escape") actions.close();
}

/**
 * Keys with Ctrl, of which those that are not the editor's go on to ComfyUI.
 * @param {KeyboardEvent} event
 * @param {Words<any>[]} words
 * @param {Actions} actions
 */
function pressControlKey(event, words, actions) {
  const key = event.key.toLowerCase();
  const runs = key === "enter";
  const undoes = (key === "z" || key === "y") && isUndoOfEditor(event, words);
  if (!runs && !undoes) return;
  event.preventDefault();
  event.stopPropagation();
  if (runs) actions.run(event.shiftKey);
  else actions.step(key === "y" || event.shiftKey ? 1 : -1);
}

/**
 * Whether undo in an element is that of the editor: a field with typed letters has its own, and of elements that are no
 * fields ComfyUI's undo takes the key, too.
 * @param {KeyboardEvent} event
 * @param {Words<any>[]} words
 */
function isUndoOfEditor({ target }, words) {
  const element = /** @type {HTMLElement} */ (target);
  if (!element.matches("textarea, input")) return false;
  if (element.matches("input[type=button]")) return true;
  return words.some((each) => each.isUntouched(element));
}
