"""Other sample rates, and the companded samples of telephony."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.audio import AudioFormat
from gateway.audio.codecs import PCM16_FULL_SCALE, G711Quantizer, IntArray, alaw_levels, mulaw_levels
from gateway.audio.encoder import Resampler
from gateway.core import FloatArray
from tests.gateway.audio.signals import cut, piece_lengths, snr_db, speech_like, tone

RATES_HZ = [8000, 11025, 16000, 22050, 32000, 44100, 48000, 47999]


def resampled(pieces: list[FloatArray], rate_hz: int) -> FloatArray:
    resampler = Resampler(rate_hz)
    return np.concatenate([*map(resampler.push, pieces), resampler.finish()])


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_a_tone_stays_the_same_tone(rate_hz: int) -> None:
    got = resampled([tone(1000, 24_000)], rate_hz)

    assert len(got) == rate_hz
    middle = slice(rate_hz // 10, -rate_hz // 10)
    assert snr_db(got[middle], tone(1000, rate_hz, rate_hz)[middle]) > 90


@pytest.mark.parametrize("rate_hz", [8000, 16000, 22050])
def test_what_the_lower_rate_cannot_hold_does_not_fold_back(rate_hz: int) -> None:
    got = resampled([tone(rate_hz * 0.53, 24_000)], rate_hz)

    assert np.abs(got[rate_hz // 10 : -rate_hz // 10]).max() < 0.5 * 10 ** (-90 / 20)


@settings(max_examples=25, deadline=None)
@given(piece_lengths, st.sampled_from(RATES_HZ))
def test_how_the_input_is_cut_does_not_matter(lengths: list[int], rate_hz: int) -> None:
    samples = speech_like(9000)

    np.testing.assert_array_equal(resampled(cut(samples, lengths), rate_hz), resampled([samples], rate_hz))


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_less_than_80_ms_are_held_back(rate_hz: int) -> None:
    resampler, got_samples, worst_s = Resampler(rate_hz), 0, 0.0
    for taken, piece in enumerate(cut(speech_like(24_000), [24] * 999), start=1):
        got_samples += len(resampler.push(piece))
        worst_s = max(worst_s, taken * 0.001 - got_samples / rate_hz)

    assert worst_s < 0.08


LAWS = [
    pytest.param(AudioFormat.MULAW, mulaw_levels(), id="mulaw"),
    pytest.param(AudioFormat.ALAW, alaw_levels(), id="alaw"),
]


@pytest.mark.parametrize(("audio_format", "levels"), LAWS)
def test_every_byte_means_what_ffmpeg_takes_it_for(audio_format: AudioFormat, levels: IntArray) -> None:
    pytest.importorskip("av", reason="the audio extra is not installed")
    from tests.gateway.audio.signals import decoded

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
