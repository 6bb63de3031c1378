"""What everything takes: the parameters of the models, with their units. Pure.

They are fitted from measurements by `fit`; a file of them says from which.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cosydit.bench.types import BenchmarkError
from lab.simulate.compute import Slowdown
from llm_service.backends import GRAPH_TOKENS

LLM, TOKEN2WAV, TOKEN2WAV_BESIDE = "llm", "token2wav", "token2wav beside"
"""What computes; the last are token2wav's steps of urgent chunks, which run beside its others."""
BESIDE = {TOKEN2WAV: (TOKEN2WAV_BESIDE, 1.4), TOKEN2WAV_BESIDE: (TOKEN2WAV, 1.35)}
"""How many times longer either kind takes while the other runs: on one H200, 500 listeners and 64 new ones a second."""


@dataclass(frozen=True)
class StepCost:
    """Seconds of one token2wav step alone on its GPU: a program of so many streams, each of so many spoken tokens."""

    fixed_s: float
    per_stream_s: float
    per_token_s: float
    """Seconds for each token of every stream."""

    def of(self, streams: int, tokens: int) -> float:
        """Return the seconds of a program, padding included."""
        return self.fixed_s + streams * (self.per_stream_s + tokens * self.per_token_s)


@dataclass(frozen=True)
class LLMCost:
    """The LLM server: a process that talks and one that steps."""

    request_s: float
    """Seconds of the talking process for every request."""
    message_s: float
    """Seconds of the talking process for every message of tokens."""
    step_fixed_s: float
    """Seconds of one step, whatever runs in it."""
    step_per_request_s: float
    """Further seconds of a step for every running request."""
    prompt_step_s: float
    """Further seconds of a step that prompts enter, if it runs as CUDA graphs."""
    eager_step_s: float
    """Further seconds of a step with too many tokens for CUDA graphs: its kernels are launched one by one."""
    prefill_per_token_s: float
    """Further seconds of a step for every prompt token that enters."""
    prompt_tokens: int = 190
    """Tokens of a prompt: 5 s of the voice at 25 Hz, its transcript and 60 letters of text."""
    graph_tokens: int = GRAPH_TOKENS
    """Most tokens of a step that runs as CUDA graphs: what the launcher asks vLLM for."""
    max_batched_tokens: int = 8192
    """Most prompt tokens in one step: vLLM's default on such GPUs."""
    max_requests: int = 64
    """Most requests that run at once; others wait. `--max-batch-size`."""
    step_spread: float = 0.2
    """Standard deviation of the logarithm of a step's time."""
    stream_interval: int = 4
    """Tokens in a message after the first, which has one. `--stream-interval`."""


@dataclass(frozen=True)
class Token2WavCost:
    """The token2wav server: what its steps take and what stands around them."""

    step: StepCost
    open_s: float
    """Seconds from asking for a stream to having it."""
    push_s: float
    """Seconds from sending a window to its being ready to run."""
    answer_s: float
    """Seconds of the engine's thread for every chunk it hands back."""
    around_s: float = 0.001
    """Seconds of the engine's thread for every step, in a server that has other things to do."""
    stream_s: float = 0.0
    """Further seconds of the engine's thread for every stream in the step."""
    step_spread: float = 0.05
    """Standard deviation of the logarithm of a step's time on the GPU."""
    voice_s: float = 0.2
    """Seconds to make a voice that was never seen."""


@dataclass(frozen=True)
class GatewayCost:
    """The gateway's and the client's processes, taken as one."""

    request_s: float
    message_s: float
    """Seconds for every message of the LLM."""
    chunk_s: float
    """Seconds for every chunk of audio."""
    latency_s: float = 0.0
    """Seconds of all ways between processes that a first audio takes, from the caller and back; they occupy nobody."""


@dataclass(frozen=True)
class CostModel:
    """One GPU kind's parameters."""

    gpu: str
    llm: LLMCost
    token2wav: Token2WavCost
    gateway: GatewayCost
    llm_slowdown: Slowdown
    """Slowdown of the LLM beside a token2wav step on the same GPU."""
    token2wav_slowdown: Slowdown
    """Slowdown of token2wav beside the LLM on the same GPU."""

    @property
    def slowdowns(self) -> dict[str, Slowdown]:
        """By service, for a GPU that both share."""
        token2wav = self.token2wav_slowdown
        return {LLM: self.llm_slowdown, TOKEN2WAV: token2wav, TOKEN2WAV_BESIDE: token2wav}

    def with_parameters(self, values: dict[str, float]) -> CostModel:
        """Return a model with some parameters changed; names are paths such as `llm.request_s`."""
        model = self
        for path, value in values.items():
            model = _changed(model, path.split("."), value)
        return model

    def parameter(self, path: str) -> float:
        """Return one parameter by its path."""
        value: Any = self
        for name in path.split("."):
            value = getattr(value, name)
        return float(value)


def cost_json(model: CostModel) -> dict[str, Any]:
    """Return a model ready for JSON."""
    return asdict(model)


def read_cost_model(path: Path) -> CostModel:
    """Read the `model` of a file that `fit` wrote.

    Raises:
        BenchmarkError: it is missing or something else.
    """
    try:
        return cost_model(json.loads(path.read_text("utf-8"))["model"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        got = f"{path} holds no cost model ({error!r})"
        raise BenchmarkError(f"{got}; make one with python -m lab.simulate fit") from error


def cost_model(content: dict[str, Any]) -> CostModel:
    """Return the model that `cost_json` described."""
    token2wav = dict(content["token2wav"])
    step = StepCost(**token2wav.pop("step"))
    return CostModel(
        content["gpu"],
        LLMCost(**content["llm"]),
        Token2WavCost(step=step, **token2wav),
        GatewayCost(**content["gateway"]),
        Slowdown(**content["llm_slowdown"]),
        Slowdown(**content["token2wav_slowdown"]),
    )


def _changed(part: Any, path: list[str], value: float) -> Any:
    head, *rest = path
    return replace(part, **{head: _changed(getattr(part, head), rest, value) if rest else value})
