"""Official clients against the gRPC door, both services faked: what they save is the speech.

python -m venv DIRECTORY/riva && DIRECTORY/riva/bin/pip install nvidia-riva-client
python -m venv DIRECTORY/livekit_nvidia
DIRECTORY/livekit_nvidia/bin/pip install livekit-agents livekit-plugins-nvidia
python -m venv DIRECTORY/pipecat_nvidia && DIRECTORY/pipecat_nvidia/bin/pip install 'pipecat-ai[nvidia]'
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gateway.audio import AudioFormat, parse_riva_format
from gateway.voices.registry import NamedVoice
from lab.conformance.conftest import run_script
from lab.conformance.openai_door import LONG_TEXT
from lab.conformance.riva_door import assert_is_the_sound, opened_riva_door

RATES_HZ = {"LINEAR_PCM": 22050, "FLAC": 44100, "OGGOPUS": 22050, "MULAW": 8000, "ALAW": 8000}
CLIENTS_RATE_HZ = 22050
WORDS = ["Hello", "there."]


async def test_the_riva_client_hears_speech_and_understands_refusals(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python, prompt = python_of("riva"), tmp_path / "prompt.wav"
    prompt.write_bytes(b"RIFFmine")
    async with opened_riva_door(voices) as (door, llm):
        await run_script(python, "riva_speech.py", door.address, str(prompt), str(tmp_path))

    for name, rate_hz in RATES_HZ.items():
        for how in ("whole", "online"):
            data = (tmp_path / f"{how}.{name}").read_bytes()
            assert_is_the_sound(data, parse_riva_format(name, rate_hz).audio_format, rate_hz)
    for file in ("default", "prompted", "prompted_online"):
        assert_is_the_sound((tmp_path / f"{file}.raw").read_bytes(), AudioFormat.PCM, CLIENTS_RATE_HZ)
    assert_is_the_sound((tmp_path / "texts.raw").read_bytes(), AudioFormat.PCM, 16000, times=2)

    assert [(each.reference_text, bool(each.reference_tokens)) for each in llm.utterances[13:15]] == [
        ("I am new.", True),
        ("", False),
    ], "the client sends a transcript with synthesize only"
    assert door.token2wav.registrations.count(b"RIFFmine") == 1

    facts = json.loads((tmp_path / "facts.json").read_text())
    assert [word for word, _, _ in facts["words"]] == WORDS
    # Times of a segment that the LLM still draws are estimated, so that only the ends are sure to be the same.
    assert [word for word, _, _ in facts["online_words"]] == WORDS
    assert facts["words"][0][1] == facts["online_words"][0][1] == 0
    assert facts["words"][-1][2] == facts["online_words"][-1][2] == 2000
    assert facts["voices"] == ["cosydit.anna", "cosydit.default"]
    assert (facts["voice_error"], facts["dictionary_error"]) == ("NOT_FOUND", "INVALID_ARGUMENT")
    assert llm.times_asked(LONG_TEXT) == 1


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


PIPECATS_RATES_HZ = {"per_sentence": 24000, "stitched": 16000}


async def test_pipecats_nvidia_service_hears_speech(
    python_of: Callable[[str], Path], voices: list[NamedVoice], tmp_path: Path
) -> None:
    python = python_of("pipecat_nvidia")
    async with opened_riva_door(voices) as (door, llm):
        await run_script(python, "pipecat_nvidia.py", door.address, str(tmp_path))

    for mode, rate_hz in PIPECATS_RATES_HZ.items():
        assert_is_the_sound((tmp_path / f"{mode}.raw").read_bytes(), AudioFormat.PCM, rate_hz, times=2)
    assert [each.text.strip() for each in llm.utterances] == ["Hello there.", "Hello again."] * 2 + [LONG_TEXT]
    assert llm.utterances[3].reference_text != llm.utterances[1].reference_text, "stitched texts go on from each other"
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["errors"] == []
    assert any("nobody" in refusal for refusal in facts["refusals"])
