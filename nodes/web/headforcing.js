// The pack's only extension of the editor. ComfyUI imports every script of this folder; only this one registers anything.
//
// A part is a module that exports some of the hooks below. Hooks are called in the order of PARTS, whichever file was
// loaded first. There are four groups:
//   timeline.js, timeline/  the editor on Prompt Timeline: editor.js joins the model (segments.js, pure functions) with
//                           what is drawn (bars.js, panel.js); the server alone knows the grammar of the text
//   player.js, renders.js   the video on a node: player.js hears messages, player_view.js shows them, growing_file.js reads
//                           a file while it is written; renders.js asks again after a reload
//   takes.js, shelf.js      stored videos, listed by take_data.js; parts.js queues a scene or a draft
//   the other parts         small changes of widgets
// All of them use shared.js (elements, nodes of the graph, questions to the server), widgets.js and texts.js.
import { app } from "../../scripts/app.js";
import * as filenamePrefix from "./filename_prefix.js";
import * as fixedSeed from "./fixed_seed.js";
import * as foldAdvanced from "./fold_advanced.js";
import * as liveStory from "./live_story.js";
import * as player from "./player.js";
import * as removedInputs from "./removed_inputs.js";
import * as renders from "./renders.js";
import * as shelf from "./shelf.js";
import * as takeData from "./take_data.js";
import * as takes from "./takes.js";
import * as texts from "./texts.js";
import * as timeline from "./timeline.js";

const PARTS = [
  filenamePrefix, fixedSeed, removedInputs, foldAdvanced, timeline, liveStory, takeData, takes, shelf, player, renders,
];

/** A hook that calls those of all parts that have one. */
const all = (hook) => (...values) => Promise.all(PARTS.map((part) => part[hook]?.(...values)));

app.registerExtension({
  name: "HeadForcing",
  init: texts.init,
  setup: all("setup"),
  nodeCreated: all("nodeCreated"),
  refreshComboInNodes: all("refreshComboInNodes"),
  afterConfigureGraph: all("afterConfigureGraph"),
});
