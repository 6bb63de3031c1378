"""Text in a language that the checkpoint does not declare, where the operator wants an error, and tags."""

from __future__ import annotations

import pytest

from gateway.speech.speaker import PipelineSettings
from gateway.voices.registry import NamedVoice
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]
ENGLISH = CheckpointDeclaration(languages=("en",), tags=())
CHINESE_TEXT = "今天天气很好。"
MIXED_TEXT = f"The library closes at six on Fridays. {CHINESE_TEXT}"
REFUSE = PipelineSettings(refuses_foreign=True)


@pytest.mark.parametrize("text", [CHINESE_TEXT, MIXED_TEXT], ids=["all of it", "the end of it"])
async def test_another_language_is_refused_before_anything_is_spoken_where_that_is_set(
    voices: Voices, text: str
) -> None:
    llm = FakeLLM(speech_deltas(9))
    async with opened_door(llm, FakeToken2Wav(), voices, declaration=ENGLISH, settings=REFUSE) as door:
        await door.until_ready()
        asked = len(llm.utterances)
        answer = await door.speak(input=text)
        english = await door.speak(input="The library closes at six on Fridays.")

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "undeclared_language", "input")
    assert "'zh'" in error["message"] and "it speaks en" in error["message"]
    assert english.status_code == 200 and len(llm.utterances) == asked + 1


async def test_tags_that_the_checkpoint_does_not_know_are_not_spoken(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(9))
    knows_sighs = CheckpointDeclaration(languages=("en",), tags=("[sigh]",))
    async with opened_door(llm, FakeToken2Wav(), voices, declaration=knows_sighs) as door:
        await door.speak(input="Well, [sigh] that is [laughter]funny.")
        await door.speak(input="Well, [laughter] again.", normalize=False)

    cleaned, written = llm.utterances[-2:]
    assert cleaned.text == "Well, [sigh] that is funny."
    assert written.text == "Well, [laughter] again."
