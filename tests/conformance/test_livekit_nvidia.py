"""LiveKit's nvidia plugin against the gateway's gRPC door, both services faked.

python -m venv DIRECTORY/livekit_nvidia
DIRECTORY/livekit_nvidia/bin/pip install livekit-agents livekit-plugins-nvidia
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gateway.audio import AudioFormat
from gateway.voices.registry import NamedVoice
from tests.conformance.conftest import run_script
from tests.conformance.riva_door import assert_is_the_sound, opened_riva_door

PLUGINS_RATE_HZ = 16000


async def test_livekits_nvidia_plugin_hears_speech(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python = python_of("livekit_nvidia")
    async with opened_riva_door(voices) as (door, llm):
        await run_script(python, "livekit_nvidia.py", door.address, str(tmp_path))

    sentences = (tmp_path / "sentences.raw").read_bytes()
    assert_is_the_sound(sentences, AudioFormat.PCM, PLUGINS_RATE_HZ, times=2)
    assert [each.text for each in llm.utterances[:2]] == [
        "Hello there, this is the first sentence of two.",
        "Hello again, and this is the second sentence of two.",
    ]
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["voices"] == {"mul": {"voices": ["cosydit.anna", "cosydit.default"]}}
