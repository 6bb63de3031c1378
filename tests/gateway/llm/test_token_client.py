"""The gateway's client of the lean stream of tokens, against the real servicer on a small random LLM."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.errors import (
    LLMBusyError,
    LLMDeadlineError,
    LLMInterruptedError,
    LLMRejectedError,
    LLMUnavailableError,
)
from gateway.llm import token_client
from gateway.llm.client import LLMDeadlines
from gateway.llm.token_client import TokenStreamClient
from gateway.llm.wire import LLMWire
from llm_service.embedded.eager import eager_engine
from llm_service.embedded.engine import EngineLimits
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.token_stream import SpeechTokenServicer, serving_tokens
from llm_service.vocab import COSYVOICE2
from servicekit.clock import SystemClock
from tests.gateway.fakes import CharacterEncoder
from tests.gateway.llm.server import is_ready, tokens_of
from tests.workers import random_llm

WIRE = LLMWire(CharacterEncoder())  # type: ignore[arg-type]
UTTERANCE = Utterance("abcdef", "de", (5, 6))


@pytest.fixture(scope="module")
def llm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_llm(tmp_path_factory)


@asynccontextmanager
async def served(llm_dir: Path, slots: int = 2, positions: int = 600) -> AsyncIterator[tuple[str, EngineLoop]]:
    """Serve the random LLM; yield the address and the engine's loop."""
    torch.set_num_threads(1)
    model = SpeechLanguageModel.load(llm_dir, "cpu", "float32")
    model.allocate_cache(slots, positions, rows_per_forward=slots)
    engine = eager_engine(model, EngineLimits(slots, positions), RepetitionGuard(), SystemClock())
    loop = EngineLoop(engine, 0, SystemClock())
    loop.start()
    try:
        async with serving_tokens(SpeechTokenServicer(loop), "127.0.0.1", 0) as port:
            yield f"grpc://127.0.0.1:{port}", loop
    finally:
        loop.stop()


@asynccontextmanager
async def client_of(address: str, **deadlines: float) -> AsyncIterator[TokenStreamClient]:
    client = TokenStreamClient(address, WIRE, LLMDeadlines(**deadlines))
    try:
        yield client
    finally:
        await client.close()


async def collect(client: TokenStreamClient, seed: int = 3, sampling: Sampling | None = None) -> list[SpeechTokenDelta]:
    async with aclosing(client.generate(UTTERANCE, sampling or Sampling(), seed)) as deltas:
        return [delta async for delta in deltas]


async def test_an_answer_arrives_and_only_its_last_delta_has_a_reason(llm_dir: Path) -> None:
    async with served(llm_dir) as (address, _), client_of(address) as client:
        assert await is_ready(client)
        deltas, again = await collect(client), await collect(client)
    assert deltas[-1].finish_reason in ("stop", "length")
    assert not any(delta.finish_reason for delta in deltas[:-1])
    assert tokens_of(deltas) == tokens_of(again) and len(tokens_of(deltas)) >= 12


async def test_closing_an_answer_frees_the_slot(llm_dir: Path) -> None:
    async with served(llm_dir) as (address, loop), client_of(address) as client:
        async with aclosing(client.generate(UTTERANCE, Sampling(), 3)) as deltas:
            await anext(deltas)
        for _ in range(500):
            if loop.stats().free_slots == 2:
                return
            await asyncio.sleep(0.02)
    raise AssertionError("the slot was never freed")


async def test_errors_are_those_of_http(llm_dir: Path) -> None:
    async with served(llm_dir, slots=1, positions=20) as (address, _), client_of(address) as client:
        with pytest.raises(LLMRejectedError, match="room for"):
            await collect(client)
    async with served(llm_dir, slots=1) as (address, loop), client_of(address) as client:
        loop.stop()
        with pytest.raises(LLMUnavailableError, match="not running"):
            await collect(client)


async def test_a_full_engine_is_busy(llm_dir: Path) -> None:
    async with served(llm_dir, slots=1) as (address, _), client_of(address) as client:
        async with aclosing(client.generate(UTTERANCE, Sampling(), 3)) as held:
            await anext(held)
            with pytest.raises(LLMBusyError, match="may be; try again in"):
                await collect(client)


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with client_of(f"grpc://127.0.0.1:{port}", ready_s=2.0) as client:
        assert not await is_ready(client)
        with pytest.raises(LLMUnavailableError, match="can't be reached"):
            await collect(client)


async def test_a_silent_engine_is_overdue(llm_dir: Path) -> None:
    async with served(llm_dir) as (address, _), client_of(address, first_token_s=0.0) as client:
        with pytest.raises(LLMDeadlineError, match="nothing came"):
            await collect(client)


async def test_a_lost_stream_fails_what_it_carried_and_the_next_answer_gets_a_new_one(llm_dir: Path) -> None:
    async with served(llm_dir) as (address, loop), client_of(address) as client:
        async with aclosing(client.generate(UTTERANCE, Sampling(), 3)) as deltas:
            await anext(deltas)
            assert client._connection is not None
            client._connection.close()
            with pytest.raises(LLMInterruptedError, match="ended without"):
                async for _ in deltas:
                    pass
        assert tokens_of(await collect(client))
        assert loop.stats().free_slots == 2


async def test_a_request_that_the_service_would_not_take_is_refused_here(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(llm_dir) as (address, _), client_of(address) as client:
        with monkeypatch.context() as small:
            small.setattr(token_client, "MAX_REQUEST_BYTES", 10)
            with pytest.raises(LLMRejectedError, match="shorten the text"):
                await collect(client)
        assert tokens_of(await collect(client))


async def test_the_request_names_what_is_waited_for_and_the_pace_behind_it() -> None:
    """Tokens that were spoken before the answer was lost are no part of the head start any more."""
    spoken = tuple(range(4))
    for pace, tokens_per_s in ((8.0, 200.0), (0.0, 0.0)):
        client = TokenStreamClient("grpc://127.0.0.1:1", WIRE, pace=pace)
        begun = client._request(replace(UTTERANCE, head_start_tokens=10), Sampling(), 3)
        resumed = client._request(replace(UTTERANCE, head_start_tokens=10, spoken_tokens=spoken), Sampling(), 3)
        assert (begun.head_start_tokens, begun.tokens_per_s) == (10, tokens_per_s)
        assert (resumed.head_start_tokens, resumed.continued_tokens) == (6, 4)
        assert list(resumed.prompt_ids) == [*begun.prompt_ids, *map(COSYVOICE2.llm_id, spoken)]
