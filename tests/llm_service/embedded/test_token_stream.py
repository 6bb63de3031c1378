"""The lean stream of tokens: the same answers every time, refusals, cancellation, deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tts_api.llm.v1 import speech_token_service_pb2 as messages
from tts_api.llm.v1 import speech_token_service_pb2_grpc as stubs

from llm_service.embedded.engine import EngineLimits
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.embedded.token_stream import SERVICE_NAME, SpeechTokenServicer, serving_tokens
from llm_service.vocab import COSYVOICE2, SPEECH_TOKEN_COUNT
from servicekit.clock import SystemClock
from tests.llm_service.embedded.engines import make_engine

PROMPT = [COSYVOICE2.sos_id, *range(5), COSYVOICE2.task_id]
WAIT_S = 30.0
GREEDY = messages.Sampling(top_p=1.0, repetition_penalty=1.1)


def make_loop(model: SpeechLanguageModel, slots: int = 2) -> EngineLoop:
    engine = make_engine(model, EngineLimits(slots, 600))
    loop = EngineLoop(engine, 1, SystemClock())
    loop.start()
    return loop


@asynccontextmanager
async def serving(model: SpeechLanguageModel) -> AsyncIterator[tuple[Any, EngineLoop, Any]]:
    """Serve; yield the stub, the loop and the channel."""
    loop = make_loop(model)
    try:
        async with serving_tokens(SpeechTokenServicer(loop), "127.0.0.1", 0) as port:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield stubs.SpeechTokenServiceStub(channel), loop, channel
    finally:
        loop.stop()


def request(**fields: Any) -> Any:
    asked = {"prompt_ids": PROMPT, "seed": 3, "max_tokens": 30, "min_tokens": 30} | fields
    return messages.GenerateRequest(**asked)


async def answer(stub: Any, asked: Any) -> list[Any]:
    return [message async for message in stub.Generate(asked, timeout=WAIT_S)]


async def until(is_true: Callable[[], bool]) -> None:
    for _ in range(int(WAIT_S / 0.02)):
        if is_true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the condition never came true")


async def is_free(loop: EngineLoop) -> bool:
    await until(lambda: loop.stats().free_slots == 2 and not loop.stats().waiting)
    return True


async def test_only_an_answers_last_message_has_a_reason_and_equal_seeds_give_equal_answers(
    model: SpeechLanguageModel,
) -> None:
    async with serving(model) as (stub, _, _):
        first = await answer(stub, request())
        again, other = await asyncio.gather(answer(stub, request()), answer(stub, request(seed=4)))
    ids = [token for message in first for token in message.speech_ids]
    assert len(ids) == 30 and all(0 <= token < SPEECH_TOKEN_COUNT for token in ids)
    assert first[-1].finish_reason == messages.FINISH_REASON_LENGTH
    assert not any(message.finish_reason for message in first[:-1])
    assert ids == [token for message in again for token in message.speech_ids]
    assert ids != [token for message in other for token in message.speech_ids]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt_ids": []}, "0 tokens"),
        ({"prompt_ids": [999_999]}, "out of range"),
        ({"max_tokens": 5000}, "room for"),
        ({"min_tokens": 40}, "min_tokens is 40"),
        ({"priority": 11}, "priority is 11"),
        ({"sampling": messages.Sampling(temperature=0.8, repetition_penalty=1.0)}, "top_p is 0"),
        ({"sampling": messages.Sampling(top_p=1.0, repetition_penalty=0.001)}, "repetition_penalty is 0.001"),
        ({"continued_tokens": 9}, "continued_tokens is 9"),
    ],
)
async def test_bad_requests_are_refused(model: SpeechLanguageModel, fields: dict[str, Any], message: str) -> None:
    async with serving(model) as (stub, loop, _):
        with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
            await answer(stub, request(**fields))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await is_free(loop)


async def test_cancelling_and_a_deadline_free_the_slot(model: SpeechLanguageModel) -> None:
    async with serving(model) as (stub, loop, _):
        call = stub.Generate(request(max_tokens=590, min_tokens=590), timeout=WAIT_S)
        assert await call.read()
        call.cancel()
        assert await is_free(loop)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Generate(request(max_tokens=590, min_tokens=590), timeout=0.3):
                pass
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await is_free(loop)


async def test_too_many_requests_are_told_so_and_a_stopped_engine_too(model: SpeechLanguageModel) -> None:
    async with serving(model) as (stub, loop, _):
        calls = [stub.Generate(request(max_tokens=590, min_tokens=590), timeout=WAIT_S) for _ in range(3)]
        await until(lambda: loop.stats().running + loop.stats().waiting == 3)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer(stub, request())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()
        loop.stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer(stub, request())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def ids_of(call: Any, wanted: int) -> dict[int, list[int]]:
    """Read a stream of many answers until so many have ended; failed ones have no ids."""
    found: dict[int, list[int]] = {}
    ended = 0
    while ended < wanted:
        message = await asyncio.wait_for(call.read(), WAIT_S)
        numbers = [part.number for part in message.parts]
        assert numbers and len(set(numbers)) == len(numbers), "none of these fails"
        for part in message.parts:
            found.setdefault(part.number, []).extend(part.response.speech_ids)
            ended += part.HasField("failure") or part.response.finish_reason != 0
    return found


def begin(number: int, asked: Any, timeout_ms: int = 0) -> Any:
    return messages.NumberedRequest(number=number, request=asked, timeout_ms=timeout_ms)


@pytest.mark.slow
async def test_many_answers_share_a_stream_and_equal_those_alone(model: SpeechLanguageModel) -> None:
    async with serving(model) as (stub, loop, _):
        alone = [[i for m in await answer(stub, request(seed=seed)) for i in m.speech_ids] for seed in (3, 4)]
        call = stub.GenerateMany()
        asked = [begin(seed, request(seed=seed)) for seed in (3, 4)]
        await call.write(messages.GenerateManyRequest(begin=asked))
        found = await ids_of(call, 2)
        assert [found[3], found[4]] == alone
        await call.done_writing()
        assert await asyncio.wait_for(call.read(), WAIT_S) is grpc.aio.EOF
        assert await is_free(loop)


async def test_among_many_a_bad_one_fails_alone(model: SpeechLanguageModel) -> None:
    async with serving(model) as (stub, loop, _):
        call = stub.GenerateMany()
        long = request(max_tokens=590, min_tokens=590)
        asked = [begin(1, request()), begin(1, request()), begin(2, request(prompt_ids=[])), begin(3, long, 50)]
        await call.write(messages.GenerateManyRequest(begin=asked))
        failures: set[tuple[int, int, str]] = set()
        ids: list[int] = []
        while len(failures) < 3 or len(ids) < 30:
            for part in (await asyncio.wait_for(call.read(), WAIT_S)).parts:
                ids += part.response.speech_ids if part.number == 1 else []
                if part.HasField("failure"):
                    failures.add((part.number, part.failure.code, part.failure.message))
        invalid, late = (status.value[0] for status in (StatusCode.INVALID_ARGUMENT, StatusCode.DEADLINE_EXCEEDED))
        assert failures == {
            (1, invalid, "number 1 is in use; numbers must be new"),
            (2, invalid, "the prompt has 0 tokens; expected 1..599"),
            (3, late, "the request's deadline has passed"),
        }
        assert await is_free(loop)
        call.cancel()


async def test_among_many_a_cancelled_one_and_the_streams_end_free_their_slots(model: SpeechLanguageModel) -> None:
    async with serving(model) as (stub, loop, _):
        long = request(max_tokens=590, min_tokens=590)
        call = stub.GenerateMany()
        await call.write(messages.GenerateManyRequest(begin=[begin(1, long), begin(2, long)]))
        await until(lambda: loop.stats().running == 2)
        await call.write(messages.GenerateManyRequest(cancel=[1, 7]))
        await until(lambda: loop.stats().running == 1)
        call.cancel()
        assert await is_free(loop)


async def test_health_is_told(model: SpeechLanguageModel) -> None:
    async with serving(model) as (_, _, channel):
        health = health_pb2_grpc.HealthStub(channel)
        told = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME), timeout=WAIT_S)
    assert told.status == health_pb2.HealthCheckResponse.SERVING
