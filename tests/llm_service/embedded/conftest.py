"""Shared by the LLM service's tests: one random checkpoint, one loaded model, one server on a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from llm_service.config import LLMBackend, parse_server_config
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.embedded.serve import build_app
from llm_service.gpu.weights import Weights, load_weights
from servicekit.clock import SystemClock
from tests.llm_service.export.serving import running
from tests.workers import random_llm

MODEL_NAME = "random-llm"
WAIT_S = 30.0


@pytest.fixture(scope="session")
def llm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint."""
    return random_llm(tmp_path_factory)


@pytest.fixture(scope="session")
def model(llm_dir: Path) -> SpeechLanguageModel:
    """The checkpoint loaded; tests allocate their own cache."""
    return SpeechLanguageModel.load(llm_dir, "cpu", "float32")


@pytest.fixture(scope="session")
def weights(llm_dir: Path) -> Weights:
    """The checkpoint as the GPU engine holds it."""
    return load_weights(llm_dir, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def server_url(llm_dir: Path) -> Iterator[str]:
    """The embedded server with 4 slots and 2 queue places, on a free port."""
    settings = {"model_dir": str(llm_dir), "max_batch_size": 4, "served_model_name": MODEL_NAME, "max_seq_len": 4096}
    settings |= {"num_threads": 1, "max_queue_size": 2}
    with running(build_app(parse_server_config(LLMBackend.EMBEDDED, settings), SystemClock())) as url:
        yield url


@pytest.fixture
def client(server_url: str) -> Iterator[httpx.Client]:
    """A client of the server."""
    with httpx.Client(base_url=server_url, timeout=WAIT_S) as http:
        yield http


def read_metrics(client: httpx.Client) -> dict[str, float]:
    """Return the server's metrics by name, labels included, without their prefix."""
    lines = client.get("/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name.removeprefix("cosydit_llm_"): float(value) for name, value in pairs}
