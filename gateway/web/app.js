// Ties the page together: the form starts a take, the take is played and drawn, and what goes wrong is said.

import { figuresOf, seconds, showFigures } from "./figures.js";
import { copyCommand, offer } from "./giving.js";
import { History } from "./history.js";
import { sayLexiconsAgain, showLexicons } from "./lexicon.js";
import {
  bodyOf,
  commandOf,
  fileName,
  fit,
  insertPause,
  kept,
  playedBodyOf,
  readOrder,
  restore,
  sayAgain,
  showOrder,
} from "./options.js";
import { Player } from "./player.js";
import { showSpoken } from "./spoken.js";
import { apiKey, readSettings, sentence, ServerError, speak, speechFile, UNAUTHORIZED } from "./server.js";
import { Take } from "./take.js";
import { Trace } from "./trace.js";
import { VoiceDialog } from "./voice-dialog.js";
import { removeChosen, sampleOf, sayVoicesAgain, showChosen, showVoices } from "./voices.js";
import { wavOf } from "./wav.js";
import { showWords, switchLanguage, t, timeInWords } from "./words.js";

const CONTEXT_RATE_HZ = 24000; // the server's own rate, so that blocks join without resampling each on its own
const SOUND_PATIENCE_MS = 1000;
const CALM_FRAME_MS = 500; // between drawings for those who want less motion
const TICK_MS = 1000;
const LONG_WAIT_S = 10;

const byId = (id) => document.getElementById(id);
const trace = new Trace(byId("trace"));
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const page = {
  context: null, // one AudioContext for all takes
  take: null,
  order: null, // what the take speaks, with its seed
  player: null,
  request: null, // aborts the take's request
  settings: null,
  retry: null, // what a new API key repeats
  sayAgain: null, // shows once more what happened last
};

// Playing

async function play(order = readOrder(), isPreview = false) {
  const { take, request } = begin(new Take(), order);
  say("waiting");
  countWait(take);
  try {
    const sounding = openSound();
    sounding.catch(() => {}); // told below, unless the server's refusal comes first
    const { rateHz, seed, words, warnings, blocks } = await speak(playedBodyOf(order), request.signal);
    Object.assign(take, { rateHz, words });
    page.order = { ...order, seed };
    if (!isPreview) showCommand();
    await sounding;
    await hear(take, blocks, request.signal, "playing");
    warn(warnings);
    if (!isPreview && take.samples) history.add(page.order, take, figuresOf(take, page.player));
  } catch (error) {
    if (error.name !== "AbortError" && page.take === take) giveUp(error, () => play(order, isPreview));
  }
}

async function playAgain(entry) {
  const audio = history.audioOf(entry);
  if (!audio) return play(entry.order);
  const { take, request } = begin(new Take(entry.figures), entry.order);
  take.rateHz = audio.rateHz;
  showCommand();
  try {
    await openSound();
    await hear(take, audio.blocks, request.signal, "replaying");
  } catch (error) {
    if (error.name !== "AbortError" && page.take === take) giveUp(error, () => playAgain(entry));
  }
}

function begin(take, order) {
  stop();
  fail("");
  warn([]);
  const request = new AbortController();
  Object.assign(page, { take, order, request, player: null });
  setBusy(true);
  drawOn();
  return page;
}

function countWait(take) {
  const timer = setInterval(() => {
    const isOver = page.take !== take || take.endS !== null || take.samples > 0;
    const waitedS = Math.round(performance.now() / 1000 - take.startS);
    const words = waitedS < LONG_WAIT_S ? "waited" : "waitedLong";
    byId("elapsed").textContent = isOver ? "" : t(words, { time: timeInWords(waitedS) });
    if (isOver) clearInterval(timer);
  }, TICK_MS);
}

async function openSound() {
  page.context ??= new AudioContext({ sampleRate: CONTEXT_RATE_HZ });
  const patience = new Promise((resolve) => setTimeout(resolve, SOUND_PATIENCE_MS));
  await Promise.race([page.context.resume(), patience]);
  if (page.context.state !== "running") throw new Error(t("noSound"));
}

async function hear(take, blocks, signal, words) {
  signal.throwIfAborted();
  const player = new Player(page.context, take.rateHz, () => finish(take, player));
  page.player = player;
  for await (const samples of blocks) {
    signal.throwIfAborted();
    if (!take.samples) say(words);
    take.add(samples);
    player.push(samples);
  }
  player.complete();
}

function finish(take, player) {
  take.end();
  setBusy(false);
  const gaps = () => t(["noGaps", "oneGap"][player.underruns] ?? "gaps", { count: player.underruns });
  say(take.replayed ? "playedAgain" : "played", () => ({ length: seconds(take.audioS), gaps: gaps() }));
}

