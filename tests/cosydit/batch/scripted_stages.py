"""Stages of a batch that do what their texts say, in no time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cosydit.batch.services import EngineStage
from cosydit.batch.types import BatchVoice, TokenisedUtterance
from gateway.core import FloatArray, Sampling, SpeechTokenDelta, Utterance

SAMPLES_A_TOKEN = 960


class ScriptedLLM:
    """Answers two tokens; fails for the text `fail`, says nothing for `silent`; counts who is answered at once.

    A text of digits is answered with as many tokens. The first answers wait until `together` are asked for at once,
    however slowly the stage before brings them.
    """

    def __init__(self, together: int = 1) -> None:
        self.now = self.most = 0
        self._together = together
        self._are_together = asyncio.Event()

    async def complete(self, utterance: Utterance, sampling: Sampling, seed: int) -> SpeechTokenDelta:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now >= self._together:
            self._are_together.set()
        try:
            await asyncio.wait_for(self._are_together.wait(), 30)
            await asyncio.sleep(0.001)
            return SpeechTokenDelta(_tokens(utterance.text, seed), "stop")
        finally:
            self.now -= 1


class ScriptedToken2Wav(EngineStage):
    """Speaks every token as 40 ms of its own height; fails those of the text `noise`, and whole batches for `crash`."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.batches: list[list[int]] = []
        self.voices = 0
        self._step_s = step_s

    async def make_voice(self, prompt: Path | bytes) -> BatchVoice:
        self.voices += 1
        return BatchVoice("voice", (1,), prompt)

    async def speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        self.batches.append([len(each.token_ids) for each in utterances])
        if any(each.input.text == "crash" for each in utterances):
            raise RuntimeError("token2wav crashed")
        await asyncio.sleep(self._step_s)
        noise = RuntimeError("no good")
        return [noise if each.input.text == "noise" else spoken(each.token_ids) for each in utterances]

    async def close(self) -> None:
        """Hold nothing."""


def spoken(token_ids: Sequence[int]) -> FloatArray:
    """Return what `ScriptedToken2Wav` makes of tokens."""
    return np.repeat(np.array(token_ids, np.float32) / 10_000, SAMPLES_A_TOKEN)


def _tokens(text: str, seed: int) -> tuple[int, ...]:
    if text == "fail":
        raise RuntimeError("the LLM broke")
    if text == "silent":
        return ()
    count = int(text) if text.isdigit() else 2
    return tuple((seed + index) % 6561 for index in range(count))
