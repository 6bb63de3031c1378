"""What the benchmark tests share: a small random checkpoint and a small LLM service over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cosydit.batch.fake_llm import FakeLLM, running_llm
from tests.workers import random_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory)


@pytest.fixture
def llm() -> Iterator[FakeLLM]:
    with running_llm() as server:
        yield server
