"""A text that is still being written, against the real server of tokens with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest

from gateway.core import ComingText, Sampling, Utterance
from gateway.errors import InvalidTextError, LLMRejectedError, UnsupportedOptionError
from gateway.llm.token_client import TokenStreamClient
from gateway.llm.wire import LLMWire
from llm_service.embedded.eager import eager_engine
from llm_service.embedded.engine import EngineLimits
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.token_stream import SpeechTokenServicer, serving_tokens
from llm_service.prompt import TextPieces, build_prompt
from llm_service.text_encoder import TextEncoder, load_text_encoder
from llm_service.vocab import COSYVOICE2
from servicekit.clock import SystemClock
from servicekit.timeouts import timeout
from tests.gateway.routing.fakes import routed_llm
from tests.llm_service.embedded.engines import ScriptedModel
from tests.workers import random_llm

LENGTH = 160
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, repetition_penalty=1.0)
PIECES = ["once upon ", "a time there ", "was a king"]


class Written(ComingText):
    """Gives pieces as they are put in; None at the end."""

    def __init__(self, *pieces: str | None) -> None:
        super().__init__()
        self.queue: asyncio.Queue[str | None] = asyncio.Queue()
        for piece in pieces:
            self.queue.put_nowait(piece)

    async def _coming(self) -> str | None:
        return await self.queue.get()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    return load_text_encoder(random_llm(tmp_path_factory))


@asynccontextmanager
async def served(wire: LLMWire) -> AsyncIterator[tuple[TokenStreamClient, EngineLoop, ScriptedModel]]:
    """Serve the scripted model; yield a client, the loop and the model."""
    model = ScriptedModel(COSYVOICE2, LENGTH)
    engine = eager_engine(model, EngineLimits(1, 500), RepetitionGuard(0), SystemClock())
    loop = EngineLoop(engine, 2, SystemClock())
    loop.start()
    try:
        async with serving_tokens(SpeechTokenServicer(loop), "127.0.0.1", 0) as port:
            client = TokenStreamClient(f"grpc://127.0.0.1:{port}", wire)
            try:
                yield client, loop, model
            finally:
                await client.close()
    finally:
        loop.stop()


@pytest.mark.slow
async def test_speech_comes_before_the_text_is_whole_and_ends_with_it(encoder: TextEncoder) -> None:
    async with timeout(60.0), served(LLMWire(encoder)) as (client, loop, model):
        text = Written(*PIECES[1:])
        utterance = Utterance(PIECES[0], "", (), coming_text=text)
        spoken = list[int]()
        async with aclosing(client.generate(utterance, GREEDY, 3)) as deltas:
            async for delta in deltas:
                spoken += delta.token_ids
                if len(spoken) >= 15:
                    text.queue.put_nowait(None)
                last = delta
        assert spoken == list(range(100, 100 + LENGTH)) and last.finish_reason == "stop"
        whole = build_prompt(encoder.encode, "", "".join(PIECES), ()).token_ids[1:-1]
        fed = [token for token in model.fed if token < COSYVOICE2.first_id]
        assert tuple(fed) == whole, "pieces are encoded as the text is"
        assert loop.stats().free_slots == 1


async def test_another_server_goes_on_with_what_was_spoken_and_with_the_text(encoder: TextEncoder) -> None:
    async with timeout(60.0), AsyncExitStack() as stack:
        wire, servers = LLMWire(encoder), {}
        for address in "ab":
            servers[address] = await stack.enter_async_context(served(wire))
            servers[address][2].wishes[9] = COSYVOICE2.fill_id  # asks for text behind 9 tokens, and always again
        replicas = [Address(address, client) for address, (client, _, _) in servers.items()]
        router = await stack.enter_async_context(routed_llm(*replicas))  # type: ignore[arg-type]
        text, spoken, is_lost = Written(*PIECES[1:]), list[int](), False
        utterance = Utterance(PIECES[0], "", (), coming_text=text)
        async with aclosing(router.generate(utterance, GREEDY, 3)) as deltas:
            async for delta in deltas:
                spoken += delta.token_ids
                if delta.fills and not is_lost:
                    is_lost = True
                    for _, loop, model in servers.values():
                        if loop.stats().free_slots:
                            model.wishes.clear()
                        else:
                            loop.stop()
                    text.queue.put_nowait(" who was old")
                    text.queue.put_nowait(None)
        assert spoken == list(range(100, 100 + LENGTH))
        (last,) = (model for _, loop, model in servers.values() if loop.is_running)
        whole = build_prompt(encoder.encode, "", "".join(PIECES) + " who was old", ()).token_ids[1:-1]
        assert tuple(token for token in last.fed if token < COSYVOICE2.first_id) == whole
        ninth = last.fed.index(COSYVOICE2.llm_id(108))
        assert last.fed[ninth + 1] < COSYVOICE2.first_id, "the block ends where the lost server's did"
        assert sum(status.failovers_total for status in router.snapshot()) == 1


class Address:
    """A replica: a client with a name."""

    def __init__(self, address: str, client: Any) -> None:
        self.address, self._client = address, client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


async def test_leaving_while_text_is_waited_for_frees_the_slot(encoder: TextEncoder) -> None:
    async with served(LLMWire(encoder)) as (client, loop, _):
        utterance = Utterance("".join(PIECES), "", (), coming_text=Written())
        async with aclosing(client.generate(utterance, GREEDY, 3)) as deltas:
            assert (await anext(deltas)).token_ids
        for _ in range(500):
            if loop.stats().free_slots == 1:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the slot was not freed")


async def test_text_that_cant_be_taken_ends_the_answer(encoder: TextEncoder) -> None:
    async with served(LLMWire(encoder)) as (client, _, _):
        for text, kind_of_error in (("\ud800", InvalidTextError), ("word " * 600, LLMRejectedError)):
            utterance = Utterance(PIECES[0], "", (), coming_text=Written(text, None))
            with pytest.raises(kind_of_error):
                async for _ in client.generate(utterance, GREEDY, 3):
                    pass


def test_over_http_nobody_is_asked(encoder: TextEncoder) -> None:
    utterance = Utterance("hello", "", (), coming_text=Written())
    with pytest.raises(UnsupportedOptionError, match="needs the embedded LLM server"):
        LLMWire(encoder).request(utterance, GREEDY, 3, "m")


def test_blank_space_goes_with_what_follows_it(encoder: TextEncoder) -> None:
    pieces = TextPieces(encoder.encode)
    given = [token for piece in ("  once ", "upon", " ", "a time  ") for token in pieces.ids(piece)]
    assert tuple(given) == tuple(encoder.encode("once upon a time"))
