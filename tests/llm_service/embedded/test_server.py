"""The embedded server over a real socket: the contract, refusals, concurrency, disconnects."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from llm_service.embedded.app import BODY_BYTES_PER_TOKEN, FIXED_BODY_BYTES, SpeechLMServer, create_app
from llm_service.embedded.engine import SpeechLMEngine
from llm_service.embedded.loop import LONGEST_TURN_S, EngineLoop
from llm_service.embedded.types import GenerationOutput
from llm_service.vocab import COSYVOICE2
from tests.llm_service.embedded.engines import make_engine
from tests.virtual_time import ManualClock
from tests.workers import wait_until

from .conftest import MODEL_NAME, WAIT_S, read_metrics

PROMPT = [158227, 39, 72, 158228, 151700, 151701]
SAMPLING = {
    "max_tokens": 60,
    "min_tokens": 6,
    "temperature": 0.8,
    "top_p": 0.95,
    "top_k": 50,
    "repetition_penalty": 1.1,
    "stop_token_ids": list(COSYVOICE2.end_ids),
    "seed": 11,
}


def complete(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"prompt": PROMPT, "return_token_ids": True, **SAMPLING, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def stream(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", path, json={"stream": True, **body}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def refusal(client: httpx.Client, body: dict[str, Any], path: str = "/v1/completions") -> dict[str, Any]:
    response = client.post(path, json=body)
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return {"status": response.status_code, **error}


def test_a_server_that_listens_is_warm_and_names_its_model(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/v1/models").json()["data"][0]["id"] == MODEL_NAME
    assert read_metrics(client)["requests_finished_total"] >= 1


def test_a_stream_gives_the_tokens_of_the_whole_answer(client: httpx.Client) -> None:
    whole = complete(client)["choices"][0]
    chunks = stream(client, "/v1/completions", {"prompt": PROMPT, "return_token_ids": True, **SAMPLING})
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [token for choice in choices for token in choice["token_ids"]] == whole["token_ids"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [whole["finish_reason"]]


def test_an_answer_is_token_ids_whichever_way_they_are_asked_for(client: httpx.Client) -> None:
    choice = complete(client, return_token_ids=False, detokenize=False)["choices"][0]
    assert choice == complete(client)["choices"][0] and choice["text"] == "" and len(choice["token_ids"]) >= 6
    assert "ask for them with return_token_ids=true" in refusal(client, {"prompt": PROMPT})["message"]


def test_a_temperature_too_small_to_divide_by_draws_the_likeliest_token(client: httpx.Client) -> None:
    greedy, coldest = (complete(client, temperature=each)["choices"][0] for each in (0, 5e-324))
    assert coldest["token_ids"] == greedy["token_ids"]


def test_stop_tokens_and_ignore_eos_work(client: httpx.Client) -> None:
    free = complete(client, ignore_eos=True, stop_token_ids=[])["choices"][0]
    assert (len(free["token_ids"]), free["finish_reason"]) == (60, "length")
    stop = free["token_ids"][10]
    stopped = complete(client, ignore_eos=True, stop_token_ids=[stop])["choices"][0]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stop)
    assert stopped["token_ids"] == free["token_ids"][: free["token_ids"].index(stop)]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        pytest.param({"prompt": PROMPT, "frobnicate": 1}, 400, "frobnicate", id="unknown field"),
        pytest.param({"prompt": PROMPT, "n": 2}, 400, "n", id="n"),
        pytest.param({"prompt": PROMPT, "temperature": -1}, 400, "temperature", id="temperature"),
        pytest.param({"prompt": PROMPT, "repetition_penalty": 5e-324}, 400, "repetition_penalty", id="penalty"),
        pytest.param({"prompt": PROMPT, "max_tokens": "5"}, 400, "max_tokens", id="type"),
        pytest.param({"prompt": [PROMPT]}, 400, "prompt", id="several prompts"),
        pytest.param({"prompt": "Hi."}, 400, "prompt", id="a text"),
        pytest.param({"prompt": PROMPT, "interleaved": {}}, 400, "interleaved", id="text to come"),
        pytest.param({"prompt": PROMPT, "stop_token_ids": [158720]}, 400, "stop_token_ids", id="stop id"),
        pytest.param({"prompt": PROMPT, "stop": ["<|eos|>"]}, 400, "stop", id="a stop that is text"),
        pytest.param({}, 400, "prompt", id="no prompt"),
        pytest.param({"prompt": PROMPT, "max_tokens": 5, "min_tokens": 6}, 400, None, id="bounds"),
        pytest.param({"prompt": PROMPT, "max_tokens": 5000}, 400, None, id="no room"),
        pytest.param({"prompt": PROMPT, "min_tokens": 10**30}, 400, "min_tokens", id="endless"),
        pytest.param({"prompt": PROMPT, "min_tokens": 1e30}, 400, "min_tokens", id="endless by exponent"),
        pytest.param({"prompt": PROMPT, "min_tokens": 5000}, 400, "min_tokens", id="longer than the room"),
        pytest.param({"prompt": PROMPT, "top_k": 10**30}, 400, "top_k", id="wide"),
        pytest.param({"prompt": []}, 400, None, id="empty prompt"),
        pytest.param({"prompt": [0] * 5000}, 400, None, id="long prompt"),
        pytest.param({"prompt": PROMPT, "model": "other"}, 404, "model", id="model"),
    ],
)
def test_bad_completions_are_refused(
    client: httpx.Client, body: dict[str, Any], status: int, param: str | None
) -> None:
    error = refusal(client, {"return_token_ids": True, **body})
    assert (error["status"], error["param"], error["type"]) == (status, param, "invalid_request_error")
    assert param is None or param in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[]", b'{"model": "\\ud800"}'])
def test_bodies_that_are_no_request_are_refused(client: httpx.Client, body: bytes) -> None:
    response = client.post("/v1/completions", content=body)
    assert response.status_code == 400 and response.json()["error"]["message"]


def test_a_huge_body_and_an_unknown_path_are_refused(client: httpx.Client) -> None:
    limit = FIXED_BODY_BYTES + 4096 * BODY_BYTES_PER_TOKEN
    assert refusal(client, {"prompt": "a" * limit})["status"] == 413
    assert limit < 256 * 1024
    assert refusal(client, {"prompt": [158223] * 4095})["param"] is None, "the longest prompt is read"
    assert refusal(client, {}, "/v1/embeddings")["status"] == 404


def test_an_engine_that_hangs_in_a_step_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: SpeechLMEngine) -> list[GenerationOutput]:
        is_hanging.set()
        assert may_go_on.wait(WAIT_S)
        return []

    is_hanging, may_go_on, clock = threading.Event(), threading.Event(), ManualClock()
    monkeypatch.setattr(SpeechLMEngine, "idle_s", lambda _: 0.0)
    monkeypatch.setattr(SpeechLMEngine, "step", hang)
    loop = EngineLoop(make_engine(None), 8, clock)
    server = SpeechLMServer(loop, MODEL_NAME, lambda: 0.0)
    loop.start()
    assert is_hanging.wait(WAIT_S)
    client = TestClient(create_app(server))
    assert client.get("/health").status_code == 200
    clock.seconds = LONGEST_TURN_S + 1
    refused = client.get("/health")
    assert (refused.status_code, "hangs" in refused.text) == (503, True)
    may_go_on.set()
    server.close()


@pytest.mark.slow
def test_concurrent_requests_advance_together_and_equal_single_ones(client: httpx.Client) -> None:
    alone = [complete(client, seed=seed, ignore_eos=True, max_tokens=200) for seed in range(4)]
    before = read_metrics(client)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda s: complete(client, seed=s, ignore_eos=True, max_tokens=200), range(4)))
    after = read_metrics(client)
    assert [a["choices"][0]["token_ids"] for a in together] == [a["choices"][0]["token_ids"] for a in alone]
    alone_in_step = 'step_batch_size_bucket{le="1.0"}'
    shared_before, shared = (each["step_batch_size_count"] - each[alone_in_step] for each in (before, after))
    assert shared - shared_before > 10
    assert after["first_token_seconds_count"] == before["first_token_seconds_count"] + 4
    assert after['first_token_seconds_bucket{le="+Inf"}'] == after["first_token_seconds_count"]
    assert after["slots_free"] == after["slots"] == 4


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_disconnect_stops_the_work_and_frees_the_slot(server_url: str, client: httpx.Client, is_stream: bool) -> None:
    aborted = read_metrics(client)["requests_aborted_total"]
    body = {"prompt": PROMPT, "ignore_eos": True, "max_tokens": 4000, "stream": is_stream, "detokenize": False}
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n\r\n"
    url = httpx.URL(server_url)
    with socket.create_connection((url.host, url.port or 0), timeout=WAIT_S) as connection:
        connection.sendall(head.encode() + content)
        if is_stream:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        wait_until(lambda: read_metrics(client)["requests_running"] == 1, "the answer's begin")
    wait_until(lambda: read_metrics(client)["requests_running"] == 0, "the answer's end")
    metrics = read_metrics(client)
    assert metrics["requests_aborted_total"] == aborted + 1
    assert metrics["slots_free"] == metrics["slots"]


@pytest.mark.slow
def test_more_requests_than_fit_get_429_and_the_others_finish(client: httpx.Client) -> None:
    def post(seed: int) -> int:
        body = {"prompt": PROMPT, "ignore_eos": True, "max_tokens": 150, "seed": seed, "detokenize": False}
        return client.post("/v1/completions", json=body).status_code

    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(post, range(12)))
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 6
    assert read_metrics(client)["slots_free"] == 4
