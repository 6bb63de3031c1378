"""What can be asked for, and the names that each dialect has for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audio import AudioFormat, OutputFormat, parse_elevenlabs_format, parse_openai_format, parse_riva_format
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


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_openai_has_six_formats_at_24_khz(name: str) -> None:
    assert parse_openai_format(name) == OutputFormat(AudioFormat(name), 24_000)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, AudioFormat.MULAW) for name in ("mulaw", "pcm_mulaw", "ulaw", "g711_ulaw")),
        *((name, AudioFormat.ALAW) for name in ("alaw", "pcm_alaw", "g711_alaw")),
    ],
)
def test_telephone_formats_have_8_khz_unless_another_rate_is_named(name: str, expected: AudioFormat) -> None:
    assert parse_openai_format(name) == OutputFormat(expected, 8000)
    assert parse_openai_format(name, 16_000) == OutputFormat(expected, 16_000)


@pytest.mark.parametrize(
    ("name", "rate_hz", "listed"),
    [("pcm", 7999, "8000 to 48000"), ("mulaw", 0, "8000 to 48000"), ("mp3", 8001, "8000, 11025"), ("wav", -1, "8000")],
)
def test_a_sample_rate_that_cant_be_is_refused_with_those_there_are(name: str, rate_hz: int, listed: str) -> None:
    with pytest.raises(UnsupportedOptionError, match=f"{rate_hz} Hz for {name}, supported are {listed}") as info:
        parse_openai_format(name, rate_hz)
    assert info.value.param == "sample_rate"


@pytest.mark.parametrize("name", ["ogg", "MP3", "", "mulaw_8000", "mp3_44100_128", "wav\n"])
def test_other_openai_names_are_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UnsupportedOptionError, match="supported are mp3, opus, aac, flac, wav, pcm, mulaw") as info:
        parse_openai_format(name)

    assert info.value.param == "response_format"
    assert repr(name) in str(info.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mp3_22050_32", OutputFormat(AudioFormat.MP3, 22_050, 32)),
        ("mp3_44100_128", OutputFormat(AudioFormat.MP3, 44_100, 128)),
        ("mp3_44100_192", OutputFormat(AudioFormat.MP3, 44_100, 192)),
        ("pcm_16000", OutputFormat(AudioFormat.PCM, 16_000)),
        ("pcm_24000", OutputFormat(AudioFormat.PCM, 24_000)),
        ("wav_48000", OutputFormat(AudioFormat.WAV, 48_000)),
        ("ulaw_8000", OutputFormat(AudioFormat.MULAW, 8_000)),
        ("alaw_8000", OutputFormat(AudioFormat.ALAW, 8_000)),
        ("opus_48000_64", OutputFormat(AudioFormat.OPUS, 48_000, 64)),
    ],
)
def test_elevenlabs_names_tell_codec_rate_and_bit_rate(name: str, expected: OutputFormat) -> None:
    assert parse_elevenlabs_format(name) == expected


@pytest.mark.parametrize(
    "name", ["", "mp3", "mp3_44100", "pcm_16000_32", "ogg_24000", "pcm_16000\n", "PCM_16000", "pcm_١٦٠٠٠", "pcm_-8000"]
)
def test_names_of_another_form_are_refused_with_the_forms_there_are(name: str) -> None:
    with pytest.raises(UnsupportedOptionError, match=r"supported are pcm_RATE, .*mp3_RATE_KBPS") as info:
        parse_elevenlabs_format(name)

    assert info.value.param == "output_format"


@pytest.mark.parametrize(
    ("name", "listed"), [("mp3_44100_1", "32, 40"), ("mp3_9999_32", "8000, 11025"), ("pcm_7000", "8000 to")]
)
def test_a_rate_that_the_codec_lacks_is_refused_with_those_it_has(name: str, listed: str) -> None:
    with pytest.raises(UnsupportedOptionError, match=f"output_format '{name}': .*supported are {listed}") as info:
        parse_elevenlabs_format(name)

    assert info.value.param == "output_format"


@pytest.mark.parametrize(
    ("encoding", "audio_format"),
    [
        ("LINEAR_PCM", AudioFormat.PCM),
        ("FLAC", AudioFormat.FLAC),
        ("MULAW", AudioFormat.MULAW),
        ("OGGOPUS", AudioFormat.OPUS),
        ("ALAW", AudioFormat.ALAW),
    ],
)
@pytest.mark.parametrize("rate_hz", [8000, 16000, 22050, 44100])
def test_riva_has_five_encodings_at_any_rate(encoding: str, audio_format: AudioFormat, rate_hz: int) -> None:
    assert parse_riva_format(encoding, rate_hz) == OutputFormat(audio_format, rate_hz)


def test_an_unknown_riva_encoding_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnsupportedOptionError, match="supported are LINEAR_PCM, FLAC, MULAW, OGGOPUS, ALAW"):
        parse_riva_format("ENCODING_UNSPECIFIED", 24_000)


@pytest.mark.slow
@given(st.one_of(st.text(max_size=30), st.from_regex(r"[a-z0-9]{1,5}_[0-9]{1,6}(_[0-9]{1,4})?", fullmatch=True)))
def test_any_name_is_either_understood_or_refused(name: str) -> None:
    for parse in (parse_openai_format, parse_elevenlabs_format):
        try:
            output = parse(name)
        except UnsupportedOptionError as error:
            assert "supported are" in str(error) or "takes no bit rate" in str(error)
        else:
            assert isinstance(output, OutputFormat)
