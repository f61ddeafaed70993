// Drags and keys of the timeline, without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import { BarKeys } from "../extensions/headforcing/timeline/bar_keys.js";
import { dragPrompts, dragStart, followPointer, isSameStory } from "../extensions/headforcing/timeline/drag.js";
import { Choice } from "../extensions/headforcing/timeline/choice.js";
import { pressEditorKey } from "../extensions/headforcing/timeline/editor_keys.js";
import { indicesBetween, joined } from "../extensions/headforcing/timeline/segments.js";
import { largestZoom, zoomForClicks } from "../extensions/headforcing/timeline/zoom.js";

const CLOCK = { blocks: 14, seconds: 10.3125, first_block_seconds: 0.5625, block_seconds: 0.75 };

/** Prompts "a", "b", ... that begin at these blocks; the last value is the end of the video. */
function story(...blocks) {
  return blocks.slice(0, -1).map((start_block, index) => ({
    text: String.fromCharCode(97 + index),
    start_block,
    end_block: blocks[index + 1],
    switch: null,
    seed: null,
  }));
}

const places = (all) => all.map(({ text, start_block, end_block }) => `${text} ${start_block}-${end_block}`);

test("the beginning of a prompt is dragged up to its neighbours, and the prompt stays the chosen one", () => {
  const all = story(0, 4, 9, 14);
  const { segments, selected } = dragStart(all, 1, 99, {});
  assert.deepEqual(places(joined(segments)), ["a 0-8", "b 8-9", "c 9-14"]);
  assert.equal(selected, 1);
  const rippled = dragStart(all, 1, 6, { ripple: true });
  assert.deepEqual(places(joined(rippled.segments)), ["a 0-6", "b 6-11", "c 11-16"]);
  assert.ok(isSameStory(dragStart(all, 1, 6, { free: 5 }).segments, all), "a prompt that has begun stays");
});

test("a whole prompt is dragged to another place in the order, where it is the chosen one", () => {
  const all = story(0, 2, 6, 9);
  const first = dragPrompts(all, 2, 0, 0);
  assert.deepEqual(places(first.segments), ["c 0-3", "a 3-5", "b 5-9"]);
  assert.equal(first.selected, 0);
  assert.equal(dragPrompts(all, 2, 0, 1).selected, 1, "the first one has begun");
  assert.equal(dragPrompts(all, 0, 99, 0).selected, 2);
  const back = dragPrompts(all, 1, 2, 0);
  assert.ok(isSameStory(back.segments, all));
  assert.equal(back.selected, 1);
});

test("prompts in a row are dragged together", () => {
  const all = story(0, 2, 6, 9, 10);
  const last = dragPrompts(all, 0, 99, 0, 2);
  assert.deepEqual(places(last.segments), ["c 0-3", "d 3-4", "a 4-6", "b 6-10"]);
  assert.equal(last.selected, 2);
  const first = dragPrompts(all, 2, 0, 0, 2);
  assert.deepEqual(places(first.segments), ["c 0-3", "d 3-4", "a 4-6", "b 6-10"]);
  assert.equal(dragPrompts(all, 2, 0, 1, 2).selected, 1, "the first one has begun");
  assert.ok(isSameStory(dragPrompts(all, 1, 2, 0, 2).segments, all), "they stay where they are");
});

test("of two places that are as near a dragged prompt takes the earlier one", () => {
  assert.equal(dragPrompts(story(0, 2, 4, 6), 2, 1, 0).selected, 0);
  assert.equal(dragPrompts(story(0, 2, 4, 6), 2, 3, 0).selected, 1);
});

/** An element and a window to which events of a pointer are told; `heard` are the moves and the end. */
function pointer(cancelKey) {
  const element = new EventTarget();
  const captured = [];
  element.setPointerCapture = (id) => captured.push(id);
  globalThis.window = new EventTarget();
  const heard = [];
  const move = () => heard.push("move");
  followPointer({ target: element, pointerId: 7 }, move, (isReleased) => heard.push(isReleased), cancelKey);
  const tell = (type) => element.dispatchEvent(new Event(type));
  const press = (key) => window.dispatchEvent(Object.assign(new Event("keydown"), { key }));
  return { captured, heard, tell, press };
}

