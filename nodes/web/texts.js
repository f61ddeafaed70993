// Texts in the language of ComfyUI's settings. English stands in the code; the others in locales/*/main.json, which
// ComfyUI serves with the translations of all packs.
import { app } from "../../scripts/app.js";

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
export const t = (text, ...values) => (translations[text] ?? text).replace(/%(\d)/g, (_, n) => values[n - 1]);

/** A sentence of the server, whose parts are its text and the values, which may be sentences. */
export const said = (parts) => (Array.isArray(parts) ? t(parts[0], ...parts.slice(1).map(said)) : parts);
