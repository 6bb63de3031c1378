// Signed 16-bit mono WAV files. Knows nothing of microphones or servers.

const HEADER_BYTES = 44;
const SAMPLE_BYTES = 2;
const PCM_FORMAT = 1;
const INT16_MAX = 32767;

/** Makes a WAV file. `blocks` are Int16Arrays, `rateHz` is their sample rate. */
export function wavOf(blocks, rateHz) {
  const dataBytes = blocks.reduce((sum, block) => sum + block.length, 0) * SAMPLE_BYTES;
  return new Blob([header(dataBytes, rateHz), ...blocks.map(littleEndian)], { type: "audio/wav" });
}

/** Turns samples of [-1, 1] into 16-bit ones; what lies outside is clipped. */
export function int16Of(samples) {
  return Int16Array.from(samples, (sample) => Math.round(Math.max(-1, Math.min(1, sample)) * INT16_MAX));
}

function header(dataBytes, rateHz) {
  const view = new DataView(new ArrayBuffer(HEADER_BYTES));
  const tag = (at, text) => [...text].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
  tag(0, "RIFF");
  view.setUint32(4, HEADER_BYTES - 8 + dataBytes, true);
  tag(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, PCM_FORMAT, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rateHz, true);
  view.setUint32(28, rateHz * SAMPLE_BYTES, true);
  view.setUint16(32, SAMPLE_BYTES, true);
  view.setUint16(34, SAMPLE_BYTES * 8, true);
  tag(36, "data");
  view.setUint32(40, dataBytes, true);
  return view.buffer;
}

function littleEndian(block) {
  const view = new DataView(new ArrayBuffer(block.length * SAMPLE_BYTES));
  block.forEach((sample, index) => view.setInt16(index * SAMPLE_BYTES, sample, true));
  return view.buffer;
}
