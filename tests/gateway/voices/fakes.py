"""A token2wav that makes, exports and imports voices, and the store of created voices on top of it."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gateway.core import FloatArray, RegisteredVoice
from gateway.errors import InvalidVoicePromptError, VoiceEvictedError, VoiceFileError, VoiceOutdatedError
from gateway.ledger import CallerLedger
from gateway.voices.directory import VoiceDirectory
from gateway.voices.draft import VoiceDraft
from gateway.voices.store import CreatedVoices, VoiceLimits
from tests.gateway.fakes import FakeToken2Wav
from tests.virtual_time import ManualClock
from token2wav_service.voice_file import VoiceFile, VoiceFormatError, decode_voice_file, encode_voice_file

UNREADABLE = b"not audio"
UNIX_TIME = 1_700_000_000


@dataclass
class FakeVoiceMaker(FakeToken2Wav):
    """A voice is the number of its recording's bytes; `evictions` exports fail first."""

    model: str = "model-1"
    imports: list[VoiceFile] = field(default_factory=list)
    evictions: int = 0
    gate: asyncio.Event | None = None
    silence_cut_s: float = 0.0

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        assert isinstance(audio, bytes)
        self.registrations.append(audio)
        if self.gate is not None:
            await self.gate.wait()
        if audio == UNREADABLE:
            raise InvalidVoicePromptError("the prompt audio can't be read", param="voice")
        return self._known(RegisteredVoice(hashlib.sha256(audio).hexdigest(), (len(audio),) * 50, self.silence_cut_s))

    async def export_voice(self, voice_id: str) -> bytes:
        if self.evictions:
            self.evictions -= 1
            raise VoiceEvictedError(f"{voice_id} is not cached")
        tokens = np.full(50, len(self.registrations[-1]), np.int32)
        mel, speaker = np.zeros((100, 80), np.float32), np.zeros(192, np.float32)
        return encode_voice_file(VoiceFile(self.model, tokens, mel, speaker))

    async def import_voice(self, voice_file: bytes) -> RegisteredVoice:
        try:
            file = decode_voice_file(voice_file)
        except VoiceFormatError as error:
            raise VoiceFileError(str(error)) from error
        self.imports.append(file)
        if file.model_version != self.model:
            raise VoiceOutdatedError(f"made with {file.model_version}, this is {self.model}")
        tokens = tuple(int(token) for token in file.prompt_tokens)
        return self._known(RegisteredVoice(f"imported-{tokens[0]}", tokens))

    def _known(self, voice: RegisteredVoice) -> RegisteredVoice:
        self.voices.add(voice.voice_id)
        return voice


def make_store(
    folder: Path, maker: FakeVoiceMaker, limits: VoiceLimits | None = None, clock: ManualClock | None = None
) -> CreatedVoices:
    """Open a store whose voices are created at `UNIX_TIME`."""
    return CreatedVoices(VoiceDirectory(folder), maker, limits, CallerLedger(clock or ManualClock()), lambda: UNIX_TIME)


def draft(name: str = "eva", audio: bytes = b"RIFF-eva", **changes: Any) -> VoiceDraft:
    """A voice to be created, with everything it needs."""
    return VoiceDraft(name, audio, **{"consent": "Eva said yes.", "transcript": "I am Eva.", **changes})
