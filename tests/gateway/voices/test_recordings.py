"""Recordings that token2wav does not read itself: what becomes of them, and what is said of those that nobody can."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from riva.proto import riva_tts_pb2

from gateway.core import InlineVoice
from gateway.errors import InvalidVoicePromptError, UnsupportedOptionError, VoiceStoreError
from gateway.voices import decoder
from gateway.voices.recordings import container_of, readable
from gateway.voices.registry import NamedVoice, VoiceRegistry
from tests.gateway.audio.signals import best_lag, speech_like
from tests.gateway.dialects.http.test_voices import voice_door
from tests.gateway.doors.grpc_door import opened_grpc
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.gateway.voices.fakes import FakeVoiceMaker, draft, make_store
from token2wav_service.features.audio import load_prompt_audio

pytest.importorskip("av", reason="the audio extra is not installed")
from tests.gateway.voices.recorded import FORMATS, RATE_HZ, matroska, recording, silent_film

pytestmark = pytest.mark.slow  # each starts a decoder

ADDRESS = "object at 0x"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("channels", [1, 2])
async def test_a_recording_becomes_a_wav_file_of_the_same_sound(name: str, channels: int) -> None:
    samples, rate_hz = soundfile.read(io.BytesIO(await readable(recording(name, 2.0, channels))), dtype="float32")
    assert (samples.ndim, rate_hz) == (channels, RATE_HZ)
    assert len(samples) / rate_hz == pytest.approx(2.0, abs=0.15)
    assert best_lag(samples.reshape(len(samples), -1)[::2, 0].copy(), speech_like(24_000), 4000)[1] > 0.9


async def test_channels_that_cancel_each_other_out_are_not_mixed_down_to_silence() -> None:
    samples = load_prompt_audio(await readable(recording("webm", 2.0, -2)))
    assert float(np.square(samples).mean()) > 0.5 * float(np.square(speech_like(48_000)).mean())


@pytest.mark.parametrize("audio", [b"", b"RIFF....WAVE", b"fLaC", b"OggS", b"ID3", b"\xff\xfb\x90", b"not audio"])
async def test_what_token2wav_reads_or_refuses_itself_goes_there_as_it_is(audio: bytes) -> None:
    assert container_of(audio) is None
    assert await readable(audio) is audio


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        pytest.param(recording("m4a")[:5000], "MPEG-4 .* recording can't be read", id="m4a cut"),
        pytest.param(recording("webm")[:40], "WebM recording can't be read|holds no", id="webm cut"),
        pytest.param(recording("webm")[:9000], "truncated: .* of 2.0 s are there|can't be read", id="webm cut late"),
        pytest.param(b"\x00\x00\x00\x20ftypM4A " + b"x" * 500, "MPEG-4 .* can't be read", id="m4a garbage"),
        pytest.param(b"\x1a\x45\xdf\xa3" + b"x" * 500, "WebM recording can't be read", id="webm garbage"),
        pytest.param(silent_film(), "holds no sound", id="pictures only"),
        pytest.param(recording("m4a", 19.0), "longer than 18 s; cut it", id="too long"),
        pytest.param(matroska(rate_hz=2e9), "1 channels at 2000000000 Hz, expected", id="rate"),
        pytest.param(matroska(channels=64), "64 channels at 48000 Hz, expected", id="channels"),
    ],
)
async def test_a_recording_that_cant_be_used_is_refused_with_the_reason(audio: bytes, message: str) -> None:
    with pytest.raises(InvalidVoicePromptError, match=message) as refusal:
        await readable(audio)
    assert ADDRESS not in str(refusal.value)


@pytest.mark.parametrize(
    ("limits", "signal"),
    [
        ("decoder._DATA_BYTES = 1 << 20", "exit status 1"),
        ("decoder._CPU_S = 1; decoder.decoded = lambda *given: any(iter(int, 1))", "died with"),
    ],
    ids=["memory", "time"],
)
async def test_a_recording_that_takes_too_much_is_refused_and_its_process_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limits: str, signal: str
) -> None:
    script = tmp_path / "decoder.py"
    path = f"import sys; sys.path.insert(0, {str(Path(decoder.__file__).parent)!r})"
    script.write_text(f"{path}; import decoder; {limits}; sys.exit(decoder.main())")
    monkeypatch.setattr(decoder, "__file__", str(script))
    with pytest.raises(InvalidVoicePromptError, match="too much memory or time"):
        await readable(recording("webm"))
    assert signal in caplog.text


async def test_a_machine_that_cant_start_a_process_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(VoiceStoreError, match="no process can be started"):
        await readable(recording("webm"))


async def test_without_pyav_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    audio = recording("m4a")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(
        UnsupportedOptionError, match=r"MPEG-4 \(m4a\), which needs PyAV: the server lacks the extra `audio`"
    ):
        await readable(audio)


async def test_a_created_voice_keeps_what_token2wav_can_read_again(tmp_path: Path) -> None:
    maker = FakeVoiceMaker()
    audio = recording("m4a")
    voice, _ = await make_store(tmp_path, maker).create(draft(audio=audio))
    assert [sent[:4] for sent in maker.registrations] == [b"RIFF"]
    assert voice.audio_bytes == len(audio), "as it was uploaded"
    newer = FakeVoiceMaker(model="model-2")
    await make_store(tmp_path, newer).load(voice)
    assert newer.registrations == maker.registrations


async def test_a_voice_of_one_request_may_be_a_telephones_recording() -> None:
    token2wav = FakeToken2Wav()
    await VoiceRegistry(token2wav).resolve(InlineVoice(recording("webm"), ""))
    assert [sent[:4] for sent in token2wav.registrations] == [b"RIFF"]


async def test_rivas_prompt_may_be_one_too(voices: list[NamedVoice]) -> None:
    zero_shot = riva_tts_pb2.ZeroShotData(audio_prompt=recording("m4a"), quality=20)
    request = riva_tts_pb2.SynthesizeSpeechRequest(text="Hello.", zero_shot_data=zero_shot)
    token2wav = FakeToken2Wav()
    async with opened_grpc(FakeLLM(speech_deltas(20)), token2wav, voices) as door:
        assert (await door.riva.Synthesize(request)).audio
    assert [sent[:4] for sent in token2wav.registrations] == [b"RIFF"]


@pytest.mark.parametrize("name", ["m4a", "webm"])
async def test_an_uploaded_recording_is_spoken_in(tmp_path: Path, voices: list[NamedVoice], name: str) -> None:
    files = {"audio_sample": (f"me.{name}", recording(name, 1.0), f"audio/{name}")}
    async with voice_door(tmp_path, voices) as door:
        made = await door.http.post("/v1/audio/voices", data={"name": "eva", "consent": "yes"}, files=files)
        damaged = {"audio_sample": (f"me.{name}", files["audio_sample"][1][:300], f"audio/{name}")}
        refused = await door.http.post("/v1/audio/voices", data={"name": "bob", "consent": "yes"}, files=damaged)
        spoken = await door.speak(voice="eva")
    assert (made.status_code, spoken.status_code) == (200, 200)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_voice_prompt")
    assert ADDRESS not in refused.text


def test_recordings_are_told_apart_by_their_first_bytes() -> None:
    found = {name: container_of(recording(name, 0.5)) for name in FORMATS}
    assert {name: each.demuxer for name, each in found.items() if each} == {
        "m4a": "mov",
        "webm": "matroska",
        "aac": "aac",
    }
