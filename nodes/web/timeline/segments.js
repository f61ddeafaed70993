// Prompts on blocks. A view is the server's answer to a text; a segment is one of its prompts. All functions are pure.

const LONG = 12; // letters in common that are left out

/** Time of a block's first video frame, in seconds; the first block of a video is shorter than the others. */
export function startSeconds(view, block) {
  return block === 0 ? 0 : view.first_block_seconds + (block - 1) * view.block_seconds;
}

/** The block whose start is nearest to a time. */
export function blockAt(view, seconds) {
  if (seconds <= view.first_block_seconds / 2) return 0;
  return Math.max(1, Math.round((seconds - view.first_block_seconds) / view.block_seconds) + 1);
}

/** `m:ss.mmm` without zeros at the end. */
export function timeText(seconds) {
  const all = Math.floor(seconds * 1000 + 1e-6);
  const rest = ((all % 60000) / 1000).toFixed(3).padStart(6, "0").replace(/\.?0+$/, "");
  return `${Math.floor(all / 60000)}:${rest.padStart(2, "0")}`;
}

/** A time for people: `0:20`. */
export function plainTime(seconds) {
  return timeText(Math.round(seconds));
}

/** Prompts that begin before a time, the last of them up to it. */
export function cutAt(segments, view, seconds) {
  const end_block = Math.max(1, blockAt(view, seconds));
  const kept = segments.filter(({ start_block }) => start_block < end_block);
  return changed(kept, kept.length - 1, { end_block });
}

/** All prompts in a shorter time, each with at least a block; null where there are too many for that. */
export function scaledTo(segments, view, seconds) {
  const blocks = Math.max(1, blockAt(view, seconds));
  if (segments.length > blocks) return null;
  let free = 0;
  const starts = segments.map(({ start_block }, index) => {
    const latest = blocks - (segments.length - index);
    const wanted = Math.round((start_block * blocks) / view.blocks);
    const start = Math.min(Math.max(index ? wanted : 0, free), latest);
    free = start + 1;
    return start;
  });
  return segments.map((segment, index) => ({
    ...segment,
    start_block: starts[index],
    end_block: starts[index + 1] ?? blocks,
    asked: null,
  }));
}

/** Segments whose ends are where the next ones start; the last keeps its own, the end of the video. */
export function joined(segments) {
  return segments.map((segment, index) => ({
    ...segment,
    end_block: segments[index + 1]?.start_block ?? segment.end_block,
  }));
}

/** The first and the last block at which a prompt can begin without covering another; blocks before `free` stay. */
export function range(segments, index, free = 1) {
  const { start_block, end_block } = segments[index];
  if (index === 0 || start_block < free) return [start_block, start_block];
  return [Math.max(segments[index - 1].start_block + 1, free), end_block - 1];
}

/** With a prompt that begins elsewhere; where the others ripple, all later ones move with it, and the video's end. */
export function moved(segments, index, block, { free, ripple } = {}) {
  const [first, last] = range(segments, index, free);
  const start_block = Math.min(Math.max(block, first), last);
  if (!ripple || first === last) return changed(segments, index, { start_block });
  return shifted(segments, index, Math.max(block, first) - segments[index].start_block);
}

const shifted = (segments, from, by) =>
  segments.map((segment, index) => {
    const { start_block, end_block } = segment;
    return index < from ? segment : { ...segment, start_block: start_block + by, end_block: end_block + by };
  });

/** The length in seconds of a view's video with these segments, to the millisecond. */
export function lengthWith(segments, { blocks, seconds, block_seconds }) {
  return Math.round(1000 * (seconds + (segments.at(-1).end_block - blocks) * block_seconds)) / 1000;
}

const lengthOf = ({ start_block, end_block }) => end_block - start_block;

