"""What can be asked for."""

from __future__ import annotations

import pytest

from gateway.audio import AudioFormat, OutputFormat
from gateway.errors import UnsupportedOptionError


@pytest.mark.parametrize("audio_format", AudioFormat)
@pytest.mark.parametrize("rate_hz", [0, -1, 7999, 48001, 192_000])
def test_rates_outside_8_to_48_khz_are_refused(audio_format: AudioFormat, rate_hz: int) -> None:
    with pytest.raises(UnsupportedOptionError, match=rf"got a sample rate of {rate_hz} Hz.*supported are 8000") as info:
        OutputFormat(audio_format, rate_hz)

    assert info.value.param == "sample_rate_hz"


@pytest.mark.parametrize("audio_format", [AudioFormat.MP3, AudioFormat.AAC])
def test_an_mpeg_codec_has_only_mpeg_rates_and_lists_them(audio_format: AudioFormat) -> None:
    with pytest.raises(UnsupportedOptionError, match="8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000"):
        OutputFormat(audio_format, 10_000)


@pytest.mark.parametrize(
    ("asked_hz", "codec_hz"),
    [(8000, 8000), (8001, 12000), (22050, 24000), (24000, 24000), (44100, 48000), (48000, 48000)],
)
def test_opus_works_at_its_next_rate_up(asked_hz: int, codec_hz: int) -> None:
    assert OutputFormat(AudioFormat.OPUS, asked_hz).codec_rate_hz == codec_hz


@pytest.mark.parametrize(
    ("output", "bit_rate_kbps", "listed"),
    [
        pytest.param(AudioFormat.MP3, 320, "8, 16.* 160", id="mp3 below 32 kHz"),
        pytest.param(AudioFormat.MP3, 65, "64, 80", id="between two of mp3"),
        pytest.param(AudioFormat.OPUS, 257, "6 to 256", id="opus"),
        pytest.param(AudioFormat.AAC, 145, "8 to 144", id="aac"),
        pytest.param(AudioFormat.PCM, 64, "takes no bit rate", id="pcm"),
        pytest.param(AudioFormat.FLAC, 64, "takes no bit rate", id="flac"),
    ],
)
def test_a_bit_rate_that_the_codec_lacks_is_refused(output: AudioFormat, bit_rate_kbps: int, listed: str) -> None:
    with pytest.raises(UnsupportedOptionError, match=f"got {bit_rate_kbps} kbit/s .*{listed}") as info:
        OutputFormat(output, 24_000, bit_rate_kbps)

    assert info.value.param == "bit_rate_kbps"


def test_each_format_has_a_media_type_of_its_own_that_is_audio() -> None:
    media_types = {audio_format.media_type for audio_format in AudioFormat}

    assert len(media_types) == len(AudioFormat)
    assert all(media_type.startswith("audio/") for media_type in media_types)
