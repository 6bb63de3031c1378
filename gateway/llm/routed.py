"""All LLM replicas as one `core.SpeechLM`: the least loaded answers, and another goes on where one is lost.

"Hello, how are you?" ─► A: 17 4 4063 ✗            ─► caller
                         B: text + 17 4 4063 as if it had spoken them: 981 22 ... ─► caller
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Protocol

from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.answer import Answer, Ejection, TokenPace
from gateway.routing.discovery import Source
from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.replica import LoadReport
from gateway.routing.router import Router, give_back
from gateway.routing.speed import Listener, SpeedMeter
from gateway.routing.waiting import wait_for_slot
from servicekit.clock import Clock
from token2wav_service.contract import DEFAULT_PRIORITY, TOKEN_RATE_HZ


class LLMReplicaClient(Protocol):
    """A client of one replica (`gateway.llm.client.SpeechLMClient`, `token_client.TokenStreamClient`, or a fake)."""

    @property
    def continues_exactly(self) -> bool:
        """Whether an answer asked for with its seed and its first tokens goes on with the very same tokens."""
        ...

    def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]: ...
    async def answers_health(self) -> bool: ...
    async def close(self) -> None: ...


class LLMReplica:
    """One LLM replica."""

    def __init__(self, client: LLMReplicaClient) -> None:
        """Own the client."""
        self.client = client

    async def probe(self) -> LoadReport:
        """See `watch.ReplicaClient`; one that answers that it is not well gets no new work and ends what it has."""
        return LoadReport(is_draining=not await self.client.answers_health())

    async def close(self) -> None:
        """Drop its connections."""
        await self.client.close()


class RoutedSpeechLM(Router[LLMReplica]):
    """Implements `core.SpeechLM` over all replicas."""

    def __init__(
        self,
        fleet: Fleet,
        sources: list[Source],
        make_client: Callable[[str], LLMReplicaClient],
        clock: Clock,
        speed: SpeedMeter | None = None,
    ) -> None:
        """See `Router`."""
        super().__init__(fleet, sources, lambda address: LLMReplica(make_client(address)), clock, speed)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield the speech tokens of one text; see `SpeechLM.generate`.

        An answer that breaks off is asked for again, with the tokens so far as its beginning, until `rescue_s` of
        the fleet have gone by without a token, or too many replicas in a row broke off without one. Where its text is
        still being written, the next replica gets what was taken of it at once, and then what follows.
        """
        answer = Answer(utterance, seed, self.fleet.settings.max_failovers)
        while True:
            slot = await self._wait_for_slot(answer)
            async with self._attempt(slot, answer, sampling) as deltas:
                async for delta in deltas:
                    yield delta
                return
            await answer.pause()

    @asynccontextmanager
    async def _attempt(
        self, slot: SlotLease, answer: Answer, sampling: Sampling
    ) -> AsyncIterator[AsyncGenerator[SpeechTokenDelta]]:
        """Ask one replica for the rest of an answer; its loss is swallowed if another replica may go on."""
        error: BaseException | None = None
        try:
            async with aclosing(self._deltas(slot, answer, sampling)) as deltas:
                yield deltas
        except BaseException as caught:
            error = caught
            answer.note_loss(caught, slot, self._clock.now(), self.fleet.rescue_s)
        finally:
            give_back(slot, error, is_begun=True)

    async def _deltas(self, slot: SlotLease, answer: Answer, sampling: Sampling) -> AsyncGenerator[SpeechTokenDelta]:
        client = self._watch.client(slot.address).client
        pace, ejection, listener = TokenPace(self._clock), Ejection(slot), self.speed.new_listener()
        async with aclosing(
            client.generate(answer.rest(), sampling, answer.rest_seed(client.continues_exactly))
        ) as deltas:
            wait = _untimed if answer.waits_for_text else partial(_timed, listener)
            while (delta := await wait(ejection.unless(anext(deltas, None)))) is not None:
                answer.note(delta)
                if delta.token_ids:
                    self._note_progress(slot, answer, pace, delta)
                    listener.got(len(delta.token_ids) / TOKEN_RATE_HZ)
                yield delta

    def _note_progress(self, slot: SlotLease, answer: Answer, pace: TokenPace, delta: SpeechTokenDelta) -> None:
        slot.worked()
        if not answer.waits_for_text:
            self.speed.made(len(delta.token_ids) / TOKEN_RATE_HZ)
            if (token_s := pace.note(len(delta.token_ids))) is not None:
                slot.replica.measured(token_s)

    async def _wait_for_slot(self, answer: Answer) -> SlotLease:
        settings = self.fleet.settings
        wait_s = settings.failover_s if answer.ends_s is None else max(0.0, answer.ends_s - self._clock.now())
        try:
            return await wait_for_slot(self.fleet, DEFAULT_PRIORITY, wait_s, answer.avoid, is_begun=True)
        except errors.LLMUnavailableError:
            if answer.lost is not None:
                raise answer.lost from None
            raise


async def _timed(listener: Listener, coming: Awaitable[SpeechTokenDelta | None]) -> SpeechTokenDelta | None:
    """Wait for something of the replica's, and count the time as one in which the LLM is waited for."""
    listener.begin_wait()
    try:
        return await coming
    finally:
        listener.end_wait()


async def _untimed(coming: Awaitable[SpeechTokenDelta | None]) -> SpeechTokenDelta | None:
    return await coming
