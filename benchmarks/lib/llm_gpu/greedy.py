"""Compares the bundled demo voice's likeliest answers on the GPU with the CPU's, token by token."""

from __future__ import annotations

import tempfile
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from demo_voice.unpack import unpack
from llm_service.embedded.eager import eager_engine
from llm_service.embedded.engine import EngineLimits, SpeechLMEngine
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.types import GenerationRequest, SamplingParams
from llm_service.gpu.build import GpuEngineOptions, build_gpu_engine
from llm_service.prompt import build_prompt
from llm_service.text_encoder import load_text_encoder
from servicekit.clock import SystemClock

TEXTS = (
    "The weather is fine today.",
    "Please call me back tomorrow morning.",
    "How are you?",
    "She sells sea shells by the sea shore.",
    "A small voice can carry a long way.",
    "One, two, three, four, five.",
)
TOKENS = 120
CONTEXT_TOKENS = 1024
CPU_THREADS = 4


def compare() -> list[dict[str, Any]]:
    """Return, for each computing type, how far each answer equals the CPU's float32 reference engine's.

    The demo voice's checkpoint is stored in float16, which is therefore what the service takes for it.
    """
    torch.set_num_threads(CPU_THREADS)
    with tempfile.TemporaryDirectory() as scratch:
        unpack(Path(scratch) / "demo")
        model_dir = Path(scratch) / "demo" / "llm"
        encode = load_text_encoder(model_dir).encode
        prompts = [build_prompt(encode, "", text, ()).token_ids for text in TEXTS]
        expected = _answers(_reference(model_dir), prompts)
        return [_compared(model_dir, name, prompts, expected) for name in ("float32", "float16")]


def _compared(model_dir: Path, dtype: str, prompts: list[tuple[int, ...]], expected: list[list[int]]) -> dict[str, Any]:
    device = torch.device("cuda")
    options = GpuEngineOptions(device, getattr(torch, dtype), 8, CONTEXT_TOKENS, 0.1, RepetitionGuard())
    found = _answers(build_gpu_engine(model_dir, options, SystemClock()), prompts)
    pairs = list(zip(found, expected, strict=True))
    return {
        "dtype": dtype,
        "answers": len(pairs),
        "equal_answers": sum(one == other for one, other in pairs),
        "tokens": [len(other) for _, other in pairs],
        "equal_from_the_start": [
            sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(*pair, strict=False))) for pair in pairs
        ],
    }


def _reference(model_dir: Path) -> SpeechLMEngine:
    model = SpeechLanguageModel.load(model_dir, "cpu", "float32")
    model.allocate_cache(8, CONTEXT_TOKENS, rows_per_forward=8)
    return eager_engine(model, EngineLimits(8, CONTEXT_TOKENS), RepetitionGuard(), SystemClock(), max_step_tokens=4096)


def _answers(engine: SpeechLMEngine, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    params = SamplingParams(max_tokens=TOKENS, seed=0, temperature=0.0)
    answers: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    for name, prompt in zip(answers, prompts, strict=True):
        engine.add_request(GenerationRequest(name, tuple(prompt), params))
    while engine.idle_s() == 0:
        for output in engine.step():
            if output.error is not None:
                raise output.error
            answers[output.request_id] += output.token_ids
    return list(answers.values())
