"""A caller is told of speech that left its text, and so is the operator."""

from __future__ import annotations

import pytest

from gateway.config import GatewayConfig, parse_args
from gateway.speech.guard import GuardMode, GuardSettings
from gateway.speech.speaker import PipelineSettings
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.gateway.speaking import events_of

TEXT = "The library closes at six on Fridays, and on the other days it is open until nine."
MEND = PipelineSettings(guard=GuardSettings(GuardMode.MEND, redraws=1))


async def test_speech_that_stays_too_short_is_heard_with_a_warning(
    voices: list[NamedVoice], caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_door(FakeLLM(speech_deltas(9)), FakeToken2Wav(), voices, settings=MEND) as door:
        answer = await door.speak(input=TEXT, stream_format="sse")

    told = "the speech ended before its text can have been said (heard)"
    assert answer.headers["x-speech-warning"] == told
    assert events_of(answer.content)[-1]["warning"] == told
    assert any(told in record.getMessage() for record in caplog.records)


async def test_nothing_is_said_of_good_speech(voices: list[NamedVoice]) -> None:
    async with opened_door(FakeLLM(speech_deltas(120)), FakeToken2Wav(), voices, settings=MEND) as door:
        answer = await door.speak(input=TEXT, stream_format="sse")

    assert "x-speech-warning" not in answer.headers and "warning" not in events_of(answer.content)[-1]


@pytest.mark.parametrize("mode", list(GuardMode))
def test_the_operator_chooses_what_is_done(mode: GuardMode) -> None:
    required = ["--voices-dir", "v", "--tokenizer-dir", "t"]
    assert parse_args([*required, "--speech-guard", mode.value]).speech_guard is mode
    assert parse_args(required).speech_guard is GatewayConfig.speech_guard is GuardMode.MEND
