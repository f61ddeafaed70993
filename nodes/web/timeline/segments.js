// Prompts on blocks. A view is the server's answer to a text; a segment is one of its prompts. All functions are pure.

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
  return [...segments.slice(0, index + 1), second, ...segments.slice(index + 1)];
}

/** Without a prompt, whose blocks go to the one before; a new first prompt has nothing to switch from. */
export function without(segments, index) {
  const rest = segments.filter((_, each) => each !== index);
  return changed(rest, 0, { start_block: 0, ...(index === 0 && { switch: null }) });
}

/** The content of a segment's tag, for people. */
export function tagText(segment) {
  const { switch: way, seed } = segment;
  const words = [];
  if (way && way.kind !== "reset") words.push(way.kind);
  if (way?.re_anchor) words.push("re-anchor");
  if (way?.blend_blocks) words.push(`blend ${way.blend_blocks}`);
  if (way && !words.length) words.push("reset");
  if (seed != null) words.push(`seed ${seed}`);
  return words.join(", ");
}
