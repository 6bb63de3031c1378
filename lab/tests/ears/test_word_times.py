"""The bundled aligner on the source engine's own audio, against the recogniser's alignment of the same words."""

from __future__ import annotations

import numpy as np
import pytest

from cosydit.certify.recognition import words_of
from demo_voice.unpack import ALIGNER_WEIGHTS, BUNDLE, read_packed
from gateway.speech.letter_times import LetterTimes
from gateway.speech.request import SpokenSpan
from gateway.speech.text_clock import TextClock, WordGatherer, WordTime
from gateway.text import Segment, SpokenSegment
from gateway.text.alignment import unchanged
from lab.ears.alignment import SphinxAligner
from lab.tests.ears.conftest import RATE_HZ, Voice, noise
from lab.voice.word_times import errors_ms, figures
from llm_service.aligner import Aligner
from token2wav_service.features.mel import s3_log_mel
from token2wav_service.features.prompt_models import SPEECH_TOKENIZER_FILE, OnnxSpeechTokenizer


def test_words_are_timed_as_the_recogniser_times_them(voices: list[Voice]) -> None:
    aligner, recogniser = Aligner(read_packed(BUNDLE / ALIGNER_WEIGHTS)), SphinxAligner()
    tokenizer = OnnxSpeechTokenizer(BUNDLE / SPEECH_TOKENIZER_FILE)
    found = []
    for voice in voices:
        ids = tokenizer.tokenize(s3_log_mel(voice.samples)).tolist()
        segment = SpokenSegment(Segment(voice.text, 0), voice.text, unchanged(voice.text).alignment, "en", True)
        span = SpokenSpan(segment, 0, len(ids), True, letter_times=LetterTimes(aligner, voice.text))
        assert span.letter_times is not None
        span.letter_times.add(ids, is_last=True)
        gatherer = WordGatherer()
        words = [*gatherer.push(TextClock([span]).read(len(voice.samples) / RATE_HZ, is_over=True)), *gatherer.finish()]
        heard = recogniser.word_times(voice.samples, [" ".join(words_of(word.word)) for word in words])
        assert heard is not None
        found += errors_ms(words, heard)

    got = figures(found, found)
    assert got["words"] >= 20
    assert got["median_ms"] < 40
    assert got["p95_ms"] < 200


def test_the_recogniser_aligns_no_words_that_it_does_not_know_or_find() -> None:
    recogniser = SphinxAligner()

    assert recogniser.word_times(np.zeros(RATE_HZ, np.float32), ["zxqv"]) is None
    assert recogniser.word_times(noise(0.2), ["one", "two", "three", "four", "five", "six", "seven"]) is None


def test_errors_are_counted_at_both_ends_of_a_word() -> None:
    words = [WordTime("one", 0.1, 0.3), WordTime("two", 0.3, 0.5)]
    errors = errors_ms(words, [(0.1, 0.31), (0.32, 0.9)])

    assert [time for pair in errors for time in pair] == pytest.approx([0, -10, -20, -400])
    assert figures(errors, errors)["median_ms"] == 15
    with pytest.raises(ValueError, match="shorter"):
        errors_ms(words, [(0.1, 0.3)])
