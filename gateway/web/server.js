// Talks to the gateway: voices and speech. Every failure becomes a ServerError that says what to do.

import { t } from "./words.js";

const VOICES = "v1/audio/voices";
const SPEECH = "v1/audio/speech";
const SETTINGS = "web/settings.json";
const DEFAULT_RATE_HZ = 24000;
const SAMPLE_BYTES = 2;
const EVENT_START = "data: ";
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

/** What the page may offer: {voice_creation, lexicons, max_recording_bytes, formats, styles, max_text_characters}. */
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

/**
 * Asks for speech; `body` is JSON with response_format pcm, stream_format sse and word_timestamps. Returns {rateHz, seed,
 * words, warnings, blocks}, where `blocks` yields Int16Arrays as they arrive, and two grow on the way: `words` by
 * {word, start_ms, end_ms}, and `warnings` of the server about what is heard.
 * Aborting `signal` ends the request, and with it the work on the server.
 */
export async function speak(body, signal) {
  const response = await post(body, signal);
  const rateHz = Number(response.headers.get("x-sample-rate")) || DEFAULT_RATE_HZ;
  const [words, warnings] = [[], []];
  const blocks = samplesOf(response.body, words, warnings);
  return { rateHz, seed: response.headers.get("x-seed"), words, warnings, blocks };
}

/** Asks for a whole file of speech; `body` names its format. */
export async function speechFile(body, signal) {
  return (await post(body, signal)).blob().catch(brokenOff);
}

function post(body, signal) {
  return ask(SPEECH, { method: "POST", body, headers: { "content-type": "application/json" }, signal });
}

async function* samplesOf(body, words, warnings) {
  for await (const events of eventsOf(body)) {
    words.push(...events.flatMap((event) => event.words ?? []));
    warnings.push(...events.flatMap((event) => event.warning ?? []));
    const audio = events.filter(({ type }) => type === "speech.audio.delta").map((event) => bytesOf(event.audio));
    if (audio.length) yield samplesIn(joined(audio)); // what came together stays together
    if (events.some(({ type }) => type === "speech.audio.done")) return;
  }
  brokenOff(new Error("the stream ended before its last event"));
}

async function* eventsOf(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(brokenOff);
      if (done) return;
      const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = events.pop();
      yield events.map((event) => JSON.parse(event.slice(EVENT_START.length)));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index += 1) bytes[index] = text.charCodeAt(index);
  return bytes;
}

function joined(parts) {
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
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

export function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
