"""What the checks of the LLM notice, asked of a fake server that can be spoiled in one way."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cosydit.certify import llm
from cosydit.certify.check import Findings, Result
from cosydit.certify.llm import Question, Server
from cosydit.certify.recognition import FloatArray
from cosydit.certify.run import all_checks, run_here, selected
from llm_service.vocab import COSYVOICE2, SPEECH_TOKEN_COUNT, SpeechVocabulary
from tests.cosydit.certify.plans import context_in, plan_in

ROWS = COSYVOICE2.head_rows
FIRST = COSYVOICE2.first_id
QUESTIONS = 12


def rows_of(seed: int) -> FloatArray:
    return np.random.default_rng(seed).normal(0, 1.5, ROWS).astype(np.float32)


@dataclass
class FakeServer:
    """Knows the logits after each prompt, which is its last id."""

    bias: FloatArray = field(default_factory=lambda: rows_of(1000))
    has_bias: bool = True
    is_aware: bool = True
    shift: int = 0
    vocabulary: SpeechVocabulary = COSYVOICE2

    def questions(self) -> list[Any]:
        return [Question((FIRST + 5, FIRST + 6, seed), self.logits(seed)) for seed in range(QUESTIONS)]

    def logits(self, seed: int) -> FloatArray:
        return rows_of(seed) + self.bias

    def draw(self, question: Question, count: int = 1, **fields: Any) -> list[int]:
        scores = self.logits(question.prompt[-1]) - (0 if self.has_bias else self.bias)
        allowed = [token - FIRST for token in fields.get("allowed_token_ids", ())] or range(ROWS)
        drawn: list[int] = []
        for _ in range(count):
            possible = [row for row in allowed if not (self.is_aware and row in drawn)]
            drawn.append(max(possible, key=lambda each: float(scores[each])))
        return [FIRST + row + self.shift for row in drawn if row < SPEECH_TOKEN_COUNT]

    choices = Server.choices


def asked(name: str, server: FakeServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Findings:
    context = context_in(folder)
    monkeypatch.setattr(llm, "_questions", lambda context, asked: server.questions())
    context.shared("llm/embedded", lambda: nullcontext(server))
    (check,) = selected(all_checks(context.plan), [f"llm/embedded/{name}"])
    return run_here(context, check)


@pytest.mark.parametrize("name", ["token-offset", "repetition"])
def test_a_good_server_passes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = asked(name, FakeServer(), tmp_path, monkeypatch)
    assert outcome.result is Result.PASS, outcome.reason


@pytest.mark.parametrize(
    ("name", "server", "said"),
    [
        pytest.param("token-offset", FakeServer(shift=1), r"every id is off by \+1: wrong token offset", id="offset"),
        pytest.param("token-offset", FakeServer(shift=-3), r"off by -3", id="offset below"),
        pytest.param("token-offset", FakeServer(has_bias=False), "share of the float32 model's own", id="bias"),
        pytest.param("repetition", FakeServer(is_aware=False), "12 of 12 answers repeat a token", id="repetition"),
        pytest.param("repetition", FakeServer(shift=9000), "asked for two of the ids", id="other tokens"),
    ],
)
def test_a_spoiled_server_is_found_by_name(
    name: str, server: FakeServer, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = asked(name, server, tmp_path, monkeypatch)
    assert outcome.result is Result.FAIL
    assert re.search(said, outcome.reason), outcome.reason


def test_a_backend_that_is_not_installed_has_one_check_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = {check.path: check for check in selected(all_checks(plan_in(tmp_path, "cuda")), ["llm"])}
    assert {path for path in checks if "embedded" not in path} == {"llm/vllm/start", "llm/trtllm/start"}
    outcome = run_here(context_in(tmp_path), checks["llm/vllm/start"])
    assert outcome.result is Result.NOT_RUN and "vllm is not on PATH" in outcome.reason
