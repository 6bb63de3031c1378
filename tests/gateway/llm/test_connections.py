"""The LLM client's connections: how they are opened and reused, how long it waits, what it closes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from gateway import errors
from gateway.llm.client import LLMDeadlines, SpeechLMClient
from tests.gateway.fakes import DONE, ManualClock, token_event
from tests.gateway.llm.server import (
    NETWORK_WAIT_S,
    TOKENS_WIRE,
    ScriptedBody,
    client_of,
    collect,
    generated,
    hang_up,
    unused_url,
)

SHORT_S = 0.1


async def expect_unreachable(url: str, reason: str) -> None:
    client = SpeechLMClient(url, TOKENS_WIRE, "m")
    assert not await client.is_ready()
    with pytest.raises(errors.LLMUnavailableError, match=f"{reason}.*start the LLM service or correct its URL"):
        await collect(client)
    await client.close()


async def test_a_redirect_is_not_followed() -> None:
    paths: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with client_of(handler) as client:
        assert not await client.is_ready()
        with pytest.raises(errors.LLMRejectedError, match="307"):
            await collect(client)
    assert paths == ["/health", "/v1/completions"]


@pytest.mark.parametrize(("status", "is_ready"), [(200, True), (503, False)])
async def test_a_server_is_ready_when_its_health_endpoint_says_so(status: int, is_ready: bool) -> None:
    async with client_of(lambda request: ScriptedBody([]).answer(request, status)) as client:
        assert await client.is_ready() is is_ready


async def test_a_server_that_does_not_answer_in_time_is_not_ready() -> None:
    body = ScriptedBody([], hangs=True)
    async with client_of(body.answer, deadlines=LLMDeadlines(ready_s=SHORT_S)) as client:
        assert not await client.is_ready()
        await body.until_abandoned()


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", unused_url())
    monkeypatch.delenv("no_proxy", raising=False)
    async with client_of(ScriptedBody([]).answer) as client:
        assert await client.is_ready()


@pytest.mark.parametrize("url", ["", "127.0.0.1", "http://["], ids=["nothing", "no scheme", "not a URL"])
async def test_a_wrong_url_is_unavailable_and_says_what_to_do(url: str) -> None:
    await expect_unreachable(url, "can't be reached")


async def test_an_llm_that_is_down_is_unavailable_and_says_what_to_do() -> None:
    await expect_unreachable(unused_url(), r"can't be reached \(ConnectionRefusedError")


async def test_an_llm_that_never_speaks_passes_the_first_tokens_deadline() -> None:
    body = ScriptedBody([], hangs=True)
    async with client_of(body.answer, deadlines=LLMDeadlines(first_token_s=SHORT_S)) as client:
        with pytest.raises(errors.LLMDeadlineError, match=r"within 0\.1 s"):
            await collect(client)
        await body.until_abandoned()


async def test_an_llm_that_does_not_even_answer_passes_the_first_tokens_deadline() -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("never")

    async with client_of(hang, deadlines=LLMDeadlines(first_token_s=SHORT_S)) as client:
        with pytest.raises(errors.LLMDeadlineError, match=r"within 0\.1 s"):
            await collect(client)


async def test_an_llm_that_falls_silent_passes_the_deadline_between_tokens() -> None:
    body = ScriptedBody([token_event([1])], hangs=True)
    deadlines = LLMDeadlines(first_token_s=NETWORK_WAIT_S, between_tokens_s=SHORT_S)
    async with client_of(body.answer, deadlines=deadlines) as client, generated(client) as deltas:
        assert (await anext(deltas)).token_ids == (1,)
        with pytest.raises(errors.LLMDeadlineError, match=r"within 0\.1 s"):
            await anext(deltas)
        await body.until_abandoned()


async def test_comments_do_not_put_a_deadline_off() -> None:
    async def ping(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b": ping\n\n")
            await asyncio.sleep(SHORT_S / 10)

    async with client_of(ping, deadlines=LLMDeadlines(first_token_s=SHORT_S)) as client:
        with pytest.raises(errors.LLMDeadlineError):
            await asyncio.wait_for(collect(client), NETWORK_WAIT_S)


async def test_the_total_deadline_ends_a_stream_that_still_speaks() -> None:
    clock = ManualClock()
    is_read = asyncio.Event()

    async def speak_on(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(token_event([1]))
        await is_read.wait()
        await response.write(token_event([2]))
        return response

    deadlines = LLMDeadlines(total_s=100.0)
    async with client_of(speak_on, clock=clock, deadlines=deadlines) as client, generated(client) as deltas:
        await anext(deltas)
        clock.seconds += 100.0
        is_read.set()
        await asyncio.sleep(SHORT_S)
        with pytest.raises(errors.LLMDeadlineError):
            await anext(deltas)


async def test_a_stale_pooled_connection_is_tried_again_once() -> None:
    connections: list[tuple[str, Any]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        connections.append((request.path, request.transport.get_extra_info("peername")))
        if len(connections) == 2:
            return await hang_up(request)
        return await ScriptedBody([token_event([1], "stop")]).answer(request)

    async with client_of(handler) as client:
        assert await client.is_ready()
        assert len(await collect(client)) == 1
    [(_, pooled), (second_path, second), (third_path, third)] = connections
    assert second == pooled != third
    assert second_path == third_path == "/v1/completions"


async def test_a_connection_that_keeps_breaking_is_unavailable() -> None:
    attempts: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        attempts.append(request.path)
        return await hang_up(request)

    async with client_of(handler) as client:
        with pytest.raises(errors.LLMUnavailableError):
            await collect(client)
    assert len(attempts) == 2


async def test_closing_the_iterator_closes_the_response() -> None:
    body = ScriptedBody([token_event([1])], hangs=True)
    async with client_of(body.answer) as client:
        async with generated(client) as deltas:
            await anext(deltas)
            assert not body.is_abandoned
        await body.until_abandoned()


async def test_closing_the_client_fails_the_generations_under_way() -> None:
    body = ScriptedBody([token_event([1])], hangs=True)
    async with client_of(body.answer) as client, generated(client) as deltas:
        await anext(deltas)
        waiting = asyncio.create_task(anext(deltas))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(errors.LLMInterruptedError):
            await asyncio.wait_for(waiting, NETWORK_WAIT_S)
        await body.until_abandoned()


async def test_many_generations_run_at_once() -> None:
    count = 150
    arrived = asyncio.Semaphore(0)
    may_speak = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        arrived.release()
        await may_speak.wait()
        return await ScriptedBody([token_event([1], "stop"), DONE]).answer(request)

    async with client_of(handler) as client:
        tasks = [asyncio.create_task(collect(client)) for _ in range(count)]
        for _ in range(count):
            await asyncio.wait_for(arrived.acquire(), NETWORK_WAIT_S)
        may_speak.set()
        assert {len(deltas) for deltas in await asyncio.gather(*tasks)} == {1}
