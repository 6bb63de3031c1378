"""Ready after the first synthesis that worked, and not before what has to be done then is done."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.errors import LLMUnavailableError, NotReadyError
from gateway.pipeline import SpeechPipeline
from gateway.readiness import Readiness
from gateway.voices import NamedVoice, VoiceRegistry
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas


class LateLLM(FakeLLM):
    """Is not there when it is asked for the first time."""

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        self.error = None if self.utterances else LLMUnavailableError("not up yet")
        async for delta in super().generate(utterance, sampling, seed):
            yield delta


async def test_what_follows_the_warm_up_is_done_once_and_before_anybody_is_told(voices: list[NamedVoice]) -> None:
    llm, token2wav, followed = LateLLM(speech_deltas(3)), FakeToken2Wav(), 0
    pipeline = SpeechPipeline(llm, token2wav, VoiceRegistry(token2wav, voices))
    readiness = Readiness(pipeline, llm, token2wav, "default", retry_s=0.0)

    def follow() -> None:
        nonlocal followed
        followed += 1
        with pytest.raises(NotReadyError, match="not up yet"):
            readiness.check().send(None)

    with pytest.raises(NotReadyError, match="has not finished"):
        await readiness.check()
    await readiness.warm_up(follow)
    await readiness.check()
    await readiness.warm_up(follow)

    assert len(llm.utterances) == 2, "the first attempt failed, the second one worked"
    assert followed == 1
