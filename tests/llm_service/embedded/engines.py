"""Engines on one random checkpoint and virtual time, a scripted model, and what their tests ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from llm_service.embedded.eager import EagerRunner, Logits
from llm_service.embedded.engine import EngineLimits, SpeechLMEngine
from llm_service.embedded.model import DecodeRow, SpeechLanguageModel
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.types import GenerationOutput, GenerationRequest, SamplingParams
from llm_service.gpu.build import GpuEngineOptions, engine_of
from llm_service.gpu.weights import Weights
from llm_service.vocab import COSYVOICE2, SpeechVocabulary
from tests.virtual_time import ManualClock

LIMITS = EngineLimits(slots=4, max_sequence_tokens=300)
NO_GUARD = RepetitionGuard(0)
_FIELDS = ("priority", "continued_tokens", "tokens_per_s", "head_start_tokens", "interleaved")


def make_engine(
    model: Any,
    limits: EngineLimits = LIMITS,
    guard: RepetitionGuard | None = None,
    clock: ManualClock | None = None,
    vocabulary: SpeechVocabulary = COSYVOICE2,
    max_step_tokens: int = 400,
    **options: Any,
) -> SpeechLMEngine:
    if isinstance(model, SpeechLanguageModel):
        model.allocate_cache(limits.slots, limits.max_sequence_tokens, rows_per_forward=3)
    runner = EagerRunner(model, limits.slots, vocabulary, max_step_tokens)
    given = {"wait_share": 0.0, **options}
    return SpeechLMEngine(runner, limits, guard or RepetitionGuard(), clock or ManualClock(), vocabulary, **given)


def engine_on_kernels(weights: Weights) -> SpeechLMEngine:
    """Make an engine whose kernels run in the Triton language's interpreter; it has one slot."""
    device, dtype = torch.device("cpu"), torch.float32
    options = GpuEngineOptions(device, dtype, 1, LIMITS.max_sequence_tokens, 0.5, RepetitionGuard(), wait_share=0.0)
    return engine_of(weights, options, ManualClock())


def make_request(name: str, text_tokens: int = 5, **params: object) -> GenerationRequest:
    fields = {key: params.pop(key) for key in _FIELDS if key in params}
    prompt = params.pop("prompt", (COSYVOICE2.sos_id, *range(text_tokens), COSYVOICE2.task_id))
    sampling = replace(SamplingParams(max_tokens=30, seed=3), **params)  # type: ignore[arg-type]
    return GenerationRequest(name, prompt, sampling, **fields)  # type: ignore[arg-type]


def check_integrity(engine: SpeechLMEngine) -> None:
    """Check that every slot and page is either free or held by exactly one request."""
    held = list(engine._held.values())
    slots, pages = [answer.slot for answer in held], [page for answer in held for page in answer.pages]
    assert len(set(slots)) == len(slots) == engine.limits.slots - engine._slots.free_count
    assert len(set(pages)) == len(pages) == engine._pages.count - engine._pages.free_count
    assert all(engine._by_slot[answer.slot] is answer for answer in held)


def run_all(engine: SpeechLMEngine) -> dict[str, list[GenerationOutput]]:
    """Step until there is nothing to do: all has ended, or waits for text."""
    outputs: dict[str, list[GenerationOutput]] = {}
    while engine.idle_s() == 0:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        check_integrity(engine)
    return outputs


def run_one(engine: SpeechLMEngine, request: GenerationRequest) -> tuple[list[int], GenerationOutput]:
    engine.add_request(request)
    outputs = run_all(engine)[request.request_id]
    return tokens_of(outputs), outputs[-1]


def tokens_of(outputs: Sequence[GenerationOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


class ScriptedModel:
    """Remembers what is fed; wants 100, 101, 102, ... and then the end, and before all a draw's wish."""

    def __init__(self, vocabulary: SpeechVocabulary, length: int, wishes: dict[int, int] | None = None) -> None:
        self._vocabulary, self._length, self.wishes = vocabulary, length, wishes or {}
        self.fed: list[int] = []

    def prefill(self, slot: int, token_ids: Sequence[int], start: int = 0) -> Logits:
        if start == 0:
            self.fed.clear()
        assert start == len(self.fed), "positions have no gap"
        self.fed += token_ids
        return self._logits()

    def decode(self, rows: Sequence[DecodeRow]) -> list[Logits]:
        (row,) = rows
        assert row.position == len(self.fed)
        self.fed.append(row.token_id)
        return [self._logits()]

    def clear_slot(self, slot: int) -> None:
        raise AssertionError("nothing fails here")

    def _logits(self) -> Logits:
        """Nothing tells a model whether a token will be drawn, so what it wants goes by what was drawn."""
        drawn = sum(1 for token in self.fed if 100 <= token - self._vocabulary.first_id < 900)
        logits = np.full(self._vocabulary.head_rows, -50.0, np.float32)
        end = self._vocabulary.eos_id - self._vocabulary.first_id
        logits[100 + drawn if drawn < self._length else end] = 5.0
        if drawn in self.wishes:
            logits[self.wishes[drawn] - self._vocabulary.first_id] = 9.0
        return logits
