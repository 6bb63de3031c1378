// Ties the page together: the form starts a take, the take is played and drawn, and what goes wrong is said.

import { Player } from "./player.js";
import { apiKey, deleteVoice, listVoices, readSettings, ServerError, speak, UNAUTHORIZED } from "./server.js";
import { Take } from "./take.js";
import { Trace } from "./trace.js";
import { VoiceDialog } from "./voice-dialog.js";
import { wavOf } from "./wav.js";

const CONTEXT_RATE_HZ = 24000; // the server's own rate, so that blocks join without resampling each on its own
const SOUND_PATIENCE_MS = 1000;
const CALM_FRAME_MS = 500; // between drawings for those who want less motion
const DEFAULT_VOICE = "default";

const byId = (id) => document.getElementById(id);
const trace = new Trace(byId("trace"));
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const page = {
  context: null, // one AudioContext for all takes
  take: null,
  player: null,
  request: null, // aborts the take's request
  created: new Map(), // name -> voice that a caller created
  settings: null,
  retry: null, // what a new API key repeats
};

// Playing

async function play() {
  stop();
  say("Waiting for the first audio…");
  fail("");
  const take = new Take();
  const request = new AbortController();
  Object.assign(page, { take, request, player: null });
  setBusy(true);
  drawOn();
  try {
    const sounding = openSound();
    sounding.catch(() => {}); // told below, unless the server's refusal comes first
    const { rateHz, blocks } = await speak(byId("text").value, byId("voice").value, request.signal);
    take.rateHz = rateHz;
    await sounding;
    await hear(take, blocks, request.signal);
  } catch (error) {
    if (error.name !== "AbortError" && page.take === take) giveUp(error);
  }
}

async function openSound() {
  page.context ??= new AudioContext({ sampleRate: CONTEXT_RATE_HZ });
  const patience = new Promise((resolve) => setTimeout(resolve, SOUND_PATIENCE_MS));
  await Promise.race([page.context.resume(), patience]);
  if (page.context.state === "running") return;
  throw new Error("The browser opened no sound output. Allow sound for this site and press Play again.");
}

async function hear(take, blocks, signal) {
  signal.throwIfAborted();
  const player = new Player(page.context, take.rateHz, () => finish(take, player));
  page.player = player;
  for await (const samples of blocks) {
    signal.throwIfAborted();
    if (!take.samples) say("Playing while it is made.");
    take.add(samples);
    player.push(samples);
  }
  player.complete();
}

function finish(take, player) {
  take.end();
  setBusy(false);
  const gaps = player.underruns ? `${player.underruns} underrun${player.underruns > 1 ? "s" : ""}` : "no underruns";
  say(`Played ${seconds(take.audioS)} of audio, ${gaps}.`);
}

function stop() {
  const { take, player, request } = page;
  if (!take || take.endS !== null) return;
  request.abort();
  player?.stop();
  take.end();
  setBusy(false);
  say(take.samples ? `Stopped after ${seconds(player?.heardS ?? 0)}.` : "Stopped before the first audio.");
}

function giveUp(error) {
  page.request.abort();
  page.player?.stop();
  page.take.end();
  setBusy(false);
  say(page.take.samples ? `Broke off after ${seconds(page.take.audioS)} of audio, which can be saved.` : "Nothing was played.");
  explain(error, play);
}

function setBusy(isBusy) {
  const hadFocus = [byId("play"), byId("stop")].includes(document.activeElement);
  byId("play").disabled = isBusy;
  byId("stop").disabled = !isBusy;
  byId("save").disabled = !page.take?.samples;
  if (hadFocus) byId(isBusy ? "stop" : "play").focus();
}

function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(wavOf(page.take.blocks, page.take.rateHz));
  link.download = "speech.wav";
  link.click();
  URL.revokeObjectURL(link.href);
}

// Drawing

function drawOn() {
  const { take } = page;
  draw();
  if (take.endS !== null) return;
  if (calm.matches) setTimeout(drawOn, CALM_FRAME_MS);
  else requestAnimationFrame(drawOn);
}

function draw() {
  const { take, player } = page;
  trace.draw(take, player, take?.endS ?? performance.now() / 1000);
  if (take) showFigures(take, player);
}

