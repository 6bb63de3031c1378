"""An LLM server that ignores the repetition penalty is found before the gateway is ready."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gateway.config import GatewayConfig
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.errors import NotReadyError
from gateway.lifecycle.readiness import ProbeMode, check_penalty
from llm_service.config import LLMBackend


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
