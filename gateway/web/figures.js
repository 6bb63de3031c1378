// The figures of a take below its picture. Knows nothing of playing.

import { t } from "./words.js";

const byId = (id) => document.getElementById(id);

/** What is said of a take in figures: {id of the element: text}; `player` may be null. */
export function figuresOf(take, player) {
  const underruns = player?.underruns ?? 0;
  return {
    "first-audio": take.firstAudioMs === null ? "–" : `${Math.round(take.firstAudioMs)} ms`,
    "audio-length": seconds(take.audioS),
    pace: take.speed === null ? "–" : t("realTime", { times: take.speed.toFixed(1) }),
    chunks: String(take.chunks.length),
    underruns: underruns ? `${underruns} (${Math.round(player.silentS * 1000)} ms)` : "0",
  };
}

/** Shows figures; those of a take that is over are told to those who see no picture, too. */
export function showFigures(figures, isOver) {
  for (const [id, text] of Object.entries(figures)) if (byId(id).textContent !== text) byId(id).textContent = text;
  byId("underruns").classList.toggle("is-bad", figures.underruns !== "0");
  if (isOver) byId("trace").setAttribute("aria-label", summary(figures));
}

function summary(figures) {
  const [first, length] = [figures["first-audio"], figures["audio-length"]];
  return t("summary", { first, length, chunks: figures.chunks, underruns: figures.underruns });
}

export const seconds = (value) => `${value.toFixed(1)} s`;
