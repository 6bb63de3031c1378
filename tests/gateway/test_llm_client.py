"""The LLM client against scripted HTTP: what it yields, what it raises, what it closes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing

import httpx
import pytest

from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm_client import LLMDeadlines, SpeechLMClient
from gateway.llm_wire import LLMBackend, LLMWire, PromptForm
from llm_service.prompt import LengthLimits
from llm_service.vocab import END_IDS, SOS_ID, TASK_ID, llm_id_from_speech_id
from tests.gateway.fakes import DONE, CharacterEncoder, ScriptedBody, chat_event, token_event

UTTERANCE = Utterance("abc", "de", (5, 6))
Handler = Callable[[httpx.Request], httpx.Response]


def client_for(
    handler: Handler, form: PromptForm = PromptForm.TOKENS, backend: LLMBackend = LLMBackend.EMBEDDED
) -> SpeechLMClient:
    wire = LLMWire(CharacterEncoder(), backend, form)  # type: ignore[arg-type]
    deadlines = LLMDeadlines(first_token_s=0.2, between_tokens_s=0.2, total_s=5.0)
    return SpeechLMClient("http://llm", wire, "m", deadlines, transport=httpx.MockTransport(handler))


def answering(body: ScriptedBody, status: int = 200) -> Handler:
    return lambda request: httpx.Response(status, stream=body)


async def collect(client: SpeechLMClient, utterance: Utterance = UTTERANCE) -> list[SpeechTokenDelta]:
    try:
        return [delta async for delta in client.generate(utterance, Sampling(), seed=3)]
    finally:
        await client.close()


async def test_tokens_arrive_as_speech_ids_with_the_finish_reason() -> None:
    body = ScriptedBody([b": ping\n\n", token_event([1, 2]), token_event([3]), token_event([], "stop"), DONE])
    deltas = await collect(client_for(answering(body)))
    assert [d.token_ids for d in deltas] == [(1, 2), (3,), ()]
    assert [d.finish_reason for d in deltas] == [None, None, "stop"]


async def test_events_cut_anywhere_by_the_network_are_read_whole() -> None:
    raw = token_event([1]) + token_event([2], "length") + DONE
    body = ScriptedBody([raw[at : at + 5] for at in range(0, len(raw), 5)])
    deltas = await collect(client_for(answering(body)))
    assert [d.token_ids for d in deltas] == [(1,), (2,)]
    assert deltas[-1].finish_reason == "length"


async def test_an_end_token_ends_the_stream() -> None:
    body = ScriptedBody([token_event([1], extra=[END_IDS[0], llm_id_from_speech_id(9)])], hangs=True)
    deltas = await collect(client_for(answering(body)))
    assert deltas == [SpeechTokenDelta((1,), "stop")]
    assert body.is_closed


async def test_usage_events_without_choices_are_skipped() -> None:
    usage = b'data: {"choices": [], "usage": {"total_tokens": 3}}\n\n'
    deltas = await collect(client_for(answering(ScriptedBody([usage, token_event([1], "stop"), DONE]))))
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
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, stream=ScriptedBody([token_event([1], "stop")]))

    await collect(client_for(handler, backend=backend))
    body = json.loads(seen[0].content)
    assert seen[0].url.path == "/v1/completions"
    assert body["prompt"] == [SOS_ID, *b"de", *b"abc", TASK_ID, llm_id_from_speech_id(5), llm_id_from_speech_id(6)]
    assert (body["min_tokens"], body["max_tokens"], body["seed"]) == (6, 60, 3)
    assert body["stop_token_ids"] == list(END_IDS)
    assert {"return_token_ids", "detokenize"} & set(body) == {flag}


async def test_chat_text_is_parsed_across_deltas() -> None:
    pieces = [chat_event(None), chat_event("<|s_1|><|s"), chat_event("_23|>"), chat_event("<|eos1|>", "stop"), DONE]
    deltas = await collect(client_for(answering(ScriptedBody(pieces)), PromptForm.CHAT))
    assert [token for d in deltas for token in d.token_ids] == [1, 23]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([b"data: {oops\n\n"], errors.LLMProtocolError, id="not JSON"),
        pytest.param([b"data: [1]\n\n"], errors.LLMProtocolError, id="not an object"),
        pytest.param([b"<html>hello\n"], errors.LLMProtocolError, id="not events"),
        pytest.param([b'data: {"x": 1}\n\n'], errors.LLMProtocolError, id="no choices"),
        pytest.param([b"\xff\xfe\x00garbage\n"], errors.LLMProtocolError, id="binary"),
        pytest.param([token_event([], extra=[17])], errors.LLMProtocolError, id="a text token"),
        pytest.param([token_event([], extra=[SOS_ID])], errors.LLMProtocolError, id="a control token"),
        pytest.param([b'data: {"error": {"message": "boom"}}\n\n'], errors.LLMFailedError, id="error event"),
        pytest.param([token_event([1], "abort")], errors.LLMFailedError, id="aborted"),
        pytest.param([token_event([1]), DONE], errors.LLMInterruptedError, id="done without finish_reason"),
        pytest.param([token_event([1])], errors.LLMInterruptedError, id="ended without finish_reason"),
    ],
)
async def test_a_stream_that_breaks_the_contract_is_a_typed_error(
    pieces: list[bytes], expected: type[errors.GatewayError]
) -> None:
    body = ScriptedBody(pieces)
    with pytest.raises(expected):
        await collect(client_for(answering(body)))
    assert body.is_closed


async def test_text_that_is_not_speech_is_a_protocol_error_in_chat_form() -> None:
    with pytest.raises(errors.LLMProtocolError):
        await collect(client_for(answering(ScriptedBody([chat_event("Sure! Here")])), PromptForm.CHAT))


async def test_an_llm_that_dies_in_mid_stream_is_reported_after_its_tokens() -> None:
    body = ScriptedBody([token_event([1])], httpx.ReadError("reset"))
    client = client_for(answering(body))
    got = []
    with pytest.raises(errors.LLMInterruptedError, match="try again"):
        async for delta in client.generate(UTTERANCE, Sampling(), 0):
            got.append(delta)
    assert [d.token_ids for d in got] == [(1,)]
    await client.close()


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
    with pytest.raises(expected, match="the reason"):
        await collect(client_for(answering(body, status)))


async def test_an_llm_that_is_down_is_unavailable_and_says_what_to_do() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    client = client_for(handler)
    assert not await client.is_ready()
    with pytest.raises(errors.LLMUnavailableError, match="start the LLM service"):
        await collect(client)


@pytest.mark.parametrize("pieces", [[], [token_event([1])]], ids=["first token", "between tokens"])
async def test_a_silent_llm_passes_its_deadline(pieces: list[bytes]) -> None:
    body = ScriptedBody(pieces, hangs=True)
    with pytest.raises(errors.LLMDeadlineError):
        await collect(client_for(answering(body)))
    assert body.is_closed


async def test_a_stale_pooled_connection_is_tried_again_once() -> None:
    attempts: list[int] = []

    def handler(request: httpx.Request) -> httpx.Response:
        attempts.append(1)
        if len(attempts) == 1:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        return httpx.Response(200, stream=ScriptedBody([token_event([1], "stop")]))

    assert len(await collect(client_for(handler))) == 1
    assert len(attempts) == 2


async def test_a_connection_that_keeps_breaking_is_unavailable() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("reset")

    with pytest.raises(errors.LLMUnavailableError):
        await collect(client_for(handler))


async def test_closing_the_iterator_closes_the_response() -> None:
    body = ScriptedBody([token_event([1])], hangs=True)
    client = client_for(answering(body))
    async with aclosing(client.generate(UTTERANCE, Sampling(), 0)) as deltas:
        await anext(deltas)
        assert not body.is_closed
    assert body.is_closed
    await client.close()


async def test_cancelling_the_reader_closes_the_response() -> None:
    body = ScriptedBody([token_event([1])], hangs=True)
    task = asyncio.create_task(collect(client_for(answering(body))))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert body.is_closed


async def test_the_model_name_is_asked_for_once() -> None:
    paths: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "served"}]})
        assert json.loads(request.content)["model"] == "served"
        return httpx.Response(200, stream=ScriptedBody([token_event([1], "stop")]))

    wire = LLMWire(CharacterEncoder())  # type: ignore[arg-type]
    client = SpeechLMClient("http://llm", wire, transport=httpx.MockTransport(handler))
    for _ in range(2):
        assert [d async for d in client.generate(UTTERANCE, Sampling(), 0)]
    await client.close()
    assert paths == ["/v1/models", "/v1/completions", "/v1/completions"]


async def test_text_too_long_for_one_generation_is_the_callers_error() -> None:
    wire = LLMWire(CharacterEncoder(), limits=LengthLimits(max_speech_tokens=10))  # type: ignore[arg-type]
    client = SpeechLMClient("http://llm", wire, "m", transport=httpx.MockTransport(answering(ScriptedBody([]))))
    with pytest.raises(errors.TextTooLongError):
        await collect(client, Utterance("abcdefgh", "", ()))
