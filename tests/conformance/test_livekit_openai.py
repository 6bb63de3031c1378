"""LiveKit's openai plugin against the gateway's HTTP door, both services faked.

python -m venv DIRECTORY/livekit_openai
DIRECTORY/livekit_openai/bin/pip install livekit-agents livekit-plugins-openai
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gateway.voices.registry import NamedVoice
from tests.conformance.conftest import run_script
from tests.conformance.openai_door import FORMATS, assert_is_the_sound, opened_openai_door
from tests.gateway.speaking import spoken_sound

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
