"""LiveKit's elevenlabs plugin against the gateway, both services faked.

python -m venv DIRECTORY/livekit_elevenlabs
DIRECTORY/livekit_elevenlabs/bin/pip install livekit-agents livekit-plugins-elevenlabs
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.voices.registry import NamedVoice
from tests.conformance.conftest import run_script
from tests.conformance.elevenlabs_door import (
    ONE,
    TWO,
    assert_is_like_the_sound,
    assert_is_the_sound,
    opened_elevenlabs_door,
)


async def test_livekits_elevenlabs_plugin_hears_speech_interrupts_and_fails(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python = python_of("livekit_elevenlabs")
    async with opened_elevenlabs_door(voices) as (door, llm):
        await run_script(python, "livekit_elevenlabs.py", door.url, str(tmp_path))
    facts = json.loads((tmp_path / "facts.json").read_text())

    assert_is_the_sound((tmp_path / "sentences.pcm").read_bytes(), 2)
    assert_is_the_sound((tmp_path / "words.pcm").read_bytes(), 2)
    for name in ("mp3", "opus"):
        assert_is_like_the_sound((tmp_path / f"{name}.pcm").read_bytes(), facts[name]["rate_hz"], 2)
    assert_is_the_sound((tmp_path / "whole.pcm").read_bytes())
    for name in ("sentences", "words", "mp3", "opus"):
        assert_words_are_in_their_sentences(facts[name]["words"])
    assert facts["voices"] == ["anna", "default"]

    assert len(set(facts["interrupted"])) == 1, "one socket for all"
    for which in range(2):
        assert_is_the_sound((tmp_path / f"after_interruption_{which}.pcm").read_bytes())
    first = llm.events.index("begin Leave")
    assert llm.events[first : first + 3] == ["begin Leave", "cut Leave", "begin This"], "what is cut short is free"
    assert facts["broken"] == ["APIStatusError -1 retryable=True", ""], "a failure leaves the socket usable"
    assert facts["unknown_voice"] == "APIStatusError 404 retryable=False"


def assert_words_are_in_their_sentences(words: list[tuple[str, float, float]]) -> None:
    """Fail unless all words are there, in order, each with its time in the 2.4 s of its sentence."""
    assert [word.strip() for word, _, _ in words] == f"{ONE} {TWO}".split()
    times = [time for _, start_s, end_s in words for time in (start_s, end_s)]
    assert times == sorted(times)
    sentences = [(start_s, end_s) for _, start_s, end_s in words]
    assert 0 <= sentences[0][0] < 0.2
    assert sentences[len(ONE.split())][0] == pytest.approx(2.4, abs=0.2)
    assert sentences[-1][1] == pytest.approx(4.8, abs=0.2)
