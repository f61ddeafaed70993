// Keys and sound of the story panel, without a browser.
import assert from "node:assert/strict";
import { mock, test } from "node:test";

/** What the scripts ask of an element. */
class Element extends EventTarget {
  style = {};
  classList = { add() {}, toggle() {} };
  children = [];
  matches = () => false; // of no field,
  closest = () => null; // in no menu and no bar
  setAttribute() {}
  append(...children) {
    this.children.push(...children);
  }
  prepend() {}
  remove() {}
}
Object.assign(globalThis, {
  document: { createElement: () => new Element() },
  getComputedStyle: () => ({ getPropertyValue: () => "" }),
});
const { app } = await import("../scripts/app.js");
const { Monitor } = await import("../extensions/headforcing/story/monitor.js");
const { SoundLane } = await import("../extensions/headforcing/story/sound.js");
const { isShortcut } = await import("../extensions/headforcing/timeline/keys.js");

const nextTurn = () => new Promise((end) => setImmediate(end));

/** A player as the monitor knows it, of a video of which the story begins at once. */
function playerOf(video) {
  const pair = { isSilent: true };
  return { video, pair, image: new Element(), lend() {}, get seconds() { return video.currentTime; } };
}

/** A press of a key, as an event with what a handler has done to it. */
function press(key, { code = "", altKey = false, ctrlKey = false } = {}) {
  const target = new Element();
  return { key, code, altKey, ctrlKey, metaKey: false, target, preventDefault() {}, stopPropagation() {} };
}

test("Alt+I and Alt+O remove the in and out points, also where Option gives those keys other characters", () => {
  for (const [inKey, outKey] of [["i", "o"], ["I", "O"], ["ˆ", "ø"], ["Dead", "ø"]]) {
    const monitor = new Monitor(() => {}, () => {});
    const video = Object.assign(new Element(), { readyState: 1, currentTime: 2, paused: true });
    monitor.bind(playerOf(video), null, null, "story");
    monitor.key(press("i", { code: "KeyI" }));
    video.currentTime = 5;
    monitor.key(press("o", { code: "KeyO" }));
    assert.deepEqual(monitor.times, [5, 2, 5]);
    monitor.key(press(inKey, { code: "KeyI", altKey: true }));
    assert.deepEqual(monitor.times, [5, null, 5]);
    monitor.key(press(outKey, { code: "KeyO", altKey: true }));
    assert.deepEqual(monitor.times, [5, null, null]);
  }
});

test("on a keyboard with letters in other places Alt goes by the letter", () => {
  const monitor = new Monitor(() => {}, () => {});
  const video = Object.assign(new Element(), { readyState: 1, currentTime: 2, paused: true });
  monitor.bind(playerOf(video), null, null, "story");
  monitor.key(press("i", { code: "KeyG" }));
  monitor.key(press("u", { code: "KeyI", altKey: true }));
  assert.equal(monitor.times[1], 2);
  monitor.key(press("i", { code: "KeyG", altKey: true }));
  assert.equal(monitor.times[1], null);
});

test("newest is there for a file that grows, and not for a live video, whose pace it would break", () => {
  for (const isFollowed of [false, true]) {
    const monitor = new Monitor(() => {}, () => {});
    const video = Object.assign(new Element(), { readyState: 1, currentTime: 2, paused: true });
    monitor.bind(Object.assign(playerOf(video), { growing: {}, isFollowed }), null, null, "story");
    assert.equal(monitor.newest.disabled, isFollowed);
  }
});

test("shortcuts of ComfyUI go on to it, those of fields and of undo do not", () => {
  for (const key of ["s", "Enter", "b", "S"]) assert.equal(isShortcut(press(key, { ctrlKey: true })), true, key);
  for (const key of ["z", "Z", "y", "x", "c", "v", "a"]) assert.equal(isShortcut(press(key, { ctrlKey: true })), false, key);
  assert.equal(isShortcut(press("y", { altKey: true })), true);
  for (const key of ["s", "Delete", "Escape", "y"]) assert.equal(isShortcut(press(key)), false, key);
});

/** A story with a sound, and the answers of a server that reads it, one for each question. */
function soundOf(...answers) {
  const asked = [];
  const sentences = [];
  app.api.fetchApi = async (route) => {
    asked.push(route);
    const answer = answers[Math.min(asked.length, answers.length) - 1];
    if (answer === undefined) throw new Error("away");
    return { json: async () => JSON.parse(answer) };
  };
  const load = { comfyClass: "LoadAudio", graph: {}, widgets: [{ name: "audio", value: "a.wav" }] };
  const story = { graph: {}, comfyClass: "", inputs: [{ name: "audio" }], widgets: [], getInputNode: () => load };
  const bars = { inner: new Element(), element: new Element() };
  const lane = new SoundLane((sentence) => sentences.push(sentence));
  lane.bind(story, { bars }, null);
  const looks = async (milliseconds) => {
    for (let passed = 0; passed < milliseconds; passed += 200) {
      mock.timers.tick(200);
      lane.look();
      await nextTurn();
    }
  };
  return { asked, sentences, lane, looks };
}

const HEARD = JSON.stringify({ seconds: 1, peaks: "AAA=", peaks_a_second: 2, onsets: [0.5], tempo: null, first_beat: null });

test("while the server is away or answers something else the sound is asked for every three seconds", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const { asked, lane, looks } = soundOf(undefined, "<html>", HEARD);
  await looks(2800);
  assert.equal(asked.length, 1);
  await looks(600);
  assert.equal(asked.length, 2);
  await looks(4000);
  assert.equal(asked.length, 3);
  assert.equal(lane.nearest(0), 0.5);
  await looks(60_000);
  assert.equal(asked.length, 3, "what was heard stays");
  mock.timers.reset();
});

test("a sound that cannot be read is asked for again later, and said once", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const refusal = JSON.stringify({ error: "a.wav is no sound" });
  const { asked, sentences, lane, looks } = soundOf(refusal, refusal, HEARD);
  await looks(20_000);
  assert.equal(asked.length, 1);
  await looks(80_000);
  assert.equal(asked.length, 3);
  assert.deepEqual(sentences, ["a.wav is no sound"]);
  assert.equal(lane.nearest(0), 0.5);
  mock.timers.reset();
});
