// What a timeline shows of a player, and the codecs of a file, without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import { codecsOf } from "../extensions/headforcing/player/codecs.js";
import { placeToShow } from "../extensions/headforcing/player/place.js";

const place = { done: 9, lead: -2, running: true, render: "r1", fps: 16 };
const video = { currentTime: 3, duration: 60, readyState: 4, src: "a.mp4" };
const made = new Map([[0, "picture"]]);
const PLAYED = { place, video, isOfStory: true, playsThatRender: true, url: "a.mp4", made: null, isBehind: false };

test("a timeline shows which second of its story a player plays", () => {
  assert.deepEqual(placeToShow(PLAYED), { ...place, at: 5, file: "a.mp4", video, made: null });
  const atEnd = { ...video, currentTime: 60 };
  assert.equal(placeToShow({ ...PLAYED, video: atEnd }).at, 61.99, "at its end a video shows its last frame");
  for (const empty of [{ ...video, readyState: 1 }, { ...video, src: "" }])
    assert.equal(placeToShow({ ...PLAYED, video: empty }).at, null);
});

test("of a take with another text it shows neither scenes nor what is finished", () => {
  const shown = placeToShow({ ...PLAYED, isOfStory: false, made });
  assert.deepEqual(shown, { ...place, done: 0, at: null, file: undefined, video, made: null });
});

test("while an earlier video is played it shows how far the new one is", () => {
  const shown = placeToShow({ ...PLAYED, playsThatRender: false, made });
  assert.deepEqual(shown, { ...place, at: null, file: undefined, video, made });
});

test("a file is looked through for pictures that the server has not made", () => {
  assert.equal(placeToShow({ ...PLAYED, made, isBehind: true }).file, undefined, "they are being read");
  assert.equal(placeToShow({ ...PLAYED, made }).file, "a.mp4");
  assert.equal(placeToShow({ ...PLAYED, isBehind: true }).file, "a.mp4");
});

/** The head of a file with these boxes. */
const head = (...boxes) => Uint8Array.from(boxes.join("") + "mdat", (letter) => letter.charCodeAt(0));
const PICTURE = "avcC\x01\x42\xc0\x1e";
const SOUND = "mp4a...esds\0\0\0\0"; // the descriptors begin behind four bytes

test("codecs are those of the decoders at the beginning of a file", () => {
  assert.equal(codecsOf(head(PICTURE)), "avc1.42c01e");
  assert.equal(codecsOf(head(PICTURE, "fLaC")), "avc1.42c01e,flac");
  assert.equal(codecsOf(head(PICTURE, SOUND, "\x03\x19\0\0\0\x04\x11\x40")), "avc1.42c01e,mp4a.40.2");
  assert.equal(codecsOf(head(PICTURE, SOUND, "\x03\x80\x80\x19\0\0\0\x04\x80\x11\x6b")), "avc1.42c01e,mp4a.6b");
  assert.throws(() => codecsOf(head("hvcC")), /no H.264/);
  assert.throws(() => codecsOf(Uint8Array.from("mdatavcC", (letter) => letter.charCodeAt(0))), /no H.264/);
});
