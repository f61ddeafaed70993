// A second video beside the one that a player plays: it plays, stops and seeks with it.
import { make } from "../shared.js";

const EVENTS = ["play", "pause", "seeking", "seeked", "ratechange", "timeupdate", "ended", "loadeddata"];
const APART = { paused: 0.01, playing: 0.15 }; // seconds by which it may be elsewhere; beyond that it jumps
const NEAR = 0.02; // seconds from which on it plays faster or slower until it is there
const FASTER = 0.05; // of the rate

export class Beside {
  /**
   * @param {HTMLVideoElement} leader
   * @param {string} src
   * @param {string} label
   */
  constructor(leader, src, label) {
    this.leader = leader;
    this.video = make("video", { playsinline: true, "aria-label": label, src, style: leader.style.cssText });
    this.video.muted = true;
    this.video.addEventListener("click", () => this.#toggle());
    this.video.addEventListener("loadeddata", () => this.follow());
    this.follow = this.follow.bind(this);
    for (const event of EVENTS) leader.addEventListener(event, this.follow);
  }

  follow() {
    const { leader, video } = this;
    if (!video.duration) return;
    const at = Math.min(leader.currentTime, video.duration);
    const behind = at - video.currentTime;
    video.playbackRate = this.#rate(behind);
    const mostApart = leader.paused ? APART.paused : APART.playing;
    if (Math.abs(behind) > mostApart) video.currentTime = at;
    if (leader.paused || leader.ended || at === video.duration) video.pause();
    else if (video.paused) video.play().catch(() => {}); // stopped again before it began
  }

  #toggle() {
    if (this.leader.paused) this.leader.play().catch(() => {});
    else this.leader.pause();
  }

  /**
   * A little more than the leader's rate while it is behind, a little less while it is ahead.
   * @param {number} behind in seconds
   */
  #rate(behind) {
    const { paused, playbackRate } = this.leader;
    if (paused || Math.abs(behind) < NEAR) return playbackRate;
    return playbackRate * (1 + Math.sign(behind) * FASTER);
  }

  close() {
    for (const event of EVENTS) this.leader.removeEventListener(event, this.follow);
    this.video.removeAttribute("src");
    this.video.load(); // else the element plays on
    this.video.remove();
  }
}
