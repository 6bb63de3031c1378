// Talks to the gateway: voices and speech. Every failure becomes a ServerError that says what to do.

import { t } from "./words.js";

const VOICES = "v1/audio/voices";
const SPEECH = "v1/audio/speech";
const SETTINGS = "web/settings.json";
const LEXICONS = "v1/pronunciation-dictionaries";
const MOST_LEXICONS = 100; // of one answer
const DEFAULT_RATE_HZ = 24000;
const SAMPLE_BYTES = 2;
export const UNAUTHORIZED = 401;
const KEY_ITEM = "cosydit-api-key";

// The gateway's own messages say what to do; this is for what stands between it and the browser.
const ADVICE = {
  403: "This API key is not allowed to do that; use another one.",
  413: "Send less, and try again.",
  429: "It has no room right now; try again in a moment.",
  502: "The gateway behind it can't be reached; try again in a moment.",
  503: "It is starting or overloaded; try again in a moment.",
};
const ASK_OPERATOR = "Try again; if that does not help, tell the operator of the server.";

/** What went wrong, in words for a person; `status` is 0 if no answer came, `code` the server's name of it. */
export class ServerError extends Error {
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const apiKey = {
  get: () => sessionStorage.getItem(KEY_ITEM) ?? "",
  set: (key) => sessionStorage.setItem(KEY_ITEM, key),
};

/** What the page may offer: {voice_creation, lexicon_creation, max_recording_bytes, formats, styles, max_text_characters}. */
export async function readSettings() {
  return (await ask(SETTINGS)).json();
}

/** {voices: [name], uploaded_voices: [{id, name, …}]} */
export async function listVoices() {
  return (await ask(VOICES)).json();
}

/** What is known of one voice: {name, ref_text, description, gender}, each but the name perhaps missing. */
export async function describeVoice(name) {
  return (await ask(`${VOICES}/${encodeURIComponent(name)}`)).json();
}

/** Creates a voice from a form with audio_sample, name, consent and perhaps transcript. */
export async function createVoice(form) {
  return (await ask(VOICES, { method: "POST", body: form })).json();
}

export async function deleteVoice(id) {
  return (await ask(`${VOICES}/${encodeURIComponent(id)}`, { method: "DELETE" })).json();
}

/** {pronunciation_dictionaries: [{id, name, permission_on_resource, …}]} */
export async function listLexicons() {
  return (await ask(`${LEXICONS}?page_size=${MOST_LEXICONS}`)).json();
}

/** One dictionary: {rules: [{string_to_replace, alias, …}], …} */
export async function readLexicon(id) {
  return (await ask(`${LEXICONS}/${encodeURIComponent(id)}`)).json();
}

/** Sets the rules of a dictionary, or creates one where `id` is null; returns {id, …}. */
export async function saveLexicon(id, name, rules) {
  const path = id === null ? "add-from-rules" : `${encodeURIComponent(id)}/set-rules`;
  const body = JSON.stringify(id === null ? { name, rules } : { rules });
  return (await ask(`${LEXICONS}/${path}`, { method: "POST", body, headers: { "content-type": "application/json" } })).json();
}

/**
 * Asks for speech; `body` is JSON with response_format pcm. Returns {rateHz, seed, blocks}, where `blocks` yields
 * Int16Arrays as they arrive. Aborting `signal` ends the request, and with it the work on the server.
 */
export async function speak(body, signal) {
  const response = await post(body, signal);
  const rateHz = Number(response.headers.get("x-sample-rate")) || DEFAULT_RATE_HZ;
  return { rateHz, seed: response.headers.get("x-seed"), blocks: samplesOf(response.body) };
}

/** Asks for a whole file of speech; `body` names its format. */
export async function speechFile(body, signal) {
  return (await post(body, signal)).blob().catch(brokenOff);
}

function post(body, signal) {
  return ask(SPEECH, { method: "POST", body, headers: { "content-type": "application/json" }, signal });
}

async function* samplesOf(body) {
  const reader = body.getReader();
  let rest = new Uint8Array(0);
  for (;;) {
    const { value, done } = await reader.read().catch(brokenOff);
    if (done) return;
    const bytes = joined(rest, value);
    const whole = bytes.length - (bytes.length % SAMPLE_BYTES);
    rest = bytes.slice(whole);
    if (whole) yield samplesIn(bytes.slice(0, whole));
  }
}

function joined(first, second) {
  const bytes = new Uint8Array(first.length + second.length);
  bytes.set(first);
  bytes.set(second, first.length);
  return bytes;
}

function samplesIn(bytes) {
  const view = new DataView(bytes.buffer);
  const sample = (_, index) => view.getInt16(index * SAMPLE_BYTES, true);
  return Int16Array.from({ length: bytes.length / SAMPLE_BYTES }, sample);
}

function brokenOff(error) {
  if (error.name === "AbortError") throw error;
  throw new ServerError(t("cutOff"));
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey.get()) headers.authorization = `Bearer ${apiKey.get()}`;
  const response = await fetch(new URL(path, document.baseURI), { ...options, headers }).catch(unreachable);
  if (!response.ok) throw await errorOf(response);
  return response;
}

function unreachable(error) {
  if (error.name === "AbortError") throw error;
  throw new ServerError(t("unreachable"));
}

async function errorOf(response) {
  const told = await response.json().catch(() => ({}));
  const { message, code = told.detail?.status ?? "" } = told.error ?? told.detail ?? {};
  const { status } = response;
  const said = message ? sentence(message) : `The server answered ${status}. ${ADVICE[status] ?? ASK_OPERATOR}`;
  const advice = status === UNAUTHORIZED ? t("keyAbove") : "";
  return new ServerError(said + advice, status, code);
}

function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
