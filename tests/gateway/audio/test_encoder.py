"""What holds for every format, and the formats that lose nothing or little."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.audio import AudioEncoder, AudioFormat, OutputFormat, encode_whole
from gateway.audio.codecs import to_pcm16, wav_header
from gateway.audio.encoder import Resampler
from gateway.errors import UnsupportedOptionError
from tests.gateway.audio.signals import cut, encoded, piece_lengths, snr_db, speech_like

pytest.importorskip("av", reason="the audio extra is not installed")
from tests.gateway.audio.signals import decoded

PCM = OutputFormat(AudioFormat.PCM)
ALL_FORMATS = [pytest.param(audio_format, id=audio_format.value) for audio_format in AudioFormat]
# To the nearest 16-bit step, or of G.711's steps, which grow with the amplitude.
EXACT_FORMATS = [
    (AudioFormat.WAV, 70),
    (AudioFormat.PCM, 70),
    (AudioFormat.FLAC, 70),
    (AudioFormat.MULAW, 35),
    (AudioFormat.ALAW, 35),
]


def assert_same(data: bytes, expected: bytes, audio_format: AudioFormat) -> None:
    """Compare bytes; every Ogg stream has a number of its own in them, so that Opus is compared by its samples."""
    if audio_format is AudioFormat.OPUS:
        assert len(data) == len(expected)
        np.testing.assert_array_equal(decoded(data, audio_format, 0)[0], decoded(expected, audio_format, 0)[0])
    else:
        assert data == expected


def test_pcm_at_24_khz_is_the_samples_bit_for_bit() -> None:
    samples = np.random.default_rng(0).uniform(-1.2, 1.2, 5000).astype(np.float32)

    assert encoded(AudioEncoder(PCM), cut(samples, [7, 0, 1000])) == to_pcm16(samples)


def test_a_streamed_wav_starts_with_its_header_at_once() -> None:
    with AudioEncoder(OutputFormat(AudioFormat.WAV, 16_000)) as encoder:
        assert encoder.encode(np.zeros(0, np.float32)) == wav_header(16_000)


@pytest.mark.parametrize("samples", [0, 1, 5000])
@pytest.mark.parametrize("rate_hz", [8000, 24_000, 48_000])
def test_a_whole_wav_tells_its_true_length(samples: int, rate_hz: int) -> None:
    wav = encode_whole(speech_like(samples), OutputFormat(AudioFormat.WAV, rate_hz))

    with wave.open(io.BytesIO(wav)) as reader:
        assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (rate_hz, 1, 2)
        assert reader.getnframes() == pytest.approx(samples * rate_hz / 24_000, abs=0.5)
        assert len(reader.readframes(reader.getnframes() + 1)) == 2 * reader.getnframes()
    assert int.from_bytes(wav[4:8], "little") == len(wav) - 8


@pytest.mark.parametrize("rate_hz", [8000, 16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize(("audio_format", "least_snr_db"), EXACT_FORMATS)
def test_lossless_and_telephone_formats_decode_to_the_input(
    audio_format: AudioFormat, least_snr_db: float, rate_hz: int
) -> None:
    samples = speech_like(12_000)
    resampler = Resampler(rate_hz)
    wanted = np.concatenate([resampler.push(samples), resampler.finish()]) if rate_hz != 24_000 else samples

    data = encoded(AudioEncoder(OutputFormat(audio_format, rate_hz)), cut(samples, [100, 5000]))

    got, got_rate_hz = decoded(data, audio_format, rate_hz)
    assert got_rate_hz == rate_hz
    assert len(got) == len(wanted)
    assert snr_db(got, wanted) > least_snr_db


@settings(max_examples=30, deadline=None)
@given(
    piece_lengths, st.sampled_from(AudioFormat), st.sampled_from([8000, 24_000, 44_100]), st.sampled_from([1.0, 1.3])
)
def test_how_the_samples_are_cut_does_not_matter(
    lengths: list[int], audio_format: AudioFormat, rate_hz: int, speed: float
) -> None:
    samples, output = speech_like(9000), OutputFormat(audio_format, rate_hz)

    in_pieces = encoded(AudioEncoder(output, speed), cut(samples, lengths))
    in_one = encoded(AudioEncoder(output, speed), [samples])

    assert_same(in_pieces, in_one, audio_format)


@pytest.mark.parametrize("audio_format", ALL_FORMATS)
@pytest.mark.parametrize("pieces", [pytest.param(0, id="no piece"), pytest.param(2, id="two without samples")])
def test_no_samples_give_a_valid_file_without_speech(audio_format: AudioFormat, pieces: int) -> None:
    data = encoded(AudioEncoder(OutputFormat(audio_format)), [np.zeros(0, np.float32)] * pieces)

    if data:
        got, rate_hz = decoded(data, audio_format, 24_000)
        assert len(got) < 0.1 * rate_hz
        assert np.abs(got).max(initial=0) < 1e-3
    else:
        assert audio_format in (AudioFormat.PCM, AudioFormat.MULAW, AudioFormat.ALAW), "the others have headers"


@pytest.mark.parametrize("audio_format", ALL_FORMATS)
def test_too_loud_samples_are_clipped(audio_format: AudioFormat) -> None:
    too_loud = 4 * speech_like(12_000)

    data = encode_whole(too_loud, OutputFormat(audio_format))

    assert_same(data, encode_whole(np.clip(too_loud, -1, 1), OutputFormat(audio_format)), audio_format)


@pytest.mark.parametrize("audio_format", ALL_FORMATS)
def test_after_its_end_an_encoder_takes_nothing(audio_format: AudioFormat) -> None:
    encoder = AudioEncoder(OutputFormat(audio_format))
    encoder.encode(speech_like(100))
    encoder.finish()
    encoder.close()

    with pytest.raises(ValueError, match="finished or closed"):
        encoder.encode(speech_like(100))
    with pytest.raises(ValueError, match="finished or closed"):
        encoder.finish()


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.0, 1.7, 4.0])
def test_the_speed_comes_before_the_sample_rate(speed: float) -> None:
    data = encode_whole(speech_like(24_000), OutputFormat(AudioFormat.PCM, 16_000), speed)

    assert len(data) // 2 == pytest.approx(16_000 / speed, rel=0.001)


@pytest.mark.parametrize("speed", [0.0, 0.24, 4.01, -1.0, float("nan"), float("inf")])
def test_other_speeds_are_refused(speed: float) -> None:
    with pytest.raises(UnsupportedOptionError, match=r"expected 0.25 to 4.0") as info:
        AudioEncoder(PCM, speed)

    assert info.value.param == "speed"


def test_only_cheap_encoders_call_themselves_light() -> None:
    light = {AudioFormat.WAV, AudioFormat.PCM, AudioFormat.MULAW, AudioFormat.ALAW}

    for audio_format in AudioFormat:
        assert AudioEncoder(OutputFormat(audio_format, 8000)).is_light == (audio_format in light)
        assert not AudioEncoder(OutputFormat(audio_format), 1.5).is_light
