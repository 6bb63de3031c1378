"""Lengths of the features, the filter banks' cache, and resampling."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest

from tests.token2wav_service.features.helpers import noise, tone
from token2wav_service.features.audio import resample_16k_to_24k, resample_poly
from token2wav_service.features.mel import flow_mel_24k, kaldi_fbank, s3_log_mel, slaney_mel_filters


@pytest.mark.parametrize("samples", [1920, 1921, 1922, 1923, 16_001])
def test_resampled_length_is_three_halves_rounded_up(samples: int) -> None:
    assert len(resample_16k_to_24k(noise(2.0)[:samples])) == ceil(3 * samples / 2)


@pytest.mark.parametrize("samples", [1920, 2079, 2080, 16_000])
def test_frame_counts_follow_the_hops(samples: int) -> None:
    audio = noise(1.0)[:samples]

    assert flow_mel_24k(resample_16k_to_24k(audio)).shape == (ceil(samples * 3 / 2) // 480, 80)
    assert s3_log_mel(audio).shape == (128, samples // 160)
    assert kaldi_fbank(audio).shape == (1 + (samples - 400) // 160, 80)


@pytest.mark.parametrize(
    "changed",
    [{"sample_rate_hz": 16_000}, {"n_fft": 1024}, {"n_mels": 40}, {"low_hz": 50.0}, {"high_hz": 7000.0}],
    ids=lambda changed: next(iter(changed)),
)
def test_filter_bank_cache_tells_all_parameters_apart(changed: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"sample_rate_hz": 24_000, "n_fft": 1920, "n_mels": 80, "low_hz": 0.0, "high_hz": 8000.0}
    first = slaney_mel_filters(**usual)

    other = slaney_mel_filters(**{**usual, **changed})

    assert slaney_mel_filters(**usual) is first
    assert other.shape != first.shape or not np.array_equal(other, first)


def test_a_shared_filter_bank_can_not_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        slaney_mel_filters(sample_rate_hz=24_000, n_fft=1920, n_mels=80)[0, 0] = 1


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 48_000, 96_000])
def test_a_tone_keeps_its_pitch_and_level_at_16_khz(rate_hz: int) -> None:
    resampled = resample_poly(tone(1.0, rate_hz), rate_hz, 16_000)

    assert len(resampled) == 16_000
    inner = slice(800, -800)  # the filter rings at both ends
    np.testing.assert_allclose(resampled[inner], tone(1.0)[inner], atol=5e-3)


def test_what_16_khz_can_not_carry_is_filtered_out() -> None:
    resampled = resample_poly(tone(1.0, 48_000, frequency_hz=12_000.0), 48_000, 16_000)

    assert np.abs(resampled[800:-800]).max() < 2e-3
