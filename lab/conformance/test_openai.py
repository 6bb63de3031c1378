"""Official clients against the OpenAI door, both services faked: what they save is the speech.

python -m venv DIRECTORY/openai && DIRECTORY/openai/bin/pip install openai
python -m venv DIRECTORY/livekit_openai
DIRECTORY/livekit_openai/bin/pip install livekit-agents livekit-plugins-openai
python -m venv DIRECTORY/pipecat && DIRECTORY/pipecat/bin/pip install 'pipecat-ai[openai]'
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gateway.voices.registry import NamedVoice
from lab.conformance.conftest import run_script
from lab.conformance.openai_door import (
    BREAKING_TEXT,
    FORMATS,
    LONG_TEXT,
    TEXT,
    assert_file_is_the_sound,
    assert_is_the_sound,
    opened_openai_door,
)
from tests.gateway.speaking import SPEECH_TOKENS, spoken_sound

ATTEMPTS = 3
"""Of a request that the client repeats."""


async def test_the_openai_client_hears_speech_and_understands_refusals(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python = python_of("openai")
    async with opened_openai_door(voices) as (door, llm):
        await run_script(python, "openai_speech.py", door.url, str(tmp_path))

    whole = [f"{how}.{name}" for name in FORMATS for how in ("whole", "streamed", "events")]
    for file in (*whole, "default.mp3", "by_id.pcm", "async_whole.pcm", "async_streamed.pcm"):
        assert_file_is_the_sound((tmp_path / file).read_bytes(), Path(file).suffix[1:])

    facts = json.loads((tmp_path / "facts.json").read_text())
    usage = {"input_tokens": len(TEXT), "output_tokens": SPEECH_TOKENS, "total_tokens": len(TEXT) + SPEECH_TOKENS}
    assert facts["last_event"] == {"type": "speech.audio.done", "usage": usage, "spoken_text": TEXT}
    assert facts["fast_bytes"] == len(spoken_sound()) // 2 * np.dtype("<i2").itemsize
    assert facts["ignored"] == ["instructions, x_unknown", "7", "mine-1"]
    assert (facts["models"], facts["model"]) == (["cosydit"], "cosydit")
    refusal = {"type": "invalid_request_error"}
    assert facts["voice_error"] == {"kind": "NotFoundError", "code": "voice_not_found", "param": "voice", **refusal}
    assert facts["text_error"] == {"kind": "BadRequestError", "code": "invalid_text", "param": "input", **refusal}
    assert facts["model_error"] == {"kind": "NotFoundError", "code": "model_not_found", "param": "model", **refusal}
    assert facts["broken_stream"]["kind"] == "RemoteProtocolError"
    assert 0 < facts["broken_stream"]["bytes"] < spoken_sound().size * np.dtype("<i2").itemsize
    assert facts["broken_whole"]["kind"] == "APIConnectionError"
    assert llm.times_asked(BREAKING_TEXT) == 1 + ATTEMPTS, "a stream once, a whole answer with the client's repetitions"


_FULL_SCALE = 32768
LOST_SAMPLES = 1200
"""LiveKit's decoder drops the first frame of FLAC and Opus, whoever encoded it; ours have 24 and 20 ms."""


async def test_livekits_openai_plugin_hears_speech(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python = python_of("livekit_openai")
    async with opened_openai_door(voices) as (door, llm):
        await run_script(python, "livekit_openai.py", door.url, str(tmp_path))

    for name in ("default", *FORMATS):
        got = np.frombuffer((tmp_path / f"{name}.raw").read_bytes(), "<i2").astype(np.float32) / _FULL_SCALE
        assert_is_the_sound(got, LOST_SAMPLES)
        assert len(got) / len(spoken_sound()) == pytest.approx(1, abs=0.05), name
    sentences = len((tmp_path / "sentences.raw").read_bytes()) // np.dtype("<i2").itemsize
    assert sentences / len(spoken_sound()) == pytest.approx(2, abs=0.05)
    assert llm.times_asked("Hello again.") == 1

    facts = json.loads((tmp_path / "facts.json").read_text())
    assert len(set(facts["ids"])) == 1 + len(FORMATS) and all(facts["ids"])
    assert facts["broken"] == "APIConnectionError"


async def test_pipecats_openai_service_hears_speech(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python = python_of("pipecat")
    async with opened_openai_door(voices) as (door, llm):
        await run_script(python, "pipecat_openai.py", door.url, str(tmp_path))

    assert_file_is_the_sound((tmp_path / "spoken.pcm").read_bytes(), "pcm")
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["errors"] == []
    assert "nothing to say" in facts["refusals"][0]
    assert llm.times_asked(LONG_TEXT) == 1
