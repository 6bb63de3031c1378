// The list of voices on the form: what each is like, and deleting created ones. Knows nothing of speech.

import { deleteVoice, describeVoice, listVoices } from "./server.js";
import { t } from "./words.js";

const DEFAULT_VOICE = "default";
const SAID_CHARACTERS = 90;
const HAN = /\p{Script=Han}/u;

const byId = (id) => document.getElementById(id);

const created = new Map(); // name -> voice that a caller created
const described = new Map(); // name -> what the server knows of it
let canCreate = false;
let shown = { own: [], uploaded: [] };

/** Asks for the voices and shows them; `wanted` is chosen if it is there. */
export async function showVoices(settings, wanted = byId("voice").value) {
  const { voices, uploaded_voices: uploaded = [] } = await listVoices();
  canCreate = settings.voice_creation;
  created.clear();
  described.clear();
  for (const voice of uploaded) created.set(voice.name, voice);
  shown = { own: voices.filter((name) => !created.has(name)), uploaded: [...created.keys()] };
  fill([wanted, DEFAULT_VOICE, voices[0]].find((name) => voices.includes(name)) ?? "");
  showChosen();
}

/** Shows what goes with the voice that is chosen now. */
export async function showChosen() {
  const name = byId("voice").value;
  byId("new-voice").hidden = !canCreate;
  byId("delete-voice").hidden = !created.has(name);
  byId("preview-voice").disabled = !name;
  byId("voice-note").textContent = t(canCreate ? "canCreate" : "cannotCreate");
  byId("voice-about").textContent = about(described.get(name));
  if (!name || described.has(name)) return;
  const found = await describeVoice(name).catch(() => ({})); // what a voice is like is no reason to complain
  described.set(name, found);
  if (byId("voice").value === name) byId("voice-about").textContent = about(found);
}

/** Says all of it anew, after the page's language has changed. */
export function sayVoicesAgain() {
  fill(byId("voice").value);
  showChosen();
}

/** A sentence that lets the chosen voice be judged, in the language of its recording. */
export function sampleOf() {
  return t("sample", {}, HAN.test(described.get(byId("voice").value)?.ref_text ?? "") ? "zh" : "en");
}

/** Deletes the chosen voice once that is confirmed; returns its name, or null if it stays. */
export async function removeChosen(settings) {
  const voice = created.get(byId("voice").value);
  if (!confirm(t("confirmDelete", { name: voice.name }))) return null;
  await deleteVoice(voice.id);
  await showVoices(settings);
  return voice.name;
}

function fill(chosen) {
  byId("voice").replaceChildren(group(t("ownVoices"), shown.own), group(t("createdVoices"), shown.uploaded));
  byId("voice").value = chosen;
}

function group(label, names) {
  const options = document.createElement("optgroup");
  options.label = label;
  options.hidden = !names.length;
  options.append(...names.map((name) => new Option(name)));
  return options;
}

function about(voice) {
  if (!voice) return "";
  const description = voice.description || voice.speaker_description;
  if (description) return description;
  const { gender, ref_text: said = "" } = voice;
  const kind = gender === "female" || gender === "male" ? t(gender) : "";
  const text = said.length > SAID_CHARACTERS ? `${said.slice(0, SAID_CHARACTERS)}…` : said;
  return [kind, text && t("says", { text })].filter(Boolean).join(" · ");
}
