"""MP3, Opus, AAC, FLAC: what comes out, how soon, what stays behind, and what is said without PyAV."""

from __future__ import annotations

import gc
import logging
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from gateway.audio import AudioEncoder, AudioFormat, OutputFormat, encode_whole, load_codecs
from gateway.audio.codecs import to_pcm16
from gateway.errors import UnsupportedOptionError
from servicekit.process import resident_bytes
from tests.gateway.audio.signals import best_lag, cut, encoded, hard_to_encode, speech_like

pytest.importorskip("av", reason="the audio extra is not installed")
from gateway.audio.ffmpeg import CODEC_SETTINGS
from tests.gateway.audio.signals import decoded, decoded_elsewhere

OPUS_PLAYER_RATE_HZ = 48_000
MAX_CODEC_DELAY_SAMPLES = 1300
# How much longer than the input a file may be that can't tell its length: the codec's delay and a part of a frame.
MAX_EXTRA_SAMPLES = 3 * 1152


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 44_100])
@pytest.mark.parametrize("audio_format", [AudioFormat.MP3, AudioFormat.AAC])
def test_mp3_and_aac_decode_to_the_input_after_their_delay(audio_format: AudioFormat, rate_hz: int) -> None:
    samples = speech_like(24_000)
    wanted, _ = decoded(encode_whole(samples, OutputFormat(AudioFormat.PCM, rate_hz)), AudioFormat.PCM, rate_hz)

    data = encoded(AudioEncoder(OutputFormat(audio_format, rate_hz)), cut(samples, [14_400]))

    got, got_rate_hz = decoded(data, audio_format, rate_hz)
    assert got_rate_hz == rate_hz
    assert len(wanted) <= len(got) <= len(wanted) + MAX_EXTRA_SAMPLES
    assert best_lag(got, wanted, MAX_CODEC_DELAY_SAMPLES)[1] > 0.995


@pytest.mark.parametrize("rate_hz", [8000, 16_000, 22_050, 24_000, 48_000])
def test_opus_decodes_to_the_input_with_its_delay_cut_off(rate_hz: int) -> None:
    samples = speech_like(24_000)
    wanted_data = encode_whole(samples, OutputFormat(AudioFormat.PCM, OPUS_PLAYER_RATE_HZ))
    wanted, _ = decoded(wanted_data, AudioFormat.PCM, OPUS_PLAYER_RATE_HZ)

    data = encoded(AudioEncoder(OutputFormat(AudioFormat.OPUS, rate_hz)), cut(samples, [14_400]))

    got, got_rate_hz = decoded(data, AudioFormat.OPUS, rate_hz)
    assert (got_rate_hz, len(got)) == (OPUS_PLAYER_RATE_HZ, len(wanted))
    lag, correlation = best_lag(got, wanted, 20)
    assert lag <= 2
    assert correlation > 0.99