test("a pointer is followed until it is released", () => {
  const { captured, heard, tell, press } = pointer("Escape");
  for (const type of ["pointermove", "pointermove", "pointerup", "pointermove", "pointerup"]) tell(type);
  press("Escape");
  assert.deepEqual([captured, heard], [[7], ["move", "move", true]]);
});

test("a drag is taken back by the browser, and by a key if it has one", () => {
  const taken = pointer("Escape");
  taken.tell("pointercancel");
  assert.deepEqual(taken.heard, [false]);
  const escaped = pointer("Escape");
  escaped.press("a");
  escaped.press("Escape");
  escaped.tell("pointerup");
  assert.deepEqual(escaped.heard, [false]);
  const kept = pointer();
  kept.press("Escape");
  kept.tell("pointerup");
  assert.deepEqual(kept.heard, [true]);
});

/** What a key does on the bar of a prompt, while a render has begun the prompts before `free`. */
function pressed(key, index, { free = 0, chosen = [index], ...modifiers } = {}) {
  const did = [];
  const segments = story(0, 4, 9, 14);
  const choice = new Choice();
  choice.only(chosen[0]);
  for (const each of chosen.slice(1)) choice.toggle(each);
  const bars = {
    state: { segments, choice },
    playhead: { free },
    isBegun: ({ start_block }) => start_block < free,
    ripplesWith: ({ ctrlKey }) => ctrlKey,
    focus: (to) => did.push(["focus", to]),
    zoom: (factor) => did.push(["zoom", factor]),
    showAll: () => did.push(["showAll"]),
  };
  const actions = {
    commit: (all, name, selected) => did.push([places(joined(all)).join(" "), name, selected]),
    locked: (which) => did.push(["locked", which]),
    edit: () => did.push(["edit"]),
    remove: () => did.push(["remove"]),
    duplicate: () => did.push(["duplicate"]),
    span: (first, count) => did.push(["chosen", first, count]),
  };
  const event = { key, ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...modifiers };
  let isTaken = false;
  new BarKeys(bars, actions).press({ ...event, preventDefault: () => (isTaken = true), stopPropagation() {} }, index);
  return isTaken ? did : null;
}

test("arrow keys move the beginning of a prompt, by more with Shift, with all later ones with Ctrl", () => {
  assert.deepEqual(pressed("ArrowRight", 1), [["a 0-5 b 5-9 c 9-14", "move 1", 1]]);
  assert.deepEqual(pressed("ArrowLeft", 1, { shiftKey: true }), [["a 0-1 b 1-9 c 9-14", "move 1", 1]]);
  assert.deepEqual(pressed("ArrowRight", 1, { ctrlKey: true }), [["a 0-5 b 5-10 c 10-15", "move 1", 1]]);
  assert.deepEqual(pressed("ArrowLeft", 0), []);
  assert.deepEqual(pressed("ArrowRight", 1, { free: 5 }), [["locked", 1]]);
});

test("with Alt an arrow key moves a prompt past its neighbour, unless one of the two has begun", () => {
  const swapped = [["a 0-4 c 4-9 b 9-14", null, 2], ["focus", 2], ["chosen", 2, 1]];
  assert.deepEqual(pressed("ArrowRight", 1, { altKey: true }), swapped);
  assert.deepEqual(pressed("ArrowRight", 2, { altKey: true }), []);
  assert.deepEqual(pressed("ArrowLeft", 1, { altKey: true, free: 3 }), [["locked", 0]]);
  const two = [["c 0-5 a 5-9 b 9-14", null, 1], ["focus", 1], ["chosen", 1, 2]];
  assert.deepEqual(pressed("ArrowRight", 0, { altKey: true, chosen: [0, 1] }), two);
  const one = [["b 0-5 a 5-9 c 9-14", null, 1], ["focus", 1], ["chosen", 1, 1]];
  assert.deepEqual(pressed("ArrowRight", 0, { altKey: true, chosen: [0, 2] }), one, "not in a row");
});

