"""The seam between the engine and what computes: voices, stream states, one batch at a time. No model here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from token2wav_service.types import FloatArray, TokenChunk, VoiceFeatures


class VoiceState(Protocol):
    """A voice ready for streams; shared by them and never changed."""

    @property
    def frames(self) -> int:
        """Mel frames of the prompt."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""
        ...


class RunnerState(Protocol):
    """What one stream's next chunk starts from."""

    @property
    def num_bytes(self) -> int:
        """Memory it holds beyond what it shares with its voice."""
        ...


@dataclass(frozen=True)
class ModelFacts:
    """What the engine must know of the models to check a chunk before it runs."""

    vocab_size: int
    lookahead_tokens: int
    frames_per_token: int
    hop_multiple: int = 1
    """Chunks but the first and the last should speak a multiple of so many tokens."""

    def new_tokens(self, tokens: int, is_last: bool) -> int:
        """Return how many of a chunk's `tokens` tokens it speaks; the rest only lets it look ahead."""
        return tokens if is_last else tokens - self.lookahead_tokens

    def new_frames(self, tokens: int, is_last: bool) -> int:
        """Return the mel frames that a chunk of `tokens` tokens makes."""
        return self.frames_per_token * self.new_tokens(tokens, is_last)


V = TypeVar("V", bound=VoiceState)
S = TypeVar("S", bound=RunnerState)


@dataclass(frozen=True)
class ChunkWork(Generic[S]):
    """One stream's chunk and the state it starts from."""

    token_ids: tuple[int, ...]
    is_last: bool
    seed: int
    state: S


@dataclass(frozen=True)
class ChunkOutcome(Generic[S]):
    """What a chunk made; the state replaces the stream's."""

    samples: FloatArray
    """[N] float32 at 24 kHz."""
    state: S


class Runner(Protocol[V, S]):
    """Computes; `run` is called by one thread at a time, the rest by any."""

    facts: ModelFacts

    def prepare_voice(self, features: VoiceFeatures) -> V:
        """Run a voice's prompt once."""
        ...

    def open(self, voice: V) -> S:
        """Return the state of a new stream.

        Raises:
            CapacityError: there is no room for another.
        """
        ...

    def close(self, state: S) -> None:
        """Give a state back; called once per opened stream, never while a step runs it."""
        ...

    def bucket(self, chunk: TokenChunk, state: S) -> int:
        """Return which of the runner's programs a stream's next chunk needs.

        A program also runs chunks of every bucket with a lower number, each at the price of one of its own.
        """
        ...

    def step_size(self, bucket: int, ready: int) -> int:
        """Return how many of `ready` chunks one step of a bucket's program should take: at least 1, the rest wait."""
        ...

    def run(self, works: Sequence[ChunkWork[S]]) -> list[ChunkOutcome[S]]:
        """Run every chunk, in one program where the largest chunk's has room for as many.

        When this raises, every state is as it was.
        """
        ...
