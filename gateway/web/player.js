// Plays samples while they arrive: blocks are scheduled one after the other on an AudioContext's own clock.
// A small jitter buffer comes before the start and after each underrun. Knows nothing of where samples come from.
// Scheduled buffers rather than an AudioWorklet: worklets exist on https and localhost only, and this page is also
// opened on a plain http address.

const JITTER_S = 0.12; // held before playing begins, and again after an underrun
const LEAD_S = 0.03; // from scheduling to sounding
const AHEAD_S = 20; // scheduled at most; a long text's rest waits as 16-bit samples
const TICK_MS = 50;
const INT16_SCALE = 32768;

/**
 * `runs` tells what is heard when: [{atS, first, count}], contiguous stretches of samples and the second at which
 * each begins on `performance.now()`'s clock. `underruns` counts the gaps between them, `silentS` their length.
 */
export class Player {
  constructor(context, rateHz, onEnded) {
    this.context = context;
    this.rateHz = rateHz;
    this.onEnded = onEnded;
    this.runs = [];
    this.underruns = 0;
    this.silentS = 0;
    this.waiting = [];
    this.waitingSamples = 0;
    this.scheduledSamples = 0;
    this.nextS = null; // on the context's clock; null while nothing sounds
    this.dryS = null; // on the same clock, when the sound ended too early
    this.isComplete = false;
    this.sources = new Set();
    this.output = context.createGain();
    this.output.connect(context.destination);
    this.timer = setInterval(() => this.pump(), TICK_MS);
  }

  push(samples) {
    this.waiting.push(samples);
    this.waitingSamples += samples.length;
    this.pump();
  }

  /** No more samples will come. */
  complete() {
    this.isComplete = true;
    this.pump();
  }

  /** Falls silent at once. */
  stop() {
    clearInterval(this.timer);
    this.sources.forEach((source) => source.stop());
    this.output.disconnect();
    this.cutRuns();
  }

  /** Seconds heard so far. */
  get heardS() {
    const nowS = performance.now() / 1000;
    return this.runs.reduce((sum, run) => sum + Math.max(0, Math.min(run.count / this.rateHz, nowS - run.atS)), 0);
  }

  /** True while the listener waits for more of what has begun. */
  get isDry() {
    return this.dryS !== null;
  }

  pump() {
    if (this.nextS !== null && this.context.currentTime >= this.nextS) this.runDry();
    if (this.isComplete && this.nextS === null && !this.waiting.length) return this.finish();
    if (this.nextS === null && this.canStart()) this.start();
    while (this.nextS !== null && this.waiting.length && this.nextS < this.context.currentTime + AHEAD_S) {
      this.schedule(this.waiting.shift());
    }
  }

  runDry() {
    this.dryS = this.nextS;
    this.nextS = null;
  }

  finish() {
    clearInterval(this.timer);
    this.dryS = null;
    this.onEnded();
  }

  canStart() {
    return this.waitingSamples >= JITTER_S * this.rateHz || (this.isComplete && this.waitingSamples > 0);
  }

  start() {
    this.nextS = this.context.currentTime + LEAD_S;
    if (this.dryS !== null) {
      this.underruns += 1;
      this.silentS += this.nextS - this.dryS;
      this.dryS = null;
    }
    this.runs.push({ atS: performance.now() / 1000 + LEAD_S, first: this.scheduledSamples, count: 0 });
  }

  schedule(samples) {
    const buffer = this.context.createBuffer(1, samples.length, this.rateHz);
    buffer.copyToChannel(Float32Array.from(samples, (sample) => sample / INT16_SCALE), 0);
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.output);
    source.onended = () => this.sources.delete(source);
    source.start(this.nextS);
    this.sources.add(source);
    this.nextS += buffer.duration;
    this.waitingSamples -= samples.length;
    this.scheduledSamples += samples.length;
    this.runs.at(-1).count += samples.length;
  }

  cutRuns() {
    const heard = (run) => Math.round((performance.now() / 1000 - run.atS) * this.rateHz);
    for (const run of this.runs) run.count = Math.max(0, Math.min(run.count, heard(run)));
  }
}
