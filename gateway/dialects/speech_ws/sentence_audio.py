"""Cuts a session's audio where its sentences end, to the sample, by the speech tokens that each of them took. Pure.

    audio     |frame|frame|frame|frame|frame|
    tokens    [ sentence 0    ][ sentence 1 ]
    parts     sound x 3, end,  sound x 3, end

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


@dataclass
class Sentence:
    """One sentence; its characters are all there when it ends."""

    index: int
    text: str
    began_s: float
    """Seconds from the session's first sample; the times of its characters count from there, too."""
    span: SpokenSpan | None
    """Where it lies in its turn; None: it is the whole text."""
    characters: list[CharacterTime] = field(default_factory=list)

    @property
    def end_samples(self) -> float:
        """Where it ends within its turn; beyond all samples while the LLM still speaks it."""
        return self.span.end_samples if self.span is not None and self.span.is_complete else math.inf

    def move(self, characters: list[CharacterTime]) -> None:
        """Take those characters that are its own off a list."""
        end = math.inf if self.span is None else self.span.segment.source.end
        while characters and characters[0].position < end:
            self.characters.append(characters.pop(0))


Part = tuple[Sentence, FloatArray | None]
"""Some of a sentence's audio, [N] float32 in +-1 at 24 kHz; None: all of it has come."""


class SentenceCutter:
    """Each segment is a sentence, or the whole text is one."""

    def __init__(self, results: list[SpeechResult]) -> None:
        """Begin before the first sample; `results` are the session's, which grow."""
        self._results = results
        self._turn = self._span = 0
        self._heard_samples = self._turn_samples = 0
        self._sentence: Sentence | None = None
        self.whole: str | None = None
        """The text, if it is one sentence."""
        self.count = 0
        """Number of sentences begun."""

    def push(self, audio: SessionAudio) -> Iterator[Part]:
        """Take audio; return what it is of."""
        samples, characters = audio.samples, list(audio.characters)
        while len(samples):
            sentence = self._sentence or self._begin()
            sentence.move(characters)
            taken = samples[: int(min(sentence.end_samples - self._turn_samples, len(samples)))]
            if len(taken):
                yield sentence, taken
            else:
                yield from self.finish()
            samples = samples[len(taken) :]
            self._turn_samples += len(taken)
            self._heard_samples += len(taken)
        if self._sentence is not None:
            self._sentence.move(characters)
        if audio.is_turn_end and self.whole is None:
            yield from self.finish()
            self._turn += 1
            self._span = self._turn_samples = 0

    def finish(self) -> Iterator[Part]:
        """Return what happens at the end of all audio."""
        if (ended := self._sentence) is not None:
            self._sentence = None
            self._span += 1
            yield ended, None

    def _begin(self) -> Sentence:
        span = self._results[self._turn].spans[self._span] if self.whole is None else None
        text = self.whole or "" if span is None else span.segment.source.text
        self._sentence = Sentence(self.count, text, self._heard_samples / SAMPLE_RATE_HZ, span)
        self.count += 1
        return self._sentence
