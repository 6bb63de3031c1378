"""Cuts a session's audio where its sentences end, to the sample, by the speech tokens that each of them took. Pure.

    audio     |frame|frame|frame|frame|frame|
    tokens    [ sentence 0    ][ sentence 1 ]
    events    start, sound x 3, end, start, sound x 3, end

What is called a sentence here is a segment: a sentence, or some short ones, or part of a very long one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.core import FloatArray
from gateway.speech.request import SpeechResult, SpokenSpan
from gateway.speech.session import SessionAudio
from gateway.speech.text_clock import CharacterTime
from token2wav_service.contract import SAMPLE_RATE_HZ


@dataclass(frozen=True)
class SentenceStart:
    """Its audio comes next."""

    index: int
    text: str


@dataclass(frozen=True)
class SentenceSound:
    """Some of its audio."""

    samples: FloatArray
    """[N] float32 in +-1 at 24 kHz."""


@dataclass(frozen=True)
class SentenceEnd:
    """All of its audio has come."""

    index: int
    began_s: float
    """Seconds from the session's first sample; the times of its characters count from there, too."""
    characters: tuple[CharacterTime, ...]


SentenceEvent = SentenceStart | SentenceSound | SentenceEnd


@dataclass
class _Sentence:
    index: int
    span: SpokenSpan
    began_s: float
    characters: list[CharacterTime] = field(default_factory=list)

    @property
    def end_samples(self) -> float:
        """Where it ends within its turn; beyond all samples while the LLM still speaks it."""
        return self.span.end_samples if self.span.is_complete else math.inf


class SegmentCutter:
    """Each segment is a sentence."""

    def __init__(self, results: list[SpeechResult]) -> None:
        """Begin before the first sample; `results` are the session's, which grow."""
        self._results = results
        self._turn = self._span = 0
        self._heard_samples = self._turn_samples = 0
        self._sentence: _Sentence | None = None
        self.count = 0
        """Number of sentences begun."""

    def push(self, audio: SessionAudio) -> Iterator[SentenceEvent]:
        """Take audio; return what happens in it."""
        samples, characters = audio.samples, list(audio.characters)
        while len(samples):
            sentence = self._sentence
            if sentence is None:
                sentence = self._begin()
                yield SentenceStart(sentence.index, sentence.span.segment.source.text)
            _move(characters, sentence)
            taken = samples[: int(min(sentence.end_samples - self._turn_samples, len(samples)))]
            yield SentenceSound(taken) if len(taken) else self._end(sentence)
            samples = samples[len(taken) :]
            self._turn_samples += len(taken)
            self._heard_samples += len(taken)
        if self._sentence is not None:
            _move(characters, self._sentence)
        if audio.is_turn_end:
            yield from self._end_turn()

    def finish(self) -> Iterator[SentenceEvent]:
        """Return nothing: the last turn has ended already."""
        return iter(())

    def _begin(self) -> _Sentence:
        span = self._results[self._turn].spans[self._span]
        self._sentence = _Sentence(self.count, span, self._heard_samples / SAMPLE_RATE_HZ)
        self.count += 1
        return self._sentence

    def _end(self, sentence: _Sentence) -> SentenceEnd:
        self._sentence = None
        self._span += 1
        return SentenceEnd(sentence.index, sentence.began_s, tuple(sentence.characters))

    def _end_turn(self) -> Iterator[SentenceEvent]:
        if self._sentence is not None:
            yield self._end(self._sentence)
        self._turn += 1
        self._span = self._turn_samples = 0


class UtteranceCutter:
    """The whole text is one sentence."""

    def __init__(self, text: str) -> None:
        """Begin before the first sample."""
        self._text = text
        self._characters: list[CharacterTime] = []
        self.count = 0

    def push(self, audio: SessionAudio) -> Iterator[SentenceEvent]:
        """Take audio; return what happens in it."""
        self._characters.extend(audio.characters)
        if len(audio.samples) and not self.count:
            self.count = 1
            yield SentenceStart(0, self._text)
        if len(audio.samples):
            yield SentenceSound(audio.samples)

    def finish(self) -> Iterator[SentenceEvent]:
        """Return what happens at the end of all audio."""
        if self.count:
            yield SentenceEnd(0, 0.0, tuple(self._characters))


def _move(characters: list[CharacterTime], sentence: _Sentence) -> None:
    """Give a sentence those of the characters that are its own."""
    end = sentence.span.segment.source.end
    while characters and characters[0].position < end:
        sentence.characters.append(characters.pop(0))
