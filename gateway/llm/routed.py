"""All LLM replicas as one `core.SpeechLM`: the least loaded answers, and another goes on where one is lost.

"Hello, how are you?" ─► A: 17 4 4063 ✗            ─► caller
                         B: text + 17 4 4063 as if it had spoken them: 981 22 ... ─► caller
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Protocol

from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.answer import ContinuedAnswer, Ejection
from gateway.routing.discovery import ReplicaSource
from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.replica import LoadReport
from gateway.routing.router import Router, give_back
from gateway.speech.request import HIGHEST_PRIORITY
from servicekit.clock import Clock


class LLMReplicaClient(Protocol):
    """A client of one replica (`gateway.llm.client.SpeechLMClient`, `token_client.TokenStreamClient`, or a fake)."""

    @property
    def continues_exactly(self) -> bool:
        """Whether an answer asked for with its seed and its first tokens goes on with the very same tokens."""
        ...

    def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]: ...
    async def answers_health(self) -> bool | LoadReport: ...
    async def close(self) -> None: ...


class LLMReplica:
    """One LLM replica."""

    def __init__(self, client: LLMReplicaClient, slots: int | None = None) -> None:
        """Own the client; `slots`: answers that the server makes at once, None if it refuses others itself."""
        self.client = client
        self._slots = slots

    async def probe(self) -> LoadReport:
        """See `router.ReplicaClient`; one that answers that it is not well gets no new work and ends what it has."""
        told = await self.client.answers_health()
        return told if isinstance(told, LoadReport) else LoadReport(is_draining=not told, slots=self._slots)

    async def close(self) -> None:
        """Drop its connections."""
        await self.client.close()


class RoutedSpeechLM(Router[LLMReplica]):
    """Implements `core.SpeechLM` over all replicas."""

    def __init__(
        self,
        fleet: Fleet,
        sources: list[ReplicaSource],
        make_client: Callable[[str], LLMReplicaClient],
        clock: Clock,
        slots: int | None = None,
    ) -> None:
        """See `Router` and `LLMReplica`."""
        super().__init__(fleet, sources, lambda address: LLMReplica(make_client(address), slots), clock)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield the speech tokens of one text; see `SpeechLM.generate`.

        An answer that breaks off is asked for again, with the tokens so far as its beginning, until `rescue_s` of
        the fleet have gone by without a token, or too many replicas in a row broke off without one. Where its text is
        still being written, the next replica gets what was taken of it at once, and then what follows.
        """
        if not self.caller_has_share():
            utterance = replace(utterance, priority=HIGHEST_PRIORITY)
        answer = ContinuedAnswer(utterance, seed, self.fleet.settings)
        try:
            while True:
                slot = await self._wait_for_slot(answer)
                async with self._attempt(slot, answer, sampling) as deltas:
                    async for delta in deltas:
                        yield delta
                    return
                await answer.backoff.pause()
        finally:
            self._set_looking(answer, False)

    @asynccontextmanager
    async def _attempt(
        self, slot: SlotLease, answer: ContinuedAnswer, sampling: Sampling
    ) -> AsyncIterator[AsyncGenerator[SpeechTokenDelta]]:
        """Ask one replica for the rest of an answer; its loss is swallowed if another replica may go on."""
        try:
            async with aclosing(self._deltas(slot, answer, sampling)) as deltas:
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

    async def _deltas(
        self, slot: SlotLease, answer: ContinuedAnswer, sampling: Sampling
    ) -> AsyncGenerator[SpeechTokenDelta]:
        client = self.client(slot.address).client
        ejection = Ejection(slot)
        async with aclosing(
            client.generate(answer.rest(), sampling, answer.rest_seed(client.continues_exactly))
        ) as deltas:
            while (delta := await ejection.unless(anext(deltas, None))) is not None:
                self._set_looking(answer, False)
                answer.note(delta)
                if delta.token_ids:
                    slot.replica.succeeded()
                yield delta

    def _note_refusal(self, answer: ContinuedAnswer, slot: SlotLease, error: errors.LLMBusyError) -> None:
        """Note that a replica has no room for a new answer.

        Raises:
            OverloadedError: none had in time.
        """
        now_s = self._clock.now()
        self._set_looking(answer, True)
        if not answer.note_refusal(slot, now_s + self.fleet.settings.admission_wait_s, now_s):
            raise self.fleet.overloaded() from error

    def _set_looking(self, answer: ContinuedAnswer, is_looking: bool) -> None:
        """Note whether an answer was refused and has not begun: nobody else is admitted before it."""
        self.fleet.looking += is_looking - answer.is_looking
        answer.is_looking = is_looking

    async def _wait_for_slot(self, answer: ContinuedAnswer) -> SlotLease:
        settings = self.fleet.settings
        wait_s = settings.failover_s if answer.ends_s is None else max(0.0, answer.ends_s - self._clock.now())
        try:
            return await self.wait_for_slot(wait_s, answer.avoid)
        except errors.LLMUnavailableError:
            if answer.lost is not None:
                raise answer.lost from None
            raise
