// Texts in the language of ComfyUI's settings. English stands in the code; the others in locales/*/main.json, which
// ComfyUI serves with the translations of all packs.
import { app } from "../../scripts/app.js";
/** @import {Said} from "./types.js" */

/** By their English texts. @type {Record<string, string>} */
let translations = {};

/** Fetch the translations; a language without them shows English, and so does a server that does not answer. */
export async function init() {
  const language = app.ui.settings.getSettingValue("Comfy.Locale") ?? "en";
  if (language === "en") return;
  try {
    const all = await (await app.api.fetchApi("/i18n")).json();
    translations = all[language]?.headforcing ?? {};
  } catch (error) {
    console.warn("Head Forcing: texts stay English", error);
  }
}

/**
 * A text with %1, %2 ... replaced by values, translated where it can be.
 * @param {string} text
 * @param {...unknown} values
 */
export function t(text, ...values) {
  const translated = translations[text] ?? text;
  return translated.replace(/%(\d)/g, (_, number) => String(values[number - 1]));
}

/**
 * A sentence of the server in the language of the page.
 * @param {Said} parts
 * @returns {string}
 */
export function sentenceOf(parts) {
  if (!Array.isArray(parts)) return parts;
  const [text, ...values] = parts;
  return t(text, ...values.map(sentenceOf));
}
