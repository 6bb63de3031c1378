"""What load_prompt_audio and validate_prompt take and refuse."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest

from tests.token2wav_service.features.helpers import encoded, noise, tone
from token2wav_service.errors import InvalidPromptError
from token2wav_service.features.audio import MAX_FILE_BYTES, load_prompt_audio, validate_prompt, without_long_silence
from token2wav_service.types import FloatArray

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + bytes(64)


@pytest.mark.parametrize(
    ("rate_hz", "kind", "subtype"),
    [
        pytest.param(16_000, "WAV", "PCM_16", id="wav 16 bit"),
        pytest.param(16_000, "WAV", "PCM_U8", id="wav 8 bit"),
        pytest.param(16_000, "WAV", "FLOAT", id="wav float"),
        pytest.param(44_100, "WAV", "PCM_24", id="wav 44.1 kHz 24 bit"),
        pytest.param(48_000, "FLAC", None, id="flac 48 kHz"),
        pytest.param(44_100, "OGG", None, id="ogg vorbis"),
        pytest.param(48_000, "OGG", "OPUS", id="ogg opus"),
        pytest.param(44_100, "MP3", None, id="mp3"),
        pytest.param(8_000, "AIFF", None, id="aiff 8 kHz"),
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
def test_any_readable_file_becomes_mono_16_khz(rate_hz: int, kind: str, subtype: str | None, channels: int) -> None:
    audio = np.repeat(tone(1.0, rate_hz)[:, None], channels, axis=1)

    samples = load_prompt_audio(encoded(audio, rate_hz, kind, subtype))

    assert samples.dtype == np.float32 and samples.ndim == 1
    assert abs(len(samples) - 16_000) <= 1700  # MP3 adds its own silence
    assert np.abs(np.fft.rfft(samples[4000:12_000])).argmax() == 220  # 440 Hz in half a second
    assert samples[4000:12_000].std() == pytest.approx(0.5 / 2**0.5, rel=0.03)


def test_channels_are_averaged() -> None:
    stereo = np.stack([tone(0.5), np.zeros(8000, np.float32)], axis=1)

    samples = load_prompt_audio(encoded(stereo, subtype="FLOAT"))

    np.testing.assert_allclose(samples, tone(0.5) / 2, atol=1e-6)


def with_nan() -> FloatArray:
    samples = tone(1.0)
    samples[7] = np.nan
    return samples


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(PNG, "can't be read", id="png"),
        pytest.param(encoded(tone(1.0))[:20], "truncated", id="wav cut in its header"),
        pytest.param(encoded(tone(1.0))[:44], "truncated", id="wav cut after its header"),
        pytest.param(encoded(tone(1.0))[:9000], "truncated", id="wav cut in its samples"),
        pytest.param(encoded(noise(1.0), kind="FLAC")[:9000], "truncated|can't be read", id="flac cut"),
        pytest.param(encoded(tone(0.0)), "no samples", id="wav without samples"),
        pytest.param(encoded(with_nan(), subtype="FLOAT"), "1 of the prompt's 16000 samples are NaN", id="nan"),
        pytest.param(encoded(tone(18.5)), "18.50 s long, expected at most 18 s", id="18.5 s"),
        pytest.param(encoded(tone(1.0, 1000), 1000), "sample rate is 1000 Hz", id="1 kHz"),
        pytest.param(encoded(np.zeros((8000, 9), np.float32)), "9 channels", id="nine channels"),
        pytest.param(bytes(MAX_FILE_BYTES + 1), "expected at most", id="too many bytes"),
    ],
)
def test_bad_file_is_refused_with_its_reason(data: bytes, message: str) -> None:
    with pytest.raises(InvalidPromptError, match=message) as refusal:
        load_prompt_audio(data)
    assert "object at 0x" not in str(refusal.value)


def test_ten_minutes_are_refused_by_the_header_without_decoding() -> None:
    data = encoded(np.zeros(600 * 16_000, np.float32), kind="FLAC")
    tracemalloc.start()

    with pytest.raises(InvalidPromptError, match=r"600\.00 s long"):
        load_prompt_audio(data)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000  # decoded, it would be 38 MB


def test_a_wav_of_undeclared_length_is_read_to_its_end() -> None:
    data = bytearray(encoded(tone(1.0)))
    data[4:8] = data[40:44] = struct.pack("<I", 0xFFFF_FFFF)

    assert len(load_prompt_audio(bytes(data))) == 16_000


@pytest.mark.parametrize("samples", [1, 17, 4096, 4097, 70_000])
@pytest.mark.parametrize("rate_hz", [16_000, 22_050])
def test_a_flac_file_of_undeclared_length_is_read_to_its_end(samples: int, rate_hz: int) -> None:
    whole = encoded(noise(5.0)[:samples], rate_hz, kind="FLAC")
    streamed = whole[:21] + bytes([whole[21] & 0xF0, 0, 0, 0, 0]) + whole[26:]

    np.testing.assert_array_equal(load_prompt_audio(streamed), load_prompt_audio(whole))
    for cut in (streamed[:42], streamed[:-1]):
        with pytest.raises(InvalidPromptError, match=r"can't be read|no samples"):
            load_prompt_audio(cut)


def test_channels_that_cancel_each_other_out_are_not_averaged() -> None:
    stereo = np.stack([tone(0.5), -0.9 * tone(0.5)], axis=1)

    np.testing.assert_allclose(load_prompt_audio(encoded(stereo, subtype="FLOAT")), tone(0.5), atol=1e-6)


@pytest.mark.parametrize(
    ("before_s", "within_s", "behind_s", "seconds"),
    [
        pytest.param(0.7, 0.7, 0.7, 4.1, id="short ones stay"),
        pytest.param(3.0, 0.0, 0.0, 2.3, id="before"),
        pytest.param(0.0, 0.0, 5.01, 2.3, id="behind"),
        pytest.param(0.0, 4.0, 0.0, 2.6, id="within"),
        pytest.param(1.0, 2.0, 3.0, 3.2, id="everywhere"),
    ],
)
@pytest.mark.parametrize("level", [0.0, 1e-3], ids=["digital", "-60 dB"])
def test_long_silences_of_a_prompt_are_shortened(
    before_s: float, within_s: float, behind_s: float, seconds: float, level: float
) -> None:
    speech, lengths = tone(1.0), [round(each * 16_000) for each in (before_s, within_s, behind_s)]
    before, within, behind = (np.zeros(length, np.float32) for length in lengths)
    samples = np.concatenate([before, speech, within, speech, behind])
    samples += level * noise(len(samples) / 16_000) * 10

    spoken = without_long_silence(samples)

    assert len(spoken) / 16_000 == pytest.approx(seconds, abs=0.05)
    assert np.square(spoken).sum() == pytest.approx(np.square(samples).sum(), rel=1e-3)
    np.testing.assert_array_equal(without_long_silence(spoken), spoken)


@pytest.mark.parametrize("samples", [tone(0.12), tone(18.0), tone(3.0) * 0.01], ids=["120 ms", "18 s", "quiet"])
def test_prompt_at_the_limits_is_accepted(samples: FloatArray) -> None:
    validate_prompt(samples)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        pytest.param(tone(0.02), "20 ms long, expected at least 120 ms", id="20 ms"),
        pytest.param(tone(0.12)[:-1], "expected at least 120 ms", id="one sample short"),
        pytest.param(tone(0.0), "0 ms long", id="empty"),
        pytest.param(np.append(tone(18.0), np.float32(0)), "expected at most 18 s", id="one sample long"),
        pytest.param(np.tile(tone(1.0), 600), "600.00 s long", id="ten minutes"),
        pytest.param(np.zeros(16_000, np.float32), "silent", id="silent"),
        pytest.param(np.full(16_000, 0.5, np.float32), "silent", id="constant"),
        pytest.param(tone(1.0) * 32768, "divide 16-bit samples by 32768", id="not scaled"),
        pytest.param(with_nan(), "NaN or infinite", id="nan"),
        pytest.param(tone(1.0)[None], "expected .N. mono", id="two axes"),
    ],
)
def test_unusable_prompt_is_refused_with_its_reason(samples: FloatArray, message: str) -> None:
    with pytest.raises(InvalidPromptError, match=message):
        validate_prompt(samples)
