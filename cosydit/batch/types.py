"""What travels between the stages of a batch, and its settings. Pure data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cosydit.bench.types import SpeechInput
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from llm_service.config import LLMBackend

Complete = Callable[[Utterance, Sampling, int], Awaitable[SpeechTokenDelta]]
"""Asks for all speech tokens of one text with a seed; raises GatewayError."""
LEAST_BATCHES_AHEAD = 4
"""Batches of the larger stage that the LLM may be ahead of token2wav, which chooses batches of like length from
them."""


@dataclass(frozen=True)
class BatchPlan:
    """How a batch is worked through."""

    batch_size: int
    """Most utterances that the LLM works on at once."""
    token2wav_batch_size: int
    """Most utterances that token2wav works on at once."""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    """Seeds each utterance together with its name, so that a resumed batch gives the same audio as a whole one."""
    warm_up: int = 0
    """Utterances spoken and dropped before the clock starts: services do some work only once."""

    @property
    def utterances_ahead(self) -> int:
        """Utterances that may wait between the LLM and token2wav."""
        return LEAST_BATCHES_AHEAD * max(self.batch_size, self.token2wav_batch_size)


@dataclass(frozen=True)
class BatchVoice:
    """One prompt, made ready before anything is spoken."""

    voice_id: str
    """token2wav's name of the voice."""
    prompt_tokens: tuple[int, ...]
    """Speech tokens of the prompt, 0..6560, 25 Hz."""
    prompt: Path | bytes
    """The audio file or its bytes, to make the voice again if the engine has dropped it."""


@dataclass(frozen=True)
class TokenisedUtterance:
    """An utterance on its way from the LLM to token2wav."""

    input: SpeechInput
    voice: BatchVoice
    seed: int
    token_ids: tuple[int, ...]
    """Speech tokens, 0..6560."""
    finish_reason: str | None
    llm_began_s: float
    """Seconds from the beginning of the first utterance."""
    llm_s: float


@dataclass(frozen=True)
class Failure:
    """An utterance that got no audio."""

    utt: str
    stage: str
    """Stage that failed: input, voices, llm, token2wav or write."""
    reason: str


@dataclass
class BatchReport:
    """What became of a batch; filled in while it runs."""

    rows: int
    done_before: int = 0
    done: int = 0
    audio_s: float = 0.0
    """Seconds of audio made in this run."""
    wall_s: float = 0.0
    """Seconds from the first utterance begun to the last one written, without voices and the services' start."""
    voices: int = 0
    """Number of prompts that were made ready."""
    voices_s: float = 0.0
    """Seconds that the voices took, before everything else."""
    stage_busy_s: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds in which it worked on at least one utterance."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def rtf(self) -> float | None:
        """Seconds of wall time per second of audio made in this run."""
        return self.wall_s / self.audio_s if self.audio_s else None


@dataclass(frozen=True)
class LLMSettings:
    """Which LLM service is asked, or started."""

    backend: LLMBackend
    model_dir: Path
    """Folder in Hugging Face layout; its tokenizer counts text tokens."""
    url: str | None
    """URL of a running service; None starts one, with the settings `engine_dir` to `service`."""
    model: str | None = None
    """Name of the service's model; None takes the first listed."""
    engine_dir: Path | None = None
    """Folder of a built TensorRT-LLM engine."""
    kv_cache_free_gpu_memory_fraction: float | None = None
    """Share of free GPU memory for keys and values; None leaves the service's default."""
    service: Mapping[str, str] = field(default_factory=dict)
    """More settings, by the names of `llm_service`."""
    max_speech_tokens: int = 2048
    """Most tokens of one answer, 25 a second."""
    is_normalized: bool = True
    """Whether texts are normalised: cleaned, with numbers as words."""


@dataclass(frozen=True)
class Token2WavSettings:
    """How speech tokens become audio, in this process."""

    model_dir: Path
    """Checkpoint of token2wav."""
    chunk_tokens: int | None = None
    """Tokens of an utterance spoken in one step; None takes what suits the runner best."""
    engine: Mapping[str, str] = field(default_factory=dict)
    """Settings of the engine, by name."""


@dataclass(frozen=True)
class BatchSettings:
    """A whole batch."""

    output_dir: Path
    audio_format: str
    plan: BatchPlan
    llm: LLMSettings
    token2wav: Token2WavSettings
