"""What travels between the stages of a batch, the seams to its services, and its settings. Pure data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cosydit.bench.types import SpeechInput
from gateway.core import FloatArray, RegisteredVoice, Sampling, SpeechTokenDelta, Utterance
from gateway.llm.wire import PromptForm
from llm_service.config import LLMBackend

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
    """The audio file or its bytes, to make the voice again if token2wav has dropped it."""


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


class WholeAnswerLM(Protocol):
    """The LLM service, asked for whole answers."""

    async def complete(self, utterance: Utterance, sampling: Sampling, seed: int) -> SpeechTokenDelta:
        """Return all speech tokens of one text and why they ended.

        Raises:
            GatewayError: anything the text or the service did wrong.
        """
        ...


class Token2WavStage(Protocol):
    """Prompt features and speech tokens to audio."""

    async def make_voice(self, samples: FloatArray) -> RegisteredVoice:
        """Compute a prompt's features, or find them in the cache; `samples` [N] mono float32 in +-1 at 16 kHz.

        Raises:
            Exception: the prompt can't be used.
        """
        ...

    async def speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        """Make the audio of each, [N] float32 in +-1 at 24 kHz, or say why not; in the order given."""
        ...

    async def close(self) -> None:
        """Give back what the stage holds."""
        ...


@dataclass(frozen=True)
class BatchServices:
    """What a batch asks."""

    llm: WholeAnswerLM
    token2wav: Token2WavStage


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
    form: PromptForm = PromptForm.TOKENS
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
    """Where speech tokens become audio."""

    model_dir: Path | None
    """Checkpoint of token2wav in this process; None: `url` is used."""
    url: str | None
    """host:port of a running Triton's gRPC service; None: `model_dir` is used."""
    chunk_tokens: int | None = None
    """Tokens of an utterance spoken in one step; None takes what suits the runner best."""
    engine: Mapping[str, str] = field(default_factory=dict)
    """Settings of the engine in this process, by name."""


@dataclass(frozen=True)
class BatchSettings:
    """A whole batch."""

    output_dir: Path
    audio_format: str
    plan: BatchPlan
    llm: LLMSettings
    token2wav: Token2WavSettings
