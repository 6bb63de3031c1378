"""All LLM replicas as one `core.SpeechLM`: the least loaded answers, and another goes on where one is lost.

"Hello, how are you?" ─► A: 17 4 4063 ✗            ─► caller
                         B: text + 17 4 4063 as if it had spoken them: 981 22 ... ─► caller

`ContinuedAnswer` keeps the state of one answer: its tokens, and the replicas it lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Protocol, TypeVar

from gateway import errors
from gateway.core import Sampling, SpeechLM, SpeechTokenDelta, Utterance
from gateway.routing.fleet import NOBODY, SlotLease
from gateway.routing.replica import LOOK_AGAIN_S, RoutingSettings
from gateway.routing.router import ReplicaClient, Router, give_back, is_replica_fault
from gateway.speech.request import HIGHEST_PRIORITY, MAX_SEED
from servicekit.timeouts import Timeout, expire, timeout

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ContinuedAnswer:
    """What was asked, and the answer so far, by one or more replicas."""

    def __init__(self, utterance: Utterance, seed: int, settings: RoutingSettings) -> None:
        self._utterance = utterance
        self._seed = seed
        self._spoken: list[int] = []
        self._fills: list[int] = []
        self._max_failovers = self._failovers_left = settings.max_failovers
        self.avoid = NOBODY
        self.lost: errors.GatewayError | None = None
        self.ends_s: float | None = None
        """Time until which a replica must be found; None while none was lost since the last token."""

    @property
    def is_new(self) -> bool:
        """Whether it begins a stream: its caller waits for the first tokens, and nobody has heard anything."""
        return self._utterance.head_start_tokens > 0 and not (self._spoken or self._utterance.spoken_tokens)

    def rest(self) -> Utterance:
        """What is still to be spoken."""
        return self._utterance.behind(self._spoken, self._fills)

    def rest_seed(self, continues_exactly: bool) -> int:
        """Return the seed itself as long as nothing is spoken, so that the answer is the one that was lost.

        Then it is another one, as the same would draw the same random numbers once more; but a replica that continues
        exactly is told how many were drawn, and needs the same.
        """
        if continues_exactly:
            return self._seed
        return (self._seed + len(self._spoken)) % (MAX_SEED + 1)

    def note(self, delta: SpeechTokenDelta) -> None:
        """Note what came; tokens are progress."""
        self._fills.extend(len(self._spoken) + place for place in delta.fills)
        if not delta.token_ids:
            return
        self._spoken.extend(delta.token_ids)
        self._failovers_left = self._max_failovers
        self.avoid = NOBODY
        self.ends_s = None

    def note_loss(self, error: BaseException, slot: SlotLease, now_s: float, rescue_s: float) -> None:
        """Decide whether to ask again; raise the error if not."""
        if not isinstance(error, errors.GatewayError) or not is_replica_fault(error):
            raise error
        if self.ends_s is None:
            self.ends_s = now_s + rescue_s
        # NOTE: a replica that could not be reached counts as no failover; only the deadline bounds such tries.
        self._failovers_left -= not isinstance(error, errors.LLMUnavailableError)
        if self._failovers_left < 0 or now_s >= self.ends_s:
            raise error
        logger.warning("asking again for an answer that broke off after %d tokens: %s", len(self._spoken), error)
        slot.replica.failovers_total += 1
        self.lost = error
        self.avoid |= {slot.address}

    def note_refusal(self, slot: SlotLease, ends_s: float, now_s: float) -> bool:
        """Note that a replica has no room; tells whether to ask on: until `ends_s`, if this is the first refusal."""
        if self.ends_s is None:
            self.ends_s = ends_s
        self.avoid |= {slot.address}
        return now_s < self.ends_s


class Ejection:
    """Tells whether the LLM replica of one answer is ejected; an answer that gives tokens prevents that."""

    def __init__(self, slot: SlotLease) -> None:
        self._slot = slot
        self._has_happened = False
        self._limit: Timeout | None = None
        slot.on_ejected = self._note

    async def unless(self, coming: Awaitable[T]) -> T:
        """Wait for something of the replica's.

        Raises:
            LLMUnavailableError: the replica was ejected before that came.
        """
        try:
            async with timeout(0.0 if self._has_happened else None) as self._limit:
                return await coming
        except asyncio.TimeoutError as error:
            if not self._has_happened:
                raise
            got = f"the LLM at {self._slot.address} was ejected ({self._slot.replica.last_failure})"
            raise errors.LLMUnavailableError(f"{got}; see its log") from error
        finally:
            self._limit = None

    def _note(self) -> None:
        self._has_happened = True
        if self._limit is not None:
            expire(self._limit)


class LLMReplicaClient(SpeechLM, ReplicaClient, Protocol):
    """A client of one replica (`gateway.llm.client.SpeechLMClient`, `token_client.TokenStreamClient`, or a fake)."""

    @property
    def continues_exactly(self) -> bool:
        """Whether an answer asked for with its seed and its first tokens goes on with the very same tokens."""
        ...


class RoutedSpeechLM(Router[LLMReplicaClient]):
    """Implements `core.SpeechLM` over all replicas."""

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield the speech tokens of one text; see `SpeechLM.generate`.

        An answer that breaks off is asked for again, with the tokens so far as its beginning, until `rescue_s` of
        the fleet have gone by without a token, or too many replicas in a row broke off without one. Where its text is
        still being written, the next replica gets what was taken of it at once, and then what follows.
        """
        if not self.caller_has_share():
            utterance = replace(utterance, priority=HIGHEST_PRIORITY)
        answer = ContinuedAnswer(utterance, seed, self.fleet.settings)
        while True:
            slot = await self._wait_for_slot(answer)
            async with self._attempt(slot, answer, sampling) as deltas:
                ejection = Ejection(slot)
                while (delta := await ejection.unless(anext(deltas, None))) is not None:
                    answer.note(delta)
                    if delta.token_ids:
                        slot.replica.succeeded()
                    yield delta
                return
            with self.fleet.looked(answer.lost is None):
                await asyncio.sleep(LOOK_AGAIN_S)

    @asynccontextmanager
    async def _attempt(
        self, slot: SlotLease, answer: ContinuedAnswer, sampling: Sampling
    ) -> AsyncIterator[AsyncGenerator[SpeechTokenDelta]]:
        """Ask one replica for the rest of an answer; its loss is swallowed if another replica may go on."""
        try:
            client = self.client(slot.address)
            asked = client.generate(answer.rest(), sampling, answer.rest_seed(client.continues_exactly))
            async with aclosing(asked) as deltas:
                yield deltas
        except BaseException as error:
            try:
                if isinstance(error, errors.LLMBusyError) and answer.is_new:
                    self._note_refusal(answer, slot, error)
                else:
                    answer.note_loss(error, slot, self._clock.now(), self.fleet.rescue_s)
            finally:
                give_back(slot, error, is_begun=True)
        else:
            give_back(slot, None, is_begun=True)

    def _note_refusal(self, answer: ContinuedAnswer, slot: SlotLease, error: errors.LLMBusyError) -> None:
        """Note that a replica has no room for a new answer.

        Raises:
            OverloadedError: none had in time.
        """
        now_s = self._clock.now()
        if not answer.note_refusal(slot, now_s + self.fleet.settings.admission_wait_s, now_s):
            raise self.fleet.overloaded() from error

    async def _wait_for_slot(self, answer: ContinuedAnswer) -> SlotLease:
        settings = self.fleet.settings
        wait_s = settings.failover_s if answer.ends_s is None else max(0.0, answer.ends_s - self._clock.now())
        try:
            return await self.wait_for_slot(wait_s, answer.avoid)
        except errors.LLMUnavailableError:
            if answer.lost is not None:
                raise answer.lost from None
            raise
