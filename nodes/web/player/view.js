// What a player shows in its node: a text, and below it a preview, the growing file or finished ones, and a take's file.
import { app } from "../../../scripts/app.js";
import { address, GrowingFile } from "./growing_file.js";
import { Pair } from "./pair.js";
import { Sprite } from "./sprite.js";
import { playsGrowing } from "../server_events.js";
import { editors, holds, make, nodeOf, storyNodeOf, whileInGraph } from "../shared.js";
import { nameOf } from "../takes/store.js";
import { t } from "../texts.js";
import { addElement } from "../widgets.js";

const NAME = "player";
const TEXT = 48; // height of the text, three lines, in pixels
const STAGE = 300; // of the pictures and names of takes; a node keeps its size when one comes, since that would be a step of graph undo
const HEIGHT = TEXT + 4 + STAGE;
const MARGIN = 20; // of a widget
const ENLARGED = 2; // from this factor on, a video is enlarged without blur, as that of the demo model
const JOINED_BLOCKS = 3;
const leaders = new WeakMap(); // the player that each story's timeline follows, by Prompt Timeline node

/** What a node shows: a text, and below it a preview or a video, with another take's or a list beside it. */
export class View {
  /** @type {{done: number, lead: number, running: boolean, render: string, fps?: number, scenes?: object[]}} */
  place = { done: 0, lead: 0, running: false, render: "" };
  /** Called when another take is played or compared. @type {(() => void) | undefined} */
  changed;
  /** Called with the time in the file of each frame that is shown. @type {((mediaTime: number) => void) | undefined} */
  onFrame;
  /** The last message about the node. @type {any} */
  told;
  /** The take that is played. @type {import("../takes/store.js").Take | undefined} */
  take;
  /** @type {GrowingFile | undefined} */
  growing;
  /** Pictures of the run that the server has made. @type {Sprite | undefined} */
  sprite;

  #wasHeard = false; // whether a click has let the sound be heard
  #isLent = false; // whether the story panel shows the video

  constructor(node) {
    this.node = node;
    const styled = (tag, style) => make(tag, { style });
    const picture = "flex: 1 1 0; min-height: 0; min-width: 0; width: 100%; object-fit: contain";
    this.root = styled(
      "div",
      `display: flex; flex-direction: column; gap: 4px; width: 100%; min-height: ${HEIGHT}px; color: var(--input-text)`,
    );
    this.text = styled("div", `flex: none; height: ${TEXT}px; font-size: 12px; line-height: 16px; overflow: auto`);
    this.image = styled("img", picture);
    this.video = styled("video", picture);
    this.stage = make("div", { style: "flex: 1 1 0; min-height: 0; min-width: 0; display: flex; gap: 2px" }, this.video);
    this.shown = styled("div", "flex: 1 1 0; min-width: 0; min-height: 0; display: flex; flex-direction: column");
    this.pair = new Pair(this.stage, this.video);
    this.pair.allowWipe(false);
    this.shown.append(this.image, this.stage, this.pair.names);
    new ResizeObserver(() => this.#sharpen()).observe(this.shown);
    this.away = make("div", { class: "hf-away", style: "margin: auto; font-size: 12px; opacity: 0.7", hidden: true });
    this.away.textContent = t("The video is in the story panel.");
    this.row = make("div", { style: "flex: 1 1 0; min-height: 0; display: flex; gap: 4px" }, this.shown, this.away);
    this.stage.style.display = this.image.style.display = "none";
    this.video.setAttribute("aria-label", t("Video of %1", node.title));
    Object.assign(this.video, { controls: true, muted: true, autoplay: true, playsInline: true });
    this.root.append(this.text, this.row);
    this.image.addEventListener("load", () => this.show(this.image));
    this.video.addEventListener("loadedmetadata", () => this.show(this.video));
    for (const event of ["loadeddata", "timeupdate", "seeked"]) this.video.addEventListener(event, () => this.mark());
    this.video.addEventListener("ended", () => this.files && this.play(this.files.indexOf(this.file) + 1));
    this.video.addEventListener("play", () => this.#isLent && this.#lead()); // else it may begin by itself
    for (const event of ["pointerdown", "keydown"]) this.stage.addEventListener(event, () => this.#lead());
    this.stage.addEventListener("click", (event) => this.#hear(event), { capture: true });
    this.stage.addEventListener("pointerdown", (event) => event.stopPropagation()); // the canvas would take it
    this.root.addEventListener("wheel", (event) => {
      if (!LiteGraph.vueNodesMode) app.canvas.processMouseWheel?.(event); // zoom, as over the rest of the node
    });
    addElement(node, NAME, this.root, { hideOnZoom: false, getMinHeight: () => HEIGHT + MARGIN });
    this.#watchFrames();
    whileInGraph(
      node,
      () => this.told && this.update(this.told),
      () => this.stop(), // else the element plays on, and marks the timeline of whatever takes the node's place
    );
  }

  /** The first click on a video with sound lets it be heard: nothing may be heard before one. */
  #hear(event) {
    const { video } = this;
    if (this.#wasHeard || video.paused || !this.hasSound) return;
    this.#wasHeard = true;
    if (!this.pair.isSilent) return;
    this.pair.hear(true);
    event.preventDefault(); // it would stop the video
    event.stopPropagation();
  }

  /** Whether what is played has sound; of a file that no render of this page made, once some was decoded. */
  get hasSound() {
    const { webkitAudioDecodedByteCount = 0, mozHasAudio = false } = /** @type {any} */ (this.video);
    return Boolean((!this.take && this.told?.video?.sound) || mozHasAudio || webkitAudioDecodedByteCount);
  }

  /** Hand each frame that is shown to the timeline, with its time in the file. */
  #watchFrames() {
    if (!this.video.requestVideoFrameCallback) return; // pictures of scenes come when the file is finished
    const next = (_, { mediaTime }) => {
      this.#editor()?.frame(this.video, mediaTime);
      this.onFrame?.(mediaTime);
      this.video.requestVideoFrameCallback(next);
    };
    this.video.requestVideoFrameCallback(next);
  }

  /** The editor of the story that this player shows, while it shows that story and stands in the open workflow. */
  #editor() {
    const isThere = this.node.graph && (!this.told || nodeOf(this.told.node) === this.node);
    const story = isThere ? storyNodeOf(this.node) : null;
    return story && this.#tells(story) && this.source === this.place.render ? editors.get(story) : undefined;
  }

  /** Whether the scenes of the timeline are those of what is played: a take of another text has other ones. */
  #tells(story) {
    return !this.take || Boolean(this.take.written && holds(story, this.take.written));
  }

  /** Whether the timeline of a story follows this player: of several it follows one, though all play in turn. */
  #leads(story) {
    const leader = leaders.get(story);
    if (!leader || storyNodeOf(leader.node) !== story) leaders.set(story, this);
    return leaders.get(story) === this;
  }

