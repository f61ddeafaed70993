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

/** Segments whose ends are where the next ones start. */
export function joined(segments, blocks) {
  return segments.map((segment, index) => ({ ...segment, end_block: segments[index + 1]?.start_block ?? blocks }));
}

/** The first and the last block at which a prompt can begin without covering another. */
export function range(segments, index) {
  if (index === 0) return [0, 0];
  return [segments[index - 1].start_block + 1, segments[index].end_block - 1];
}

export function moved(segments, index, block) {
  const [first, last] = range(segments, index);
  return changed(segments, index, { start_block: Math.min(Math.max(block, first), last) });
}

export function changed(segments, index, fields) {
  return segments.map((segment, each) => (each === index ? { ...segment, ...fields } : segment));
}

/** A prompt's later half as a prompt of its own; null where it has one block. */
export function divided(segments, index, text) {
  const { start_block, end_block } = segments[index];
  if (end_block - start_block < 2) return null;
  const second = { text, start_block: Math.ceil((start_block + end_block) / 2), switch: null, seed: null };
  const later = recalled(segments, (number) => (number > index + 1 ? number + 1 : number));
  return [...later.slice(0, index + 1), second, ...later.slice(index + 1)];
}

/** Without a prompt, whose blocks go to the one before; a new first prompt has nothing to switch from. */
export function without(segments, index) {
  const renumbered = (number) => (number === index + 1 ? null : number > index + 1 ? number - 1 : number);
  const rest = recalled(segments, renumbered).filter((_, each) => each !== index);
  return changed(rest, 0, { start_block: 0, ...(index === 0 && { switch: null }) });
}

/** Segments whose `[recall 2]` names the same scene after prompts were added or removed. */
function recalled(segments, renumbered) {
  return segments.map((segment) => {
    const recall = segment.switch?.recall; // 0: the scene that is most alike
    return recall ? { ...segment, switch: { ...segment.switch, recall: renumbered(recall) } } : segment;
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
