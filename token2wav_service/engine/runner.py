"""The seam between the engine and what computes: voices, stream states, one batch at a time. No model here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from token2wav_service.types import FloatArray, TokenChunk, VoiceFeatures


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


@dataclass(frozen=True)
class ChunkWork:
    """One stream's chunk and the state it starts from."""

    token_ids: tuple[int, ...]
    is_last: bool
    seed: int
    state: Any


@dataclass(frozen=True)
class ChunkOutcome:
    """What a chunk made; the state replaces the stream's."""

    samples: FloatArray
    """[N] float32 at 24 kHz."""
    state: Any


Finish = Callable[[], list[ChunkOutcome]]
"""Waits for a step that was launched, and returns what its chunks made."""


@dataclass(frozen=True)
class BesideRoom:
    """What a step may have that runs beside another one."""

    streams: int
    bucket: int
    """Largest bucket."""


class Runner(Protocol):
    """Computes; voices and states are the runner's own.

    Steps are launched and finished by one thread at a time, and by one more with `beside`; the rest is called by any.
    """

    facts: ModelFacts
    beside: BesideRoom | None
    """Of steps beside another one; None: there is one step at a time."""
    queues: bool
    """Whether a step may be launched while one runs, to run right behind it."""

    def prepare_voice(self, features: VoiceFeatures) -> Any:
        """Run a voice's prompt once; the voice is shared by streams, never changed, and has `num_bytes`."""
        ...

    def open(self, voice: Any) -> Any:
        """Return the state of a new stream; its `num_bytes` are what it does not share with its voice.

        Raises:
            CapacityError: there is no room for another.
        """
        ...

    def close(self, state: Any) -> None:
        """Give a state back; called once per opened stream, never while a step runs it."""
        ...

    def bucket(self, chunk: TokenChunk, state: Any) -> int:
        """Return which of the runner's programs a stream's next chunk needs.

        A program also runs chunks of every bucket with a lower number, each at the price of one of its own.
        """
        ...

    def step_size(self, bucket: int, ready: int, is_crowded: bool) -> int:
        """Return how many of `ready` chunks one step of a bucket's program should take: at least 1, the rest wait.

        Args:
            is_crowded: so many chunks wait that a longer step which makes more in a time is worth its length.
        """
        ...

    def launch(self, works: Sequence[ChunkWork], *, beside: bool = False) -> Finish:
        """Begin to run every chunk, in one program where the largest chunk's has room for as many.

        Args:
            beside: another step may run meanwhile, of other states; there is `self.beside` room.

        When this or what it returns raises, every state is as it was.
        """
        ...
