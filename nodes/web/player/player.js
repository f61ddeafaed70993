// What a player shows in its node: a text, and below it a preview, the growing file or finished ones, and a take's file.
import { app } from "../../../scripts/app.js";
import { FollowedFile } from "./followed_file.js";
import { GrowingFile } from "./growing_file.js";
import { makeLayout, sharpen, WIDGET_HEIGHT } from "./layout.js";
import { leads, takeLead } from "./leaders.js";
import { Pair } from "./pair.js";
import { placeToShow } from "./place.js";
import { Sprite } from "./sprite.js";
import { playsGrowing } from "../server_events.js";
import { address, editors, holds, nodeOf, storyNodeOf, whileInGraph } from "../shared.js";
import { fetchStory, nameOf, takeOfFile } from "../takes/store.js";
import { t } from "../texts.js";
import { addElement } from "../widgets.js";
/** @import {FileName, GraphNode, GrowingVideo, Message, Place, Take} from "../types.js" */

const NAME = "player";
const AT_END = 0.1; // seconds before the end of a video from which on there is nothing to play
const JOINED_BLOCKS = 3; // a page that sees more of them first has not seen the beginning of the render

/** Whether two names are of one file; a draft is replaced under its name. @param {FileName} a @param {FileName} b */
const isSame = (a, b) => address(a) === address(b) && a.draft === b.draft;

/** What a node shows: a text, and below it a preview or a video, with another take's or a list beside it. */
export class Player {
  /** @type {Place} */
  place = { done: 0, lead: 0, running: false, render: "" };
  /** Called when another take is played or compared. @type {(() => void) | undefined} */
  changed;
  /** Called with the time in the file of each frame that is shown. @type {((mediaTime: number) => void) | undefined} */
  onFrame;
  /** The last message about the node. @type {Message | undefined} */
  told;
  /** The take that is played. @type {Take | undefined} */
  take;
  /** @type {GrowingFile | undefined} */
  growing;
  /** Pictures of the run that the server has made. @type {Sprite | undefined} */
  sprite;
  /** The render or take that is played, as `place.render` names it. @type {string | undefined} */
  source;
  /** The finished files that are played in turn. @type {FileName[] | undefined} */
  files;
  /** The one of them that is played. @type {FileName | undefined} */
  file;
  /** Where the element finds it. @type {string | undefined} */
  url;

  #wasHeard = false; // whether a click has let the sound be heard
  isLent = false; // whether the story panel shows the video

  /** @param {GraphNode} node */
  constructor(node) {
    this.node = node;
    const { root, text, image, video, stage, shown, away, row } = makeLayout(node.title);
    this.text = text;
    this.image = image;
    this.video = video;
    this.stage = stage; // holds the video, and another take's
    this.shown = shown; // holds image and stage, and goes into the story panel
    this.away = away; // stands in its place meanwhile
    this.row = row; // holds what is shown, and a list of takes
    this.pair = new Pair(stage, video);
    this.pair.allowWipe(false);
    shown.append(this.pair.names);
    new ResizeObserver(() => this.#sharpen()).observe(shown);
    this.image.addEventListener("load", () => this.show(this.image));
    this.video.addEventListener("loadedmetadata", () => this.show(this.video));
    for (const event of ["loadeddata", "timeupdate", "seeked"]) this.video.addEventListener(event, () => this.showPlace());
    this.video.addEventListener("ended", () => {
      const next = this.files ? this.files.indexOf(this.file) + 1 : 0;
      if (this.files && (next < this.files.length || !this.isLent)) this.play(next);
    });
    this.video.addEventListener("play", () => {
      if (this.isLent) takeLead(this); // else it may begin by itself
    });
    for (const event of ["pointerdown", "keydown"]) this.stage.addEventListener(event, () => takeLead(this));
    this.stage.addEventListener("click", (event) => this.#hear(event), { capture: true });
    this.stage.addEventListener("pointerdown", (event) => event.stopPropagation()); // the canvas would take it
    root.addEventListener("wheel", (event) => {
      if (!LiteGraph.vueNodesMode) app.canvas.processMouseWheel?.(event); // zoom, as over the rest of the node
    });
    addElement(node, NAME, root, { hideOnZoom: false, getMinHeight: () => WIDGET_HEIGHT });
    this.#watchFrames();
    whileInGraph(
      node,
      () => this.told && this.update(this.told),
      () => this.stop(), // else the element plays on, and shows its place on the timeline of what takes the node's place
    );
  }

  /** The first click on a video with sound lets it be heard: nothing may be heard before one. @param {Event} event */
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
    if (!this.take && this.told?.video?.sound) return true;
    const { webkitAudioDecodedByteCount = 0, mozHasAudio = false } = /** @type {any} */ (this.video);
    return Boolean(mozHasAudio || webkitAudioDecodedByteCount);
  }

  /** Hand each frame that is shown to the timeline, with its time in the file. */
  #watchFrames() {
    if (!this.video.requestVideoFrameCallback) return; // pictures of scenes come when the file is finished
    /** @type {VideoFrameRequestCallback} */
    const next = (_, { mediaTime }) => {
      this.#editor()?.frame(this.video, mediaTime);
      this.onFrame?.(mediaTime);
      this.video.requestVideoFrameCallback(next);
    };
    this.video.requestVideoFrameCallback(next);
  }

