// The pack's only extension of the editor. Its parts add widgets to nodes in this order, whichever file comes last.
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
