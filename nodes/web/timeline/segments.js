// Prompts on blocks. A timeline is the server's answer to a text; a segment is one of its prompts. All functions are pure.

/** @import {Clock, CopiedScene, Segment, Timeline} from "../types.js" */

/**
 * Time of a block's first video frame, in seconds; the first block of a video is shorter than the others.
 * @param {Clock} clock
 * @param {number} block
 */
export function startSeconds(clock, block) {
  return block === 0 ? 0 : clock.first_block_seconds + (block - 1) * clock.block_seconds;
}

/**
 * The block whose start is nearest to a time.
 * @param {Clock} clock
 * @param {number} seconds
 */
export function blockAt(clock, seconds) {
  if (seconds <= clock.first_block_seconds / 2) return 0;
  return Math.max(1, Math.round((seconds - clock.first_block_seconds) / clock.block_seconds) + 1);
}

/**
 * `m:ss.mmm` without zeros at the end.
 * @param {number} seconds
 */
export function timeText(seconds) {
  const all = Math.floor(seconds * 1000 + 1e-6);
  const rest = ((all % 60000) / 1000).toFixed(3).padStart(6, "0").replace(/\.?0+$/, "");
  return `${Math.floor(all / 60000)}:${rest.padStart(2, "0")}`;
}

/**
 * A time for people: `0:20`.
 * @param {number} seconds
 */
export function plainTime(seconds) {
  return timeText(Math.round(seconds));
}

/**
 * Prompts that begin before a time, the last of them up to it.
 * @param {Segment[]} segments
 * @param {Clock} clock
 * @param {number} seconds
 */
export function cutAt(segments, clock, seconds) {
  const end_block = Math.max(1, blockAt(clock, seconds));
  const kept = segments.filter(({ start_block }) => start_block < end_block);
  return changed(kept, kept.length - 1, { end_block });
}

/**
 * All prompts in a shorter time, each with at least a block; null where there are too many for that.
 * @param {Segment[]} segments
 * @param {Timeline} timeline
 * @param {number} seconds
 * @returns {Segment[] | null}
 */
export function scaledTo(segments, timeline, seconds) {
  const blocks = Math.max(1, blockAt(timeline, seconds));
  if (segments.length > blocks) return null;
  let free = 0;
  const starts = segments.map(({ start_block }, index) => {
    const latest = blocks - (segments.length - index);
    const wanted = Math.round((start_block * blocks) / timeline.blocks);
    const start = Math.min(Math.max(index ? wanted : 0, free), latest);
    free = start + 1;
    return start;
  });
  /** @type {(segment: Segment, index: number) => Segment} */
  const scaled = (segment, index) => {
    const end_block = starts[index + 1] ?? blocks;
    return { ...segment, start_block: starts[index], end_block, asked: null };
  };
  return segments.map(scaled);
}

/**
 * The indices of the first and the last prompt that are shown between two times; the last is smaller without one.
 * @param {Segment[]} segments
 * @param {Clock} clock
 * @param {number} from
 * @param {number} until
 * @returns {[number, number]}
 */
export function indicesBetween(segments, clock, from, until) {
  const first = segments.findIndex(({ end_block }) => startSeconds(clock, end_block) > from);
  const last = segments.findLastIndex(({ start_block }) => startSeconds(clock, start_block) < until);
  return first < 0 ? [0, -1] : [first, last];
}

/**
 * Whether a prompt is rendered as it is now: at the same blocks, with the same words, and in the same way.
 * @param {Segment} segment
 * @param {Segment} scene of the render
 */
export function isRenderedAs(segment, scene) {
  const isThere = segment.start_block === scene.start_block && segment.end_block === scene.end_block;
  return isThere && segment.words === scene.words && segment.way === scene.way;
}

/**
 * The number of first blocks that prompts have in common with the scenes of a render.
 * @param {Segment[]} segments
 * @param {Segment[]} scenes
 */
export function blocksInCommon(segments, scenes) {
  const differs = segments.findIndex((segment, index) => !scenes[index] || !isRenderedAs(segment, scenes[index]));
  if (differs < 0) return segments.at(-1)?.end_block ?? 0;
  const segment = segments[differs];
  const scene = scenes[differs];
  if (!scene) return segment.start_block;
  const begin = Math.min(segment.start_block, scene.start_block);
  const isSame = isRenderedAs({ ...segment, end_block: scene.end_block }, scene);
  return isSame ? Math.min(segment.end_block, scene.end_block) : begin;
}

