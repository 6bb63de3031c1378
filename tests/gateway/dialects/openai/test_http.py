"""The HTTP door, served by a real server over real sockets."""

from __future__ import annotations

import asyncio
import io
import logging
import struct

import httpx
import pytest
import soundfile

from gateway import errors
from gateway.dialects.json_socket import quiet_refusals
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]


async def test_wav_streams_with_an_open_length_that_players_read(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(60)), FakeToken2Wav(), voices) as door:
        response = await door.speak(seed=11)
    assert response.status_code == 200
    assert response.headers["content-type"] == "audio/wav"
    assert (response.headers["x-sample-rate"], response.headers["x-seed"]) == ("24000", "11")
    assert response.headers["transfer-encoding"] == "chunked"
    assert struct.unpack("<4sI", response.content[:8]) == (b"RIFF", 0xFFFFFFFF)
    assert struct.unpack("<4sI", response.content[36:44]) == (b"data", 0xFFFFFFFF)
    samples, rate = soundfile.read(io.BytesIO(response.content), dtype="int16")
    assert (len(samples), rate, set(samples.tolist())) == (60 * 960, 24000, {16383})


@pytest.mark.parametrize(
    ("changes", "status", "code", "word"),
    [
        pytest.param({"input": ""}, 400, "invalid_text", "empty", id="empty"),
        pytest.param({"input": "!?"}, 400, "invalid_text", "nothing to say", id="nothing to say"),
        pytest.param({"input": "x" * 100_001}, 400, "text_too_long", "100000", id="100 kB"),
        pytest.param({"input": "x" * 300_000}, 400, "text_too_long", "200000 bytes", id="huge body"),
        pytest.param({"voice": "nobody"}, 404, "voice_not_found", "'anna', 'default'", id="unknown voice"),
        pytest.param({"response_format": "ogg"}, 400, "unsupported_option", "wav, pcm", id="response_format"),
        pytest.param({"speed": 4.01}, 400, "unsupported_option", "0.25 to 4.0", id="speed"),
        pytest.param({"stream_format": "ws"}, 400, "unsupported_option", "audio, sse", id="stream_format"),
        pytest.param({"language": "plain English"}, 400, "invalid_request", "BCP 47", id="language"),
        pytest.param({"normalize": "no"}, 400, "invalid_request", "normalize", id="normalize"),
        pytest.param({"seed": -1}, 400, "invalid_request", "seed", id="seed"),
        pytest.param({"input": 5}, 400, "invalid_request", "input", id="input is no string"),
        pytest.param({"model": 5}, 400, "invalid_request", "model", id="model is no name"),
        pytest.param({"voice": ["anna"]}, 400, "invalid_request", "voice", id="voice is no name"),
    ],
)
async def test_bad_requests_get_an_openai_shaped_error(
    voices: Voices, changes: dict[str, object], status: int, code: str, word: str
) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        response = await door.speak(**changes)
    body = response.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert (response.status_code, body["code"], body["type"]) == (status, code, "invalid_request_error")
    assert word in body["message"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"input": "gr\xfcn"}', b'{"model":"m","voice":"default","input":"\\ud800"}']
)
async def test_bodies_that_are_not_proper_json_are_refused(voices: Voices, content: bytes) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        response = await door.http.post("/v1/audio/speech", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("llm_error", "open_error", "status", "code"),
    [
        pytest.param(errors.LLMUnavailableError("down"), None, 503, "llm_unavailable", id="LLM down"),
        pytest.param(errors.LLMProtocolError("garbage"), None, 502, "llm_protocol_error", id="LLM garbage"),
        pytest.param(errors.LLMDeadlineError("slow"), None, 504, "llm_deadline_exceeded", id="LLM slow"),
        pytest.param(None, errors.Token2WavUnavailableError("down"), 503, "token2wav_unavailable", id="token2wav down"),
        pytest.param(None, errors.Token2WavBusyError("full"), 429, "token2wav_busy", id="token2wav full"),
    ],
)
async def test_failures_before_the_first_audio_have_their_own_status(
    voices: Voices,
    llm_error: errors.GatewayError | None,
    open_error: errors.GatewayError | None,
    status: int,
    code: str,
) -> None:
    llm, token2wav = FakeLLM([], llm_error), FakeToken2Wav(open_failure=open_error)
    async with opened_door(llm, token2wav, voices) as door:
        response = await door.speak()
        await door.until_idle()
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


