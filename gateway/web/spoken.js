// The words of a take below its picture: those that were heard, the one that is spoken now, and what is still to come.

const UNSPACED = /^[\u3040-\u30ff\u3400-\u9fff]/; // scripts without blanks between words
const MS_PER_S = 1000;

const byId = (id) => document.getElementById(id);

let shown = null; // the list of words on the page; one take has one list, which grows
let heard = 0; // how many of them

/** Shows the words known so far and lights the one that is spoken at `heardS` seconds of the audio. */
export function showSpoken(words, heardS) {
  const line = byId("spoken-words");
  if (shown !== words) {
    line.replaceChildren();
    shown = words;
    heard = 0;
  }
  for (const { word } of words.slice(line.childElementCount)) line.append(UNSPACED.test(word) ? "" : " ", marked(word));
  line.hidden = !words.length;
  const nowMs = heardS * MS_PER_S;
  for (; heard < words.length && words[heard].end_ms <= nowMs; heard += 1) line.children[heard].className = "is-heard";
  if (heard < words.length && words[heard].start_ms <= nowMs) line.children[heard].className = "is-now";
}

function marked(word) {
  const made = document.createElement("span");
  made.textContent = word;
  return made;
}
