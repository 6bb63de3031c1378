"""ElevenLabs' socket of many contexts, when something goes wrong: each client is told in the way it understands."""

from __future__ import annotations

import logging

import pytest
from websockets.exceptions import InvalidStatus

from gateway.dialects.json_socket import quiet_refusals
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.http_door import AUTO, LIVEKIT, MULTI, ONE, SINGLE, begin, end, opened_door, text_of
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]


async def test_text_that_cannot_be_taken_fails_its_context_alone(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door:
        async with door.client(AUTO) as client:
            await begin(client, "good", ONE)
            await begin(client, "bad", ONE, "word " * 5000)
            await end(client, "good")
            heard = await client.until_final("good", "bad")
            await door.until_idle()
    assert text_of(heard["good"]) == f"{ONE} "
    assert [message["errorCode"] for message in heard["bad"] if "error" in message] == ["text_too_long"]


@pytest.mark.parametrize(
    ("path", "fails_at", "code"),
    [
        pytest.param(LIVEKIT, 0, None, id="LiveKit reads errors"),
        pytest.param(LIVEKIT, 1, None, id="LiveKit reads errors after audio too"),
        pytest.param(AUTO, 0, None, id="Pipecat notices that nothing came"),
        pytest.param(AUTO, 1, 1011, id="Pipecat takes half for the whole unless the socket closes"),
    ],
)
async def test_a_service_that_fails_is_told_as_clients_understand(
    voices: Voices, path: str, fails_at: int, code: int | None
) -> None:
    token2wav = FakeToken2Wav(fail_at=fails_at)
    async with opened_door(FakeLLM(speech_deltas(60)), token2wav, voices) as door, door.client(path) as client:
        await begin(client, "c1", ONE)
        heard = (await client.until_final("c1"))["c1"]
        if code is None:
            token2wav.fail_at = None
            await begin(client, "c2", ONE)
            await end(client, "c2")
            assert text_of((await client.until_final("c2"))["c2"]) == f"{ONE} "
        else:
            assert (await client.until_closed())[0] == code
        await door.until_idle()
    assert [message["errorCode"] for message in heard if "error" in message] == ["token2wav_interrupted"]


async def test_a_failure_does_not_close_the_socket_on_a_neighbour(voices: Voices) -> None:
    token2wav = FakeToken2Wav(fail_at=1)
    llm = FakeLLM(speech_deltas(60))
    async with opened_door(llm, token2wav, voices) as door, door.client(AUTO) as client:
        await begin(client, "idle")
        await begin(client, "bad", ONE)
        assert any("error" in message for message in (await client.until_final("bad"))["bad"])
        token2wav.fail_at = None
        await client.send(text=ONE, context_id="idle")
        await end(client, "idle")
        assert text_of((await client.until_final("idle"))["idle"]) == f"{ONE} "


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        pytest.param(MULTI.replace("default", "nobody"), 404, "nobody", id="voice"),
        pytest.param(f"{MULTI}&output_format=mp3_1_2", 400, "output_format", id="format"),
        pytest.param(f"{MULTI}&inactivity_timeout=181", 400, "inactivity_timeout", id="timeout"),
        pytest.param(f"{MULTI}&auto_mode=maybe", 400, "auto_mode", id="boolean"),
        pytest.param(f"{MULTI}&text_mode=sideways", 400, "text_mode", id="text mode"),
        pytest.param(f"{MULTI}&text_mode=interleaved&auto_mode=true", 400, "auto_mode", id="two modes"),
        pytest.param(f"{MULTI}&language_code=!", 400, "language", id="language"),
        pytest.param(f"{MULTI}&apply_text_normalization=no", 400, "apply_text_normalization", id="normalization"),
        pytest.param(f"{MULTI}&seed=x", 400, "seed", id="seed"),
    ],
)
async def test_what_can_never_work_is_refused_at_the_handshake(
    voices: Voices, path: str, status: int, word: str
) -> None:
    async with opened_door(FakeLLM([]), FakeToken2Wav(), voices) as door:
        with pytest.raises(InvalidStatus) as refused:
            async with door.client(path):
                pass
    assert refused.value.response.status_code == status
    assert word in refused.value.response.body.decode()


@pytest.mark.parametrize("path", [MULTI, SINGLE], ids=["many contexts", "one text"])
async def test_an_unknown_voice_is_no_error_of_the_log(
    voices: Voices, path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As `python -m gateway` does; the server of the tests logs nothing else.
    server_log = logging.getLogger("uvicorn.error")
    monkeypatch.setattr(server_log, "filters", [])
    quiet_refusals()
    async with opened_door(FakeLLM([]), FakeToken2Wav(), voices) as door:
        monkeypatch.setattr(server_log, "handlers", [caplog.handler])
        server_log.setLevel(logging.INFO)  # the next server sets it again
        with pytest.raises(InvalidStatus):
            async with door.client(path.replace("default", "nobody")):
                pass
    assert any("404" in record.getMessage() for record in caplog.records)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