function showFigures(take, player) {
  const underruns = player?.underruns ?? 0;
  const figures = {
    "first-audio": take.firstAudioMs === null ? "–" : `${Math.round(take.firstAudioMs)} ms`,
    "audio-length": seconds(take.audioS),
    speed: take.speed === null ? "–" : `${take.speed.toFixed(1)} × real time`,
    chunks: String(take.chunks.length),
    underruns: underruns ? `${underruns} (${Math.round(player.silentS * 1000)} ms)` : "0",
  };
  for (const [id, text] of Object.entries(figures)) if (byId(id).textContent !== text) byId(id).textContent = text;
  byId("underruns").classList.toggle("is-bad", underruns > 0);
  if (take.endS !== null) byId("trace").setAttribute("aria-label", summary(figures));
}

function summary(figures) {
  const made = `${figures["audio-length"]} of audio in ${figures.chunks} chunks`;
  return `Timeline: first audio after ${figures["first-audio"]}, ${made}, underruns: ${figures.underruns}.`;
}

const seconds = (value) => `${value.toFixed(1)} s`;

// Voices

async function showVoices(wanted = byId("voice").value) {
  const { voices, uploaded_voices: uploaded = [] } = await listVoices();
  page.created = new Map(uploaded.map((voice) => [voice.name, voice]));
  const own = voices.filter((name) => !page.created.has(name));
  byId("voice").replaceChildren(group("The server's voices", own), group("Created voices", [...page.created.keys()]));
  byId("voice").value = [wanted, DEFAULT_VOICE, voices[0]].find((name) => voices.includes(name)) ?? "";
  showVoiceActions();
}

function group(label, names) {
  const options = document.createElement("optgroup");
  options.label = label;
  options.hidden = !names.length;
  options.append(...names.map((name) => new Option(name)));
  return options;
}

function showVoiceActions() {
  const canCreate = page.settings.voice_creation;
  byId("new-voice").hidden = !canCreate;
  byId("delete-voice").hidden = !page.created.has(byId("voice").value);
  byId("voice-note").textContent = canCreate
    ? "Or record a few seconds of another voice."
    : "This server makes no new voices; its operator can switch that on with --created-voices-dir.";
}

async function removeVoice() {
  const voice = page.created.get(byId("voice").value);
  if (!confirm(`Delete the voice “${voice.name}” for everyone who uses this server?`)) return;
  try {
    await deleteVoice(voice.id);
    await showVoices();
    byId("voice").focus();
    say(`Deleted the voice “${voice.name}”.`);
  } catch (error) {
    explain(error, removeVoice);
  }
}

async function welcome(voice) {
  await load(voice.name);
  byId("voice").focus();
  say(`Created the voice “${voice.name}”. Press Play to hear it.`);
}

async function load(wanted) {
  try {
    page.settings ??= await readSettings();
    await showVoices(wanted);
  } catch (error) {
    explain(error, load);
  }
}

// Saying what happened

const say = (text) => (byId("status").textContent = text);
const fail = (text) => (byId("error").textContent = text);

/** Shows an error with what to do; `again` is what a new API key repeats. */
function explain(error, again) {
  fail(error.message);
  askForKey(error, again);
  if (error instanceof ServerError && error.code === "voice_not_found") load();
}

function askForKey(error, again) {
  if (error.status !== UNAUTHORIZED) return false;
  page.retry = again;
  byId("key-form").hidden = false;
  byId("key").focus();
  return true;
}

async function useKey() {
  apiKey.set(byId("key").value.trim());
  byId("key-form").hidden = true;
  byId("key").value = "";
  fail("");
  byId("play").focus();
  if (!byId("voice").value) await load();
  if (page.retry !== load) await page.retry();
}

// Wiring

const dialog = new VoiceDialog(welcome, (error) => {
  if (askForKey(error, () => dialog.open(page.settings.max_recording_bytes))) fail(error.message);
  return error.status === UNAUTHORIZED;
});

function onSubmit(form, action) {
  byId(form).addEventListener("submit", (event) => {
    event.preventDefault();
    action();
  });
}

function onKey(event) {
  if (byId("voice-dialog").open) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("speech-form").requestSubmit(byId("play"));
  else if (event.key === "Escape") stop();
}

onSubmit("speech-form", play);
onSubmit("key-form", useKey);
byId("stop").addEventListener("click", stop);
byId("save").addEventListener("click", save);
byId("voice").addEventListener("change", showVoiceActions);
byId("new-voice").addEventListener("click", () => dialog.open(page.settings.max_recording_bytes));
byId("delete-voice").addEventListener("click", removeVoice);
document.addEventListener("keydown", onKey);
new ResizeObserver(draw).observe(byId("trace"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
load();
