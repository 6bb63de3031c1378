// The form: what is to be spoken and how. Kept in this browser over reloads; knows nothing of playing.

import { t } from "./words.js";

const ITEM = "cosydit-form";
const LANGUAGES = ["en", "zh", "ja", "ko", "de", "es", "fr", "it", "pt", "ru"];
const AUTO = "auto";
const NORMAL_SPEED = 1;
const KEPT = ["text", "voice", "language", "speed", "seed", "format"];
const FORMAT_NAMES = { opus: "Opus", mulaw: "μ-law 8 kHz", alaw: "A-law 8 kHz" };
const COMPRESSED = ["mp3", "opus", "aac", "flac"];

const byId = (id) => document.getElementById(id);

let most = Infinity; // characters in one text

/** The form as it is: {text, voice, language, speed, seed}; seed is null where it is to be drawn. */
export function readOrder() {
  return {
    text: byId("text").value,
    voice: byId("voice").value,
    language: byId("language").value,
    speed: Number(byId("speed").value),
    seed: byId("seed").value.trim() === "" ? null : byId("seed").value.trim(),
  };
}

/** Puts an order of `readOrder` back into the form; the voice stays if that one has gone. */
export function showOrder({ text, voice, language, speed, seed }) {
  byId("text").value = text;
  byId("language").value = language;
  byId("speed").value = byId("speed").disabled ? NORMAL_SPEED : speed;
  byId("seed").value = seed ?? "";
  if ([...byId("voice").options].some((option) => option.value === voice)) byId("voice").value = voice;
  noteChange();
}

/** The body of POST /v1/audio/speech; what is left out is the server's default. */
export function bodyOf({ text, voice, language, speed, seed }, format) {
  const body = { model: "cosydit", input: text, voice, response_format: format };
  if (language !== AUTO) body.language = language;
  if (speed !== NORMAL_SPEED) body.speed = speed;
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

/** Fits the form to what the server can do: {formats, max_text_characters}. */
export function fit(settings) {
  most = settings.max_text_characters;
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
  const values = KEPT.map((id) => [id, id === "text" || id === "seed" ? byId(id).value : byId(id).value || before[id]]);
  localStorage.setItem(ITEM, JSON.stringify(Object.fromEntries(values)));
}

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