@pytest.fixture
def server_log(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """The server's log, with the gateway's filter alone."""
    log = logging.getLogger("uvicorn.error")
    monkeypatch.setattr(log, "filters", [])
    quiet_refusals()
    return log


async def test_an_answer_that_is_cut_by_a_stop_leaves_no_traceback(
    voices: Voices, server_log: logging.Logger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, token2wav = FakeLLM(speech_deltas(60), gate=asyncio.Event(), ungated=30), FakeToken2Wav()
    async with opened_door(llm, token2wav, voices) as door:
        monkeypatch.setattr(server_log, "handlers", [caplog.handler])
        speaking = asyncio.create_task(_read_some(door.http))
        while not any(stream.chunks for stream in token2wav.streams):
            await asyncio.sleep(0.01)
        server_log.setLevel(logging.INFO)  # the next server sets it again
        monkeypatch.setattr(door.server.config, "timeout_graceful_shutdown", 0)
        with pytest.raises(httpx.RemoteProtocolError):
            await asyncio.gather(door.server.shutdown(), speaking)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in told] == ["Cancel 1 running task(s), timeout graceful shutdown exceeded"]


@pytest.mark.parametrize("broken", ["llm", "token2wav"])
async def test_a_failure_in_mid_stream_breaks_the_connection_and_is_one_line_of_the_log(
    voices: Voices,
    broken: str,
    server_log: logging.Logger,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = FakeLLM(speech_deltas(60)[:-1], errors.LLMInterruptedError("died") if broken == "llm" else None)
    token2wav = FakeToken2Wav(fail_at=1 if broken == "token2wav" else None)
    async with opened_door(llm, token2wav, voices) as door:
        monkeypatch.setattr(server_log, "handlers", [caplog.handler])
        server_log.setLevel(logging.INFO)  # the next server sets it again
        with pytest.raises(httpx.RemoteProtocolError):
            await door.speak()
        await door.until_idle()
    told = [record.name for record in caplog.records if record.levelno >= logging.WARNING]
    assert told.count("gateway.dialects.answers") == 1 and "uvicorn.error" not in told


@pytest.mark.parametrize("is_held", [False, True], ids=["after the first audio", "before the first audio"])
async def test_a_client_that_leaves_frees_both_services(
    voices: Voices, is_held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.dialects.answers")
    llm = FakeLLM(speech_deltas(60), gate=asyncio.Event(), ungated=30)
    token2wav = FakeToken2Wav(is_held=is_held)
    async with opened_door(llm, token2wav, voices) as door:
        speaking = asyncio.create_task(_read_some(door.http))
        while not any(stream.chunks for stream in token2wav.streams):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)
        await door.until_idle()
    assert caplog.text.count("the client left") == 1


async def test_a_client_that_has_its_whole_answer_has_not_left(
    voices: Voices, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.dialects.answers")
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        assert (await door.speak()).status_code == 200
        await door.until_idle()
    assert "the client left" not in caplog.text


async def _read_some(http: httpx.AsyncClient) -> None:
    body = {"model": "m", "input": "hello", "voice": "default"}
    async with http.stream("POST", "/v1/audio/speech", json=body) as response:
        async for _ in response.aiter_raw():
            pass


async def test_a_request_id_is_kept_when_it_is_harmless(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        body = {"model": "m", "input": "", "voice": "default"}
        kept = await door.http.post("/v1/audio/speech", json=body, headers={"x-request-id": "abc-1"})
        replaced = await door.http.post("/v1/audio/speech", json=body, headers={"x-request-id": "a b"})
    assert kept.headers["x-request-id"] == "abc-1"
    assert replaced.headers["x-request-id"] not in ("", "a b")


async def test_health_answers_once_speech_can_be_made(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(25)), FakeToken2Wav(), voices) as door:
        await door.until_ready()
        assert (await door.http.get("/health")).status_code == 200
    gone = FakeLLM([], errors.LLMUnavailableError("gone"))
    async with opened_door(gone, FakeToken2Wav(), voices, warmed_by=gone) as door:
        assert (await door.http.get("/health")).status_code == 503


async def test_healthz_answers_whatever_the_services_do(voices: Voices) -> None:
    async with opened_door(FakeLLM([], errors.LLMUnavailableError("down")), FakeToken2Wav(), voices) as door:
        assert (await door.http.get("/healthz")).status_code == 200


async def test_readyz_waits_for_the_warm_up_and_says_why(voices: Voices) -> None:
    llm = FakeLLM([], errors.LLMUnavailableError("the LLM is down; start it"))
    async with opened_door(llm, FakeToken2Wav(), voices, warmed_by=llm) as door:
        await asyncio.sleep(0.05)
        refused = await door.http.get("/readyz")
        llm.deltas, llm.error = speech_deltas(5), None
        await door.until_ready()
    assert refused.status_code == 503
    assert "no speech LLM can be had now" in refused.json()["error"]["message"]


@pytest.mark.parametrize("silent", ["LLM", "token2wav"])
async def test_readyz_notices_a_service_that_stops_answering(voices: Voices, silent: str) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        await door.until_ready()
        door.llm.ready, door.token2wav.ready = silent != "LLM", silent != "token2wav"
        response = await door.http.get("/readyz")
    assert response.status_code == 503
    assert silent in response.json()["error"]["message"]
