"""Fixtures shared by the gateway's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.voices.profile import Gender, VoiceProfile
from gateway.voices.registry import NamedVoice

ANNA = VoiceProfile("A woman, warm and quick, German.", Gender.FEMALE, "de-DE")
"""What the fixture below says of `anna`; nobody described `default`."""


@pytest.fixture
def voices(tmp_path: Path) -> list[NamedVoice]:
    """Two named voices whose files hold anything: the fakes don't look."""
    for name in ("default", "anna"):
        (tmp_path / f"{name}.wav").write_bytes(b"RIFF" + name.encode())
    profiles = {"anna": ANNA, "default": VoiceProfile()}
    return [NamedVoice(name, tmp_path / f"{name}.wav", f"I am {name}.", told) for name, told in profiles.items()]
