"""Instructions in the LLM's whole input, and what goes on under them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core import Utterance
from gateway.llm.wire import LLMWire
from gateway.text import load_text_front_end
from gateway.voices.registry import NamedVoice
from llm_service.checkpoint import make_random_llm
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import COSYVOICE2, COSYVOICE3, SpeechVocabulary
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.workers import made_once

HAPPY, SOFT = "Please say a sentence very happily.", "Please say a sentence in a very soft voice."
END = 151646
PATH = "/v1/text-to-speech/default?output_format=pcm_24000"


@pytest.mark.parametrize("vocabulary", [COSYVOICE2, COSYVOICE3], ids=["cosyvoice2", "cosyvoice3"])
def test_the_llms_input_is_an_instruction_its_end_and_a_text_without_the_voices_prompt(
    vocabulary: SpeechVocabulary, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def make(directory: Path) -> None:
        make_random_llm(directory, seed=3, vocabulary=vocabulary)

    encoder = load_text_encoder(made_once(tmp_path_factory, f"llm-{vocabulary.name}", make))
    before = "" if vocabulary is COSYVOICE2 else "You are a helpful assistant. "
    expected = [*encoder.encode(f"{before}Be kind."), END, *encoder.encode("Yes.")]
    asked = LLMWire(encoder).token_prompt(Utterance("Yes.", "", (), instruction="Be kind."))
    assert asked.token_ids == (vocabulary.sos_id, *expected, vocabulary.task_id)


async def test_what_follows_goes_on_from_speech_under_the_same_instruction(voices: list[NamedVoice]) -> None:
    text = "One two three. <break time='20ms'/> Four. [whispers] Five."
    front_end = load_text_front_end(None, CheckpointDeclaration(tags=("[laughter]",), instruct="endofprompt"))
    llm = FakeLLM(speech_deltas(30))
    async with opened_door(llm, FakeToken2Wav(), voices, front_end=front_end) as door:
        assert (await door.http.post(PATH, json={"text": text, "model_id": "eleven_v3"})).is_success
        first, second, third = llm.utterances
        assert first.reference_text == "I am default." and second.reference_text == "I am default.One two three. "
        assert (third.reference_text, third.reference_tokens) == ("", ())
        llm.utterances.clear()
        assert (await door.http.post(PATH, json={"text": f"[happy] {text}", "model_id": "eleven_v3"})).is_success
        first, second, third = llm.utterances
        assert (first.instruction, second.instruction, third.instruction) == (HAPPY, HAPPY, SOFT)
        assert (second.reference_text, len(second.reference_tokens)) == ("One two three. ", 30)
        assert not third.reference_tokens
