// The prompts of the timeline on blocks, without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Choice } from "../extensions/headforcing/timeline/choice.js";
import { scenesIn } from "../extensions/headforcing/timeline/scene_clipboard.js";
import { labelFor, labels } from "../extensions/headforcing/timeline/labels.js";
import * as segments from "../extensions/headforcing/timeline/segments.js";

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
const recalling = (recall) => ({ kind: "reset", blend_blocks: 0, re_anchor: false, recall, new_scene: false });

test("the block at the start of each block is that block", () => {
  for (let block = 0; block < CLOCK.blocks; block++)
    assert.equal(segments.blockAt(CLOCK, segments.startSeconds(CLOCK, block)), block);
});

test("a time is written without zeros at its end, and for people in seconds", () => {
  const times = [0, 0.5625, 9.75, 61.5, 600].map(segments.timeText);
  assert.deepEqual(times, ["0:00", "0:00.562", "0:09.75", "1:01.5", "10:00"]);
  assert.equal(segments.plainTime(59.6), "1:00");
});

test("a prompt that moves stays between its neighbours and behind the blocks that have begun", () => {
  const moved = (block, how) => places(segments.joined(segments.moved(story(0, 4, 9, 14), 1, block, how)));
  assert.deepEqual(moved(7), ["a 0-7", "b 7-9", "c 9-14"]);
  assert.deepEqual(moved(99), ["a 0-8", "b 8-9", "c 9-14"]);
  assert.deepEqual(moved(-3), ["a 0-1", "b 1-9", "c 9-14"]);
  assert.deepEqual(moved(1, { free: 3 }), ["a 0-3", "b 3-9", "c 9-14"]);
  assert.deepEqual(moved(6, { free: 5 }), places(story(0, 4, 9, 14)));
});

test("a prompt of one block after another of one block moves with all later ones", () => {
  const all = segments.joined(segments.moved(story(0, 1, 2, 9), 1, 5, { ripple: true }));
  assert.deepEqual(places(all), ["a 0-5", "b 5-6", "c 6-13"]);
  assert.equal(segments.moved(story(0, 1, 2), 0, 5, { ripple: true })[0].start_block, 0);
});

test("the halves of a divided prompt meet in its middle", () => {
  const [, first, second] = segments.divided(story(0, 4, 9), 1, "two");
  assert.deepEqual([first.end_block, second.start_block], [7, 7]);
});

test("all later prompts and the end of the video move with one that ripples", () => {
  const all = segments.joined(segments.moved(story(0, 4, 9, 14), 1, 6, { ripple: true }));
  assert.deepEqual(places(all), ["a 0-6", "b 6-11", "c 11-16"]);
  assert.equal(segments.lengthWith(all, CLOCK), 11.813);
});

test("another order keeps the lengths, and a recall names the same scene or none", () => {
  const all = story(0, 2, 5, 9);
  all[2].switch = recalling(1);
  const last = segments.reordered(all, 1, 2);
  assert.deepEqual(places(last), ["a 0-2", "c 2-6", "b 6-9"]);
  assert.equal(last[1].switch.recall, 1);
  const first = segments.reordered(all, 2, 0);
  assert.equal(first[0].switch, null);
  const swapped = segments.reordered(all, 0, 1);
  assert.equal(swapped[2].switch.recall, 2);
});

test("a copy, a half and a missing prompt renumber the recalls behind them", () => {
  const all = story(0, 2, 6, 9);
  all[2].switch = recalling(2);
  assert.equal(segments.duplicated(all, [0])[3].switch.recall, 3);
  assert.deepEqual(places(segments.duplicated(all, [1])), ["a 0-2", "b 2-6", "b 6-10", "c 10-13"]);
  const halves = segments.divided(all, 0, "new");
  assert.deepEqual(places(segments.joined(halves)), ["a 0-1", "new 1-2", "b 2-6", "c 6-9"]);
  assert.equal(halves[3].switch.recall, 3);
  assert.equal(segments.divided(story(0, 1, 2), 0, "new"), null);
  assert.equal(segments.without(all, 1)[1].switch.recall, null);
  assert.equal(segments.without(all, 0)[1].switch.recall, 1);
  assert.deepEqual(places(segments.joined(segments.without(all, 0))), ["b 0-6", "c 6-9"]);
});