test("other keys on a bar go to other prompts, edit and zoom, and shortcuts are left to ComfyUI", () => {
  const keys = ["ArrowUp", "ArrowDown", "Home", "End", "Enter", "Delete", "d", "0"];
  const did = keys.map((key) => pressed(key, 2)[0].join(" "));
  assert.deepEqual(did, ["focus 1", "focus 2", "focus 0", "focus 2", "edit", "remove", "duplicate", "showAll"]);
  assert.equal(pressed("d", 1, { ctrlKey: true }), null);
  assert.equal(pressed("x", 1), null);
});

/** What a key does in the editor, in an element of some kind that holds letters which were typed or none. */
function editorKey(key, kind, { isUntouched = false, ...modifiers } = {}) {
  const did = [];
  const kinds = { button: ["textarea, input", "input[type=button]"], field: ["textarea, input"], choice: [] };
  const target = { matches: (selector) => kinds[kind].includes(selector) };
  const note = (name) => (...values) => did.push([name, ...values].join(" "));
  const actions = { step: note("step"), run: note("run"), close: note("close") };
  const stops = { preventDefault: note("prevented"), stopPropagation: note("stopped") };
  const event = { key, target, ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...modifiers, ...stops };
  pressEditorKey(event, [{ isUntouched: () => isUntouched }], actions);
  return did;
}

test("undo belongs to a field in which letters were typed, else to the editor", () => {
  const undoes = ["prevented", "stopped", "step -1"];
  assert.deepEqual(editorKey("z", "button", { ctrlKey: true }), undoes);
  assert.deepEqual(editorKey("z", "field", { ctrlKey: true, isUntouched: true }), undoes);
  assert.deepEqual(editorKey("z", "field", { ctrlKey: true }), []);
  assert.deepEqual(editorKey("z", "choice", { ctrlKey: true }), [], "ComfyUI's undo takes the key");
  assert.deepEqual(editorKey("Z", "button", { metaKey: true, shiftKey: true }), ["prevented", "stopped", "step 1"]);
  assert.deepEqual(editorKey("y", "button", { ctrlKey: true }), ["prevented", "stopped", "step 1"]);
});

test("Ctrl+Enter runs, Escape closes, other keys stay in the editor and shortcuts leave it", () => {
  assert.deepEqual(editorKey("Enter", "field", { ctrlKey: true }), ["prevented", "stopped", "run false"]);
  assert.deepEqual(editorKey("Enter", "field", { ctrlKey: true, shiftKey: true }), ["prevented", "stopped", "run true"]);
  assert.deepEqual(editorKey("Escape", "field"), ["stopped", "close"]);
  assert.deepEqual(editorKey("Delete", "button"), ["stopped"]);
  assert.deepEqual(editorKey("s", "button", { ctrlKey: true }), []);
  assert.deepEqual(editorKey("y", "button", { altKey: true }), []);
});

test("only prompts in sight are drawn, and the zoom begins where a usual bar can be hit", () => {
  const all = story(0, 4, 9, 14);
  assert.deepEqual(indicesBetween(all, CLOCK, 0, 2), [0, 0]);
  assert.deepEqual(indicesBetween(all, CLOCK, 3, 7), [1, 2]);
  assert.deepEqual(indicesBetween(all, CLOCK, 20, 30), [0, -1]);
  assert.ok(Math.abs(zoomForClicks(CLOCK, story(0, 2, 4, 14), 400) - 34 / ((2 / 14) * 400)) < 1e-9);
  assert.equal(largestZoom(CLOCK, 364), 1);
  assert.equal(largestZoom({ ...CLOCK, blocks: 2000 }, 0), 60);
});
