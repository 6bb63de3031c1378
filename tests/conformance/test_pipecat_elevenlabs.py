"""Pipecat's ElevenLabs services against the gateway, both services faked.

python -m venv DIRECTORY/pipecat_elevenlabs
DIRECTORY/pipecat_elevenlabs/bin/pip install 'pipecat-ai[elevenlabs]'
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.voices.registry import NamedVoice
from tests.conformance.conftest import run_script
from tests.conformance.elevenlabs_door import ONE, TWO, assert_is_the_sound, opened_elevenlabs_door


async def test_pipecats_elevenlabs_services_hear_speech_interrupt_and_fail(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python = python_of("pipecat_elevenlabs")
    async with opened_elevenlabs_door(voices) as (door, llm):
        await run_script(python, "pipecat_elevenlabs.py", door.url, str(tmp_path))
    facts = json.loads((tmp_path / "facts.json").read_text())

    for name in ("sentences", "tokens"):
        assert_is_the_sound((tmp_path / f"{name}.pcm").read_bytes(), 2)
        assert_words_are_in_their_sentences(facts[name])
    assert_is_the_sound((tmp_path / "http.pcm").read_bytes())
    assert [word for word, _ in facts["http"]] == ONE.split()
    assert facts["errors"] == facts["http_errors"] == []

    for which in range(2):
        assert_is_the_sound((tmp_path / f"after_interruption_{which}.pcm").read_bytes())
    first = llm.events.index("begin Leave")
    wanted = ["begin Leave", "cut Leave", "begin This"]
    assert llm.events[first : first + 6] == wanted * 2, "what is interrupted is free before anything else is said"
    assert facts["broken_bytes"] > 0
    assert_is_the_sound((tmp_path / "after_failure.pcm").read_bytes())
    assert any("404" in error for error in facts["unknown_voice"])


def assert_words_are_in_their_sentences(words: list[tuple[str, float]]) -> None:
    """Fail unless all words are there, in order, each with its time in the 2.4 s of its sentence."""
    assert [word for word, _ in words] == f"{ONE} {TWO}".split()
    starts = [start_s - words[0][1] for _, start_s in words]
    assert starts == sorted(starts)
    assert starts[len(ONE.split())] == pytest.approx(2.4, abs=0.2)
    assert 4.0 < starts[-1] < 4.8
