// The codecs of an MP4 for a media source, from the configurations of its decoders at the file's beginning.

/** Codecs of sound by their boxes. @type {Record<string, string>} */
const SOUNDS = { Opus: "opus", fLaC: "flac", "ac-3": "ac-3", "ec-3": "ec-3", alac: "alac" };
const OBJECT = 0x04; // the tag of what a box "esds" says of its decoder
const AAC = 0x40;

/**
 * The codecs of picture and sound, separated by a comma.
 * @param {Uint8Array} bytes
 */
export function codecsOf(bytes) {
  const end = placeOf(bytes, "mdat");
  const head = bytes.subarray(0, end < 0 ? bytes.length : end);
  const at = placeOf(head, "avcC");
  if (at < 0) throw new Error("no H.264 video");
  const profile = [...head.subarray(at + 5, at + 8)].map(hex).join("");
  const picture = `avc1.${profile}`;
  const sound = soundCodec(head);
  return sound ? `${picture},${sound}` : picture;
}

/** @param {number} byte */
function hex(byte) {
  return byte.toString(16).padStart(2, "0");
}

/**
 * The codec of the sound; empty where there is none.
 * @param {Uint8Array} head
 */
function soundCodec(head) {
  const box = Object.keys(SOUNDS).find((name) => placeOf(head, name) >= 0);
  if (box) return SOUNDS[box];
  if (placeOf(head, "mp4a") < 0) return "";
  const object = objectType(head.subarray(placeOf(head, "esds") + 8));
  return object === AAC ? "mp4a.40.2" : `mp4a.${hex(object)}`;
}

/**
 * The kind of decoder that the descriptors of a box "esds" ask for.
 * @param {Uint8Array} descriptors
 */
function objectType(descriptors) {
  const stream = afterHead(descriptors, 0);
  const decoder = stream + 3; // behind number and flags of the stream
  if (descriptors[decoder] !== OBJECT) return AAC;
  return descriptors[afterHead(descriptors, decoder)];
}

/**
 * Where the content of a descriptor begins, behind its tag and its length, which has seven bits in each byte.
 * @param {Uint8Array} descriptors
 * @param {number} at its place
 */
function afterHead(descriptors, at) {
  let last = at + 1; // of the length's bytes
  while (descriptors[last] & 0x80) last += 1;
  return last + 1;
}

/**
 * Where four letters stand first; -1 where they do not.
 * @param {Uint8Array} bytes
 * @param {string} letters
 */
function placeOf(bytes, letters) {
  const codes = [...letters].map((letter) => letter.charCodeAt(0));
  let place = bytes.indexOf(codes[0]);
  while (place >= 0 && !codes.every((code, index) => bytes[place + index] === code))
    place = bytes.indexOf(codes[0], place + 1);
  return place;
}
