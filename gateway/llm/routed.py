"""All LLM replicas as one `core.SpeechLM`: the least loaded answers, and another goes on where one is lost.

"Hello, how are you?" ─► A: 17 4 4063 ✗            ─► caller
                         B: text + 17 4 4063 as if it had spoken them: 981 22 ... ─► caller
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.ejection import Ejection
from gateway.llm.token_pace import TokenPace
from gateway.routing.discovery import Source
from gateway.routing.faults import is_replica_fault
from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.replica import LoadReport, ReplicaStatus
from gateway.routing.replicas import NOBODY
from gateway.routing.waiting import wait_for_replica, wait_for_slot
from gateway.routing.watch import Watch
from gateway.speech.request import MAX_SEED
from gateway.token2wav.lease import give_back
from servicekit.clock import Clock
from token2wav_service.contract import DEFAULT_PRIORITY

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0


class LLMReplicaClient(Protocol):
    """A client of one replica (`gateway.llm.client.SpeechLMClient`, or a fake)."""

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


class RoutedSpeechLM:
    """Implements `core.SpeechLM` over all replicas."""

    def __init__(
        self, fleet: Fleet, sources: list[Source], make_client: Callable[[str], LLMReplicaClient], clock: Clock
    ) -> None:
        """Know the replicas that the sources name; `start` finds and probes the others."""
        self.fleet = fleet
        self._clock = clock
        self._watch = Watch(fleet, sources, lambda address: LLMReplica(make_client(address)))

    def start(self) -> None:
        """Begin to look for replicas and to probe them."""
        self._watch.start()

    async def close(self) -> None:
        """Drop all connections; generations under way fail."""
        await self._watch.close()

    def snapshot(self) -> tuple[ReplicaStatus, ...]:
        """Return the facts of every replica."""
        return self.fleet.replicas.snapshot()

    async def is_ready(self) -> bool:
        """Tell whether any replica takes requests; asks them all if none is known to."""
        if not self.fleet.replicas.is_ready:
            await self._watch.probe_once()
        return self.fleet.replicas.is_ready

    async def until_usable(self) -> None:
        """Wait for a replica that takes requests, but not for long.

        Raises:
            LLMUnavailableError: there is none.
        """
        await wait_for_replica(self.fleet, self.fleet.settings.admission_wait_s, self._clock)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield the speech tokens of one text; see `SpeechLM.generate`.

        An answer that breaks off is asked for again, with the tokens so far as its beginning, until `failover_s` have
        gone by without a token, or too many replicas in a row broke off without one.
        """
        answer = _Answer(utterance, seed, self.fleet.settings.max_failovers)
        while True:
            slot = await self._wait_for_slot(answer)
            error: BaseException | None = None
            try:
                async with aclosing(self._deltas(slot, answer, sampling)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except BaseException as caught:
                error = caught
                answer.note_loss(caught, slot, self._clock.now(), self.fleet.settings.failover_s)
            finally:
                give_back(slot, error, is_begun=True)
            await answer.pause()

    async def _deltas(self, slot: SlotLease, answer: _Answer, sampling: Sampling) -> AsyncGenerator[SpeechTokenDelta]:
        client = self._watch.client(slot.address).client
        pace, ejection = TokenPace(self._clock), Ejection(slot)
        async with aclosing(client.generate(answer.rest(), sampling, answer.rest_seed)) as deltas:
            while (delta := await ejection.unless(anext(deltas, None))) is not None:
                if delta.token_ids:
                    slot.worked()
                    if (token_s := pace.note(len(delta.token_ids))) is not None:
                        slot.replica.measured(token_s)
                    answer.note_tokens(delta.token_ids)
                yield delta

    async def _wait_for_slot(self, answer: _Answer) -> SlotLease:
        settings = self.fleet.settings
        wait_s = settings.failover_s if answer.ends_s is None else max(0.0, answer.ends_s - self._clock.now())
        try:
            return await wait_for_slot(self.fleet, DEFAULT_PRIORITY, wait_s, answer.avoid, is_begun=True)
        except errors.LLMUnavailableError:
            if answer.lost is not None:
                raise answer.lost from None
            raise


class _Answer:
    """What was asked and what has been answered of it, by whichever replica."""

    def __init__(self, utterance: Utterance, seed: int, max_failovers: int) -> None:
        self._utterance = utterance
        self._seed = seed
        self._spoken: list[int] = []
        self._max_failovers = max_failovers
        self._failovers_left = max_failovers
        self._pause_s = FIRST_PAUSE_S
        self.avoid = NOBODY
        self.lost: errors.GatewayError | None = None
        self.ends_s: float | None = None
        """Until when a replica must be found; None while none was lost since the last token."""

    def rest(self) -> Utterance:
        """What is still to be spoken."""
        if not self._spoken:
            return self._utterance
        return replace(self._utterance, spoken_tokens=(*self._utterance.spoken_tokens, *self._spoken))

    @property
    def rest_seed(self) -> int:
        """The seed itself as long as nothing is spoken, so that the answer is the one that was lost; then another one.

        The same would draw the same random numbers once more.
        """
        return (self._seed + len(self._spoken)) % (MAX_SEED + 1)

    def note_tokens(self, token_ids: tuple[int, ...]) -> None:
        """Note progress."""
        self._spoken.extend(token_ids)
        self._failovers_left = self._max_failovers
        self._pause_s = FIRST_PAUSE_S
        self.avoid = NOBODY
        self.ends_s = None

    def note_loss(self, error: BaseException, slot: SlotLease, now_s: float, failover_s: float) -> None:
        """Decide whether to ask again; raise the error if not."""
        if not isinstance(error, errors.GatewayError) or not is_replica_fault(error):
            raise error
        if self.ends_s is None:
            self.ends_s = now_s + failover_s
        # NOTE: one that could not even be asked costs nothing; time alone bounds that.
        self._failovers_left -= not isinstance(error, errors.LLMUnavailableError)
        if self._failovers_left < 0 or now_s >= self.ends_s:
            raise error
        logger.warning("asking again for an answer that broke off after %d tokens: %s", len(self._spoken), error)
        slot.replica.failovers_total += 1
        self.lost = error
        self.avoid |= {slot.address}

    async def pause(self) -> None:
        """Let a little time go by, more each time."""
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
