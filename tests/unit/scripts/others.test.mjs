// Undo, answers, sentences, takes and the ways out of a long story, without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";

/** What the scripts ask of an element. */
class Element {
  constructor(tag) {
    Object.assign(this, { tag, attributes: {}, listeners: {}, children: [] });
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  addEventListener(name, listener) {
    this.listeners[name] = listener;
  }
  append(...children) {
    this.children.push(...children);
  }
  replaceChildren(...children) {
    this.children = children;
  }
}
globalThis.document = { createElement: (tag) => new Element(tag) };
const { Answers } = await import("../extensions/headforcing/timeline/answers.js");
const { History } = await import("../extensions/headforcing/timeline/history.js");
const { Ways } = await import("../extensions/headforcing/timeline/ways.js");
const { factsOf, megabytes, nameOf } = await import("../extensions/headforcing/takes/store.js");
const { snap } = await import("../extensions/headforcing/story/snap.js");
const { sentenceOf, t } = await import("../extensions/headforcing/texts.js");

test("undo goes back over whole texts, and a new change ends what could be redone", () => {
  const history = new History();
  history.record("one", null, false);
  assert.equal(history.canUndo, false);
  history.record("two", null, true);
  history.record("three", null, true);
  assert.equal(history.step(-1), "two");
  assert.equal(history.canRedo, true);
  history.record("four", null, true);
  assert.equal(history.canRedo, false);
  assert.equal(history.step(1), null);
  assert.equal(history.step(-1), "two");
});

test("a text that comes back from outside, as by the undo of the graph, is a way through the history", () => {
  const history = new History();
  history.record("one", null, false);
  for (const text of ["two", "three"]) history.record(text, null, true);
  history.record("two", "outside", false);
  assert.deepEqual([history.canUndo, history.canRedo], [true, true]);
  assert.equal(history.step(-1), "one");
  history.record("three", "outside", false);
  assert.deepEqual([history.canUndo, history.canRedo], [true, false]);
  history.record("four", "outside", false);
  assert.equal(history.step(-1), "three", "a new text is a change");
  assert.deepEqual([history.holds("four"), history.holds("five")], [true, false]);
});

test("changes of one kind within a second are one step", () => {
  const history = new History();
  history.record("one", null, false);
  for (const text of ["two", "three", "four"]) history.record(text, "move 1", true);
  assert.equal(history.step(-1), "one");
});

test("the answers to the last 200 texts are kept", () => {
  const answers = new Answers();
  for (let number = 0; number < 201; number++) assert.equal(answers.keep(String(number), number), number);
  assert.equal(answers.of("0"), undefined);
  assert.equal(answers.of("200"), 200);
});

test("values are put into sentences, and sentences into sentences", () => {
  assert.equal(t("block %1 of %2", 3, 17), "block 3 of 17");
  assert.equal(sentenceOf(["%1: %2", ["video %1", "2"], "done"]), "video 2: done");
  assert.equal(sentenceOf("plain"), "plain");
});

test("a take is named by its number, its title and what is known of it", () => {
  const take = { take: 2, title: "rain", length: "0:10", size: "832x480", date: "today", starred: true, draft: false };
  assert.equal(nameOf(take), "Take 2 rain");
  assert.equal(factsOf(take), "★ · Take 2 rain · 0:10 · 832x480 · today");
  assert.deepEqual([megabytes(1234567), megabytes(12345678)], ["1.2 MB", "12 MB"]);
});

test("a story that is too long can be cut, scaled or be given the length in which it fits", () => {
  const asked = [];
  const ways = new Ways(
    (shortened) => asked.push(shortened(timeline).map(({ end_block }) => end_block)),
    (seconds) => asked.push(seconds),
  );
  const segments = [
    { text: "a", start_block: 0, end_block: 10, switch: null, seed: null },
    { text: "b", start_block: 10, end_block: 14, switch: null, seed: null },
  ];
  const timeline = { segments, blocks: 14, seconds: 10.3125, first_block_seconds: 0.5625, block_seconds: 0.75 };
  ways.show(timeline, false);
  assert.equal(ways.element.hidden, true);
  ways.show({ ...timeline, beyond: 5 }, false);
  assert.equal(ways.element.hidden, false);
  for (const { listeners } of ways.element.children) listeners.click();
  assert.deepEqual(asked, [[7], [5, 7], 10.3125]);
  ways.show({ ...timeline, beyond: 5 }, true);
  assert.equal(ways.element.children.length, 2);
});

test("a dragged bar jumps to what is near it on the screen, and to whole seconds only where nothing else is", () => {
  const targets = { times: [3.9, null, 7.5], beats: { every: 0.5, first: 0.2 } };
  const pixels = 100; // of a second: nine are 0.09 s
  assert.equal(snap(3.93, targets, pixels), 3.9);
  assert.equal(snap(5.04, targets, pixels), 5);
  assert.ok(Math.abs(snap(5.15, targets, pixels) - 5.2) < 1e-9, "a beat");
  assert.equal(snap(5.45, targets, pixels), 5.45, "nothing is near");
  assert.equal(snap(7.42, targets, pixels), 7.5);
  assert.equal(snap(5.45, { times: [], beats: null }, 10), 5.45, "between two seconds some times stay free");
  assert.equal(snap(5.3, { times: [], beats: null }, 10), 5);
});
