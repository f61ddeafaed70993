// The words that bars show.
/** @import {Segment} from "../types.js" */

const LONG = 12; // letters in common that are left out,
const LEAST_WORDS = 3; // of which so many words are left at least
const NUMBER_ALONE = 48; // pixels of a bar that has room for the number of its prompt and no word
const LETTER = 8; // pixels, about
const SEPARATOR = "\0"; // of words, before all letters: sorted, texts that begin alike are neighbours

/** Labels of bars, made anew when a text changes. */
export class Labels {
  /** @type {string[]} */
  #texts = [];
  /** @type {string[]} */
  #labels = [];

  /**
   * @param {Segment[]} segments
   * @returns {string[]}
   */
  of(segments) {
    const texts = segments.map(({ text }) => text);
    const isSame = texts.length === this.#texts.length && texts.every((text, index) => text === this.#texts[index]);
    if (!isSame) {
      this.#texts = texts;
      this.#labels = labels(segments);
    }
    return this.#labels;
  }
}

/**
 * The words by which bars tell their prompts: where one begins as another does, those from where they differ.
 * @param {Pick<Segment, "text">[]} segments
 */
export function labels(segments) {
  const texts = [...new Set(segments.map(({ text }) => text.split(" ").join(SEPARATOR)))].toSorted();
  const all = texts.map((text) => text.split(SEPARATOR));
  /** By text. @type {Map<string, string>} */
  const found = new Map();
  for (const [place, words] of all.entries()) {
    const beside = [all[place - 1], all[place + 1]].filter(Boolean); // no other has more words in common
    const same = Math.max(0, ...beside.map((other) => wordsInCommon(words, other)));
    const text = words.join(" ");
    const isLong = words.slice(0, same).join(" ").length >= LONG;
    found.set(text, isLong ? words.slice(Math.min(same, words.length - LEAST_WORDS)).join(" ") : text);
  }
  return segments.map(({ text }) => found.get(text) ?? text);
}

/**
 * What a bar of so many pixels shows: the whole text where there is room for it, else its number and its label.
 * @param {string} text
 * @param {number} number from 1
 * @param {string} label
 * @param {number} pixels
 */
export function labelFor(text, number, label, pixels) {
  if (text.length * LETTER < pixels) return text;
  return pixels < NUMBER_ALONE ? String(number) : `${number} ${label}`;
}

/**
 * How many words two texts have in common at their beginnings, of which one is never all of the first.
 * @param {string[]} words
 * @param {string[]} other
 */
function wordsInCommon(words, other) {
  const differs = words.findIndex((word, place) => word !== other[place]);
  return Math.min(differs < 0 ? words.length : differs, words.length - 1);
}
