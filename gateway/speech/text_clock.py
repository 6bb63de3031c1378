"""When each character of a text is spoken, by the clock of the speech tokens: 25 a second.

    source   It costs $3.50 today.          characters as the caller sent them
    spoken   It costs three dollars fifty today.      what the LLM got
    tokens   [ 47 of them, 1.88 s ]         by the checkpoint's aligner, or evenly over the spoken text

Without an aligner the times of a segment that is under way are estimated, as the LLM tells how long it is only when it
has spoken it. Times never go back. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.speech.letter_times import Times
from gateway.speech.request import SpokenSpan
from gateway.text.breaks import spoken_length
from token2wav_service.contract import SAMPLE_RATE_HZ, TOKEN_RATE_HZ

TOKENS_A_LETTER = 1.7
"""Of a segment that is under way: about 15 letters a second."""
_MS_PER_S = 1000


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

    def read(self, audio_s: float, is_over: bool = False) -> list[CharacterTime]:
        """Return the characters whose speech ends within the first `audio_s` seconds and that are new.

        If the speech is over, all that are left end within the audio there is.
        """
        read: list[CharacterTime] = []
        while self._span < len(self._spans):
            span = self._spans[self._span]
            times, count = _SpanTimes(span, audio_s), len(span.segment.source.text)
            while self._character < count and (is_over or times.end_s(self._character) <= audio_s):
                read.append(self._time(times, self._character, audio_s))
                self._character += 1
            if not is_over and not (span.is_complete and self._character == count):
                break
            self._span, self._character = self._span + 1, 0
        return read

    def _time(self, times: _SpanTimes, index: int, latest_s: float) -> CharacterTime:
        source = times.span.segment.source
        start_s = max(self._until_s, min(times.start_s(index), latest_s))
        self._until_s = max(start_s, min(times.end_s(index), latest_s))
        return CharacterTime(source.text[index], source.start + index, start_s, self._until_s, times.is_pause(index))


class _SpanTimes:
    """When the characters of one segment's source are spoken, as far as it is known now."""

    def __init__(self, span: SpokenSpan, audio_s: float) -> None:
        self.span = span
        self._tokens = _tokens(span)
        self._heard: Times | None = None
        if span.letter_times is not None and span.segment.text:
            speech_s = audio_s - (span.begin_samples - span.cut_samples) / SAMPLE_RATE_HZ
            until = min(speech_s * span.manner.rate * TOKEN_RATE_HZ, self._tokens)
            self._heard = span.letter_times.read(until)

    def is_pause(self, index: int) -> bool:
        """Tell whether a character belongs to the tag of a break."""
        source = self.span.segment.source
        return source.pause is not None and index >= source.pause_from

    def start_s(self, index: int) -> float:
        """Return when a character begins."""
        if self.is_pause(index):
            return self._pause_s(index)
        spoken = self.span.segment.alignment.spoken_at(index)
        if self._heard is None:
            return self._even_s(spoken)
        is_behind = spoken == len(self._heard.starts)
        return self._time_s(float(self._heard.ends[-1] if is_behind else self._heard.starts[spoken]))

    def end_s(self, index: int) -> float:
        """Return when a character ends; infinity: nobody knows yet."""
        if self.is_pause(index):
            return self._pause_s(index + 1)
        alignment = self.span.segment.alignment
        since, until = alignment.spoken_at(index), alignment.spoken_at(index + 1)
        if self._heard is None:
            return self._even_s(until)
        return self._time_s(float(self._heard.ends[until - 1])) if until > since else self.start_s(index)

    def _even_s(self, spoken: int) -> float:
        """Return when a position of the spoken text is reached, if all of it takes equally long."""
        begin_s = self.span.begin_samples / SAMPLE_RATE_HZ
        return begin_s + spoken / max(len(self.span.segment.text), 1) * (self._time_s(self._tokens) - begin_s)

    def _time_s(self, token: float) -> float:
        """Return when the speech has reached a token of the segment."""
        speech_s = token / TOKEN_RATE_HZ / self.span.manner.rate - self.span.cut_samples / SAMPLE_RATE_HZ
        return self.span.begin_samples / SAMPLE_RATE_HZ + max(speech_s, 0.0)

    def _pause_s(self, index: int) -> float:
        """Return when the pause behind the segment has reached a position of its tag."""
        source = self.span.segment.source
        share = (index - source.pause_from) / (len(source.text) - source.pause_from)
        return self._time_s(self._tokens) + self.span.pause_samples / SAMPLE_RATE_HZ * share


def _tokens(span: SpokenSpan) -> float:
    """Return how many tokens a segment takes, by estimate while it is under way."""
    if span.is_complete:
        return float(span.tokens)
    return max(float(span.tokens), TOKENS_A_LETTER * spoken_length(span.segment.text))


# Han and kana, which are written without blanks: each character is a word of its own.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


@dataclass(frozen=True)
class WordTime:
    """One word as it was written, with the punctuation that touches it."""

    word: str
    start_s: float
    """From the first sample of the speech."""
    end_s: float

    def told(self, speed: float, began_s: float = 0.0) -> dict[str, Any]:
        """Return it for JSON: its times in milliseconds from `began_s` on, of speech played `speed` times as fast."""
        start_ms, end_ms = (round((made_s - began_s) / speed * _MS_PER_S) for made_s in (self.start_s, self.end_s))
        return {"word": self.word, "start_ms": start_ms, "end_ms": end_ms}


class WordGatherer:
    """Puts words together while their characters come in."""

    def __init__(self) -> None:
        self._characters: list[CharacterTime] = []

    def push(self, characters: Iterable[CharacterTime], *, is_end: bool = False) -> list[WordTime]:
        """Take the next characters; return the words that are complete with them, at the text's end all."""
        words: list[WordTime] = []
        for each in characters:
            if each.is_pause or each.character.isspace():
                words += self.finish()
                continue
            if self._begins_word(each.character):
                words += self.finish()
            self._characters.append(each)
        return words + self.finish() if is_end else words

    def finish(self) -> list[WordTime]:
        """Return the word that is left, if any: the text has ended."""
        kept, self._characters = self._characters, []
        if not kept:
            return []
        return [WordTime("".join(each.character for each in kept), kept[0].start_s, kept[-1].end_s)]

    def _begins_word(self, character: str) -> bool:
        is_after_unspaced = any(_UNSPACED.match(each.character) for each in self._characters)
        return bool(_UNSPACED.match(character)) or (is_after_unspaced and character.isalnum())
