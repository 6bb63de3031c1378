// Draws one take on a canvas, all on one axis, seconds since Play was pressed: above, the waveform where it is heard;
// below, each chunk where it arrived, tied to where it is heard. Reads a Take and a Player and changes neither.

import { t } from "./words.js";

const MARGIN = { left: 14, right: 14, top: 26, bottom: 24 };
const WAVE_SHARE = 0.6;
const BAND_PX = 5;
const LABEL_GAP_PX = 5;
const DOT_PX = 3.5;
const BAR_PX = 2;
const BAR_STEP_PX = 3;
const MIN_SPAN_S = 3;
const ROOM_AT_END = 1.04;
const GRID_STEPS_S = [0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800];
const MIN_GRID_PX = 64;

export class Trace {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
  }

  /** Draws `take` as it stands at `nowS`; both `take` and `player` may be null. */
  draw(take, player, nowS) {
    this.measure();
    this.scale(take, player, nowS);
    this.drawGrid();
    if (!take) return;
    const stretches = stretchesOf(take, player);
    if (!take.replayed) this.drawWait(take, stretches, nowS);
    this.drawUnderruns(take, stretches, player?.isDry ? nowS : null);
    stretches.forEach((stretch) => this.drawWave(take, stretch, nowS));
    if (!take.replayed) take.chunks.forEach((chunk, index) => this.drawChunk(take, chunk, index, stretches));
    if (take.endS === null) this.drawNow(nowS);
  }

  measure() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.width = width;
    this.bottom = height - MARGIN.bottom;
    const inner = this.bottom - MARGIN.top;
    this.waveBottom = MARGIN.top + inner * WAVE_SHARE;
    this.arrivalY = this.bottom - DOT_PX * 3;
    const style = getComputedStyle(this.canvas);
    this.colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.pen.font = `12px ${style.fontFamily}`;
  }

  scale(take, player, nowS) {
    this.originS = take ? take.startS : 0;
    const ends = take ? stretchesOf(take, player).map((stretch) => stretch.atS + stretch.count / take.rateHz) : [];
    const lastS = take ? Math.max(take.endS ?? nowS, take.lastReadS, ...ends) - this.originS : 0;
    const spanS = Math.max(MIN_SPAN_S, lastS * ROOM_AT_END);
    this.pxPerS = (this.width - MARGIN.left - MARGIN.right) / spanS;
    this.spanS = spanS;
  }

  x(atS) {
    return MARGIN.left + (atS - this.originS) * this.pxPerS;
  }

  drawGrid() {
    const step = GRID_STEPS_S.find((seconds) => seconds * this.pxPerS >= MIN_GRID_PX) ?? GRID_STEPS_S.at(-1);
    this.pen.textAlign = "center";
    for (let second = 0; second <= this.spanS; second += step) {
      const x = Math.round(this.x(this.originS + second)) + 0.5;
      this.line(x, MARGIN.top, x, this.bottom, "rule");
      this.write(`${second} s`, second ? x : x + 4, this.bottom + 16, "muted");
    }
    const middle = (MARGIN.top + this.waveBottom) / 2;
    this.line(MARGIN.left, middle, this.width - MARGIN.right, middle, "rule");
  }

  drawWait(take, stretches, nowS) {
    const firstS = take.chunks[0]?.atS ?? take.endS ?? nowS;
    this.pen.fillStyle = this.colour("rule");
    this.pen.globalAlpha = 0.55;
    this.pen.fillRect(this.x(take.startS), MARGIN.top, this.x(firstS) - this.x(take.startS), this.bottom - MARGIN.top);
    this.pen.globalAlpha = 1;
    if (!take.chunks.length) return;
    const x = this.x(firstS);
    this.line(x, MARGIN.top - 6, x, this.arrivalY, "ink");
    this.label(t("firstAudioAt", { ms: Math.round(take.firstAudioMs) }), x);
  }

  /** Writes beside a line at `x`, on the side where there is room. */
  label(text, x) {
    const isRight = x + LABEL_GAP_PX + this.pen.measureText(text).width <= this.width;
    this.pen.textAlign = isRight ? "left" : "right";
    this.write(text, isRight ? x + LABEL_GAP_PX : x - LABEL_GAP_PX, MARGIN.top - 9, "ink");
  }

  drawUnderruns(take, stretches, untilS) {
    const gaps = stretches.slice(1).map((stretch, index) => [endOf(take, stretches[index]), stretch.atS]);
    if (untilS !== null && stretches.length) gaps.push([endOf(take, stretches.at(-1)), untilS]);
    gaps.forEach(([fromS, toS]) => this.hatch(this.x(fromS), Math.max(this.x(fromS) + 2, this.x(toS))));
  }

  hatch(from, to) {
    const { pen } = this;
    pen.save();
    pen.beginPath();
    pen.rect(from, MARGIN.top, to - from, this.waveBottom - MARGIN.top);
    pen.clip();
    const height = this.waveBottom - MARGIN.top;
    for (let x = from - height; x < to; x += 6) this.line(x, this.waveBottom, x + height, MARGIN.top, "pen");
    pen.restore();
  }

  drawWave(take, stretch, nowS) {
    const middle = (MARGIN.top + this.waveBottom) / 2;
    const reach = (this.waveBottom - MARGIN.top) / 2 - 2;
    const samplesPerPx = take.rateHz / this.pxPerS;
    const from = this.x(stretch.atS);
    const to = this.x(endOf(take, stretch));
    for (let x = from; x < to; x += BAR_STEP_PX) {
      const first = stretch.first + (x - from) * samplesPerPx;
      const end = Math.min(first + BAR_STEP_PX * samplesPerPx, stretch.first + stretch.count);
      const half = Math.max(0.75, take.loudest(first, end) * reach);
      this.pen.fillStyle = this.colour(x <= this.x(nowS) ? "accent" : "ahead");
      this.pen.fillRect(x, middle - half, BAR_PX, half * 2);
    }
  }

  drawChunk(take, chunk, index, stretches) {
    const arrivedX = this.x(chunk.atS);
    const heard = heardAt(take, chunk, stretches);
    if (heard) {
      const [fromX, toX] = heard.map((atS) => this.x(atS));
      this.pen.fillStyle = this.colour(index % 2 ? "edge" : "muted");
      this.pen.fillRect(fromX, this.waveBottom + 3, Math.max(1, toX - fromX - 1), BAND_PX);
      this.line(arrivedX, this.arrivalY, fromX + 0.5, this.waveBottom + 3 + BAND_PX, "edge");
    }
    this.pen.beginPath();
    this.pen.arc(arrivedX, this.arrivalY, DOT_PX, 0, 2 * Math.PI);
    this.pen.fillStyle = this.colour("muted");
    this.pen.fill();
  }

  drawNow(nowS) {
    this.line(this.x(nowS), MARGIN.top, this.x(nowS), this.bottom, "pen", 2);
  }

  line(fromX, fromY, toX, toY, colour, width = 1) {
    this.pen.beginPath();
    this.pen.moveTo(fromX, fromY);
    this.pen.lineTo(toX, toY);
    this.pen.lineWidth = width;
    this.pen.strokeStyle = this.colour(colour);
    this.pen.stroke();
  }

  write(text, x, y, colour) {
    this.pen.fillStyle = this.colour(colour);
    this.pen.fillText(text, x, y);
  }
}

/** The player's runs; the last one goes on with what waits behind it, unless the sound was stopped. */
function stretchesOf(take, player) {
  const runs = player?.runs ?? [];
  if (!runs.length || player.isDry || take.endS !== null) return runs;
  const last = runs.at(-1);
  return [...runs.slice(0, -1), { ...last, count: take.samples - last.first }];
}

function endOf(take, stretch) {
  return stretch.atS + stretch.count / take.rateHz;
}

function heardAt(take, chunk, stretches) {
  const at = (sample) => {
    const holder = stretches.find((stretch) => sample >= stretch.first && sample < stretch.first + stretch.count);
    return holder && holder.atS + (sample - holder.first) / take.rateHz;
  };
  const fromS = at(chunk.first);
  const toS = at(chunk.first + chunk.count - 1);
  return fromS !== undefined && toS !== undefined ? [fromS, toS] : null;
}
