"""Both engines of the embedded server on one random checkpoint and virtual time, and what their tests ask of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from llm_service.embedded.engine import EngineLimits, SpeechLMEngine
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.types import GenerationOutput, GenerationRequest, SamplingParams
from llm_service.gpu.answer import EventPacking
from llm_service.gpu.build import GpuEngineOptions, engine_of
from llm_service.gpu.engine import GpuEngine
from llm_service.gpu.weights import Weights
from llm_service.vocab import SOS_ID, TASK_ID
from tests.gateway.fakes import ManualClock

Engine = SpeechLMEngine | GpuEngine
EngineMaker = Callable[..., Any]
LIMITS = EngineLimits(slots=4, max_sequence_tokens=300, max_step_tokens=400)
SINGLE = EventPacking(single_tokens=1 << 20)
NO_GUARD = RepetitionGuard(0)
_FIELDS = ("deadline_s", "priority", "continued_tokens", "tokens_per_s", "head_start_tokens")


def reference_engine(
    model: SpeechLanguageModel, limits: EngineLimits = LIMITS, guard: RepetitionGuard | None = None
) -> SpeechLMEngine:
    model.allocate_cache(model.cache_shape(limits.slots, limits.max_sequence_tokens), rows_per_forward=3)
    return SpeechLMEngine(model, limits, guard or RepetitionGuard())


def gpu_engine(
    weights: Weights,
    slots: int = 4,
    guard: RepetitionGuard | None = None,
    clock: ManualClock | None = None,
    **options: object,
) -> GpuEngine:
    asked = GpuEngineOptions(
        device=torch.device("cpu"),
        dtype=torch.float32,
        slots=slots,
        max_sequence_tokens=300,
        memory_share=0.5,
        guard=guard or RepetitionGuard(),
        packing=SINGLE,
    )
    return engine_of(weights, replace(asked, **options), clock or ManualClock())  # type: ignore[arg-type]


def make_request(name: str, text_tokens: int = 5, **params: object) -> GenerationRequest:
    fields = {key: params.pop(key) for key in _FIELDS if key in params}
    prompt = params.pop("prompt", (SOS_ID, *range(text_tokens), TASK_ID))
    sampling = replace(SamplingParams(max_tokens=30, seed=3), **params)  # type: ignore[arg-type]
    return GenerationRequest(name, prompt, sampling, **fields)  # type: ignore[arg-type]


def run_all(engine: Engine) -> dict[str, list[GenerationOutput]]:
    outputs: dict[str, list[GenerationOutput]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.check_integrity()
    return outputs


def run_one(engine: Engine, request: GenerationRequest) -> tuple[list[int], GenerationOutput]:
    engine.add_request(request)
    outputs = run_all(engine)[request.request_id]
    return tokens_of(outputs), outputs[-1]


def tokens_of(outputs: Sequence[GenerationOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]
