"""What is asked for when answers are decoded by other libraries, and what counts as a failure."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.audio import AudioFormat, OutputFormat, encode_whole
from lab.voice.foreign_decode import FORMATS, RATES_HZ, DecodeError, check, wanted

SOUND = np.sin(np.arange(24_000) / 9).astype(np.float32)


def test_every_format_rate_and_door_is_asked_within_two_hundred_answers() -> None:
    asked = wanted(200)
    assert len(asked) == 200
    for door in ("openai", "events", "grpc"):
        heard = {(each.audio_format, each.rate_hz) for each in asked if each.door == door}
        assert heard == {(name, rate_hz) for name in FORMATS for rate_hz in RATES_HZ}
    assert {each.door for each in asked} == {"openai", "events", "grpc", "riva", "elevenlabs", "sentences"}


def test_an_answer_that_the_decoders_read_differently_fails() -> None:
    wav = encode_whole(SOUND, OutputFormat(AudioFormat.WAV))
    check(wav, "wav")
    with pytest.raises(DecodeError, match="0 samples"):
        check(wav[:40] + bytes(4) + wav[44:], "wav")
