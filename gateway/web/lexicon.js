// Pronunciations: words with what is spoken for them, one a line, and the dictionaries that the server keeps.

import { listLexicons, readLexicon, saveLexicon } from "./server.js";
import { t } from "./words.js";

const NONE = "";
const LINE = /^\s*(.+?)\s*=\s*(.+?)\s*$/;

const byId = (id) => document.getElementById(id);

let listed = []; // {id, name, permission_on_resource, …}

/** Words and what is spoken for them, of text with a line "word = spoken" for each; other lines are left out. */
export function wordsOf(text) {
  const found = text.split("\n").map((line) => LINE.exec(line)).filter(Boolean);
  return Object.fromEntries(found.map(([, word, spoken]) => [word, spoken]));
}

/** Fills the list of dictionaries; `wanted` is chosen if it is among them. */
export async function showLexicons(settings, wanted = byId("lexicon").value) {
  listed = (await listLexicons()).pronunciation_dictionaries;
  byId("lexicon-row").hidden = !settings.lexicon_creation;
  sayLexiconsAgain(wanted);
}

/** Says the list anew, after the page's language has changed. */
export function sayLexiconsAgain(wanted = byId("lexicon").value) {
  const options = listed.map(({ id, name }) => new Option(name, id));
  byId("lexicon").replaceChildren(new Option(t("lexiconNone"), NONE), ...options);
  byId("lexicon").value = listed.some(({ id }) => id === wanted) ? wanted : NONE;
  byId("lexicon-field").hidden = !listed.length;
}

/** Puts the chosen dictionary's words into the form, to be changed. */
export async function editLexicon() {
  const chosen = listed.find(({ id }) => id === byId("lexicon").value);
  if (!chosen) return;
  const { rules } = await readLexicon(chosen.id);
  const lines = rules.filter(({ alias }) => alias).map(({ string_to_replace: word, alias }) => `${word} = ${alias}`);
  byId("pronunciations").value = lines.join("\n");
  byId("lexicon-name").value = isOwn(chosen) ? chosen.name : "";
  byId("words-section").open = true;
  byId("pronunciations").dispatchEvent(new Event("input", { bubbles: true }));
}

/** Keeps the words as a dictionary of the given name, in place of an own one that has it; returns the name. */
export async function keepLexicon(settings) {
  const name = byId("lexicon-name").value.trim();
  const same = listed.find((each) => each.name === name && isOwn(each));
  const words = Object.entries(wordsOf(byId("pronunciations").value));
  const rules = words.map(([word, alias]) => ({ type: "alias", string_to_replace: word, alias }));
  const { id } = await saveLexicon(same?.id ?? null, name, rules);
  await showLexicons(settings, id);
  byId("pronunciations").value = "";
  byId("pronunciations").dispatchEvent(new Event("input", { bubbles: true }));
  return name;
}

const isOwn = ({ permission_on_resource: permission }) => permission === "admin";
