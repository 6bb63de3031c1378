"""Ready after the first synthesis that worked, and before an LLM server that ignores the penalty, never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gateway.config import GatewayConfig
from gateway.core import FloatArray, RegisteredVoice, Sampling, SpeechTokenDelta, Utterance
from gateway.errors import LLMUnavailableError, NotReadyError
from gateway.lifecycle.readiness import ProbeMode, Readiness, check_penalty
from gateway.speech.speaker import Speaker
from gateway.voices.registry import NamedVoice, VoiceRegistry
from llm_service.config import LLMBackend
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


class ScriptedLLM:
    """Answers as a server that obeys every parameter, or ignores the penalty."""

    def __init__(self, ignores: str = "", repeats: bool = True) -> None:
        self.ignores = ignores
        self.repeats = repeats
        self.asked = 0

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        self.asked += 1
        tokens = [1, 2, 2, 2] if self.repeats else [1, 2, 3, 4]
        if sampling.repetition_penalty > 2 and self.repeats and self.ignores != "penalty":
            tokens = [1, 2, 3, 4]
        for token in tokens:
            yield SpeechTokenDelta((token,))
        yield SpeechTokenDelta((), "stop")

    async def is_ready(self) -> bool:
        return True


async def test_a_server_that_applies_the_penalty_is_served(caplog: pytest.LogCaptureFixture) -> None:
    await check_penalty(ScriptedLLM())
    assert not caplog.records


async def test_a_server_that_ignores_the_penalty_is_refused() -> None:
    with pytest.raises(NotReadyError, match="accepts repetition_penalty and does not apply it"):
        await check_penalty(ScriptedLLM("penalty"))


async def test_a_server_that_ignores_the_penalty_is_served_where_that_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await check_penalty(ScriptedLLM("penalty"), ProbeMode.WARN)
    assert "does not apply it" in caplog.text
    llm = ScriptedLLM("penalty")
    await check_penalty(llm, ProbeMode.OFF)
    assert llm.asked == 0


async def test_an_answer_without_repeats_proves_nothing_against_a_server() -> None:
    await check_penalty(ScriptedLLM("penalty", repeats=False))


@pytest.mark.parametrize(
    ("backend", "mode"),
    [(LLMBackend.EMBEDDED, ProbeMode.OFF), (LLMBackend.VLLM, ProbeMode.REFUSE), (LLMBackend.TRTLLM, ProbeMode.REFUSE)],
)
def test_servers_of_others_are_asked(backend: LLMBackend, mode: ProbeMode) -> None:
    config = GatewayConfig(tokenizer_dir=Path(), voices_dir=Path(), llm_backend=backend)
    assert config.sampling_probe is mode
