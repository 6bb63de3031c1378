"""Whether the LLM server does with sampling parameters what they say, asked before the gateway is ready.

Some servers accept `repetition_penalty` and ignore it: the model then repeats itself, which nothing reports. A greedy
answer that repeats tokens must change when the penalty grows. Seeds and bounds of an answer's length are asked, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import aclosing
from enum import Enum

from gateway.core import Sampling, SpeechLM, Utterance
from gateway.errors import NotReadyError
from llm_service.prompt import GenerationBounds

logger = logging.getLogger(__name__)

PROBE_TEXT = "One day the old river rose, and the small boat, tied to the pier, went down the long valley to the sea."
PROBE_TOKENS = 150
"""Tokens of the probe's answer: 6 s."""
SHORT_TEXT = "Hi."
NO_PENALTY, STRONG_PENALTY = 1.0, 5.0
SEED = 1

BoundsOf = Callable[[Utterance], GenerationBounds]


class ProbeMode(str, Enum):
    """What the gateway does if a server ignores the repetition penalty."""

    REFUSE = "refuse"
    """The gateway does not become ready."""
    WARN = "warn"
    """The log has a warning."""
    OFF = "off"
    """The server is not probed."""


class SamplingProbe:
    """Asks an LLM once; holds what it found."""

    def __init__(self, llm: SpeechLM, bounds_of: BoundsOf, mode: ProbeMode = ProbeMode.REFUSE) -> None:
        """Nothing is asked before `run`.

        Args:
            llm: the LLM service.
            bounds_of: how long an answer may be that the service is asked for.
            mode: what is done about a server that ignores the penalty.
        """
        self._llm = llm
        self._bounds_of = bounds_of
        self._mode = mode

    async def run(self) -> None:
        """Ask, unless the mode is `off`.

        Raises:
            NotReadyError: the penalty is ignored, and the mode is `refuse`.
            LLMError: anything the service did wrong.
        """
        if self._mode is ProbeMode.OFF:
            return
        for remark in [*await self._seed(), *await self._length()]:
            logger.warning("the LLM server %s", remark)
        if await self._applies_penalty():
            return
        remark = (
            "the LLM server accepts repetition_penalty and does not apply it, so speech may loop; take another "
            "--llm-backend or version, or have the gateway serve it all the same with --llm-sampling-probe warn"
        )
        if self._mode is ProbeMode.REFUSE:
            raise NotReadyError(remark)
        logger.warning("%s", remark)

    async def _applies_penalty(self) -> bool:
        """Tell whether a strong penalty changes a greedy answer; one without repeats proves nothing against it."""
        plain = await self._answer(PROBE_TEXT, Sampling(0.0, 1.0, 1, NO_PENALTY))
        if len(set(plain)) == len(plain):
            return True
        return plain != await self._answer(PROBE_TEXT, Sampling(0.0, 1.0, 1, STRONG_PENALTY))

    async def _seed(self) -> list[str]:
        drawn = [await self._answer(PROBE_TEXT, Sampling()) for _ in range(2)]
        return [] if drawn[0] == drawn[1] else ["gives different tokens for equal seeds"]

    async def _length(self) -> list[str]:
        utterance = Utterance(SHORT_TEXT, "", ())
        bounds, spoken = self._bounds_of(utterance), len(await self._answer(SHORT_TEXT, Sampling()))
        if spoken > bounds.max_tokens:
            return [f"answers {spoken} tokens where max_tokens is {bounds.max_tokens}"]
        if spoken < bounds.min_tokens:
            return [f"answers {spoken} tokens where min_tokens is {bounds.min_tokens}"]
        return []

    async def _answer(self, text: str, sampling: Sampling) -> tuple[int, ...]:
        """Return the first tokens of an answer; the rest is cancelled."""
        tokens: list[int] = []
        async with aclosing(self._llm.generate(Utterance(text, "", ()), sampling, SEED)) as deltas:
            async for delta in deltas:
                tokens += delta.token_ids
                if len(tokens) >= PROBE_TOKENS:
                    break
        return tuple(tokens[:PROBE_TOKENS])
