"""Who the bundled voices are, read from their files, so that no test knows them by name."""

from __future__ import annotations

from demo_voice.unpack import VOICES
from gateway.voices.profile import Gender
from gateway.voices.registry import load_voices

BUNDLED = {voice.name: voice for voice in load_voices(VOICES)}
NAMES = sorted(BUNDLED)
WOMEN = [name for name in NAMES if BUNDLED[name].profile.gender is Gender.FEMALE]
MEN = [name for name in NAMES if BUNDLED[name].profile.gender is Gender.MALE]
