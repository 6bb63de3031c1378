"""Asks the LLM service for whole answers over HTTP, a text's segments one after the other: nobody listens.

A streamed answer costs the client and the server an event for every few tokens; a whole one costs one body. What
stands in a request and in an answer is `gateway.llm.wire`'s business.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import aiohttp

from cosydit.batch.types import Complete
from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.wire import PATH, LLMWire
from gateway.speech.prosody_carry import CarryLimits, ProsodyCarry
from gateway.speech.request import MAX_SEED, STOP_FINISH
from gateway.speech.speech_job import language_warning
from gateway.text import WHOLE_TEXT, TextFrontEnd, TextOptions
from servicekit.clock import Clock

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
"""Seconds between two tries at a service that says that it is full."""
_EXCERPT_CHARACTERS = 300
_BUSY = (429, 503)


class WholeAnswerClient:
    """Asks for one answer in one body; made in the event loop that it is used in, and closed by its owner."""

    def __init__(self, base_url: str, wire: LLMWire, model: str, timeout_s: float, clock: Clock) -> None:
        """Keep where to ask; an answer may take `timeout_s`, queueing in the service included."""
        self._base_url = base_url.rstrip("/")
        self._wire = wire
        self._model = model
        self._timeout_s = timeout_s
        self._clock = clock
        self._session = aiohttp.ClientSession(
            # A connection for each answer, which takes seconds: an idle one may be closed as it is used again.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close the connections; answers under way fail."""
        await self._session.close()

    async def complete(self, utterance: Utterance, sampling: Sampling, seed: int) -> SpeechTokenDelta:
        """Return all speech tokens of one text and why they ended; waits while the service says that it is full.

        Raises:
            GatewayError: anything the text or the service did wrong.
        """
        ends_at = self._clock.now() + self._timeout_s
        body = {**self._wire.request(utterance, sampling, seed, self._model), "stream": False}
        while (answered := await self._post(body))[0] in _BUSY and self._clock.now() + RETRY_AFTER_S < ends_at:
            await asyncio.sleep(RETRY_AFTER_S)
        status, answer = answered
        got = f"LLM at {self._base_url} answered {status}: {answer[:_EXCERPT_CHARACTERS]}"
        if status in _BUSY:
            raise errors.LLMUnavailableError(f"{got}; ask for less at once (--batch-size), or let it take more")
        if status != HTTPStatus.OK:
            raise errors.LLMFailedError(f"{got}; see its log, and check that --backend is what runs there")
        delta = self._wire.read(answer)
        if delta.finish_reason is None:
            raise errors.LLMInterruptedError(f"{got}: it has no finish_reason; try again, and see its log")
        return delta

    async def _post(self, body: dict[str, Any]) -> tuple[int, str]:
        try:
            async with self._session.post(self._base_url + PATH, json=body, allow_redirects=False) as response:
                return response.status, await response.text(errors="replace")
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            got = f"LLM at {self._base_url} gave no answer within {self._timeout_s:.0f} s or was lost ({error!r})"
            raise errors.LLMUnavailableError(f"{got}; see its log, or correct its URL") from error


class SegmentedLM:
    """Cleans a text, cuts it into segments that the LLM speaks well, and joins the answers.

    The gateway's streams do the same: each segment goes on from the speech before it.
    """

    def __init__(self, llm: Complete, front_end: TextFrontEnd, options: TextOptions, limits: CarryLimits) -> None:
        """Keep the parts; `limits` bound what a segment goes on from."""
        self._llm = llm
        self._front_end = front_end
        self._options = options
        self._limits = limits

    async def complete(self, utterance: Utterance, sampling: Sampling, seed: int) -> SpeechTokenDelta:
        """Return all speech tokens of one text and why they ended.

        Raises:
            GatewayError: anything the text or the service did wrong.
        """
        token_ids: list[int] = []
        carry, finish_reason = ProsodyCarry(self._limits), STOP_FINISH
        segments = self._spoken(utterance.text)
        if not segments:
            raise errors.InvalidTextError("the text holds nothing to say; give at least one word")
        for number, text in enumerate(segments):
            part = carry.continued(replace(utterance, text=text))
            answer = await self._llm(part, sampling, (seed + number) % (MAX_SEED + 1))
            token_ids += answer.token_ids
            if answer.finish_reason == STOP_FINISH:
                carry = carry.after(text, answer.token_ids)
            else:
                finish_reason, carry = answer.finish_reason or STOP_FINISH, ProsodyCarry(self._limits)
        return SpeechTokenDelta(tuple(token_ids), finish_reason)

    def _spoken(self, text: str) -> list[str]:
        stream = self._front_end.open(self._options, WHOLE_TEXT)
        segments = [stream.prepare(segment) for segment in [*stream.push(text), *stream.flush()]]
        languages = {self._front_end.foreign(each.source, self._options) for each in segments if each.is_speakable}
        foreign = sorted(filter(None, languages))
        if foreign:
            logger.warning("a row's text: %s", language_warning(foreign))
        return [segment.text for segment in segments if segment.is_speakable]
