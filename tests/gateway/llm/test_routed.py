"""Answers of several LLM replicas: who gives them, and who goes on where one is lost."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from gateway.core import ComingText, Sampling, SpeechTokenDelta, Utterance
from gateway.errors import (
    LLMBusyError,
    LLMDeadlineError,
    LLMError,
    LLMFailedError,
    LLMInterruptedError,
    LLMProtocolError,
    LLMRejectedError,
    LLMUnavailableError,
)
from gateway.llm.routed import RoutedSpeechLM
from gateway.routing.replica import ReplicaState, RoutingSettings
from gateway.speech.request import MAX_SEED
from servicekit.timeouts import timeout
from tests.gateway.llm.server import tokens_of
from tests.gateway.routing.fakes import QUICK, ScriptedLLM, routed_llm, until
from tests.virtual_time import ManualClock, run_virtually

UTTERANCE = Utterance("Say it.", "reference", (5, 6))
LOST = LLMInterruptedError("it went away")


async def _answer(router: RoutedSpeechLM, seed: int = 3) -> list[SpeechTokenDelta]:
    async with aclosing(router.generate(UTTERANCE, Sampling(), seed)) as deltas:
        return [delta async for delta in deltas]


async def test_one_replica_is_asked_as_it_would_be_without_routing() -> None:
    llm = ScriptedLLM("a", until_token=4)
    async with routed_llm(llm) as router:
        deltas = await _answer(router)
    assert tokens_of(deltas) == [0, 1, 2, 3] and deltas[-1].finish_reason == "stop"
    assert (llm.utterances, llm.seeds) == ([UTTERANCE], [3])


@pytest.mark.parametrize(
    "error", [LOST, LLMFailedError("500"), LLMDeadlineError("silent"), LLMProtocolError("no JSON")], ids=repr
)
@pytest.mark.parametrize("breaks_after", [0, 1, 7])
async def test_a_lost_answer_goes_on_after_the_tokens_so_far(error: LLMError, breaks_after: int) -> None:
    first, second = (ScriptedLLM(name, breaks_after=breaks_after, error=error) for name in "ab")
    second.error = None
    async with routed_llm(first, second) as router:
        first_asked = await _until_first_is_asked(router, first)
        assert tokens_of(first_asked) == list(range(20))
        assert [delta.finish_reason for delta in first_asked].count("stop") == 1
        assert second.utterances[-1] == dataclasses.replace(UTTERANCE, spoken_tokens=tuple(range(breaks_after)))
        assert second.seeds[-1] == 3 + breaks_after
        assert {status.address: status.failovers_total for status in router.snapshot()} == {"a": 1, "b": 0}


async def _until_first_is_asked(router: RoutedSpeechLM, first: ScriptedLLM) -> list[SpeechTokenDelta]:
    while True:
        deltas = await _answer(router)
        if first.utterances:
            return deltas


@pytest.mark.parametrize("error", [LLMRejectedError("400")])
async def test_what_no_replica_can_help_is_asked_once(error: LLMError) -> None:
    llms = [ScriptedLLM(name, breaks_after=2, error=error) for name in "ab"]
    async with routed_llm(*llms) as router:
        with pytest.raises(type(error)):
            await _answer(router)
        assert sum(len(llm.utterances) for llm in llms) == 1


async def test_an_answer_that_nobody_goes_on_with_fails_after_the_failover_time() -> None:
    llm = ScriptedLLM("a", breaks_after=2, error=LOST)
    async with routed_llm(llm, settings=dataclasses.replace(QUICK, failover_s=0.2)) as router:
        with pytest.raises(LLMError):
            async with aclosing(router.generate(UTTERANCE, Sampling(), 3)) as answer:
                async for _ in answer:
                    llm.is_dead = True
                    llm.error = LOST


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11; before, deadlines alone end such a wait")
@pytest.mark.parametrize("is_begun", [False, True])
async def test_an_answer_goes_on_elsewhere_when_its_replica_is_ejected_in_silence(is_begun: bool) -> None:
    silence = asyncio.Event()
    llms = [ScriptedLLM("a", gate=silence), ScriptedLLM("b")]
    async with routed_llm(*llms) as router:
        llms[1].is_well = False
        await until(lambda: router.fleet.state_of("b") is ReplicaState.DRAINING, "the drain")
        answer = router.generate(UTTERANCE, Sampling(), 3)
        heard = []
        if is_begun:
            silence.set()
            heard += list((await anext(answer)).token_ids)
            silence.clear()
        rest = asyncio.create_task(_rest_of(answer))
        await until(lambda: llms[0].running == 1, "the question")
        llms[1].is_well = True
        await until(lambda: router.fleet.state_of("b") is ReplicaState.READY, "the other one")
        llms[0].is_dead = True
        heard += await asyncio.wait_for(rest, 10)
        assert heard == list(range(20))
        assert llms[0].running == 0


async def _rest_of(answer: AsyncIterator[SpeechTokenDelta]) -> list[int]:
    return [token async for delta in answer for token in delta.token_ids]


async def test_a_replica_that_says_it_is_busy_is_not_ejected() -> None:
    llms = [ScriptedLLM("a", breaks_after=0, error=LLMBusyError("429")), ScriptedLLM("b")]
    async with routed_llm(*llms) as router:
        for _ in range(6):
            assert tokens_of(await _answer(router)) == list(range(20))
        assert {status.state for status in router.snapshot()} == {ReplicaState.READY}
        assert router.snapshot()[0].failures_total == 0


async def test_an_answer_that_every_replica_is_too_busy_for_fails_after_the_failover_time() -> None:
    llms = [ScriptedLLM(name, breaks_after=0, error=LLMBusyError("429")) for name in "ab"]
    async with routed_llm(*llms, settings=dataclasses.replace(QUICK, failover_s=0.2)) as router:
        with pytest.raises(LLMBusyError):
            async with timeout(10):
                await _answer(router)


async def test_leaving_closes_the_answer_wherever_it_is() -> None:
    llms = [ScriptedLLM(name, breaks_after=3, error=LOST) for name in "ab"]
    llms[1].error = llms[0].error = LOST
    async with routed_llm(*llms) as router:
        answer = router.generate(UTTERANCE, Sampling(), 3)
        for _ in range(5):
            await answer.__anext__()
        await answer.aclose()


async def test_the_seed_of_the_rest_stays_in_range() -> None:
    first, second = ScriptedLLM("a", breaks_after=4, error=LOST), ScriptedLLM("b", breaks_after=4, error=LOST)
    async with routed_llm(first, second) as router:
        await _answer(router, seed=MAX_SEED)
    assert all(0 <= seed <= MAX_SEED for seed in first.seeds + second.seeds)


async def test_waiting_for_a_usable_replica_ends_with_why_there_is_none() -> None:
    llm = ScriptedLLM("a", is_dead=True)
    async with routed_llm(llm) as router:
        await until(lambda: router.fleet.state_of("a") is ReplicaState.EJECTED, "the ejection")
        with pytest.raises(LLMUnavailableError, match="a can't be reached"):
            await router.wait_for_replica()


def test_an_answer_waits_for_the_only_replica_to_be_started_again() -> None:
    llm = ScriptedLLM("a", breaks_after=5, error=LOST)

    async def answer(clock: ManualClock) -> list[int]:
        def come_back() -> None:
            llm.is_dead, llm.error = False, None

        async with routed_llm(llm, settings=RoutingSettings(), clock=clock) as router:
            asyncio.get_running_loop().call_later(90.0, come_back)
            llm_dies = asyncio.get_running_loop().call_later(0.01, setattr, llm, "is_dead", True)
            heard = tokens_of(await _answer(router))
            llm_dies.cancel()
        return heard

    assert run_virtually(answer) == list(range(20))
    assert llm.utterances[-1].spoken_tokens == tuple(range(5))


class Writing(ComingText):
    """A text of which a piece comes every 100 ms."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self._left = pieces

    async def _coming(self) -> str | None:
        if not self._left:
            return None
        await asyncio.sleep(0.1)
        self._left -= 1
        return f"piece{self._left} "