@pytest.mark.parametrize("rate_hz", [8000, 11_025, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("audio_format", [AudioFormat.FLAC, AudioFormat.OPUS, AudioFormat.MP3])
def test_a_decoder_of_another_library_reads_every_sample(audio_format: AudioFormat, rate_hz: int) -> None:
    output = OutputFormat(audio_format, rate_hz)
    for name, samples in hard_to_encode(30_000).items():
        pcm = encode_whole(samples, OutputFormat(AudioFormat.PCM, output.codec_rate_hz))
        wanted, _ = decoded(pcm, AudioFormat.PCM, rate_hz)

        got, got_rate_hz = decoded_elsewhere(encoded(AudioEncoder(output), cut(samples, [14, 5000])), len(wanted))

        assert got_rate_hz == output.codec_rate_hz, name
        if audio_format is AudioFormat.FLAC:
            np.testing.assert_array_equal(got, wanted, name)
        else:
            assert len(wanted) <= len(got) <= len(wanted) + MAX_EXTRA_SAMPLES, name


@pytest.mark.parametrize(
    ("output", "kbps"),
    [
        pytest.param(OutputFormat(AudioFormat.MP3, 22_050, 32), 32, id="mp3_22050_32"),
        pytest.param(OutputFormat(AudioFormat.MP3, 44_100, 128), 128, id="mp3_44100_128"),
        pytest.param(OutputFormat(AudioFormat.AAC, 24_000, 48), 48, id="aac at 48"),
    ],
)
def test_the_bit_rate_is_the_one_asked_for(output: OutputFormat, kbps: int) -> None:
    data = encode_whole(speech_like(48_000), output)

    assert len(data) * 8 / 2 / 1000 == pytest.approx(kbps, rel=0.08)


def test_more_bits_for_opus_make_a_larger_file() -> None:
    sizes = [len(encode_whole(speech_like(24_000), OutputFormat(AudioFormat.OPUS, 48_000, kbps))) for kbps in (32, 96)]

    assert sizes[1] > 1.5 * sizes[0]


@pytest.mark.parametrize(
    ("audio_format", "start"), [(AudioFormat.OPUS, b"OggS"), (AudioFormat.FLAC, b"fLaC")], ids=["opus", "flac"]
)
def test_headers_leave_before_any_sample_is_there(audio_format: AudioFormat, start: bytes) -> None:
    with AudioEncoder(OutputFormat(audio_format)) as encoder:
        assert encoder.encode(np.zeros(0, np.float32)).startswith(start)


@pytest.mark.parametrize(
    ("audio_format", "most_samples"),
    [(AudioFormat.FLAC, 576), (AudioFormat.OPUS, 960), (AudioFormat.MP3, 1160), (AudioFormat.AAC, 2120)],
    ids=lambda value: getattr(value, "value", value),
)
def test_audio_leaves_as_soon_as_the_codec_can(audio_format: AudioFormat, most_samples: int) -> None:
    samples = speech_like(4800)
    with AudioEncoder(OutputFormat(audio_format)) as encoder:
        encoder.encode(samples[:0])
        taken = next(end for end in range(8, len(samples), 8) if encoder.encode(samples[end - 8 : end]))

    assert taken <= most_samples


@pytest.mark.parametrize("audio_format", CODEC_SETTINGS, ids=lambda audio_format: audio_format.value)
def test_what_has_left_so_far_can_be_played(audio_format: AudioFormat) -> None:
    with AudioEncoder(OutputFormat(audio_format)) as encoder:
        data = encoder.encode(speech_like(14_400))

    got, rate_hz = decoded(data, audio_format, 24_000)
    assert len(got) / rate_hz > 0.5


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("audio_format", CODEC_SETTINGS, ids=lambda audio_format: audio_format.value)
def test_leaving_in_the_middle_frees_the_codec_without_the_garbage_collector(audio_format: AudioFormat) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:  # NOTE: of its own, where nothing else takes memory
        grown = process.submit(_grown_by_leaving_in_the_middle, audio_format).result()
    assert grown < 100 * 10_000, "the smallest codec takes 25 kB"


def _grown_by_leaving_in_the_middle(audio_format: AudioFormat) -> int:
    def leave_in_the_middle(times: int) -> None:
        for _ in range(times):
            with pytest.raises(KeyError), AudioEncoder(OutputFormat(audio_format, 8000), 1.3) as encoder:
                encoder.encode(speech_like(2400))
                raise KeyError

    def grown() -> int:
        before = resident_bytes()
        leave_in_the_middle(100)
        return resident_bytes() - before

    gc.disable()
    leave_in_the_middle(20)
    # The allocator takes and returns up to a megabyte now and then; a codec that stays would be there every time.
    return int(statistics.median(grown() for _ in range(3)))


PLAIN_FORMATS = {AudioFormat.WAV, AudioFormat.PCM, AudioFormat.MULAW, AudioFormat.ALAW}


@pytest.fixture
def no_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gateway.audio.ffmpeg", raising=False)
    for module in [name for name in sys.modules if name.split(".")[0] == "av"] or ["av"]:
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.usefixtures("no_pyav")
@pytest.mark.parametrize("audio_format", sorted(PLAIN_FORMATS))
@pytest.mark.parametrize("rate_hz", [8000, 24_000, 44_100])
def test_plain_formats_work_at_any_rate(audio_format: AudioFormat, rate_hz: int) -> None:
    assert len(encode_whole(speech_like(2400), OutputFormat(audio_format, rate_hz))) >= rate_hz // 10


@pytest.mark.usefixtures("no_pyav")
@pytest.mark.parametrize("audio_format", sorted(set(AudioFormat) - PLAIN_FORMATS))
def test_other_formats_are_refused_with_what_to_install(audio_format: AudioFormat) -> None:
    with pytest.raises(
        UnsupportedOptionError, match=rf"{audio_format.value} needs PyAV: install the package's extra `audio`"
    ):
        AudioEncoder(OutputFormat(audio_format))


@pytest.mark.usefixtures("no_pyav")
def test_other_speeds_are_refused_with_what_to_install() -> None:
    with pytest.raises(UnsupportedOptionError, match=r"speed 1.5 needs PyAV: install the package's extra `audio`"):
        AudioEncoder(OutputFormat(AudioFormat.PCM), 1.5)

    assert encode_whole(speech_like(100), OutputFormat(AudioFormat.PCM), 1.0) == to_pcm16(speech_like(100))


@pytest.mark.usefixtures("no_pyav")
def test_at_start_up_the_log_says_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert load_codecs() == PLAIN_FORMATS

    assert "[audio]'" in caplog.text


def test_with_pyav_there_is_every_format(caplog: pytest.LogCaptureFixture) -> None:
    assert load_codecs() == set(AudioFormat)
    assert not caplog.records