/**
 * Segments whose ends are where the next ones start; the last keeps its own, the end of the video.
 * @param {Segment[]} segments
 * @returns {Segment[]}
 */
export function joined(segments) {
  return segments.map((segment, index) => ({
    ...segment,
    end_block: segments[index + 1]?.start_block ?? segment.end_block,
  }));
}

/**
 * The first and the last block at which a prompt can begin without covering another. `free` is the first block that
 * is not rendered yet: prompts before it stay.
 * @param {Segment[]} segments
 * @param {number} index
 * @param {number} [free]
 * @returns {[number, number]}
 */
export function range(segments, index, free = 1) {
  const { start_block, end_block } = segments[index];
  if (index === 0 || start_block < free) return [start_block, start_block];
  return [Math.max(segments[index - 1].start_block + 1, free), end_block - 1];
}

/**
 * With a prompt that begins elsewhere; where the others ripple, all later ones move with it, and the video's end.
 * @param {Segment[]} segments
 * @param {number} index
 * @param {number} block
 * @param {{free?: number, ripple?: boolean}} [how]
 * @returns {Segment[]}
 */
export function moved(segments, index, block, { free = 1, ripple = false } = {}) {
  const [first, last] = range(segments, index, free);
  const isFixed = index === 0 || segments[index].start_block < free;
  const start_block = Math.min(Math.max(block, first), last);
  if (!ripple || isFixed) return changed(segments, index, { start_block });
  return shifted(segments, index, Math.max(block, first) - segments[index].start_block);
}

/**
 * @param {Segment[]} segments
 * @param {number} from
 * @param {number} by
 */
const shifted = (segments, from, by) =>
  segments.map((segment, index) => {
    const { start_block, end_block } = segment;
    return index < from ? segment : { ...segment, start_block: start_block + by, end_block: end_block + by };
  });

/**
 * The length in seconds of a timeline's video with these segments, to the millisecond.
 * @param {Segment[]} segments
 * @param {Timeline} timeline
 */
export function lengthWith(segments, { blocks, seconds, block_seconds }) {
  const end = segments[segments.length - 1].end_block;
  return Math.round(1000 * (seconds + (end - blocks) * block_seconds)) / 1000;
}

/**
 * @param {Segment} segment
 */
const lengthOf = ({ start_block, end_block }) => end_block - start_block;

/**
 * With prompts in a row at another place in the order; each keeps its length.
 * @param {Segment[]} segments
 * @param {number} from the first of them
 * @param {number} to
 * @param {number} count of them
 */
export function reordered(segments, from, to, count = 1) {
  const order = segments.map((_, index) => index);
  order.splice(to, 0, ...order.splice(from, count));
  let end_block = 0;
  const placed = order.map((index) => {
    const start_block = end_block;
    end_block += lengthOf(segments[index]);
    return { ...segments[index], start_block, end_block };
  });
  /** @type {Renumbering} */
  const renumbered = (number, index) => {
    const place = order.indexOf(number - 1);
    return place < index ? place + 1 : null; // a scene that comes later now cannot be recalled
  };
  return changed(withRecalls(placed, renumbered), 0, { switch: null });
}

/**
 * The place in the order at which prompts in a row that are dragged would begin nearest to a block, from `first` on.
 * @param {Segment[]} segments
 * @param {number} from the first of them
 * @param {number} block
 * @param {number} first
 * @param {number} count of them
 */
export function placeFor(segments, from, block, first, count = 1) {
  const others = segments.toSpliced(from, count);
  let nearest = first;
  let leastAway = Infinity;
  let start = 0; // the block at which they would begin in this place
  for (let place = 0; place <= others.length; place++) {
    const away = Math.abs(start - block);
    if (place >= first && away < leastAway) {
      nearest = place;
      leastAway = away;
    }
    if (place < others.length) start += lengthOf(others[place]);
  }
  return nearest;
}

/**
 * The numbers of scenes after a new prompt has come behind the one at an index.
 * @param {number} index
 * @returns {Renumbering}
 */
const behindNew = (index) => (number) => (number > index + 1 ? number + 1 : number);

/**
 * With scenes after a prompt; the later ones move on.
 * @param {Segment[]} segments
 * @param {number} index
 * @param {CopiedScene[]} scenes
 * @returns {Segment[]}
 */
