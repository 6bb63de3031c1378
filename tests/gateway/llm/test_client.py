"""The LLM client against a scripted HTTP server: what it asks for, what it yields, what it raises."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway import errors
from gateway.core import SpeechTokenDelta, Utterance
from gateway.llm.client import LLMDeadlines, SpeechLMClient
from gateway.llm.wire import LLMWire
from llm_service.config import LLMBackend
from llm_service.vocab import COSYVOICE2
from servicekit.timeouts import LoopLag
from tests.gateway.fakes import DONE, CharacterEncoder, token_event
from tests.gateway.llm.server import ScriptedBody, client_of, collect, collect_from, generated, hang_up, unused_url


async def test_tokens_arrive_as_speech_ids_with_the_finish_reason() -> None:
    body = ScriptedBody([b": ping\n\n", token_event([1, 2]), token_event([3]), token_event([], "stop"), DONE])
    deltas = await collect_from(body)
    assert [d.token_ids for d in deltas] == [(1, 2), (3,), ()]
    assert [d.finish_reason for d in deltas] == [None, None, "stop"]


async def test_events_cut_anywhere_by_the_network_are_read_whole() -> None:
    raw = token_event([1]) + token_event([2], "length") + DONE
    deltas = await collect_from(ScriptedBody([raw[at : at + 5] for at in range(0, len(raw), 5)]))
    assert [d.token_ids for d in deltas] == [(1,), (2,)]
    assert deltas[-1].finish_reason == "length"


async def test_an_end_token_ends_the_stream() -> None:
    body = ScriptedBody([token_event([1], extra=[COSYVOICE2.end_ids[0], COSYVOICE2.llm_id(9)])], hangs=True)
    async with client_of(body.answer) as client:
        assert await collect(client) == [SpeechTokenDelta((1,), "stop")]
        await body.until_abandoned()


async def test_usage_events_without_choices_are_skipped() -> None:
    usage = b'data: {"choices": [], "usage": {"total_tokens": 3}}\n\n'
    deltas = await collect_from(ScriptedBody([usage, token_event([1], "stop"), DONE]))
    assert [d.token_ids for d in deltas] == [(), (1,)]


@pytest.mark.parametrize(
    ("backend", "flag"),
    [
        (LLMBackend.EMBEDDED, "return_token_ids"),
        (LLMBackend.VLLM, "return_token_ids"),
        (LLMBackend.TRTLLM, "detokenize"),
    ],
)
async def test_the_request_carries_ids_bounds_and_sampling(backend: LLMBackend, flag: str) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((request.path, await request.json()))
        return await ScriptedBody([token_event([1], "stop")]).answer(request)

    async with client_of(handler, LLMWire(CharacterEncoder(), backend)) as client:  # type: ignore[arg-type]
        await collect(client)
    [(path, body)] = seen
    assert path == "/v1/completions"
    assert body["prompt"] == [
        COSYVOICE2.sos_id,
        *b"de",
        *b"abc",
        COSYVOICE2.task_id,
        COSYVOICE2.llm_id(5),
        COSYVOICE2.llm_id(6),
    ]
    assert (body["min_tokens"], body["max_tokens"], body["seed"]) == (6, 45, 3)
    assert body["stop_token_ids"] == list(COSYVOICE2.end_ids)
    assert {"return_token_ids", "detokenize"} & set(body) == {flag}


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([b"data: {oops\n\n"], errors.LLMProtocolError, id="not JSON"),
        pytest.param([b"data: [1]\n\n"], errors.LLMProtocolError, id="not an object"),
        pytest.param([b"<html>hello\n"], errors.LLMProtocolError, id="not events"),
        pytest.param([b'data: {"x": 1}\n\n'], errors.LLMProtocolError, id="no choices"),
        pytest.param([b"\xff\xfe\x00garbage\n"], errors.LLMProtocolError, id="binary"),
        pytest.param([b'data: {"x": "\xff"}\n'], errors.LLMProtocolError, id="not UTF-8"),
        pytest.param([token_event([], extra=[17])], errors.LLMProtocolError, id="a text token"),
        pytest.param([token_event([], extra=[COSYVOICE2.sos_id])], errors.LLMProtocolError, id="a control token"),
        pytest.param([b'data: {"error": {"message": "boom"}}\n\n'], errors.LLMFailedError, id="error event"),
        pytest.param([token_event([1], "abort")], errors.LLMFailedError, id="aborted"),
        pytest.param([token_event([1]), DONE], errors.LLMInterruptedError, id="done without finish_reason"),
    ],
)
async def test_a_stream_that_breaks_the_contract_is_a_typed_error(
    pieces: list[bytes], expected: type[errors.GatewayError]
) -> None:
    body = ScriptedBody(pieces, hangs=True)
    async with client_of(body.answer) as client:
        with pytest.raises(expected):
            await collect(client)
        await body.until_abandoned()


async def test_a_stream_that_ends_without_finish_reason_is_an_interruption() -> None:
    with pytest.raises(errors.LLMInterruptedError, match="finish_reason"):
        await collect_from(ScriptedBody([token_event([1])]))


async def test_an_answer_that_is_no_event_stream_is_shown() -> None:
    with pytest.raises(errors.LLMProtocolError, match="not streamed"):
        await collect_from(ScriptedBody([b'{"text": "not streamed"}']))


async def test_an_llm_that_dies_in_mid_stream_is_reported_after_its_tokens() -> None:
    is_read = asyncio.Event()

    async def die_once_read(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(token_event([1]))
        await is_read.wait()
        return await hang_up(request)

    async with client_of(die_once_read) as client, generated(client) as deltas:
        assert (await anext(deltas)).token_ids == (1,)
        is_read.set()
        with pytest.raises(errors.LLMInterruptedError, match="try again"):
            await anext(deltas)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, errors.LLMRejectedError),
        (404, errors.LLMRejectedError),
        (429, errors.LLMUnavailableError),
        (500, errors.LLMFailedError),
        (503, errors.LLMUnavailableError),
    ],
)
async def test_statuses_become_typed_errors_with_the_servers_words(
    status: int, expected: type[errors.GatewayError]
) -> None:
    body = ScriptedBody([b'{"error": "the reason"}'])
    async with client_of(lambda request: body.answer(request, status)) as client:
        with pytest.raises(expected, match="the reason"):
            await collect(client)


@pytest.mark.parametrize("content_type", ["text/plain", "text/html"])
async def test_a_server_that_could_not_read_the_request_may_be_asked_again(content_type: str) -> None:
    async def could_not_read(_: web.Request) -> web.Response:
        return web.Response(status=400, text="Invalid HTTP request received.", content_type=content_type)

    async with client_of(could_not_read) as client:
        with pytest.raises(errors.LLMInterruptedError, match="Invalid HTTP"):
            await collect(client)


async def test_the_model_name_is_asked_for_once() -> None:
    paths: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "served"}]})
        assert (await request.json())["model"] == "served"
        return await ScriptedBody([token_event([1], "stop")]).answer(request)

    async with client_of(handler, model=None) as client:
        for _ in range(2):
            assert await collect(client)
    assert paths == ["/v1/models", "/v1/completions", "/v1/completions"]


@pytest.mark.parametrize("document", [{}, {"data": []}, [], "no models"])
async def test_a_server_that_lists_no_model_breaks_the_contract(document: Any) -> None:
    body = ScriptedBody([json.dumps(document).encode()])
    async with client_of(body.answer, model=None) as client:
        with pytest.raises(errors.LLMProtocolError, match="lists no models"):
            await collect(client)


async def test_text_too_long_for_one_generation_is_the_callers_error() -> None:
    wire = LLMWire(CharacterEncoder(), max_speech_tokens=10)  # type: ignore[arg-type]
    client = SpeechLMClient(unused_url(), wire, "m")
    with pytest.raises(errors.TextTooLongError):
        await collect(client, Utterance("abcdefgh", "", ()))
    await client.close()


async def test_an_answer_is_waited_for_while_the_server_gives_tokens_to_others() -> None:
    first_token_s = 0.4
    end, asked = asyncio.Event(), count()

    async def answer(request: web.Request) -> web.StreamResponse:
        is_slow = next(asked) == 0
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while is_slow and not end.is_set():
            await end.wait()
        for _ in range(8):
            await response.write(token_event([1]))
            await asyncio.sleep(first_token_s / 4)
        await response.write(token_event([2], "stop") + DONE)
        return response

    deadlines = LLMDeadlines(first_token_s=first_token_s, between_tokens_s=first_token_s)
    async with client_of(answer, deadlines=deadlines) as client:
        slow = asyncio.create_task(collect(client))
        await asyncio.sleep(first_token_s / 8)
        await collect(client)
        assert not slow.done()
        end.set()
        assert (await slow)[-1].finish_reason == "stop"


async def test_a_connection_that_our_own_standstill_made_late_is_tried_again() -> None:
    body = ScriptedBody([token_event([1], "stop"), DONE])
    lag = LoopLag()
    async with client_of(body.answer, lag=lag) as client:
        session = client._http()
        request, asked = session.request, []

        async def late_once(*args: Any, **options: Any) -> Any:
            asked.append(args)
            if len(asked) == 1:
                lag.note(5.0, asyncio.get_running_loop().time())
                raise aiohttp.ServerTimeoutError("Connection timeout")
            return await request(*args, **options)

        session.request = late_once  # type: ignore[method-assign,assignment]
        assert await collect(client) == [SpeechTokenDelta((1,), "stop")]
        assert len(asked) == 2


async def test_a_connection_that_does_not_come_is_neither_tried_again_nor_a_deadline_for_callers() -> None:
    async with client_of(ScriptedBody([]).answer) as client:

        async def late(*args: Any, **options: Any) -> Any:
            raise aiohttp.ServerTimeoutError("Connection timeout")

        client._http().request = late  # type: ignore[method-assign,assignment]
        with pytest.raises(errors.LLMUnconnectedError) as failure:
            await collect(client)
    assert errors.wire_status(failure.value).code == "llm_unavailable"
