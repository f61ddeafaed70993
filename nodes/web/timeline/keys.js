// Keys that belong to ComfyUI or the browser, wherever the focus is.

/**
 * Whether a press of a key is a shortcut of theirs, such as Ctrl+S, and none of fields or undo.
 * @param {KeyboardEvent} event
 */
export function isShortcut({ key, ctrlKey, metaKey, altKey }) {
  return altKey || ((ctrlKey || metaKey) && !/^[zyxcva]$/i.test(key));
}
