"""Official clients against the ElevenLabs door, both services faked: what they save is the speech.

python -m venv DIRECTORY/elevenlabs && DIRECTORY/elevenlabs/bin/pip install elevenlabs
python -m venv DIRECTORY/livekit_elevenlabs
DIRECTORY/livekit_elevenlabs/bin/pip install livekit-agents livekit-plugins-elevenlabs
python -m venv DIRECTORY/pipecat_elevenlabs
DIRECTORY/pipecat_elevenlabs/bin/pip install 'pipecat-ai[elevenlabs]'
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gateway.audio import AudioFormat
from gateway.voices.registry import NamedVoice
from lab.conformance.conftest import run_script
from lab.conformance.elevenlabs_door import (
    ONE,
    TWO,
    assert_is_like_the_sound,
    assert_is_the_sound,
    opened_elevenlabs_door,
    opened_tls,
)
from tests.gateway.audio.signals import decoded


async def test_the_elevenlabs_package_hears_speech_leaves_and_fails(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python = python_of("elevenlabs")
    async with opened_elevenlabs_door(voices) as (door, llm), opened_tls(door, tmp_path) as (tls_url, certificate):
        trust = {"SSL_CERT_FILE": str(certificate)}
        await run_script(python, "elevenlabs_sdk.py", door.url, str(tmp_path), tls_url, environment=trust)
    facts = json.loads((tmp_path / "facts.json").read_text())

    for name in ("stream", "convert", "timestamps", "object", "async"):
        assert_is_the_sound((tmp_path / f"{name}.pcm").read_bytes())
    assert_is_the_sound((tmp_path / "pieces.pcm").read_bytes(), 2)
    for name in ("default", "pieces"):
        samples, rate_hz = decoded((tmp_path / f"{name}.mp3").read_bytes(), AudioFormat.MP3, 44100)
        assert_is_like_the_sound((samples * 32767).astype(np.int16).tobytes(), rate_hz)

    assert (facts["characters"], facts["last_end_s"]) == (ONE, 2.4)
    assert facts["object"] == [ONE, 2.4]
    assert facts["voice"] == {"gender": "female", "language": "de-DE"}
    assert facts["user"] == ["active", "self_hosted"]
    assert facts["all"] == facts["found"] == ["anna", "default"]
    assert facts["has_more"] is False
    assert facts["unknown_voice"][0] == 404
    assert facts["no_text"][0] == 400
    assert (facts["broken"][0], facts["broken"][1]["error"]) == (1011, "llm_interrupted")
    assert llm.events.count("cut Leave") == 2, "who leaves, by HTTP or by WebSocket, stops the speech"


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
    # The plugin flushes each sentence, and `close_context` after a flush means: speak the rest, which the plugin drops.
    first = llm.events.index("begin Leave")
    assert llm.events[first : first + 4] == 2 * ["begin Leave", "begin This"], "what comes next does not wait"
    assert llm.events.count("cut Leave") == 2, "the socket's end frees what nobody hears"
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


async def test_pipecats_elevenlabs_services_hear_speech_interrupt_and_fail(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python = python_of("pipecat_elevenlabs")
    async with opened_elevenlabs_door(voices) as (door, llm):
        await run_script(python, "pipecat_elevenlabs.py", door.url, str(tmp_path))
    facts = json.loads((tmp_path / "facts.json").read_text())

    for name in ("sentences", "tokens"):
        assert_is_the_sound((tmp_path / f"{name}.pcm").read_bytes(), 2)
        assert_spoken_words_are_in_their_sentences(facts[name])
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


def assert_spoken_words_are_in_their_sentences(words: list[tuple[str, float]]) -> None:
    """Fail unless all words are there, in order, each with its time in the 2.4 s of its sentence."""
    assert [word for word, _ in words] == f"{ONE} {TWO}".split()
    starts = [start_s - words[0][1] for _, start_s in words]
    assert starts == sorted(starts)
    assert starts[len(ONE.split())] == pytest.approx(2.4, abs=0.2)
    assert 4.0 < starts[-1] < 4.8
