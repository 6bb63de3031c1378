"""What the fields of an OpenAI speech request mean."""

from __future__ import annotations

import base64
import json
import logging

import pytest

from gateway.audio import AudioFormat
from gateway.core import InlineVoice
from gateway.dialects.openai.request import OpenAISpeech, SpeechBody, StreamFormat, default_format, read_request
from gateway.errors import InvalidRequestError
from gateway.text import Normalization
from gateway.text.styles import Style


def wanted_of(default: AudioFormat = AudioFormat.MP3, **fields: object) -> OpenAISpeech:
    body = {"model": "m", "input": "hello", "voice": "anna", **fields}
    return read_request(json.dumps(body).encode(), default, "id-1")


def test_the_official_clients_bare_request_has_openais_defaults() -> None:
    wanted = wanted_of()

    assert (wanted.output.audio_format, wanted.speed, wanted.stream_format) == (
        AudioFormat.MP3,
        1.0,
        StreamFormat.AUDIO,
    )
    assert (wanted.speech.voice, wanted.speech.request_id, wanted.ignored_fields) == ("anna", "id-1", ())
    assert wanted.speech.text_options.normalization is Normalization.ON


def test_times_are_found_out_only_where_they_are_asked_for() -> None:
    assert not wanted_of().speech.wants_times
    assert wanted_of(stream_format="sse", word_timestamps=True).speech.wants_times


def test_a_body_needs_nothing_but_its_text() -> None:
    for body in ({"input": "hello"}, {"input": "hello", "model": None, "voice": None}):
        assert read_request(json.dumps(body).encode(), AudioFormat.MP3, "id-1").speech.voice == "default"


def test_a_recording_that_comes_along_is_the_voice() -> None:
    recording = base64.b64encode(b"RIFF-mine").decode()

    for ref_audio in (recording, f"data:audio/wav;base64,{recording}"):
        wanted = wanted_of(ref_audio=ref_audio, ref_text=" I am new. ")
        assert (wanted.speech.voice, wanted.ignored_fields) == (InlineVoice(b"RIFF-mine", "I am new."), ())
    timbre = wanted_of(ref_audio=recording, ref_text="I am new.", x_vector_only_mode=True)
    assert timbre.speech.voice == InlineVoice(b"RIFF-mine", "")
    for refused in ("https://example.com/me.wav", "not base64!", ""):
        with pytest.raises(InvalidRequestError, match=r"ref_audio|empty"):
            wanted_of(ref_audio=refused)


def test_null_means_left_out() -> None:
    optional = set(SpeechBody.model_fields) - {"input", "model", "voice"}
    given, bare = wanted_of(**dict.fromkeys(optional)), wanted_of()

    assert (given.output, given.speed, given.stream_format) == (bare.output, bare.speed, bare.stream_format)
    assert given.speech.priority == bare.speech.priority
    assert given.ignored_fields == ()


def test_the_text_front_end_obeys_language_and_normalize() -> None:
    options = wanted_of(language="zh-CN", normalize=False).speech.text_options

    assert (options.language, options.normalization) == ("zh-CN", Normalization.OFF)


def test_a_voice_may_be_an_object() -> None:
    assert wanted_of(voice={"id": "voice_1234"}).speech.voice == "voice_1234"


def test_fields_without_effect_are_named() -> None:
    wanted = wanted_of(instructions="Whisper.", x_seed=1, extra={"a": [1]})

    assert wanted.ignored_fields == ("x_seed", "extra")
    assert wanted.speech.text_options.style == Style("Whisper.", "instructions")


def test_names_that_no_header_can_carry_are_left_out() -> None:
    fields: dict[str, object] = {"a\r\nset-cookie: b": 1, "é": 2, "": 3, "x" * 65: 4, **{f"f{i}": i for i in range(30)}}

    assert wanted_of(**fields).ignored_fields == tuple(f"f{i}" for i in range(20))


def test_a_wrong_field_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="voice") as caught:
        wanted_of(voice=5)
    assert caught.value.param == "voice"


def test_without_an_mp3_encoder_the_default_is_wav_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert default_format({AudioFormat.WAV, AudioFormat.MP3}) is AudioFormat.MP3
        assert not caplog.records
        assert default_format({AudioFormat.WAV}) is AudioFormat.WAV
    assert "response_format" in caplog.text
