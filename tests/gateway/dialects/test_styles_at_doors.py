"""Instructions at every door: what the LLM's input is where the checkpoint takes them, and what callers hear if not."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import speech_pb2, tts_service_pb2

from gateway.llm.wire import LLMWire
from gateway.text import TextFrontEnd, load_text_front_end
from gateway.voices.registry import NamedVoice
from llm_service.checkpoint import make_random_llm
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import COSYVOICE2, COSYVOICE3, SpeechVocabulary
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.dialects.socket_door import AUTO, STREAM, begin, end, opened_door
from tests.gateway.doors.grpc_door import failure_of, listen, opened_grpc, say
from tests.gateway.doors.http_door import opened_door as opened_http_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.workers import made_once

Voices = list[NamedVoice]
HAPPY, SOFT = "Please say a sentence very happily.", "Please say a sentence in a very soft voice."
END = 151646
PATH = "/v1/text-to-speech/default?output_format=pcm_24000"


@lru_cache
def front_end(instruct: str | None, refuses: bool = False) -> TextFrontEnd:
    declared = CheckpointDeclaration(tags=("[laughter]",), instruct=instruct)  # type: ignore[arg-type]
    return load_text_front_end(None, declared, None, refuses)


TAKES, IGNORES, REFUSES = partial(front_end, "endofprompt"), partial(front_end, None), partial(front_end, None, True)


@pytest.fixture(params=[COSYVOICE2, COSYVOICE3], ids=["cosyvoice2", "cosyvoice3"])
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Tell that the LLM's whole input is an instruction, its end and a text, without the voice's prompt."""
    vocabulary: SpeechVocabulary = request.param

    def make(directory: Path) -> None:
        make_random_llm(directory, seed=3, vocabulary=vocabulary)

    encoder = load_text_encoder(made_once(tmp_path_factory, f"llm-{vocabulary.name}", make))
    wire = LLMWire(encoder)
    before = "" if vocabulary is COSYVOICE2 else "You are a helpful assistant. "

    def check(llm: FakeLLM, *expected: tuple[str, str]) -> None:
        for utterance, (instruction, text) in zip(llm.utterances, expected, strict=True):
            ids = [*encoder.encode(before + instruction), END, *encoder.encode(text)]
            assert wire.token_prompt(utterance).token_ids == (vocabulary.sos_id, *ids, vocabulary.task_id)
        llm.utterances.clear()

    return check


def fakes() -> tuple[FakeLLM, FakeToken2Wav]:
    return FakeLLM(speech_deltas(30)), FakeToken2Wav()


async def test_openai(voices: Voices, checked: Callable[..., None]) -> None:
    async with opened_http_door(*fakes(), voices, front_end=TAKES()) as door:
        await door.until_ready()
        door.llm.utterances.clear()
        for fields in ({"instructions": " Be  kind.\n"}, {"style": "Be kind."}):
            answer = await door.speak(input="Yes.", response_format="pcm", **fields)
            assert answer.status_code == 200 and "x-ignored-fields" not in answer.headers
            checked(door.llm, ("Be kind.", "Yes."))
        assert (await door.speak(input="Yes.", response_format="pcm", style="happy")).status_code == 200
        checked(door.llm, (HAPPY, "Yes."))
        both = await door.speak(style="happy", instructions="Be kind.")
        assert (both.status_code, both.json()["error"]["param"]) == (400, "style")
        long = await door.speak(instructions="a" * 1001)
        assert (long.status_code, long.json()["error"]["param"]) == (400, "instructions")


async def test_openai_names_or_refuses_what_is_not_obeyed(voices: Voices) -> None:
    async with opened_http_door(*fakes(), voices, front_end=IGNORES()) as door:
        answer = await door.speak(instructions="Whisper.", x_seed=1)
        assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, "instructions, x_seed")
        assert not any(utterance.instruction for utterance in door.llm.utterances)
    async with opened_http_door(*fakes(), voices, front_end=REFUSES()) as door:
        for field in ("instructions", "style"):
            refused = await door.speak(**{field: "happy"})
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, field) and "CosyVoice3" in error["message"]
        assert (await door.speak(instructions=" ", style="")).status_code == 200


async def test_elevenlabs_audio_tags(voices: Voices, checked: Callable[..., None]) -> None:
    text = "[whispers] Come here. [laughs] Now. [happily][short pause] Yes."
    async with opened_door(*fakes(), voices, front_end=TAKES()) as door, door.http() as http:
        assert (await http.post(PATH, json={"text": text, "model_id": "eleven_v3"})).status_code == 200
        checked(door.llm, (SOFT, "Come here. [laughter] Now."), (HAPPY, "Yes."))
        async with door.client(f"{AUTO}&model_id=eleven_v3") as client:
            await begin(client, "c1", "[whispers] Come here. ")
            await end(client)
            await client.until_final("c1")
        checked(door.llm, (SOFT, "Come here."))
        assert (await http.post(PATH, json={"text": "[whispers] So.", "model_id": "eleven_flash_v2_5"})).is_success
        assert [each.text for each in door.llm.utterances] == ["[whispers] So."], "other models speak them"


async def test_elevenlabs_names_or_refuses_audio_tags(voices: Voices) -> None:
    body = {"text": "Hm. [whispers] Come here.", "model_id": "eleven_v3"}
    async with opened_door(*fakes(), voices, front_end=IGNORES()) as door, door.http() as http:
        answer = await http.post(PATH, json=body)
        assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, "audio_tags")
        assert [each.text for each in door.llm.utterances] == ["Hm. Come here."]
        assert "x-ignored-fields" not in (await http.post(PATH, json={**body, "text": "[laughs] So."})).headers
    async with opened_door(*fakes(), voices, front_end=REFUSES()) as door, door.http() as http:
        refused = await http.post(PATH, json=body)
        assert refused.status_code == 400 and "CosyVoice3" in refused.json()["detail"]["message"]
        assert not door.llm.utterances, "before any of it was spoken"
        async with door.client(f"{AUTO}&model_id=eleven_v3") as client:
            await begin(client, "c1", "[whispers] Come here. ")
            heard = (await client.until_final("c1"))["c1"]
        assert "CosyVoice3" in heard[0]["error"]


