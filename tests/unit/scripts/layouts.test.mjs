// Layouts of the story panel by its size.
import assert from "node:assert/strict";
import { test } from "node:test";

const { hasLayout } = await import("../extensions/headforcing/story/layouts.js");

/** The layout at each of some sizes in turn. */
function atSizes(sizes, bounds) {
  let has = false;
  return sizes.map((size) => (has = hasLayout(size, has, bounds)));
}

test("a panel that a job makes lower by 72 pixels and back keeps its layout", () => {
  const low = { side: "height", enter: 400, leave: 480 };
  assert.deepEqual(atSizes([473, 451, 401, 451, 473], low), [false, false, false, false, false]);
  assert.deepEqual(atSizes([399, 451, 473, 479], low), [true, true, true, true]);
  assert.deepEqual(atSizes([399, 480, 400], low), [true, false, false]);
});

test("a layout of a large panel is entered and left the other way", () => {
  const high = { side: "height", enter: 740, leave: 660 };
  assert.deepEqual(atSizes([739, 740, 668, 660, 659, 700], high), [false, true, true, true, false, false]);
});
