// Pronunciations: words with what is spoken for them, one a line, and the server's dictionaries.

import { t } from "./words.js";

const NONE = "";
const LINE = /^\s*(.+?)\s*=\s*(.+?)\s*$/;

const byId = (id) => document.getElementById(id);

let names = []; // of the server's dictionaries

/** Words and what is spoken for them, of text with a line "word = spoken" for each; other lines are left out. */
export function wordsOf(text) {
  const found = text.split("\n").map((line) => LINE.exec(line)).filter(Boolean);
  return Object.fromEntries(found.map(([, word, spoken]) => [word, spoken]));
}

/** Fills the list of dictionaries; `wanted` is chosen if it is among them. */
export function showLexicons(settings, wanted = byId("lexicon").value) {
  names = settings.lexicons;
  sayLexiconsAgain(wanted);
}

/** Says the list anew, after the page's language has changed. */
export function sayLexiconsAgain(wanted = byId("lexicon").value) {
  const options = names.map((name) => new Option(name, name));
  byId("lexicon").replaceChildren(new Option(t("lexiconNone"), NONE), ...options);
  byId("lexicon").value = names.includes(wanted) ? wanted : NONE;
  byId("lexicon-field").hidden = !names.length;
}
