"""The functional test passes a server of the model, and no other."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_service.config import LLMBackend
from llm_service.errors import BuildError
from llm_service.export import check_server as functional_test
from llm_service.export.check_server import Expectation, ServerFindings, certify
from llm_service.vocab import END_IDS, SPEECH_TOKEN_OFFSET
from tests.llm_service.export.serving import embedded_server

TEXTS = ["Hello there.", "One two three."]
QUICK = Expectation(tokens_per_text=4, answer_tokens=8)
Answer = Callable[[httpx.Request], httpx.Response]


def spoken(*token_ids: int) -> httpx.Response:
    return httpx.Response(200, json={"choices": [{"token_ids": list(token_ids)}]})


def certify_fake(
    monkeypatch: pytest.MonkeyPatch, source_dir: Path, answer: Answer, *, backend: LLMBackend = LLMBackend.VLLM
) -> ServerFindings:
    """Certify a server that is a function."""

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "voice"}]})
        return answer(request)

    real = httpx.Client
    monkeypatch.setattr(
        functional_test.httpx, "Client", lambda base_url, **_: real(base_url=base_url, transport=transport)
    )
    transport = httpx.MockTransport(handle)
    return certify("http://server", backend, source_dir, TEXTS, QUICK)


@pytest.mark.slow
def test_a_server_without_the_heads_bias_fails(converted_dir: Path, stock_dir: Path, tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    shutil.copytree(converted_dir, lost)
    tensors = load_file(lost / "model.safetensors")
    tensors["lm_head.bias"] = torch.zeros_like(tensors["lm_head.bias"])
    save_file(tensors, lost / "model.safetensors", metadata={"format": "pt"})
    with embedded_server(lost) as url:
        certificate = certify(url, LLMBackend.EMBEDDED, stock_dir, TEXTS, QUICK)
    assert not certificate.passed
    assert certificate.worst_gap > QUICK.tolerance


def test_a_server_that_says_text_fails(monkeypatch: pytest.MonkeyPatch, stock_dir: Path) -> None:
    certificate = certify_fake(monkeypatch, stock_dir, lambda _: spoken(7, SPEECH_TOKEN_OFFSET))
    assert not certificate.passed
    assert certificate.foreign_ids == (7,)
    assert math.isinf(certificate.worst_gap)


def test_a_server_that_says_nothing_fails(monkeypatch: pytest.MonkeyPatch, stock_dir: Path) -> None:
    certificate = certify_fake(monkeypatch, stock_dir, lambda _: spoken())
    assert not certificate.passed
    assert certificate.spoken_tokens == 0


def test_nothing_is_left_to_chance(monkeypatch: pytest.MonkeyPatch, stock_dir: Path) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return spoken(SPEECH_TOKEN_OFFSET)

    certify_fake(monkeypatch, stock_dir, answer, backend=LLMBackend.TRTLLM)
    assert {body["max_tokens"] for body in bodies} == {1, QUICK.answer_tokens}
    for body in bodies:
        assert body["model"] == "voice"
        assert (body["temperature"], body["repetition_penalty"], body["detokenize"]) == (0.0, 1.0, False)
        assert body["stop_token_ids"] == list(END_IDS)
        assert all(isinstance(token_id, int) for token_id in body["prompt"])


def refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused", request=request)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(lambda _: httpx.Response(500, text="out of memory"), "answered 500: out of memory", id="error"),
        pytest.param(lambda _: httpx.Response(200, text="hello"), "what no LLM server does: hello", id="no JSON"),
        pytest.param(lambda _: httpx.Response(200, json={"choices": []}), "what no LLM server does", id="no choice"),
        pytest.param(
            lambda _: httpx.Response(200, json={"choices": [{"text": "hi"}]}), "no token_ids but", id="text only"
        ),
        pytest.param(refuse, "http://server/v1/completions: connection refused", id="gone"),
    ],
)
def test_a_server_that_is_none_is_named(
    monkeypatch: pytest.MonkeyPatch, stock_dir: Path, answer: Answer, message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        certify_fake(monkeypatch, stock_dir, answer)
