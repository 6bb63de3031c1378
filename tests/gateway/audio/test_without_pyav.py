"""What works without the `audio` extra, and what is said about the rest."""

from __future__ import annotations

import logging
import sys

import pytest

from gateway.audio import AudioFormat, OutputFormat, encode_whole, load_codecs, open_encoder
from gateway.audio.pcm import to_pcm16
from gateway.errors import UnsupportedOptionError
from tests.gateway.audio.signals import speech_like

PLAIN_FORMATS = {AudioFormat.WAV, AudioFormat.PCM, AudioFormat.MULAW, AudioFormat.ALAW}


@pytest.fixture
def no_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gateway.audio.compressed", "gateway.audio.tempo"):
        monkeypatch.delitem(sys.modules, module, raising=False)
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
        open_encoder(OutputFormat(audio_format))


@pytest.mark.usefixtures("no_pyav")
def test_other_speeds_are_refused_with_what_to_install() -> None:
    with pytest.raises(UnsupportedOptionError, match=r"speed 1.5 needs PyAV: install the package's extra `audio`"):
        open_encoder(OutputFormat(AudioFormat.PCM), 1.5)

    assert encode_whole(speech_like(100), OutputFormat(AudioFormat.PCM), 1.0) == to_pcm16(speech_like(100))


@pytest.mark.usefixtures("no_pyav")
def test_at_start_up_the_log_says_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert load_codecs() == PLAIN_FORMATS

    assert "[audio]'" in caplog.text


def test_with_pyav_there_is_every_format(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("av", reason="the audio extra is not installed")

    assert load_codecs() == set(AudioFormat)
    assert not caplog.records