  /** The editor of the story that this player shows, while it shows that story and stands in the open workflow. */
  #editor() {
    const storyNode = this.#isInOpenWorkflow ? storyNodeOf(this.node) : null;
    if (!storyNode || !this.#tells(storyNode) || this.source !== this.place.render) return undefined;
    return editors.get(storyNode);
  }

  /** Whether the node stands in the workflow that is open now. */
  get #isInOpenWorkflow() {
    if (!this.node.graph) return false;
    return !this.told || nodeOf(this.told.node) === this.node;
  }

  /**
   * Whether the scenes of the timeline are those of what is played: a take of another text has other ones.
   * @param {GraphNode} storyNode
   */
  #tells(storyNode) {
    return !this.take || Boolean(this.take.written && holds(storyNode, this.take.written));
  }

  /** @param {Message} message about the node */
  update(message) {
    const { text, state, video, preview, files, scenes, prompt_id } = message;
    const place = { ...message.place, ...(scenes && { scenes }) };
    if (message.time) takeLead(this); // of a render: outputs that ComfyUI had come without a time
    const isOther = prompt_id !== this.told?.prompt_id;
    this.told = message;
    if (isOther) {
      this.leave(); // a take stays until the next run
      this.sprite = undefined;
    }
    this.#readPictures(video);
    if (!this.take) this.place = { done: 0, lead: 0, ...place, running: state === "running", render: prompt_id };
    this.say(text, state === "failed");
    if (this.take) return;
    if (files?.length) this.playFinished(files);
    else if (files) this.clear();
    else if (video?.bytes && playsGrowing()) this.playGrowing(video, state !== "running");
    else if (preview) {
      this.stop(); // what an earlier render has made
      this.image.src = preview;
    }
    this.showPlace();
  }

  /** Read the small pictures that the server has made of what it renders. @param {GrowingVideo | null} video */
  #readPictures(video) {
    if (!video?.pictures) return;
    if (this.sprite?.id !== video.id) this.sprite = new Sprite(video.id, () => this.showPlace());
    this.sprite.read(video.pictures);
  }

  /** The pictures by second of the file that is played; null where the server has made none. */
  get made() {
    const isOfRun = !this.take && this.source === this.told?.prompt_id;
    return isOfRun && this.sprite ? this.sprite.pictures : null;
  }

  /** @param {string} text */
  say(text, failed = false) {
    this.text.textContent = this.text.title = text;
    this.text.style.color = failed ? "var(--error-text, #ff4444)" : "";
  }

  /** Show on the timeline of this node's story how far it is rendered and where it is played. */
  showPlace() {
    const storyNode = this.#isInOpenWorkflow ? storyNodeOf(this.node) : null;
    if (!storyNode || !leads(this, storyNode)) return;
    const place = placeToShow({
      place: this.place,
      video: this.video,
      isOfStory: this.#tells(storyNode),
      playsThatRender: this.source === this.place.render,
      url: this.url,
      made: this.made,
      isBehind: Boolean(this.sprite?.isBehind),
    });
    editors.get(storyNode)?.follow(this, place);
  }

  /** Play a take's file in place of the last run's, from the same time; null: the run's again. @param {Take | null} take */
  choose(take) {
    takeLead(this);
    const at = this.video.ended ? 0 : this.video.currentTime;
    this.take = undefined;
    this.stop();
    this.show(null);
    if (take) this.#playTake(take, at);
    else if (this.told) this.update(this.told);
    if (this.second && this.second.name === this.played?.name) this.compare(null); // with itself
    this.label();
  }

  /** Play a take's file from a second on, or from its beginning if it is shorter. @param {Take} take @param {number} at */
  #playTake(take, at) {
    this.take = take;
    this.source = take.name;
    this.place = { done: take.finished, lead: take.lead, fps: take.fps, running: false, render: take.name };
    fetchStory(take).then(() => this.showPlace());
    this.files = [take.file];
    this.video.autoplay = true;
    this.play(0, at);
    const begin = () => {
      if (at > this.video.duration - AT_END) this.video.currentTime = 0;
    };
    this.video.addEventListener("loadedmetadata", begin, { once: true });
  }

  /** The take that is played, of the last run, too; undefined if it is none. @returns {Take | undefined} */
  get played() {
    return this.take ?? takeOfFile(this.files?.at(-1));
  }

  /** Whether a take is played whose story is not the one of the timeline. */
  get playsOtherStory() {
    if (!this.take || this.take.written === undefined) return false; // the server has not told it yet
    const storyNode = storyNodeOf(this.node);
    return storyNode !== null && !this.#tells(storyNode);
  }

  /** The take beside the video. */
  get second() {
    return this.pair.second;
  }

  /** Play a take beside the video, or none. @param {Take | null} take */
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
    const take = this.played;
    this.pair.label(take ? nameOf(take) : t("Last run"), Boolean(this.take));
    this.changed?.();
  }

  /** The second of the story that is shown; negative in a scene before its beginning. */
  get seconds() {
    return this.video.currentTime - this.place.lead;
  }

  /** Whether the file of a live video is played, which holds no more than what is shown next. */
  get isFollowed() {
    return this.growing instanceof FollowedFile;
  }

  /** Play from a second of the story, if the video has it. @param {number} seconds */
  seek(seconds) {
    takeLead(this);
    const time = seconds + this.place.lead; // the video may begin with a scene, and end before the story
    if (time >= 0 && time < this.video.duration) this.video.currentTime = time;
  }

  /** Play a file that grows. @param {GrowingVideo} video @param {boolean} complete */
  playGrowing(video, complete) {
    this.source = this.place.render;
    if (this.growing?.id !== video.id) {
      this.stop();
      this.video.autoplay = true;
      const joins = this.place.done > JOINED_BLOCKS; // another page has seen its beginning: this one shows the newest
      this.growing = video.followed
        ? new FollowedFile(this.video, video.id, joins, () => Math.max(0, this.seconds))
        : new GrowingFile(this.video, video.id, joins);
    }
    this.growing.grow(video.bytes, complete);
  }

  /**
   * Play finished files: the last of them, which grew here or was a draft, from where it has come to, then all in turn.
   * @param {FileName[]} files
   */
  playFinished(files) {
    this.source = this.place.render;
    const [known] = this.files ?? [];
    if (known && isSame(known, files[0])) return;
    const { currentTime, paused, ended } = this.video;
    const grew = this.growing !== undefined || Boolean(known?.draft);
    const wasFollowed = this.isFollowed;
    const stays = paused && !ended && currentTime > 0;
    this.stop();
    this.files = files;
    this.video.autoplay = !(grew && stays);
    this.play(grew ? files.length - 1 : 0, grew ? currentTime : 0);
    if (wasFollowed) this.video.loop = false; // a live video ends with its last picture
  }

  /** Play a finished file; after the last comes the first, but not in the story panel. @param {number} index @param {number} from in seconds */
  play(index, from = 0) {
    this.file = this.files[index % this.files.length];
    this.video.loop = this.files.length === 1 && !this.isLent;
    this.url = app.api.apiURL(address(this.file));
    this.video.src = this.url + (app.getRandParam?.() ?? "");
    this.video.currentTime = from; // where it will begin
  }

  stop() {
    this.growing?.close();
    if (this.url?.startsWith("blob:")) URL.revokeObjectURL(this.url);
    this.growing = undefined;
    this.files = undefined;
    this.file = undefined;
    this.url = undefined;
    this.video.removeAttribute("src");
    this.video.load(); // else the element plays on
  }

  /** Play a file that was dropped on the page with its workflow, until the next run. @param {File} file */
  playDropped(file) {
    this.leave();
    this.stop();
    this.url = URL.createObjectURL(file);
    this.place = { done: Number.MAX_SAFE_INTEGER, lead: 0, running: false, render: this.url };
    this.source = this.url;
    this.video.loop = !this.isLent;
    this.video.src = this.url;
    this.say(file.name);
  }

  /** Show the text alone: the output is images, which the frontend shows itself. */
  clear() {
    this.stop();
    this.show(null);
  }

  /** Show one of image and video, or neither. @param {HTMLElement | null} shown */
  show(shown) {
    if (shown === this.image && (this.growing || this.url)) return;
    this.image.style.display = shown === this.image ? "" : "none";
    this.stage.style.display = shown === this.video ? "flex" : "none";
    this.#sharpen();
  }

  #sharpen() {
    sharpen([this.video, this.pair.video].filter(Boolean));
  }

  /** Show the video in another place until `takeBack`; it plays on. @param {HTMLElement} place */
  lend(place) {
    this.away.hidden = false;
    this.isLent = true;
    this.video.loop = false;
    takeLead(this);
    this.pair.allowWipe(true);
    this.#moveTo(place);
  }

  takeBack() {
    this.away.hidden = true;
    this.isLent = false;
    this.video.loop = this.files?.length === 1;
    this.pair.allowWipe(false);
    this.#moveTo(this.row);
  }

  /** Moving an element in the page pauses what it plays. @param {HTMLElement} place */
  #moveTo(place) {
    const { paused } = this.video;
    place.prepend(this.shown);
    if (!paused) this.video.play().catch(() => {}); // refused where another file comes meanwhile
  }
}
