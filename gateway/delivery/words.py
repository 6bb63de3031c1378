"""When words are spoken, gathered from the times of their characters. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.speech.text_clock import CharacterTime

# Han and kana, which are written without blanks: each character is a word of its own.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


@dataclass(frozen=True)
class WordTime:
    """One word as it was written, with the punctuation that touches it."""

    word: str
    start_s: float
    """From the first sample of the speech."""
    end_s: float


class WordGatherer:
    """Puts words together while their characters come in."""

    def __init__(self) -> None:
        """Begin before the first character."""
        self._characters: list[CharacterTime] = []

    def push(self, characters: Iterable[CharacterTime]) -> list[WordTime]:
        """Take the next characters; return the words that are complete with them."""
        words: list[WordTime] = []
        for each in characters:
            if each.character.isspace():
                words += self.finish()
                continue
            if self._begins_word(each.character):
                words += self.finish()
            self._characters.append(each)
        return words

    def finish(self) -> list[WordTime]:
        """Return the word that is left, if any: the text has ended."""
        kept, self._characters = self._characters, []
        if not kept:
            return []
        return [WordTime("".join(each.character for each in kept), kept[0].start_s, kept[-1].end_s)]

    def _begins_word(self, character: str) -> bool:
        is_after_unspaced = any(_UNSPACED.match(each.character) for each in self._characters)
        return bool(_UNSPACED.match(character)) or (is_after_unspaced and character.isalnum())
