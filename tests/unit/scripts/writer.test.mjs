// What becomes of changed prompts while the server has not answered them, without a browser.
import assert from "node:assert/strict";
import { mock, test } from "node:test";

const { Writer } = await import("../extensions/headforcing/timeline/writer.js");

const SEGMENTS = ["a", "b"].map((text, index) => ({
  text, start_block: 10 * index, end_block: 10 * index + 10, switch: null, seed: null,
}));
const TIMELINE = { segments: SEGMENTS, shared: "", blocks: 20, seconds: 15, block_seconds: 0.75, first_block_seconds: 0.75 };

/** A node, its writer, and the questions to the server, each with `answer(...)`. */
function opened() {
  const node = { text: "0 a\n10 b", seconds: 15, switch: "reset" };
  const begun = { ...node };
  const questions = [];
  const heard = [];
  const host = {
    read: () => ({ ...node }),
    linked: (name) => name === node.linked,
    write({ prompts, seconds }) {
      node.text = prompts;
      if (seconds !== undefined) node.seconds = seconds;
    },
    ask: (body) => new Promise((answer) => questions.push({ body, answer })),
  };
  const writer = new Writer(host, {
    written: (answer, values, { refused }) => heard.push(["written", values, refused]),
    refused: (sentence, before) => heard.push(["refused", sentence, before?.segments.map(({ text }) => text)]),
    waits: (sentence) => heard.push(["waits", sentence]),
  });
  const change = (words, { key = null, blocks = 20 } = {}) => {
    const segments = words.map((text, index) => ({ ...SEGMENTS[index], text }));
    segments[1].end_block = blocks;
    return writer.write({ segments, shared: "", key, keepsSeconds: false }, TIMELINE, begun);
  };
  return { node, writer, questions, heard, change };
}

const asked = ({ body }) => body.segments.map(({ text }) => text);
const nextTurn = () => new Promise((end) => setImmediate(end));

test("what is chosen in the node while a change waits stays, and the answer is known to be of the values before", async () => {
  const { node, writer, questions, heard, change } = opened();
  change(["A", "b"]);
  Object.assign(node, { switch: "recache", seconds: 30 });
  assert.equal(writer.isWaiting(node.text), true, "nothing else is asked meanwhile");
  questions[0].answer({ text: "0 A\n10 b" });
  await writer.settled();
  assert.deepEqual(node, { text: "0 A\n10 b", switch: "recache", seconds: 30 });
  assert.deepEqual(heard, [["written", { text: "0 A\n10 b", switch: "reset", seconds: 15 }, undefined]]);
  assert.equal(writer.isWaiting(node.text), false);
});

test("a change that makes the video longer writes its length, unless another was chosen meanwhile", async () => {
  for (const [chosen, expected] of [[15, 18.75], [60, 60]]) {
    const { node, writer, questions, change } = opened();
    change(["a", "b"], { blocks: 25 });
    assert.equal(questions[0].body.seconds, 18.75);
    node.seconds = chosen;
    questions[0].answer({ text: "0 a\n10 b" });
    await writer.settled();
    assert.equal(node.seconds, expected);
  }
});

test("a length from another node refuses a change, and one before it that waits is still written", async () => {
  const { node, writer, questions, heard, change } = opened();
  node.linked = "seconds";
  assert.equal(change(["A", "b"]), true);
  assert.equal(change(["A", "b"], { blocks: 25 }), false);
  assert.deepEqual(heard, [["refused", "The length comes from another node; change it there.", ["A", "b"]]]);
  questions[0].answer({ text: "0 A\n10 b" });
  await writer.settled();
  assert.equal(node.text, "0 A\n10 b");
});

test("a refused change takes none before it along: that one is sent again, and the refusal is still told", async () => {
  const { node, writer, questions, heard, change } = opened();
  change(["A", "b"], { key: "text 0" });
  change(["A", "B"], { key: "text 1" });
  change(["A", ""], { key: "text 1" });
  change(["", ""], { key: "text 0" });
  assert.equal(questions.length, 4);
  questions[3].answer({ error: "prompt 1 is empty" });
  await nextTurn();
  assert.deepEqual(asked(questions[4]), ["A", ""]);
  questions[4].answer({ error: "prompt 2 is empty" });
  await nextTurn();
  assert.deepEqual(asked(questions[5]), ["A", "b"]);
  questions[0].answer({ text: "an answer that comes too late" });
  questions[5].answer({ text: "0 A\n10 b" });
  await writer.settled();
  assert.equal(node.text, "0 A\n10 b");
  assert.deepEqual(heard.slice(0, 2), [
    ["refused", "prompt 1 is empty", ["A", ""]],
    ["refused", "prompt 2 is empty", ["A", "b"]],
  ]);
  assert.deepEqual(heard[2][2], "prompt 2 is empty");
});

test("a text that is changed elsewhere stays", async () => {
  const { node, writer, questions, heard, change } = opened();
  change(["A", "b"]);
  node.text = "0 c";
  assert.equal(writer.isWaiting(node.text), false);
  questions[0].answer({ text: "0 A\n10 b" });
  await writer.settled();
  assert.equal(node.text, "0 c");
  assert.deepEqual(heard, []);
});

test("whoever waits waits for what is changed meanwhile, too", async () => {
  const { node, writer, questions, change } = opened();
  change(["A", "b"]);
  const waited = writer.settled().then(() => node.text);
  change(["AA", "b"]);
  questions[0].answer({ text: "0 A\n10 b" });
  await nextTurn();
  questions[1].answer({ text: "0 AA\n10 b" });
  assert.equal(await waited, "0 AA\n10 b");
});

test("while the server is away nobody waits, and a change is sent again after three seconds", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const { node, writer, questions, heard, change } = opened();
  change(["A", "b"]);
  questions[0].answer({ error: "offline", offline: true });
  await writer.settled();
  assert.deepEqual(heard, [["waits", "The server does not answer; this change waits for it."]]);
  mock.timers.tick(3000);
  questions[1].answer({ text: "0 A\n10 b" });
  await writer.settled();
  assert.equal(node.text, "0 A\n10 b");
  mock.timers.reset();
});
