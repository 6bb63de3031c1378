"""Ready after the first synthesis that worked, and not before what has to be done then is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from gateway.core import FloatArray, RegisteredVoice, Sampling, SpeechTokenDelta, Utterance
from gateway.errors import LLMUnavailableError, NotReadyError
from gateway.lifecycle.readiness import Readiness
from gateway.speech.speaker import Speaker
from gateway.voices.registry import NamedVoice, VoiceRegistry
from servicekit.timeouts import timeout
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas


class LateLLM(FakeLLM):
    """Is not there when it is asked for the first time."""

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        self.error = None if self.utterances else LLMUnavailableError("not up yet")
        async for delta in super().generate(utterance, sampling, seed):
            yield delta


async def test_a_voice_that_the_disk_refuses_for_a_moment_is_tried_again(voices: list[NamedVoice]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(3)), FakeToken2Wav()
    (path,) = (voice.audio_path for voice in voices if voice.name == "default")
    readiness = Readiness(
        Speaker(llm, token2wav, VoiceRegistry(token2wav, voices)),
        llm,
        token2wav,
        "default",
        retry_s=0.01,
    )
    content = path.read_bytes()
    path.unlink()
    warming_up = asyncio.create_task(readiness.warm_up())
    async with timeout(5):
        while "the voice can't be read" not in await reason_of(readiness):
            await asyncio.sleep(0.01)
        path.write_bytes(content)
        await warming_up
    await readiness.check()


async def test_an_error_that_nobody_foresaw_is_logged_and_tried_again(
    voices: list[NamedVoice], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeToken2Wav):
        async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
            if not self.streams and not caplog.records:
                raise ZeroDivisionError("a bug")
            return await super().register_voice(audio)

    llm, token2wav = FakeLLM(speech_deltas(3)), Broken()
    pipeline = Speaker(llm, token2wav, VoiceRegistry(token2wav, voices))
    readiness = Readiness(pipeline, llm, token2wav, "default", retry_s=0.0)
    await readiness.warm_up()
    await readiness.check()
    assert "ZeroDivisionError" in caplog.text


async def reason_of(readiness: Readiness) -> str:
    with pytest.raises(NotReadyError) as refused:
        await readiness.check()
    return str(refused.value)


async def test_what_follows_the_warm_up_is_done_once_and_before_anybody_is_told(voices: list[NamedVoice]) -> None:
    llm, token2wav, followed = LateLLM(speech_deltas(3)), FakeToken2Wav(), 0
    pipeline = Speaker(llm, token2wav, VoiceRegistry(token2wav, voices))
    readiness = Readiness(pipeline, llm, token2wav, "default", retry_s=0.0)

    def follow() -> None:
        nonlocal followed
        followed += 1
        with pytest.raises(NotReadyError, match="no speech LLM"):
            readiness.check().send(None)

    with pytest.raises(NotReadyError, match="has not finished"):
        await readiness.check()
    await readiness.warm_up(follow)
    await readiness.check()
    await readiness.warm_up(follow)

    assert len(llm.utterances) == 2, "the first attempt failed, the second one worked"
    assert followed == 1
