// The dialog in which a voice is recorded or chosen from a file, and created. Knows nothing of speech.

import { canRecord, Recorder } from "./recorder.js";
import { createVoice } from "./server.js";
import { t } from "./words.js";

const MAX_RECORDING_S = 10;
const MIN_RECORDING_S = 3;
const PASSAGES = ["passage0", "passage1"];
const BYTES_PER_MEGABYTE = 1024 * 1024;

const byId = (id) => document.getElementById(id);

export class VoiceDialog {
  /** `onCreated` hears the new voice; `onRefused` errors that the page handles itself return true. */
  constructor(onCreated, onRefused) {
    this.onCreated = onCreated;
    this.onRefused = onRefused;
    this.recorder = null;
    this.recording = null;
    this.passages = 0;
    this.complained = null; // what was said to be missing
    byId("record").addEventListener("click", () => (this.recorder ? this.finishRecording() : this.startRecording()));
    byId("recording-file").addEventListener("change", (event) => this.choose(event.target.files[0]));
    byId("use-passage").addEventListener("click", () => this.offerPassage());
    byId("cancel-voice").addEventListener("click", () => byId("voice-dialog").close());
    byId("voice-form").addEventListener("input", () => this.reconsider());
    byId("voice-dialog").addEventListener("close", () => this.abandonRecording());
    byId("voice-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.create();
    });
  }

  open(maxBytes) {
    this.maxBytes = maxBytes;
    byId("voice-error").textContent = "";
    byId("record").disabled = !canRecord();
    if (!canRecord()) this.note(t("microphoneElsewhere"));
    byId("voice-dialog").showModal();
  }

  async startRecording() {
    const recorder = new Recorder((level, seconds) => this.show(level, seconds));
    this.recorder = recorder;
    this.fail("");
    try {
      await recorder.start();
    } catch (error) {
      this.recorder = null;
      this.fail(error.message);
      return;
    }
    if (this.recorder !== recorder) return recorder.close();
    this.setRecording(true);
    this.note(t("recordingRuns", { most: MAX_RECORDING_S }));
  }

  show(level, seconds) {
    if (!this.recorder) return;
    byId("level").value = level;
    byId("record").textContent = t("stopRecordingAt", { seconds: seconds.toFixed(1) });
    this.seconds = seconds;
    if (seconds >= MAX_RECORDING_S) this.finishRecording();
  }

  finishRecording() {
    const { recorder } = this;
    this.recorder = null;
    this.setRecording(false);
    byId("recording-file").value = "";
    const said = this.seconds < MIN_RECORDING_S ? "recordedShort" : "recorded";
    this.keep(recorder.finish(), t(said, { seconds: this.seconds.toFixed(1), least: MIN_RECORDING_S }));
  }

  abandonRecording() {
    this.recorder?.close();
    this.recorder = null;
    this.setRecording(false);
  }

  setRecording(isRecording) {
    byId("level").hidden = !isRecording;
    byId("record").classList.toggle("is-recording", isRecording);
    byId("record").textContent = t(isRecording ? "stopRecording" : this.recording ? "recordAgain" : "record");
  }

  choose(file) {
    if (!file) return;
    if (file.size > this.maxBytes) {
      byId("recording-file").value = "";
      const megabytes = (this.maxBytes / BYTES_PER_MEGABYTE).toFixed(1);
      this.fail(t("fileTooLarge", { megabytes }));
      return;
    }
    this.keep(file, t("chosen", { name: file.name }));
  }

  keep(recording, note) {
    this.recording = recording;
    this.fail("");
    this.note(note);
    const preview = byId("preview");
    if (preview.src) URL.revokeObjectURL(preview.src);
    preview.src = URL.createObjectURL(recording);
    preview.hidden = false;
    byId("record").textContent = t("recordAgain");
  }

  offerPassage() {
    byId("transcript").value = t(PASSAGES[this.passages % PASSAGES.length]);
    this.passages += 1;
    byId("transcript").focus();
  }

  async create() {
    const missing = this.missing();
    this.complained = missing?.message ?? null;
    if (missing) {
      this.fail(t(missing.message));
      byId(missing.field).focus();
      return;
    }
    byId("create-voice").disabled = true;
    this.fail("");
    try {
      const voice = await createVoice(this.form());
      byId("voice-dialog").close();
      this.clear();
      this.onCreated(voice);
    } catch (error) {
      if (this.onRefused(error)) byId("voice-dialog").close();
      else this.fail(error.message);
    } finally {
      byId("create-voice").disabled = false;
    }
  }

  missing() {
    if (this.recorder) return { field: "record", message: "missingStop" };
    if (!this.recording) return { field: "record", message: "missingRecording" };
    if (!byId("voice-name").value.trim()) return { field: "voice-name", message: "missingName" };
    if (!byId("consent").value.trim()) return { field: "consent", message: "missingConsent" };
    return null;
  }

  /** Takes back a complaint about what is no longer missing. */
  reconsider() {
    if (this.complained === null || this.missing()?.message === this.complained) return;
    this.complained = null;
    this.fail("");
  }

  form() {
    const form = new FormData();
    form.append("audio_sample", this.recording, this.recording.name ?? "recording.wav");
    form.append("name", byId("voice-name").value.trim());
    form.append("consent", byId("consent").value.trim());
    if (byId("transcript").value.trim()) form.append("transcript", byId("transcript").value.trim());
    return form;
  }

  clear() {
    byId("voice-form").reset();
    byId("preview").hidden = true;
    this.recording = null;
    this.note("");
    this.setRecording(false);
  }

  note(text) {
    byId("record-note").textContent = text;
  }

  fail(text) {
    byId("voice-error").textContent = text;
  }
}
