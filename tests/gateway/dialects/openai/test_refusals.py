"""Models, methods, and what OpenAI's clients are told when they get no speech."""

from __future__ import annotations

import pytest

from gateway import errors
from gateway.voices.registry import NamedVoice
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]


async def test_there_is_one_model(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        listed = (await door.http.get("/v1/models")).json()
        shown = (await door.http.get("/v1/models/cosydit")).json()

    assert listed == {"object": "list", "data": [shown]}
    assert (shown["id"], shown["object"]) == ("cosydit", "model")
    assert {"id", "object", "created", "owned_by"} < set(shown)


async def test_the_model_tells_what_its_checkpoint_declares(voices: Voices) -> None:
    declared = CheckpointDeclaration(name="mine", family="cosyvoice2", languages=("en", "de"), tags=("[sigh]",))
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices, declaration=declared) as door:
        (model,) = (await door.http.get("/v1/models")).json()["data"]

    assert (model["name"], model["family"], model["languages"]) == ("mine", "cosyvoice2", ["en", "de"])
    assert model["tags"] == ["[sigh]"]


async def test_other_models_are_not_found(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        response = await door.http.get("/v1/models/some/one%20else")

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'some/one else'" in error["message"] and "'cosydit'" in error["message"]


async def test_head_tells_what_get_would_without_a_body(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        models = await door.http.head("/v1/models")
        speech = await door.http.head("/v1/audio/speech")

    assert (models.status_code, models.content) == (200, b"")
    assert (speech.status_code, speech.headers["allow"], speech.content) == (405, "POST", b"")


@pytest.mark.parametrize(
    ("error", "retry_after", "should_retry"),
    [
        pytest.param(errors.LLMUnavailableError("down"), "1", None, id="may pass"),
        pytest.param(errors.Token2WavBusyError("full"), "1", None, id="busy"),
        pytest.param(errors.LLMProtocolError("garbage"), None, "false", id="broken"),
        pytest.param(errors.LLMDeadlineError("slow"), None, "false", id="too slow"),
        pytest.param(errors.TextTooLongError("long"), None, None, id="the caller's mistake"),
    ],
)
async def test_clients_are_told_whether_to_try_again(
    voices: Voices, error: errors.GatewayError, retry_after: str | None, should_retry: str | None
) -> None:
    async with opened_door(FakeLLM([], error), FakeToken2Wav(), voices) as door:
        headers = (await door.speak()).headers

    assert (headers.get("retry-after"), headers.get("x-should-retry")) == (retry_after, should_retry)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_fault_of_our_own_is_openai_shaped(voices: Voices) -> None:
    class BrokenLLM(FakeLLM):
        def generate(self, *args: object) -> None:  # type: ignore[override]
            raise KeyError("a bug")

    async with opened_door(BrokenLLM([]), FakeToken2Wav(), voices) as door:
        response = await door.speak()

    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "bug" not in response.text
