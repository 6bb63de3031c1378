"""What travels between the stages of a batch, and how it is worked through."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from cosydit.bench.types import SpeechInput
from gateway.core import Sampling, SpeechTokenDelta, Utterance

logger = logging.getLogger(__name__)

Complete = Callable[[Utterance, Sampling, int], Awaitable[SpeechTokenDelta]]
"""Asks for all speech tokens of one text with a seed; raises GatewayError."""


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
    times: dict[str, float]
    """`llm_began_s`, in seconds from the beginning of the first utterance, and `llm_s`."""


@dataclass(frozen=True)
class Failure:
    """An utterance that got no audio."""

    utt: str
    stage: str
    """Stage that failed: input, voices, llm, token2wav or write."""
    reason: str

    @classmethod
    def of(cls, utt: str, stage: str, error: BaseException) -> Failure:
        """Return what an error made of an utterance."""
        return cls(utt, stage, f"{type(error).__name__}: {error}")


@dataclass
class BatchReport:
    """What became of a batch; filled in while it runs."""

    rows: int
    on_row: InitVar[Callable[[BatchReport], None] | None] = None
    """Hears of every row that is settled."""
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

    def __post_init__(self, on_row: Callable[[BatchReport], None] | None) -> None:
        self._on_row = on_row or (lambda report: None)

    def skip(self) -> None:
        """Count a row that was done before."""
        self.done_before += 1
        self._on_row(self)

    def add(self, audio_s: float) -> None:
        """Count a row that is done now, with its seconds of audio."""
        self.done += 1
        self.audio_s += audio_s
        self._on_row(self)

    def fail(self, failure: Failure) -> None:
        """Keep a failure, and log it."""
        self.failures.append(failure)
        logger.error("%s failed in %s: %s", failure.utt, failure.stage, failure.reason)
        self._on_row(self)

    @property
    def rtf(self) -> float | None:
        """Seconds of wall time per second of audio made in this run."""
        return self.wall_s / self.audio_s if self.audio_s else None