async def test_the_socket_of_sentences(voices: Voices, checked: Callable[..., None]) -> None:
    async with opened_door(*fakes(), voices, front_end=TAKES()) as door, door.client(STREAM) as client:
        await client.send(type="session.config", instructions="Be kind.", stream_audio=True, response_format="pcm")
        assert "ignored_fields" not in await client.receive()
        await client.send(type="input.text", text="Yes.")
        await client.send(type="input.done")
        while (await client.receive_any())["type"] != "session.done":
            pass
        checked(door.llm, ("Be kind.", "Yes."))


async def test_the_socket_names_or_refuses_what_is_not_obeyed(voices: Voices) -> None:
    async with opened_door(*fakes(), voices, front_end=IGNORES()) as door, door.client(STREAM) as client:
        await client.send(type="session.config", style="happy")
        assert (await client.receive())["ignored_fields"] == ["style"]
    async with opened_door(*fakes(), voices, front_end=REFUSES()) as door, door.client(STREAM) as client:
        await client.send(type="session.config", instructions="Be kind.")
        refused = await client.receive()
    assert (refused["type"], refused["param"]) == ("error", "instructions") and "CosyVoice3" in refused["message"]


async def test_our_grpc(voices: Voices, checked: Callable[..., None]) -> None:
    config = speech_pb2.SpeechConfig(style="happy")
    request = tts_service_pb2.SynthesizeRequest(text="Yes.", config=config)
    async with opened_grpc(*fakes(), voices, front_end=TAKES()) as door:
        heard = await listen(door.tts.Synthesize(request))
        assert not heard.messages[0].started.ignored_fields
        checked(door.llm, (HAPPY, "Yes."))
        streamed = iter([say(config=config), say(text="Yes."), say(end_of_text={})])
        await listen(door.tts.StreamingSynthesize(streamed))
        checked(door.llm, (HAPPY, "Yes."))
    async with opened_grpc(*fakes(), voices, front_end=IGNORES()) as door:
        heard = await listen(door.tts.Synthesize(request))
        assert list(heard.messages[0].started.ignored_fields) == ["style"]
    async with opened_grpc(*fakes(), voices, front_end=REFUSES()) as door:
        failure = await failure_of(door.tts.Synthesize(request))
    assert failure[0] is grpc.StatusCode.INVALID_ARGUMENT and "CosyVoice3" in failure[1]


def riva(voice: str) -> Any:
    fields: dict[str, Any] = {"encoding": "LINEAR_PCM", "sample_rate_hz": 24000, "language_code": "en-US"}
    return riva_tts_pb2.SynthesizeSpeechRequest(text="Yes.", voice_name=voice, **fields)


async def test_riva(voices: Voices, checked: Callable[..., None]) -> None:
    async with opened_grpc(*fakes(), voices, front_end=TAKES()) as door:
        for name in ("cosydit.anna.Happy", "anna.happy", "cosydit.Happy"):
            await door.riva.Synthesize(riva(name))
            checked(door.llm, (HAPPY, "Yes."))
        await door.riva.Synthesize(riva("anna.Neutral"))
        assert not door.llm.utterances.pop().instruction
        assert "anna.Greedy" in (await failure_of(door.riva.SynthesizeOnline(iter([riva("anna.Greedy")]))))[1]


async def test_riva_names_or_refuses_what_is_not_obeyed(voices: Voices) -> None:
    async with opened_grpc(*fakes(), voices, front_end=IGNORES()) as door:
        for call in (door.riva.Synthesize(riva("anna.Sad")), door.riva.SynthesizeOnline(iter([riva("anna.Sad")]))):
            assert dict(await call.initial_metadata())["x-ignored-fields"] == "voice_name"
            call.cancel()
        assert "x-ignored-fields" not in dict(await door.riva.Synthesize(riva("anna.Neutral")).initial_metadata())
    async with opened_grpc(*fakes(), voices, front_end=REFUSES()) as door:
        failure = await failure_of(door.riva.SynthesizeOnline(iter([riva("anna.Sad")])))
    assert failure[0] is grpc.StatusCode.INVALID_ARGUMENT and "CosyVoice3" in failure[1]


async def test_what_follows_goes_on_from_speech_under_the_same_instruction(
    voices: Voices, checked: Callable[..., None]
) -> None:
    text = "One two three. <break time='20ms'/> Four. [whispers] Five."
    async with opened_door(*fakes(), voices, front_end=TAKES()) as door, door.http() as http:
        assert (await http.post(PATH, json={"text": text, "model_id": "eleven_v3"})).is_success
        first, second, third = door.llm.utterances
        assert first.reference_text == "I am default." and second.reference_text == "I am default.One two three. "
        assert (third.reference_text, third.reference_tokens) == ("", ())
        door.llm.utterances.clear()
        assert (await http.post(PATH, json={"text": f"[happy] {text}", "model_id": "eleven_v3"})).is_success
        first, second, third = door.llm.utterances
        assert (first.instruction, second.instruction, third.instruction) == (HAPPY, HAPPY, SOFT)
        assert (second.reference_text, len(second.reference_tokens)) == ("One two three. ", 30)
        assert not third.reference_tokens
