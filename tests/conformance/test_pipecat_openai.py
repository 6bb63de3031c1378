"""Pipecat's OpenAI service against the gateway's HTTP door, both services faked.

python -m venv DIRECTORY/pipecat && DIRECTORY/pipecat/bin/pip install 'pipecat-ai[openai]'
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gateway.voices.registry import NamedVoice
from tests.conformance.conftest import run_script
from tests.conformance.openai_door import LONG_TEXT, assert_file_is_the_sound, opened_openai_door


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
