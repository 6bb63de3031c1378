// The form: what is to be spoken and how. Kept in this browser over reloads; knows nothing of playing.

import { wordsOf } from "./lexicon.js";
import { t } from "./words.js";

const ITEM = "cosydit-form";
const LANGUAGES = ["en", "zh", "ja", "ko", "de", "es", "fr", "it", "pt", "ru"];
const AUTO = "auto";
const NORMAL_SPEED = 1;
const KEPT = ["text", "voice", "language", "speed", "seed", "format", "style", "lexicon", "pronunciations"];
const MAY_BE_EMPTY = ["text", "seed", "style", "pronunciations"];
const PAUSE = '<break time="500ms"/>';
const FORMAT_NAMES = { opus: "Opus", mulaw: "μ-law 8 kHz", alaw: "A-law 8 kHz" };
const COMPRESSED = ["mp3", "opus", "aac", "flac"];

const byId = (id) => document.getElementById(id);

let most = Infinity; // characters in one text

/** The form as it is: {text, voice, language, speed, seed, style, lexicon, pronunciations}; a seed to be drawn is null. */
export function readOrder() {
  return {
    text: byId("text").value,
    voice: byId("voice").value,
    language: byId("language").value,
    speed: Number(byId("speed").value),
    seed: byId("seed").value.trim() === "" ? null : byId("seed").value.trim(),
    style: byId("style-field").hidden ? "" : byId("style").value.trim(),
    lexicon: byId("lexicon").value,
    pronunciations: byId("pronunciations").value,
  };
}

/** Puts an order of `readOrder` back into the form; the voice stays if that one has gone. */
export function showOrder({ text, voice, language, speed, seed, style = "", lexicon = "", pronunciations = "" }) {
  byId("text").value = text;
  byId("language").value = language;
  byId("speed").value = byId("speed").disabled ? NORMAL_SPEED : speed;
  byId("seed").value = seed ?? "";
  byId("style").value = style;
  byId("pronunciations").value = pronunciations;
  byId("lexicon").value = [...byId("lexicon").options].some((option) => option.value === lexicon) ? lexicon : "";
  if ([...byId("voice").options].some((option) => option.value === voice)) byId("voice").value = voice;
  noteChange();
}

/** The body of POST /v1/audio/speech that plays an order: samples, and the times of its words. */
export const playedBodyOf = (order) => bodyOf(order, "pcm", { stream_format: "sse", word_timestamps: true });

/** The body of POST /v1/audio/speech; what is left out is the server's default. */
export function bodyOf({ text, voice, language, speed, seed, style, lexicon, pronunciations }, format, more = {}) {
  const body = { model: "cosydit", input: text, voice, response_format: format, ...more };
  if (language !== AUTO) body.language = language;
  if (speed !== NORMAL_SPEED) body.speed = speed;
  if (style) body.style = style;
  if (lexicon) body.lexicons = [lexicon];
  const words = wordsOf(pronunciations ?? "");
  if (Object.keys(words).length) body.pronunciations = words;
  // A seed may be larger than what JavaScript counts exactly, so it stays text and is written as a number.
  const json = JSON.stringify(body);
  return seed === null ? json : `${json.slice(0, -1)},"seed":${seed.replace(/^0+(?=\d)/, "")}}`;
}

/** The command that asks for the same; `hasKey` says whether one is needed, which is never shown. */
export function commandOf(order, format, hasKey) {
  const url = new URL("v1/audio/speech", document.baseURI);
  const quoted = bodyOf(order, format).replaceAll("'", "'\\''");
  const key = hasKey ? ['  -H "Authorization: Bearer $COSYDIT_API_KEY"'] : [];
  const lines = [`curl ${url}`, ...key, "  -H 'Content-Type: application/json'", `  -d '${quoted}'`, `  -o ${fileName(format)}`];
  return lines.join(" \\\n");
}

export const fileName = (format) => `speech.${format}`;

/** Puts a pause into the text, where the caret is. */
export function insertPause() {
  const text = byId("text");
  text.setRangeText(PAUSE, text.selectionStart, text.selectionEnd, "end");
  text.focus();
  noteChange();
}

/** Fits the form to what the server can do: {formats, styles, max_text_characters}. */
export function fit(settings) {
  most = settings.max_text_characters;
  byId("style-field").hidden = !settings.styles.length;
  byId("styles").replaceChildren(...settings.styles.map((name) => new Option(name, name)));
  const chosen = byId("format").value || kept().format;
  byId("format").replaceChildren(...settings.formats.map((name) => new Option(FORMAT_NAMES[name] ?? name.toUpperCase(), name)));
  byId("format").value = settings.formats.includes(chosen) ? chosen : settings.formats[0];
  const canEncode = COMPRESSED.some((name) => settings.formats.includes(name));
  byId("speed").disabled = !canEncode;
  byId("speed-note").hidden = canEncode;
  if (!canEncode) byId("speed").value = NORMAL_SPEED;
  sayAgain();
}

/** Says everything anew, after the page's language has changed. */
export function sayAgain() {
  const chosen = byId("language").value || kept().language || AUTO;
  const names = new Intl.DisplayNames([document.documentElement.lang], { type: "language" });
  const options = LANGUAGES.map((tag) => new Option(names.of(tag), tag));
  byId("language").replaceChildren(new Option(t("languageAuto"), AUTO), ...options);
  byId("language").value = chosen;
  byId("seed").placeholder = t("seedDrawn");
  byId("seed").title = t("seedHint");
  byId("format").setAttribute("aria-label", t("format"));
  byId("speed-note").textContent = t("noSpeed");
  noteChange();
}

function noteChange() {
  const count = [...byId("text").value].length;
  const shown = { count: count.toLocaleString(), most: most.toLocaleString() };
  byId("text-count").textContent = t(count > most ? "countOf" : count === 1 ? "countOne" : "count", shown);
  byId("text-count").classList.toggle("is-bad", count > most);
  byId("speed-value").textContent = `${byId("speed").value}×`;
  keep();
}

/** Keeps the form; lists that the server fills may be empty still, and then what was kept stays. */
function keep() {
  const before = kept();
  const values = KEPT.map((id) => [id, isKnown(id) ? byId(id).value : byId(id).value || before[id]]);
  localStorage.setItem(ITEM, JSON.stringify(Object.fromEntries(values)));
}

const isKnown = (id) => MAY_BE_EMPTY.includes(id) || (id === "lexicon" && byId(id).options.length > 0);

/** What was in the form when the page was last open. */
export function kept() {
  try {
    return JSON.parse(localStorage.getItem(ITEM)) ?? {};
  } catch {
    return {};
  }
}

/** Puts back what was kept, and keeps what changes from now on. */
export function restore() {
  const last = kept();
  sayAgain();
  for (const id of KEPT) if (last[id] !== undefined && byId(id).options?.length !== 0) byId(id).value = last[id];
  noteChange();
  byId("speech-form").addEventListener("input", noteChange);
}
