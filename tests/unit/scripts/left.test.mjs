// Stories that are left before the server has answered, without a browser.
import assert from "node:assert/strict";
import { mock, test } from "node:test";

const { PageStories, storedStories, WorkflowStories } = await import("../extensions/headforcing/timeline/left.js");

const NONE = "00000000-0000-0000-0000-000000000000";
const story = (node, prompts, graph = "g") => ({ graph, node, values: { prompts, seconds: 60 }, unwritten: null });

test("of a node that the page was left with more than once the last story comes back, once", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const stories = [story("4", "old"), story("5", "other"), story("4", "new")];
  for (const stored of [storedStories(stories), JSON.stringify(stories)]) {
    const left = new PageStories(stored);
    assert.equal(left.take("g", "4").values.prompts, "new");
    assert.equal(left.take("g", "4"), undefined);
    assert.equal(left.take("elsewhere", "5"), undefined);
    assert.equal(left.take("g", "5").values.prompts, "other");
  }
  assert.equal(JSON.parse(storedStories(stories)).length, 2);
  assert.equal(new PageStories(storedStories([story("4", "one", NONE)])).take("has one", "4").values.prompts, "one");
  assert.equal(new PageStories(null).take("g", "4"), undefined);
  mock.timers.reset();
});

test("nothing is put into a node of the same number that comes a minute after the page was loaded", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const left = new PageStories(storedStories([story("4", "old", NONE)]));
  mock.timers.tick(60_000);
  assert.equal(left.take("g", "4"), undefined);
  mock.timers.reset();
});

test("what a workflow was left with comes back to its node if that has the text that was changed", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const left = new WorkflowStories();
  left.keep("flow 4", "0 a", { segments: ["A"], shared: "" });
  left.keep("flow 5", "0 b", null);
  assert.equal(left.take("flow 5", "0 b"), null);
  assert.equal(left.take("flow 4", "on its way in"), null);
  assert.deepEqual(left.take("flow 4", "0 a").segments, ["A"]);
  assert.equal(left.take("flow 4", "0 a"), null);
  left.keep("flow 4", "0 a", { segments: ["A"], shared: "" });
  assert.equal(left.take("flow 4", "as an undo has made it"), null);
  mock.timers.tick(3000);
  assert.equal(left.take("flow 4", "0 a"), null, "it would come as a surprise");
  mock.timers.reset();
});
