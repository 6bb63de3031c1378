"""Telephone audio against FFmpeg's, and its rules."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.audio import AudioFormat
from gateway.audio.pcm import PCM16_FULL_SCALE, G711Quantizer, IntArray, alaw_levels, mulaw_levels

LAWS = [
    pytest.param(AudioFormat.MULAW, mulaw_levels(), id="mulaw"),
    pytest.param(AudioFormat.ALAW, alaw_levels(), id="alaw"),
]


@pytest.mark.parametrize(("audio_format", "levels"), LAWS)
def test_every_byte_means_what_ffmpeg_takes_it_for(audio_format: AudioFormat, levels: IntArray) -> None:
    pytest.importorskip("av", reason="the audio extra is not installed")
    from tests.gateway.audio.decoding import decoded

    got, _ = decoded(bytes(range(256)), audio_format, 8000)

    assert (got * 32768).astype(np.int32).tolist() == levels.tolist()


@pytest.mark.parametrize(("audio_format", "levels"), LAWS)
def test_a_sample_becomes_the_nearest_level(audio_format: AudioFormat, levels: IntArray) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, 5000).astype(np.float32)

    codes = np.frombuffer(G711Quantizer(levels).encode(samples), np.uint8)

    errors = np.abs(levels / PCM16_FULL_SCALE - samples[:, np.newaxis])
    np.testing.assert_allclose(errors[np.arange(len(codes)), codes], errors.min(axis=1), atol=1e-6)


def test_silence_is_the_byte_that_telephony_sends_for_it() -> None:
    silence = np.zeros(3, np.float32)

    assert G711Quantizer(mulaw_levels()).encode(silence) == b"\xff" * 3
    assert G711Quantizer(alaw_levels()).encode(silence) == b"\xd5" * 3


@pytest.mark.parametrize(("audio_format", "levels"), LAWS)
def test_too_loud_samples_become_the_loudest_level(audio_format: AudioFormat, levels: IntArray) -> None:
    codes = np.frombuffer(G711Quantizer(levels).encode(np.array([-9.0, 9.0], np.float32)), np.uint8)

    assert levels[codes].tolist() == [levels.min(), levels.max()]
