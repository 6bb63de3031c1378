// Records the microphone as a WAV file, at the microphone's own rate. Knows nothing of forms or servers.

import { int16Of, wavOf } from "./wav.js";
import { t } from "./words.js";

const WORKLET = "recorder-worklet.js";

const ADVICE = {
  NotAllowedError: "microphoneClosed",
  NotFoundError: "microphoneMissing",
  NotReadableError: "microphoneTaken",
};

/** True where browsers give pages a microphone: on https and on localhost. */
export const canRecord = () => Boolean(window.isSecureContext && navigator.mediaDevices?.getUserMedia);

export class Recorder {
  /** `onLevel` hears the loudness, 0 to 1, and the seconds so far, many times a second. */
  constructor(onLevel) {
    this.onLevel = onLevel;
    this.blocks = [];
    this.samples = 0;
  }

  /** Opens the microphone; throws an Error with what to do. */
  async start() {
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
      this.context = new AudioContext();
      await this.context.audioWorklet.addModule(new URL(WORKLET, import.meta.url));
    } catch (error) {
      this.close();
      throw new Error(t(ADVICE[error.name] ?? "microphoneFailed", { reason: error.message }));
    }
    const mono = { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" };
    const capture = new AudioWorkletNode(this.context, "capture", mono);
    capture.port.onmessage = ({ data }) => this.keep(data);
    this.context.createMediaStreamSource(this.stream).connect(capture);
  }

  keep(samples) {
    this.blocks.push(int16Of(samples));
    this.samples += samples.length;
    const loudest = samples.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
    this.onLevel(loudest, this.samples / this.context.sampleRate);
  }

  /** Closes the microphone and returns the WAV file. */
  finish() {
    const recording = wavOf(this.blocks, this.context.sampleRate);
    this.close();
    return recording;
  }

  close() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.context?.close();
  }
}
