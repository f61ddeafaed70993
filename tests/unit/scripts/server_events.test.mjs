// What the server tells reaches all parts that hear it, also what is asked for, once.
import assert from "node:assert/strict";
import test from "node:test";
import { app } from "../scripts/app.js";
import { listen } from "../extensions/headforcing/server_events.js";

test("two parts that hear one event both hear a story that is fetched, by one request", async () => {
  const requests = [];
  app.api = new EventTarget();
  app.api.clientId = "page";
  app.api.fetchApi = async (route) => {
    requests.push(route);
    return { ok: true, json: async () => ({ story: { text: "a ball" }, since: 5 }) };
  };
  const heard = [[], []];
  for (const each of heard)
    listen("story", { take: ({ story }) => each.push(story?.text), known: () => [], lose: () => {} });
  const detail = { workflow: "one", node: "7", since: 5 };
  app.api.dispatchEvent(new CustomEvent("story", { detail }));
  await new Promise((done) => setTimeout(done, 10));
  assert.deepEqual(heard, [["a ball"], ["a ball"]]);
  assert.equal(requests.length, 1);
});