function stop() {
  const { take, player, request } = page;
  if (!take || take.endS !== null) return;
  request.abort();
  player?.stop();
  take.end();
  setBusy(false);
  const length = seconds(player?.heardS ?? 0);
  say(take.samples ? "stopped" : "stoppedEarly", () => ({ length }));
}

function giveUp(error, again) {
  page.request.abort();
  page.player?.stop();
  page.take.end();
  setBusy(false);
  const length = seconds(page.take.audioS);
  say(page.take.samples ? "brokeOff" : "nothingPlayed", () => ({ length }));
  explain(error, again);
}

function setBusy(isBusy) {
  const hadFocus = [byId("play"), byId("stop")].includes(document.activeElement);
  byId("play").disabled = isBusy;
  byId("stop").disabled = !isBusy;
  byId("save").disabled = !page.take?.samples;
  byId("keep-seed").disabled = !page.order?.seed;
  byId("elapsed").textContent = "";
  if (hadFocus) byId(isBusy ? "stop" : "play").focus();
}

// What was spoken, as a file and as a command

async function save() {
  const format = byId("format").value;
  const name = fileName(format);
  byId("save").disabled = true;
  fail("");
  try {
    if (format !== "wav") say("making", () => ({ format: format.toUpperCase() }));
    offer(format === "wav" ? wavOf(page.take.blocks, page.take.rateHz) : await speechFile(bodyOf(page.order, format)), name);
    say("saved", () => ({ name }));
  } catch (error) {
    explain(error, save);
  } finally {
    byId("save").disabled = false;
  }
}

function showCommand() {
  if (!page.order?.seed) return;
  byId("curl-section").hidden = false;
  byId("curl").textContent = commandOf(page.order, byId("format").value, apiKey.get() !== "");
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
  if (take) showSpoken(take.words, player?.heardS ?? 0);
  if (take) showFigures(take.replayed ?? figuresOf(take, player), take.endS !== null);
}

// Voices

async function removeVoice() {
  try {
    const name = await removeChosen(page.settings);
    if (name === null) return;
    byId("voice").focus();
    say("deleted", () => ({ name }));
  } catch (error) {
    explain(error, removeVoice);
  }
}

async function welcome(voice) {
  await load(voice.name);
  byId("voice").focus();
  say("created", () => ({ name: voice.name }));
  warn(voice.warning ? [voice.warning] : []);
}

async function load(wanted = byId("voice").value || kept().voice) {
  try {
    page.settings ??= await readSettings();
    fit(page.settings);
    await showVoices(page.settings, wanted);
    showLexicons(page.settings, byId("lexicon").value || kept().lexicon);
  } catch (error) {
    explain(error, load);
  }
}

// Saying what happened

/** Shows what happened; `values` makes what its words need, again where the page changes its language. */
function say(words, values = () => ({})) {
  page.sayAgain = () => (byId("status").textContent = t(words, values()));
  page.sayAgain();
}

/** Shows what the server warns of. */
const warn = (warnings) => (byId("warning").textContent = warnings.map(sentence).join(" "));

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

function changeLanguage() {
  switchLanguage();
  sayEverything();
  page.sayAgain();
  sayVoicesAgain();
  sayLexiconsAgain();
}

function sayEverything() {
  showWords();
  byId("page-language").textContent = t("otherLanguage");
  byId("page-language").lang = t("otherLanguage") === "English" ? "en" : "zh-CN";
  byId("trace").setAttribute("aria-label", t("traceEmpty"));
  sayAgain();
  history.show();
  draw();
}

// Wiring

const history = new History(playAgain, (entry) => {
  showOrder(entry.order);
  showChosen();
  byId("text").focus();
});
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

function onClick(actions) {
  for (const [id, action] of Object.entries(actions)) byId(id).addEventListener("click", () => action());
}

function onKey(event) {
  if (byId("voice-dialog").open) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("speech-form").requestSubmit(byId("play"));
  else if (event.key === "Escape") stop();
}

onSubmit("speech-form", () => play());
onSubmit("key-form", useKey);
onClick({
  stop,
  save,
  "copy-curl": copyCommand,
  "page-language": changeLanguage,
  "keep-seed": () => showOrder({ ...readOrder(), seed: page.order.seed }),
  "preview-voice": () => play({ ...readOrder(), text: sampleOf(), seed: null }, true),
  "new-voice": () => dialog.open(page.settings.max_recording_bytes),
  "delete-voice": removeVoice,
  "insert-pause": insertPause,
});
byId("voice").addEventListener("change", showChosen);
byId("format").addEventListener("change", showCommand);
document.addEventListener("keydown", onKey);
new ResizeObserver(draw).observe(byId("trace"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
restore();
sayEverything();
say("idle");
load();
