"""Fixtures shared by the gateway's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.voices.registry import NamedVoice


@pytest.fixture
def voices(tmp_path: Path) -> list[NamedVoice]:
    """Two named voices whose files hold anything: the fakes don't look."""
    for name in ("default", "anna"):
        (tmp_path / f"{name}.wav").write_bytes(b"RIFF" + name.encode())
    return [NamedVoice(name, tmp_path / f"{name}.wav", f"I am {name}.") for name in ("anna", "default")]
