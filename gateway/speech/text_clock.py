"""When each character of a text is spoken, by the clock of the speech tokens: 25 a second.

    source   It costs $3.50 today.          characters as the caller sent them
    spoken   It costs three dollars fifty today.      what the LLM got
    tokens   [ 47 of them, 1.88 s ]         evenly over the spoken text

The LLM tells how long a segment is only when it has spoken it, so the times of one that is under way are estimated;
they never go back. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.speech.request import SpokenSpan
from gateway.text.segments.breaks import spoken_length
from token2wav_service.contract import SAMPLE_RATE_HZ, TOKEN_RATE_HZ

TOKENS_A_LETTER = 1.7
"""Of a segment that is under way: about 15 letters a second."""


@dataclass(frozen=True)
class CharacterTime:
    """One character of the source and when it is spoken."""

    character: str
    position: int
    """In all the text received."""
    start_s: float
    """From the first sample of the speech."""
    end_s: float
    is_pause: bool = False
    """It belongs to the tag of a break, whose silence it lasts."""


class TextClock:
    """Reads off the characters of one speech as its audio goes by."""

    def __init__(self, spans: Sequence[SpokenSpan]) -> None:
        """Begin before the first character; `spans` may grow meanwhile."""
        self._spans = spans
        self._span = 0
        self._character = 0
        self._until_s = 0.0

    @property
    def position(self) -> int:
        """Position in all the text received up to which characters were read off."""
        if self._span < len(self._spans):
            return self._spans[self._span].segment.source.start + self._character
        return self._spans[-1].segment.source.end if self._spans else 0

    def advance(self, audio_s: float) -> list[CharacterTime]:
        """Return the characters whose speech ends within the first `audio_s` seconds and that are new."""
        read: list[CharacterTime] = []
        while self._span < len(self._spans):
            span = self._spans[self._span]
            read += self._read(span, audio_s)
            is_over = span.is_complete and self._character == len(span.segment.source.text)
            if not is_over:
                break
            self._span, self._character = self._span + 1, 0
        return read

    def finish(self, audio_s: float) -> list[CharacterTime]:
        """Return all that is left, within the audio there is: the speech is over."""
        read: list[CharacterTime] = []
        for span in self._spans[self._span :]:
            tokens = _tokens(span)
            for index in range(self._character, len(span.segment.source.text)):
                read.append(self._time(span, tokens, index, audio_s))
            self._character = 0
        self._span = len(self._spans)
        return read

    def _read(self, span: SpokenSpan, audio_s: float) -> list[CharacterTime]:
        read = []
        tokens = _tokens(span)
        while self._character < len(span.segment.source.text):
            if _end_s(span, tokens, self._character) > audio_s:
                break
            read.append(self._time(span, tokens, self._character, audio_s))
            self._character += 1
        return read

    def _time(self, span: SpokenSpan, tokens: float, index: int, latest_s: float) -> CharacterTime:
        source = span.segment.source
        start_s = max(self._until_s, min(_start_s(span, tokens, index), latest_s))
        self._until_s = max(start_s, min(_end_s(span, tokens, index), latest_s))
        return CharacterTime(source.text[index], source.start + index, start_s, self._until_s, _is_pause(span, index))


def _tokens(span: SpokenSpan) -> float:
    """Return how many tokens a segment takes, by estimate while it is under way."""
    if span.is_complete:
        return float(span.tokens)
    return max(float(span.tokens), TOKENS_A_LETTER * spoken_length(span.segment.text))


def _start_s(span: SpokenSpan, tokens: float, index: int) -> float:
    return _pause_time_s(span, tokens, index) if _is_pause(span, index) else _time_s(span, tokens, index)


def _end_s(span: SpokenSpan, tokens: float, index: int) -> float:
    return _pause_time_s(span, tokens, index + 1) if _is_pause(span, index) else _time_s(span, tokens, index + 1)


def _time_s(span: SpokenSpan, tokens: float, source_position: int) -> float:
    """Return when a segment of so many tokens has reached a position of its source."""
    spoken_share = span.segment.alignment.spoken_at(source_position) / max(len(span.segment.text), 1)
    speech_s = tokens / TOKEN_RATE_HZ / span.manner.rate - span.cut_samples / SAMPLE_RATE_HZ
    return span.begin_samples / SAMPLE_RATE_HZ + spoken_share * max(speech_s, 0.0)


def _is_pause(span: SpokenSpan, index: int) -> bool:
    source = span.segment.source
    return source.pause is not None and index >= source.pause_from


def _pause_time_s(span: SpokenSpan, tokens: float, source_position: int) -> float:
    """Return when the pause behind a segment has reached a position of its tag."""
    source = span.segment.source
    share = (source_position - source.pause_from) / (len(source.text) - source.pause_from)
    return _time_s(span, tokens, source.pause_from) + span.pause_samples / SAMPLE_RATE_HZ * share


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
            if each.is_pause or each.character.isspace():
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
