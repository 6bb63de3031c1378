"""What the benchmark tests share: a small random checkpoint and a small LLM service over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cosydit.stack.checkpoint.make_checkpoint import make_random_checkpoint
from tests.cosydit.batch.fake_llm import FakeLLM


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("checkpoint") / "random"
    make_random_checkpoint(directory, seed=0)
    return directory


@pytest.fixture
def llm() -> Iterator[FakeLLM]:
    with FakeLLM() as server:
        yield server
