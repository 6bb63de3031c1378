"""Pipecat's NVIDIA service against the gateway's gRPC door, both services faked.

python -m venv DIRECTORY/pipecat_nvidia && DIRECTORY/pipecat_nvidia/bin/pip install 'pipecat-ai[nvidia]'
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gateway.audio import AudioFormat
from gateway.voices.registry import NamedVoice
from tests.conformance.conftest import run_script
from tests.conformance.openai_door import LONG_TEXT
from tests.conformance.riva_door import assert_is_the_sound, opened_riva_door

RATES_HZ = {"per_sentence": 24000, "stitched": 16000}


async def test_pipecats_nvidia_service_hears_speech(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python = python_of("pipecat_nvidia")
    async with opened_riva_door(voices) as (door, llm):
        await run_script(python, "pipecat_nvidia.py", door.address, str(tmp_path))

    for mode, rate_hz in RATES_HZ.items():
        assert_is_the_sound((tmp_path / f"{mode}.raw").read_bytes(), AudioFormat.PCM, rate_hz, times=2)
    assert [each.text.strip() for each in llm.utterances] == ["Hello there.", "Hello again."] * 2 + [LONG_TEXT]
    assert llm.utterances[3].reference_text != llm.utterances[1].reference_text, "stitched texts go on from each other"
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["errors"] == []
    assert any("nobody" in refusal for refusal in facts["refusals"])
