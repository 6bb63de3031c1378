"""The source engine's own audio: the bundled prompt voices, which it spoke."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cosydit.certify.recognition import FloatArray, SphinxRecogniser
from demo_voice.unpack import VOICES
from lab.tests.fake_flite import install_fake_flite
from token2wav_service.features.audio import load_prompt_audio

RATE_HZ = 16_000


@dataclass(frozen=True)
class Voice:
    """One bundled voice."""

    name: str
    samples: FloatArray
    text: str


def read_voice(path: Path) -> Voice:
    return Voice(path.stem, load_prompt_audio(path.read_bytes()), path.with_suffix(".txt").read_text("utf-8").strip())


@pytest.fixture(scope="session")
def voices() -> list[Voice]:
    return [read_voice(path) for path in sorted(VOICES.glob("*.wav"))]


@pytest.fixture(scope="session")
def default_voice(voices: list[Voice]) -> Voice:
    return next(voice for voice in voices if voice.name == "default")


@pytest.fixture(scope="session")
def recogniser() -> SphinxRecogniser:
    return SphinxRecogniser()


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder laid out as the unpacked engines are."""
    return install_fake_flite(tmp_path_factory.mktemp("engines"))


def harmonics(pitch_hz: float, seconds: float, rate_hz: int = RATE_HZ) -> FloatArray:
    """A steady buzz."""
    time = np.arange(int(seconds * rate_hz)) / rate_hz
    buzz = sum(np.sin(2 * np.pi * k * pitch_hz * time) / k for k in range(1, 12))
    return np.asarray(0.2 * buzz, np.float32)


def noise(seconds: float, seed: int = 0, rate_hz: int = RATE_HZ) -> FloatArray:
    return (0.1 * np.random.default_rng(seed).standard_normal(int(seconds * rate_hz))).astype(np.float32)