export function pasted(segments, index, scenes) {
  let all = segments;
  for (const [place, { text, blocks, switch: way, seed }] of scenes.entries()) {
    const before = index + place;
    const start_block = all[before].end_block;
    const scene = { text, switch: way, seed, start_block, end_block: start_block + blocks };
    all = withRecalls(all, behindNew(before));
    all = [...all.slice(0, before + 1), scene, ...shifted(all.slice(before + 1), 0, blocks)];
  }
  return all;
}

/**
 * With copies of prompts after the last of them.
 * @param {Segment[]} segments
 * @param {number[]} indices
 */
export function duplicated(segments, indices) {
  const scenes = indices.map((index) => ({ ...segments[index], blocks: lengthOf(segments[index]) }));
  return pasted(segments, indices[indices.length - 1], scenes);
}

/**
 * @param {Segment[]} segments
 * @param {number} index
 * @param {Partial<Segment>} fields
 * @returns {Segment[]}
 */
export function changed(segments, index, fields) {
  return segments.map((segment, each) => (each === index ? { ...segment, ...fields } : segment));
}

/**
 * A prompt's later half as a prompt of its own; null where it has one block.
 * @param {Segment[]} segments
 * @param {number} index
 * @param {string} text
 * @returns {Segment[] | null}
 */
export function divided(segments, index, text) {
  const { start_block, end_block } = segments[index];
  if (end_block - start_block < 2) return null;
  const middle = Math.ceil((start_block + end_block) / 2);
  /** @type {Segment} */
  const second = { text, start_block: middle, end_block, switch: null, seed: null };
  const all = changed(withRecalls(segments, behindNew(index)), index, { end_block: middle });
  return [...all.slice(0, index + 1), second, ...all.slice(index + 1)];
}

/**
 * Without a prompt, whose blocks go to the one before when the caller asks `joined`; a new first prompt has nothing to
 * switch from.
 * @param {Segment[]} segments
 * @param {number} index
 */
export function without(segments, index) {
  const removed = index + 1; // its number in a recall
  /** @type {Renumbering} */
  const renumbered = (number) => {
    if (number === removed) return null;
    return number > removed ? number - 1 : number;
  };
  const rest = withRecalls(segments, renumbered).filter((_, each) => each !== index);
  const { end_block } = segments[segments.length - 1];
  const ending = changed(rest, rest.length - 1, { end_block });
  /** @type {Partial<Segment>} */
  const beginning = index === 0 ? { start_block: 0, switch: null } : { start_block: 0 };
  return changed(ending, 0, beginning);
}

/**
 * The new number of a scene, for the prompt at an index that recalls it; null: it cannot be recalled.
 * @typedef {(number: number, index: number) => number | null} Renumbering
 */

/**
 * Segments whose `[recall 2]` names the same scene after prompts were added, removed or moved.
 * @param {Segment[]} segments
 * @param {Renumbering} renumbered
 * @returns {Segment[]}
 */
function withRecalls(segments, renumbered) {
  return segments.map((segment, index) => {
    const way = segment.switch;
    if (!way?.recall) return segment; // 0: the scene that is most alike
    return { ...segment, switch: { ...way, recall: renumbered(way.recall, index) } };
  });
}

/**
 * The content of a segment's tag, for people.
 * @param {Segment} segment
 * @param {number} blockSeconds
 * @param {(text: string, ...values: unknown[]) => string} t translates
 */
export function tagText(segment, blockSeconds, t) {
  const { switch: way, seed } = segment;
  const words = [];
  if (way?.kind === "recache") words.push(t("change sooner"));
  if (way?.kind === "flush") words.push(t("forget the scene before"));
  if (way?.re_anchor) words.push(t("cut"));
  if (way?.recall != null) words.push(way.recall ? t("scene %1 again", way.recall) : t("the most alike again"));
  if (way?.new_scene) words.push(t("new scene"));
  if (way?.blend_blocks) words.push(t("dissolve %1 s", Math.round(way.blend_blocks * blockSeconds * 10) / 10));
  if (way && !words.length) words.push(t("keep going"));
  if (seed != null) words.push(t("seed %1", seed));
  return words.join(", ");
}

/**
 * The fields of a segment that the server reads.
 * @param {Segment} segment
 */
export function fieldsForServer({ text, start_block, switch: way, seed, asked = null }) {
  return { text, start_block, switch: way, seed, asked };
}
