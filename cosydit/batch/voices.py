"""Makes every distinct prompt of a batch ready once, before anything is spoken. Knows no texts and no checkpoints."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from pathlib import Path

from cosydit.batch.types import BatchVoice, Token2WavStage
from cosydit.bench.types import BenchmarkError, SpeechInput
from gateway.core import FloatArray
from token2wav_service.features.audio import load_prompt_audio

AT_ONCE = 4
"""Prompts worked on side by side: their feature models take one CPU thread each."""


class BatchVoices:
    """The voices of a batch, by prompt; a prompt that can't be used fails for every row that has it."""

    def __init__(self) -> None:
        """Begin with none."""
        self._voices: dict[Path | str, BatchVoice | Exception] = {}

    def __len__(self) -> int:
        """Return how many prompts have become voices."""
        return sum(isinstance(voice, BatchVoice) for voice in self._voices.values())

    async def make(self, rows: Iterable[SpeechInput], stage: Token2WavStage) -> None:
        """Make the voices of all rows."""
        prompts = {_key(row.prompt): row.prompt for row in rows if row.prompt is not None}
        permits = asyncio.Semaphore(AT_ONCE)

        async def make(key: Path | str, prompt: Path | bytes) -> None:
            async with permits:
                try:
                    self._voices[key] = await _make(prompt, stage)
                except Exception as error:  # the rows' failure, whatever it was
                    self._voices[key] = error

        await asyncio.gather(*(make(key, prompt) for key, prompt in prompts.items()))

    def of(self, row: SpeechInput) -> BatchVoice:
        """Return a row's voice.

        Raises:
            Exception: its prompt is missing or could not be used.
        """
        if row.prompt is None:
            raise BenchmarkError("the row has no prompt audio; add it, or give --prompt-speech-path for all rows")
        voice = self._voices[_key(row.prompt)]
        if isinstance(voice, Exception):
            raise voice
        return voice


def read_prompt(prompt: Path | bytes) -> FloatArray:
    """Return a prompt's samples, [N] mono float32 in +-1 at 16 kHz.

    Raises:
        OSError, InvalidPromptError: it can't be read.
    """
    return load_prompt_audio(prompt.read_bytes() if isinstance(prompt, Path) else prompt)


async def _make(prompt: Path | bytes, stage: Token2WavStage) -> BatchVoice:
    made = await stage.make_voice(await asyncio.to_thread(read_prompt, prompt))
    return BatchVoice(made.voice_id, made.prompt_speech_tokens, prompt)


def _key(prompt: Path | bytes) -> Path | str:
    return prompt if isinstance(prompt, Path) else hashlib.sha256(prompt).hexdigest()
