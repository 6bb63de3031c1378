// What was spoken before: shown newest first, kept in this browser, played again from memory while there is room for its
// audio, and from the server, by its seed, after that.

import { t } from "./words.js";

const ITEM = "cosydit-history";
const MAX_ENTRIES = 20;
const MAX_SAMPLES = 24000 * 60 * 10; // in memory: ten minutes, 29 MB
const SHOWN_CHARACTERS = 120;

const byId = (id) => document.getElementById(id);

/** An entry is {id, atMs, order, lengthS, figures}; `order` has its seed. */
export class History {
  /** `onAgain` plays an entry, `onEdit` puts it into the form. */
  constructor(onAgain, onEdit) {
    this.onAgain = onAgain;
    this.onEdit = onEdit;
    this.audio = new Map(); // entry's id -> {rateHz, blocks, samples}
    this.entries = kept();
    byId("clear-history").addEventListener("click", () => this.clear());
    this.show();
  }

  /** Adds what a take has spoken; it takes the place of an entry that was the same. */
  add(order, take, figures) {
    const id = crypto.getRandomValues(new Uint32Array(2)).join("-");
    const entry = { id, atMs: Date.now(), order, lengthS: take.audioS, figures };
    this.audio.set(entry.id, { rateHz: take.rateHz, blocks: take.blocks, samples: take.samples });
    const others = this.entries.filter((each) => JSON.stringify(each.order) !== JSON.stringify(order));
    this.entries = [entry, ...others].slice(0, MAX_ENTRIES);
    this.forgetAudio();
    this.keep();
  }

  /** {rateHz, blocks} of an entry; undefined where it is no longer in memory. */
  audioOf(entry) {
    return this.audio.get(entry.id);
  }

  remove(entry) {
    this.entries = this.entries.filter((each) => each !== entry);
    this.forgetAudio();
    this.keep();
  }

  clear() {
    this.entries = [];
    this.audio.clear();
    this.keep();
    byId("text").focus();
  }

  forgetAudio() {
    let samples = 0;
    const held = new Map();
    for (const { id } of this.entries) {
      const audio = this.audio.get(id);
      samples += audio?.samples ?? 0;
      if (audio && samples <= MAX_SAMPLES) held.set(id, audio);
    }
    this.audio = held;
  }

  keep() {
    localStorage.setItem(ITEM, JSON.stringify(this.entries));
    this.show();
  }

  show() {
    byId("history-section").hidden = !this.entries.length;
    byId("history").replaceChildren(...this.entries.map((entry) => this.line(entry)));
  }

  line(entry) {
    const { text, voice, speed, seed } = entry.order;
    const short = text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)}…` : text;
    const time = new Date(entry.atMs).toLocaleTimeString(document.documentElement.lang, { timeStyle: "short" });
    const about = [time, voice, `${entry.lengthS.toFixed(1)} s`, speed === 1 ? "" : `${speed}×`, `${t("seed")} ${seed}`];
    const line = document.createElement("li");
    line.append(paragraph("spoken", short), paragraph("hint", about.filter(Boolean).join(" · ")), this.buttons(entry));
    return line;
  }

  buttons(entry) {
    const row = document.createElement("div");
    row.className = "inline";
    row.append(
      button(t("again"), () => this.onAgain(entry)),
      button(t("edit"), () => this.onEdit(entry)),
      button(t("remove"), () => this.remove(entry)),
    );
    return row;
  }
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(ITEM)) ?? [];
  } catch {
    return [];
  }
}

function paragraph(kind, text) {
  const made = document.createElement("p");
  made.className = kind;
  made.dir = "auto";
  made.textContent = text;
  return made;
}

function button(text, onClick) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "quiet";
  made.textContent = text;
  made.addEventListener("click", onClick);
  return made;
}