  /** Let the timeline follow this player from now on: a person plays it, or it is rendered. One in the panel stays. */
  #lead() {
    const story = storyNodeOf(this.node);
    const leader = leaders.get(story);
    const isInPanel = leader && leader.#isLent && storyNodeOf(leader.node) === story;
    if (story && !isInPanel) leaders.set(story, this);
  }

  update(message) {
    const { text, state, video, preview, files, place, prompt_id } = message;
    if (message.time) this.#lead(); // of a render: outputs that ComfyUI had come without a time
    const other = prompt_id !== this.told?.prompt_id;
    this.told = message;
    if (other) {
      this.leave(); // a take stays until the next run
      this.sprite = undefined;
    }
    this.#readPictures(video);
    if (!this.take) this.place = { done: 0, lead: 0, ...place, running: state === "running", render: prompt_id };
    this.say(text, state === "failed");
    if (this.take) return;
    if (files?.length) this.finish(files);
    else if (files) this.clear();
    else if (video?.bytes && playsGrowing()) this.follow(video, state !== "running");
    else if (preview) {
      this.stop(); // what an earlier render has made
      this.image.src = preview;
    }
    this.mark();
  }

  /** Read the small pictures that the server has made of what it renders. */
  #readPictures(video) {
    if (!video?.pictures) return;
    if (this.sprite?.id !== video.id) this.sprite = new Sprite(video.id, () => this.mark());
    this.sprite.read(video.pictures);
  }

  /** The pictures by second of the file that is played; null where the server has made none. */
  get made() {
    const isOfRun = !this.take && this.source === this.told?.prompt_id;
    return (isOfRun && this.sprite?.pictures) || null;
  }

  say(text, failed = false) {
    this.text.textContent = this.text.title = text;
    this.text.style.color = failed ? "var(--error-text, #ff4444)" : "";
  }

  /** Show on the timeline of this node's story how far it is rendered and where it is played. */
  mark() {
    if (!this.node.graph || (this.told && nodeOf(this.told.node) !== this.node)) return; // another workflow is open
    const story = storyNodeOf(this.node);
    if (story && !this.#leads(story)) return;
    const tells = this.#tells(story);
    const place = tells ? this.place : { ...this.place, done: 0 };
    const playing = tells && this.source === place.render; // else it is still an earlier video
    const { currentTime, duration, readyState, src } = this.video;
    const shown = Math.min(currentTime, duration - 0.01); // at its end a video shows its last frame
    const at = playing && readyState >= 2 && src ? shown - place.lead : null;
    const made = tells ? this.made : null;
    const isLookedThrough = playing && !(made && this.sprite?.isBehind); // for the pictures that the server has not made
    const file = isLookedThrough ? this.url : undefined;
    editors.get(story)?.follow(this, { ...place, at, file, video: this.video, made });
  }

  /** Play a take's file in place of the last run's, from the same time; null: that of the run again. */
  choose(take) {
    this.#lead();
    const at = this.video.currentTime;
    this.leave();
    this.stop();
    this.show(null);
    if (!take) return this.told && this.update(this.told);
    this.take = take;
    this.source = take.name;
    this.place = { done: take.finished, lead: take.lead, fps: take.fps, running: false, render: take.name };
    this.files = [take.file];
    this.video.autoplay = true;
    this.play(0, at);
    this.label();
  }

  /** The take beside the video. */
  get second() {
    return this.pair.second;
  }

  /** Play a take beside the video, or none. */
  compare(take) {
    this.pair.compare(take);
    this.#sharpen();
    this.label();
  }

  /** Play no take from now on. */
  leave() {
    if (this.second) this.compare(null);
    this.take = undefined;
    this.label();
  }

  /** Say below the video which takes are played. */
  label() {
    this.pair.label(this.take ? nameOf(this.take) : t("Last run"), Boolean(this.take));
    this.changed?.();
  }

  /** Play from a second of the story, if the video has it: it may begin with a scene, and end before the story. */
  seek(seconds) {
    this.#lead();
    const time = seconds + this.place.lead;
    if (time >= 0 && time < this.video.duration) this.video.currentTime = time;
  }

  /** Play a file that grows. */
  follow(video, complete) {
    this.source = this.place.render;
    if (this.growing?.id !== video.id) {
      this.stop();
      this.video.autoplay = true;
      const joins = this.place.done > JOINED_BLOCKS; // another page has seen its beginning: this one shows the newest
      this.growing = new GrowingFile(this.video, video.id, joins);
    }
    this.growing.grow(video.bytes, complete);
  }

  /** Play finished files: the last of them, which grew here, from where it has come to, then all in turn. */
  finish(files) {
    this.source = this.place.render;
    if (this.files && address(this.files[0]) === address(files[0])) return;
    const { currentTime, paused, ended } = this.video;
    const grew = this.growing !== undefined;
    const stays = paused && !ended && currentTime > 0;
    this.stop();
    this.files = files;
    this.video.autoplay = !(grew && stays);
    this.play(grew ? files.length - 1 : 0, grew ? currentTime : 0);
  }

  play(place, from = 0) {
    this.file = this.files[place % this.files.length];
    this.video.loop = this.files.length === 1;
    this.url = app.api.apiURL(address(this.file));
    this.video.src = this.url + (app.getRandParam?.() ?? "");
    this.video.currentTime = from; // where it will begin
  }

  stop() {
    this.growing?.close();
    if (this.url?.startsWith("blob:")) URL.revokeObjectURL(this.url);
    this.growing = this.files = this.file = this.url = undefined;
    this.video.removeAttribute("src");
    this.video.load(); // else the element plays on
  }

  /** Play a file that was dropped on the page with its workflow, until the next run. */
  playDropped(file) {
    this.leave();
    this.stop();
    this.url = URL.createObjectURL(file);
    this.place = { done: Number.MAX_SAFE_INTEGER, lead: 0, running: false, render: this.url };
    this.source = this.url;
    this.video.loop = true;
    this.video.src = this.url;
    this.say(file.name);
  }

  /** Show the text alone: the frontend shows these files itself. */
  clear() {
    this.stop();
    this.show(null);
  }

  /** Show one of image and video, or neither. */
  show(shown) {
    if (shown === this.image && (this.growing || this.url)) return;
    this.image.style.display = shown === this.image ? "" : "none";
    this.stage.style.display = shown === this.video ? "flex" : "none";
    this.#sharpen();
  }

  #sharpen() {
    const { clientWidth, clientHeight, videoWidth, videoHeight } = this.video;
    const factor = Math.min(clientWidth / videoWidth, clientHeight / videoHeight);
    for (const video of [this.video, this.pair.video].filter(Boolean))
      video.style.imageRendering = factor > ENLARGED ? "pixelated" : "";
  }

  /** Show the video in another place until `takeBack`; it plays on. */
  lend(place) {
    this.away.hidden = false;
    this.#isLent = true;
    this.#lead();
    this.pair.allowWipe(true);
    this.#moveTo(place);
  }

  takeBack() {
    this.away.hidden = true;
    this.#isLent = false;
    this.pair.allowWipe(false);
    this.#moveTo(this.row);
  }

  /** Moving an element in the page pauses what it plays. */
  #moveTo(place) {
    const { paused } = this.video;
    place.prepend(this.shown);
    if (!paused) this.video.play().catch(() => {}); // refused where another file comes meanwhile
  }
}
