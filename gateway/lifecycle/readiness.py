"""Tells whether the gateway can speak now: a warm-up synthesis has succeeded and both services still answer.

Before it is ready, an LLM server is asked whether it does with sampling parameters what they say. Some accept
`repetition_penalty` and ignore it: the model then repeats itself, which nothing reports. A greedy answer that repeats
tokens must change when the penalty grows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from gateway.core import Sampling, SpeechLM, Utterance
from gateway.errors import GatewayError, NotReadyError, public_text
from gateway.speech.request import SpeechRequest
from gateway.speech.speaker import Speaker

logger = logging.getLogger(__name__)

WARM_UP_TEXT = "Hello."
DEFAULT_RETRY_S = 0.5
"""Pause between warm-up attempts while a service is still starting."""


class AskedService(Protocol):
    """A service that is asked whether it answers (`routing.router.Router`)."""

    async def is_ready(self) -> bool: ...


@dataclass
class Readiness:
    """Warms up until it succeeds once, then asks the services each time."""

    pipeline: Speaker
    llm: AskedService
    token2wav: AskedService
    voice: str
    """Voice of the warm-up."""
    retry_s: float = DEFAULT_RETRY_S
    probe: Callable[[], Awaitable[None]] | None = None
    """Must return, too, before the gateway is ready; raises GatewayError. Nothing is asked before `warm_up`."""
    _reason: str | None = field(default="the warm-up synthesis has not finished yet; wait", init=False)
    _withdrawal: str | None = field(default=None, init=False)

    async def warm_up(self, then: Callable[[], None] = lambda: None) -> None:
        """Speak one word, again and again until it works; calls `then` before anybody is told."""
        while self._reason is not None:
            try:
                await self._speak_once()
                if self.probe is not None:
                    await self.probe()
                then()
                self._reason = None
                logger.info("warm-up synthesis succeeded; ready")
                return
            except GatewayError as error:
                reason = f"the warm-up synthesis failed: {public_text(error)}"
                if reason != self._reason:  # services take their time to start
                    logger.warning("%s; tried again every %.1f s", reason, self.retry_s)
                self._reason = reason
            except Exception:
                self._reason = "the warm-up synthesis failed: internal error; see the server's log"
                logger.exception("warm-up synthesis failed, next try in %.1f s", self.retry_s)
            await asyncio.sleep(self.retry_s)

    def withdraw(self, reason: str) -> None:
        """Report from now on that the gateway is not ready, even if the services answer."""
        self._withdrawal = reason

    async def check(self) -> None:
        """Return if the gateway can speak now.

        Raises:
            NotReadyError: it can't, and why.
        """
        if (reason := self._withdrawal or self._reason) is not None:
            raise NotReadyError(reason)
        answers = await asyncio.gather(self.llm.is_ready(), self.token2wav.is_ready())
        silent = [name for name, is_ready in zip(("LLM", "token2wav"), answers, strict=True) if not is_ready]
        if silent:
            raise NotReadyError(f"no answer from {' and '.join(silent)}; start it again or see its log")

    async def _speak_once(self) -> None:
        async with aclosing(self.pipeline.synthesize(SpeechRequest(WARM_UP_TEXT, self.voice))) as audio:
            async for _ in audio:
                pass


PROBE_TEXT = "One day the old river rose, and the small boat, tied to the pier, went down the long valley to the sea."
PROBE_TOKENS = 150
"""Tokens of the probe's answer: 6 s."""
NO_PENALTY, STRONG_PENALTY = 1.0, 5.0
SEED = 1


class ProbeMode(str, Enum):
    """What the gateway does if a server ignores the repetition penalty."""

    REFUSE = "refuse"
    """The gateway does not become ready."""
    WARN = "warn"
    """The log has a warning."""
    OFF = "off"
    """The server is not probed."""


async def check_penalty(llm: SpeechLM, mode: ProbeMode = ProbeMode.REFUSE) -> None:
    """Ask an LLM whether a strong penalty changes a greedy answer, unless the mode is `off`.

    Raises:
        NotReadyError: the penalty is ignored, and the mode is `refuse`.
        LLMError: anything the service did wrong.
    """
    if mode is ProbeMode.OFF or await _applies_penalty(llm):
        return
    remark = (
        "the LLM server accepts repetition_penalty and does not apply it, so speech may loop; take another "
        "--llm-backend or version, or have the gateway serve it all the same with --llm-sampling-probe warn"
    )
    if mode is ProbeMode.REFUSE:
        raise NotReadyError(remark)
    logger.warning("%s", remark)


async def _applies_penalty(llm: SpeechLM) -> bool:
    """Tell whether it does; an answer without repeats proves nothing against it."""
    plain = await _greedy_answer(llm, NO_PENALTY)
    return len(set(plain)) == len(plain) or plain != await _greedy_answer(llm, STRONG_PENALTY)


async def _greedy_answer(llm: SpeechLM, penalty: float) -> list[int]:
    """Return the first tokens of an answer; the rest is cancelled."""
    tokens: list[int] = []
    sampling = Sampling(temperature=0.0, top_p=1.0, top_k=1, repetition_penalty=penalty)
    async with aclosing(llm.generate(Utterance(PROBE_TEXT, "", ()), sampling, SEED)) as deltas:
        async for delta in deltas:
            tokens += delta.token_ids
            if len(tokens) >= PROBE_TOKENS:
                break
    return tokens[:PROBE_TOKENS]
