"""What travels between the stages of a batch, and the seams to its two services. Pure data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.lib.types import SpeechInput
from cosydit.clock import Clock
from gateway.core import FloatArray, Sampling


@dataclass(frozen=True)
class BatchPlan:
    """How a batch is worked through."""

    batch_size: int
    """Utterances that the LLM works on at once."""
    token2wav_batch_size: int
    """Utterances that token2wav works on at once."""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    """With the utterance's name it seeds the utterance, so that a resumed batch gives what a whole one gives."""


@dataclass(frozen=True)
class BatchVoice:
    """The voice of one utterance."""

    samples: FloatArray
    """[N] mono float32 in +-1 at 16 kHz."""
    prompt_tokens: tuple[int, ...]
    """0..6560, 25 Hz."""


@dataclass(frozen=True)
class TokenisedUtterance:
    """An utterance on its way from the LLM to token2wav."""

    input: SpeechInput
    voice: BatchVoice
    seed: int
    token_ids: tuple[int, ...]
    """0..6560."""
    finish_reason: str | None
    features_s: float
    llm_s: float


@dataclass(frozen=True)
class Failure:
    """An utterance that got no audio."""

    utt: str
    stage: str
    """input, features, llm, token2wav or write."""
    reason: str


@dataclass
class BatchReport:
    """What became of a batch; filled in while it runs."""

    rows: int
    done_before: int = 0
    done: int = 0
    audio_s: float = 0.0
    """Of this run."""
    wall_s: float = 0.0
    stage_busy_s: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds in which it worked on at least one utterance."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def rtf(self) -> float | None:
        """Seconds of wall time per second of audio made in this run."""
        return self.wall_s / self.audio_s if self.audio_s else None


class Token2WavStage(Protocol):
    """Prompt features and speech tokens to audio."""

    async def make_voice(self, samples: FloatArray) -> BatchVoice:
        """Compute a prompt's features, or find them in the cache; `samples` as in `BatchVoice`.

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


class BusyTime:
    """Sums the time in which at least one of many overlapping spans was open; a context manager per span."""

    def __init__(self, clock: Clock) -> None:
        """Begin at 0 s."""
        self._clock = clock
        self._open = 0
        self._since_s = 0.0
        self.total_s = 0.0

    def __enter__(self) -> None:
        if self._open == 0:
            self._since_s = self._clock.now()
        self._open += 1

    def __exit__(self, *exc: object) -> None:
        self._open -= 1
        if self._open == 0:
            self.total_s += self._clock.now() - self._since_s
