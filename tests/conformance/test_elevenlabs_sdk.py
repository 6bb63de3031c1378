"""The elevenlabs package against the gateway, both services faked.

python -m venv DIRECTORY/elevenlabs && DIRECTORY/elevenlabs/bin/pip install elevenlabs
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gateway.audio import AudioFormat
from gateway.voices.registry import NamedVoice
from tests.conformance.conftest import run_script
from tests.conformance.elevenlabs_door import (
    ONE,
    assert_is_like_the_sound,
    assert_is_the_sound,
    opened_elevenlabs_door,
    opened_tls,
)
from tests.gateway.audio.decoding import decoded


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
