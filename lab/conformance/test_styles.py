"""Official clients ask for a way of speaking, each in its own words; both services are faked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.text import load_text_front_end
from gateway.voices.registry import NamedVoice
from lab.conformance.conftest import run_script
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.doors.grpc_door import opened_grpc
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

SPOKEN = {
    "openai": "Be kind.",
    "elevenlabs": "Please say a sentence in a very soft voice.",
    "riva": "Please say a sentence very happily.",
}


@pytest.mark.parametrize("client", list(SPOKEN))
async def test_a_client_s_own_words_reach_the_llm(
    python_of: Callable[[str], Path], voices: list[NamedVoice], client: str
) -> None:
    python, llm = python_of(client), FakeLLM(speech_deltas(30))
    front_end = load_text_front_end(None, CheckpointDeclaration(instruct="endofprompt"))
    if client == "riva":
        async with opened_grpc(llm, FakeToken2Wav(), voices, front_end=front_end) as door:
            await run_script(python, "styles.py", client, door.address)
    else:
        async with opened_door(llm, FakeToken2Wav(), voices, front_end=front_end) as http_door:
            await http_door.until_ready()
            await run_script(python, "styles.py", client, http_door.url)
    spoken = llm.utterances[-1]
    assert (spoken.text.strip(), spoken.instruction) == ("Hello there.", SPOKEN[client])
