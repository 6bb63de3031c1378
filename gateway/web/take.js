// One pressing of Play: when its chunks came, how loud they are, and the samples themselves. Times are seconds on
// performance.now()'s clock. Knows nothing of playing or drawing.

const SAME_CHUNK_S = 0.015; // a chunk may reach us in several reads; they follow each other this closely
const PEAK_S = 0.01;
const INT16_SCALE = 32768;

export class Take {
  /** `replayed` are the figures of what is played again; they are then shown in place of this take's own. */
  constructor(replayed = null) {
    this.replayed = replayed;
    this.startS = performance.now() / 1000;
    this.endS = null;
    this.rateHz = 0;
    this.blocks = [];
    this.chunks = []; // {atS, first, count}
    this.samples = 0;
    this.peaks = []; // loudest of each PEAK_S, 0 to 1
    this.lastReadS = 0;
    this.words = []; // {word, start_ms, end_ms}, as they become known
  }

  add(samples) {
    const nowS = performance.now() / 1000;
    const last = this.chunks.at(-1);
    if (last && nowS - this.lastReadS < SAME_CHUNK_S) last.count += samples.length;
    else this.chunks.push({ atS: nowS, first: this.samples, count: samples.length });
    this.lastReadS = nowS;
    this.measure(samples);
    this.blocks.push(samples);
    this.samples += samples.length;
  }

  end() {
    this.endS = performance.now() / 1000;
  }

  get audioS() {
    return this.rateHz ? this.samples / this.rateHz : 0;
  }

  /** Milliseconds from pressing Play to the first samples; null before. */
  get firstAudioMs() {
    return this.chunks.length ? (this.chunks[0].atS - this.startS) * 1000 : null;
  }

  /** Seconds of audio made in one second; null while unknown. */
  get speed() {
    return this.chunks.length ? this.audioS / (this.lastReadS - this.startS) : null;
  }

  /** Loudest sample, 0 to 1, among those numbered `first` to `end`. */
  loudest(first, end) {
    const perPeak = this.rateHz * PEAK_S;
    const from = Math.floor(first / perPeak);
    const to = Math.max(from + 1, Math.ceil(end / perPeak));
    let loudest = 0;
    for (let index = from; index < to && index < this.peaks.length; index += 1) {
      loudest = Math.max(loudest, this.peaks[index]);
    }
    return loudest;
  }

  measure(samples) {
    const perPeak = this.rateHz * PEAK_S;
    samples.forEach((sample, index) => {
      const peak = Math.floor((this.samples + index) / perPeak);
      this.peaks[peak] = Math.max(this.peaks[peak] ?? 0, Math.abs(sample) / INT16_SCALE);
    });
  }
}
