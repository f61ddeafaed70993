// The pack's only extension of the editor. ComfyUI imports every script of this folder; only this one registers anything.
//
// A part is a module that exports some of the hooks below. Hooks are called in the order of PARTS, whichever file was
// loaded first. There are four groups:
//   timeline/  the editor on Prompt Timeline (node.js): editor.js joins the prompts (segments.js, pure functions) with what
//              is drawn (bars.js, panel.js), writer.js writes changes; the server alone knows the grammar of the text
//   player/    the video on a node: messages.js hears the server, player.js shows what it tells, growing_file.js reads a
//              file while it is written, pair.js plays a second take in step with it; server_events.js asks again after a
//              reload
//   story/     the story panel, to which a node's editor, video and list of takes are lent: panel.js says whose, monitor.js
//              plays the video, film.js draws into the bars, sound.js below them, markers.js names times, menu.js is that of a
//              bar, live.js gives prompts to a live video, which followed_file.js of the player reads
//   takes/     stored videos: store.js lists them, shelf.js shows those of a sampler, list.js those of a Load Head Forcing
//              Run; queue_part.js queues a scene or a draft
//   the others small changes of widgets
// All use shared.js (elements, nodes of the graph, questions to the server), widgets.js and texts.js. What they hand to each
// other is described in types.js; jsconfig.pure.json lists the modules that are also checked for missing values.
import { app } from "../../scripts/app.js";
import * as fixedSeed from "./fixed_seed.js";
import * as foldAdvanced from "./fold_advanced.js";
import * as liveStory from "./live_story.js";
import * as playerMessages from "./player/messages.js";
import * as queuedGraph from "./queued_graph.js";
import * as removedInputs from "./removed_inputs.js";
import * as serverEvents from "./server_events.js";
import * as shared from "./shared.js";
import * as panel from "./story/panel.js";
import * as shelf from "./takes/shelf.js";
import * as takeStore from "./takes/store.js";
import * as takeList from "./takes/list.js";
import * as templateOrder from "./template_order.js";
import * as texts from "./texts.js";
import * as timeline from "./timeline/node.js";

timeline.usePanel(panel);
shelf.usePlayers(playerMessages.playerOf);

/** @type {Record<string, any>[]} */
const PARTS = [
  shared, queuedGraph, fixedSeed, removedInputs, foldAdvanced, timeline, liveStory, takeStore, takeList, shelf,
  playerMessages, serverEvents, templateOrder, texts,
];

/**
 * A hook that calls those of all parts that have one; the frontend waits for what they return.
 * @param {string} hook
 */
function all(hook) {
  /** @param {any[]} args */
  return (...args) => Promise.all(PARTS.map((part) => part[hook]?.(...args)));
}

app.registerExtension({
  name: "HeadForcing",
  ...panel.extension,
  init: all("init"),
  setup: all("setup"),
  nodeCreated: all("nodeCreated"),
  refreshComboInNodes: all("refreshComboInNodes"),
  afterConfigureGraph: all("afterConfigureGraph"),
});