test("a dragged prompt takes the place whose start is nearest, and none before those that have begun", () => {
  const all = story(0, 2, 6, 9);
  assert.equal(segments.placeFor(all, 2, 3, 0), 1);
  assert.equal(segments.placeFor(all, 0, 99, 0), 2);
  assert.equal(segments.placeFor(all, 2, 0, 1), 1);
});

test("a story is cut or scaled to a shorter video, each prompt with a block at least", () => {
  assert.deepEqual(places(segments.cutAt(story(0, 4, 9, 14), CLOCK, 5)), ["a 0-4", "b 4-7"]);
  assert.deepEqual(places(segments.scaledTo(story(0, 12, 13, 14), CLOCK, 2)), ["a 0-1", "b 1-2", "c 2-3"]);
  assert.equal(segments.scaledTo(story(0, 12, 13, 14), CLOCK, 0.5), null);
});

test("bars leave out the words that another prompt begins with, and tags say all that is not usual", () => {
  const texts = ["a red fox in the snow", "a red fox in the snow sleeps", "birds"];
  assert.deepEqual(labels(texts.map((text) => ({ text }))), ["in the snow", "the snow sleeps", "birds"]);
  assert.equal(labelFor(texts[0], 3, "in the snow", 160), "3 in the snow");
  assert.equal(labelFor(texts[0], 3, "in the snow", 200), texts[0], "it has room for 21 letters");
  assert.equal(labelFor(texts[0], 31, "in the snow", 40), "31");
  const t = (text, ...values) => text.replace(/%(\d)/g, (_, place) => values[place - 1]);
  const tag = (way, seed = null) => segments.tagText({ ...story(0, 1)[0], switch: way, seed }, 0.75, t);
  assert.equal(tag(null), "");
  assert.equal(tag(recalling(null)), "keep going");
  assert.equal(tag({ ...recalling(0), kind: "flush", re_anchor: true, blend_blocks: 2 }, 7), "forget the scene before, cut, the most alike again, dissolve 1.5 s, seed 7");
});

test("copied scenes come behind a prompt with their lengths, and the later ones move on", () => {
  const scenes = [{ text: "x", blocks: 2, switch: null, seed: "7" }, { text: "y", blocks: 3, switch: null, seed: null }];
  assert.deepEqual(places(segments.pasted(story(0, 4, 9, 14), 1, scenes)), ["a 0-4", "b 4-9", "x 9-11", "y 11-14", "c 14-19"]);
  assert.deepEqual(places(segments.duplicated(story(0, 4, 9, 14), [0, 2])), ["a 0-4", "b 4-9", "c 9-14", "a 14-18", "c 18-23"]);
});

test("of a clipboard only scenes are taken", () => {
  const scene = { text: "a", blocks: 3, switch: null, seed: null };
  assert.deepEqual(scenesIn(JSON.stringify([scene, { text: "b" }, { ...scene, blocks: 1e9 }, { ...scene, text: 7 }])), [scene]);
  for (const wrong of ["", "null", "{}", "[null]", "7"]) assert.deepEqual(scenesIn(wrong), []);
});

test("prompts are chosen in a row, one more or less, and never none", () => {
  const choice = new Choice();
  choice.only(2);
  choice.range(4);
  assert.deepEqual([choice.indices, choice.selected], [[2, 3, 4], 4]);
  choice.range(1);
  assert.deepEqual([choice.indices, choice.selected], [[1, 2], 1]);
  choice.toggle(5);
  choice.toggle(1);
  assert.deepEqual([choice.indices, choice.selected], [[2, 5], 5]);
  choice.toggle(5);
  choice.toggle(2);
  assert.deepEqual([choice.indices, choice.selected], [[2], 2]);
  choice.span(1, 4);
  choice.limit(3);
  assert.deepEqual([choice.indices, choice.selected], [[1, 2], 1]);
});
