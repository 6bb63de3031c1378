"""A whole batch, as its command line asks for it. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cosydit.batch.types import BatchPlan
from gateway.llm.wire import LLMBackend, PromptForm


@dataclass(frozen=True)
class LLMSettings:
    """Which LLM service is asked, or started."""

    backend: LLMBackend
    model_dir: Path
    """Hugging Face layout; its tokenizer counts text tokens."""
    url: str | None
    """A running service; None starts one."""
    model: str | None = None
    """Name to ask for; None takes the first listed."""
    form: PromptForm = PromptForm.TOKENS
    engine_dir: Path | None = None
    """trtllm: a built engine, for a service started here."""
    kv_cache_free_gpu_memory_fraction: float | None = None
    """For a service started here; None leaves its default."""
    service: Mapping[str, str] = field(default_factory=dict)
    """More settings of a service started here, by the names of `llm_service`."""
    max_speech_tokens: int = 2048
    """Longest answer, 25 a second."""
    ready_timeout_s: float = 600.0
    answer_timeout_s: float = 600.0


@dataclass(frozen=True)
class Token2WavSettings:
    """Where speech tokens become audio."""

    model_dir: Path | None
    """In this process, from this checkpoint."""
    url: str | None
    """host:port of a running Triton's gRPC service. Exactly one of the two."""
    window_tokens: int | None = None
    """Tokens of an utterance spoken in one step; None takes what suits the runner best."""
    engine: Mapping[str, str] = field(default_factory=dict)
    """Settings of the engine in this process, by name."""


@dataclass(frozen=True)
class RaySettings:
    """Several machines."""

    address: str
    """Of a running Ray cluster; `local` starts one on this machine for the batch."""
    workers: int | None = None
    """None: one for every machine."""
    rows_per_task: int | None = None
    """Utterances that a worker is given at once, and that are lost with it; None: what keeps its stages busy."""


@dataclass(frozen=True)
class BatchSettings:
    """A whole batch."""

    output_dir: Path
    audio_format: str
    plan: BatchPlan
    llm: LLMSettings
    token2wav: Token2WavSettings
    ray: RaySettings | None = None