class InterleavingLLM(ScriptedLLM):
    """Speaks 15 tokens for each piece of text, asking for the next piece behind 12 of them every second time."""

    said: list[str]
    breaks_at: tuple[int, ...] = ()
    """Tokens of the whole answer behind which it breaks off, once."""

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        self.utterances.append(utterance)
        self.seeds.append(seed)
        self.running += 1
        try:
            assert utterance.coming_text is not None
            self.said = [utterance.text, *utterance.coming_text.pieces]
            spoken, fills = len(utterance.spoken_tokens), list(utterance.fills)
            while True:
                while spoken < 15 * len(self.said) - 3 * (len(self.said) // 2):
                    self._break_off(spoken)
                    await asyncio.sleep(0.01)
                    yield SpeechTokenDelta((spoken,))
                    spoken += 1
                self._break_off(spoken)
                if len(self.said) % 2 == 0 and spoken not in fills:
                    fills.append(spoken)
                    yield SpeechTokenDelta((), None, (0,))
                piece = await utterance.coming_text.next_piece()
                if piece is None:
                    break
                self.said.append(piece)
            yield SpeechTokenDelta((), "stop")
        finally:
            self.running -= 1

    def _break_off(self, spoken: int) -> None:
        if spoken in self.breaks_at:
            self.breaks_at = tuple(each for each in self.breaks_at if each != spoken)
            raise LOST


BREAKS = [(0,), (7,), (15,), (27,), (28,), (0, 27, 42)]


@pytest.mark.parametrize("breaks_at", BREAKS, ids=str)
def test_an_answer_whose_text_is_being_written_goes_on_elsewhere(breaks_at: tuple[int, ...]) -> None:
    llms = [InterleavingLLM(name) for name in "ab"]
    for llm in llms:
        llm.breaks_at = breaks_at
    text = Writing(pieces=4)

    async def answer(clock: ManualClock) -> list[SpeechTokenDelta]:
        async with routed_llm(*llms, settings=RoutingSettings(), clock=clock) as router:  # type: ignore[arg-type]
            deltas = [
                delta
                async for delta in router.generate(
                    dataclasses.replace(UTTERANCE, text="piece ", coming_text=text), Sampling(), 3
                )
            ]
            status = router.snapshot()
            assert sum(each.failovers_total for each in status) == sum(len(llm.utterances) for llm in llms) - 1
        return deltas

    deltas = run_virtually(answer)
    assert tokens_of(deltas) == list(range(69)), "nothing twice, nothing left out"
    assert [delta.finish_reason for delta in deltas].count("stop") == 1
    asked = sum(len(llm.utterances) for llm in llms)
    assert asked > len(breaks_at)
    whole = ["piece ", *text.pieces]
    assert max((llm.said for llm in llms if llm.utterances), key=len) == whole, "all text, each piece once"
    for utterance in (utterance for llm in llms for utterance in llm.utterances):
        assert utterance.spoken_tokens == tuple(range(len(utterance.spoken_tokens)))
        assert utterance.fills == tuple(place for place in (27, 54) if place < len(utterance.spoken_tokens))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11; before, deadlines alone end such a wait")
@pytest.mark.parametrize("has_text", [False, True])
def test_an_answer_that_waits_for_text_goes_on_where_its_replica_goes_silent(has_text: bool) -> None:
    """The loss is noticed while the writer thinks; what it writes then goes to the next replica alone."""
    llms = [InterleavingLLM(name) for name in "ab"]
    text = Writing(pieces=1 if has_text else 0)

    async def late() -> str | None:
        await asyncio.sleep(50.0)
        text._coming = now  # type: ignore[method-assign]
        return await now()

    now, text._coming = text._coming, late  # type: ignore[method-assign]

    async def answer(clock: ManualClock) -> list[int]:
        async with routed_llm(*llms, settings=RoutingSettings(), clock=clock) as router:  # type: ignore[arg-type]
            utterance = dataclasses.replace(UTTERANCE, text="piece ", coming_text=text)
            heard: list[int] = []
            async with aclosing(router.generate(utterance, Sampling(), 3)) as deltas:
                async for delta in deltas:
                    heard += delta.token_ids
                    if len(heard) == 15 and delta.token_ids:
                        (busy,) = (llm for llm in llms if llm.running)
                        busy.is_dead = True
            assert [len(llm.utterances) for llm in llms] == [1, 1]
            return heard

    assert run_virtually(answer) == list(range(27 if has_text else 15))


def test_an_answer_that_no_replica_goes_on_with_is_bounded_while_its_text_is_written() -> None:
    llms = [InterleavingLLM(name) for name in "ab"]
    settings = RoutingSettings(failures_to_eject=100)
    for llm in llms:
        llm._break_off = _always_lost  # type: ignore[method-assign]

    async def answer(clock: ManualClock) -> None:
        async with routed_llm(*llms, settings=settings, clock=clock) as router:  # type: ignore[arg-type]
            with pytest.raises(LLMInterruptedError):
                async for _ in router.generate(dataclasses.replace(UTTERANCE, coming_text=Writing(4)), Sampling(), 3):
                    raise AssertionError("nothing comes")

    run_virtually(answer)
    assert sum(len(llm.utterances) for llm in llms) == 1 + settings.max_failovers


def _always_lost(spoken: int) -> None:
    raise LOST