/** With a prompt at another place in the order; each keeps its length. */
export function reordered(segments, from, to) {
  const order = segments.map((_, index) => index);
  order.splice(to, 0, ...order.splice(from, 1));
  let end_block = 0;
  const placed = order.map((index) => {
    const start_block = end_block;
    end_block += lengthOf(segments[index]);
    return { ...segments[index], start_block, end_block };
  });
  const renumbered = (number, index) => {
    const place = order.indexOf(number - 1);
    return place < index ? place + 1 : null; // a scene that comes later now cannot be recalled
  };
  return changed(recalled(placed, renumbered), 0, { switch: null });
}

/** The place in the order at which a prompt that is dragged would begin nearest to a block, from `first` on. */
export function placeFor(segments, from, block, first) {
  let start = 0;
  const others = segments.filter((_, index) => index !== from);
  const away = [0, ...others.map((segment) => (start += lengthOf(segment)))].map((each) => Math.abs(each - block));
  return away.indexOf(Math.min(...away.slice(first)), first);
}

/** With a copy of a prompt after it; the later ones move on. */
export function duplicated(segments, index) {
  const { start_block, end_block } = segments[index];
  const all = recalled(segments, (number) => (number > index + 1 ? number + 1 : number));
  const copy = { ...all[index], start_block: end_block, end_block: 2 * end_block - start_block };
  return [...all.slice(0, index + 1), copy, ...shifted(all.slice(index + 1), 0, end_block - start_block)];
}

export function changed(segments, index, fields) {
  return segments.map((segment, each) => (each === index ? { ...segment, ...fields } : segment));
}

/** A prompt's later half as a prompt of its own; null where it has one block. */
export function divided(segments, index, text) {
  const { start_block, end_block } = segments[index];
  if (end_block - start_block < 2) return null;
  const second = { text, start_block: Math.ceil((start_block + end_block) / 2), end_block, switch: null, seed: null };
  const later = recalled(segments, (number) => (number > index + 1 ? number + 1 : number));
  return [...later.slice(0, index + 1), second, ...later.slice(index + 1)];
}

/** Without a prompt, whose blocks go to the one before; a new first prompt has nothing to switch from. */
export function without(segments, index) {
  const renumbered = (number) => (number === index + 1 ? null : number > index + 1 ? number - 1 : number);
  const rest = recalled(segments, renumbered).filter((_, each) => each !== index);
  const { end_block } = segments.at(-1);
  return changed(changed(rest, rest.length - 1, { end_block }), 0, {
    start_block: 0,
    ...(index === 0 && { switch: null }),
  });
}

/** Segments whose `[recall 2]` names the same scene after prompts were added, removed or moved. */
function recalled(segments, renumbered) {
  return segments.map((segment, index) => {
    const recall = segment.switch?.recall; // 0: the scene that is most alike
    return recall ? { ...segment, switch: { ...segment.switch, recall: renumbered(recall, index) } } : segment;
  });
}

/** What bars show of their prompts: where one begins as another does, the words from where they differ. */
export function labels(segments) {
  const all = segments.map(({ text }) => text.split(" "));
  return all.map((words, index) => {
    const others = all.filter((other) => other.join(" ") !== words.join(" "));
    const same = Math.max(0, ...others.map((other) => begun(words, other)));
    return words.slice(0, same).join(" ").length < LONG ? segments[index].text : `… ${words.slice(same).join(" ")}`;
  });
}

/** How many words two texts have in common at their beginnings, of which one is never all of the first. */
function begun(words, other) {
  const differs = words.findIndex((word, place) => word !== other[place]);
  return Math.min(differs < 0 ? words.length : differs, words.length - 1);
}

/** The content of a segment's tag, for people. */
export function tagText(segment) {
  const { switch: way, seed } = segment;
  const words = [];
  if (way && way.kind !== "reset") words.push(way.kind);
  if (way?.re_anchor) words.push("re-anchor");
  if (way?.recall != null) words.push(way.recall ? `recall ${way.recall}` : "recall");
  if (way?.new_scene) words.push("new scene");
  if (way?.blend_blocks) words.push(`blend ${way.blend_blocks}`);
  if (way && !words.length) words.push("reset");
  if (seed != null) words.push(`seed ${seed}`);
  return words.join(", ");
}
