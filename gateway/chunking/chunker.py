"""Cuts one stream of speech tokens into the chunks that go to token2wav.

tokens    0 ........... 15 .. 18 ................ 40 .. 43 ......
chunk 0  [ hop 15       |la 3]
chunk 1                 [ hop 25                  |la 3]
last                                               [ all that remains ]
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.chunking.pace import Pace
from gateway.chunking.policies import UNMEASURED, ChunkPolicy, ChunkProgress
from token2wav_service.contract import LOOKAHEAD_TOKENS


@dataclass(frozen=True)
class TokenChunk:
    """Tokens that go to token2wav in one push."""

    index: int
    """Number of the chunk in the stream, from 0."""
    start: int
    """Position of the chunk's first token in the stream."""
    token_ids: tuple[int, ...]
    """Tokens 0..6560; unless last, the final 3 are look-ahead and come again in the next chunk."""
    is_last: bool

    @property
    def end(self) -> int:
        """Position behind the last token in the stream."""
        return self.start + len(self.token_ids)


class Chunker:
    """Cuts one stream of tokens into chunks."""

    def __init__(self, policy: ChunkPolicy, hop_multiple: int = 1, first_tokens: int = 0) -> None:
        """Begin a stream; a chunker serves one only.

        Args:
            policy: chooses the hops.
            hop_multiple: tokens that every hop but the first is a multiple of: the next smaller one of what the policy
                chose, or this.
            first_tokens: tokens of the first chunk, look-ahead included, as the policy chose them before any came: the
                LLM sends them in one message, and one more token would come with the next. 0: it was not asked.
        """
        self._policy = policy
        self._hop_multiple = hop_multiple
        self._tokens: list[int] = []
        self._start = 0
        self._cut_chunks = 0
        self._last_hop = 0
        self._considered: int | None = None
        self._first_tokens = first_tokens

    @property
    def missing(self) -> int:
        """Tokens that must come before `next_chunk` can return a chunk; at least 1."""
        return max(self._first_tokens - len(self._tokens), 1)

    @property
    def has_pending(self) -> bool:
        """Whether there is anything to speak behind the chunks cut so far, look-ahead not counted."""
        return len(self._tokens) - self._start > LOOKAHEAD_TOKENS

    @property
    def tokens_received(self) -> int:
        """All tokens pushed so far."""
        return len(self._tokens)

    def push(self, token_ids: list[int], elapsed_s: float = 0.0) -> list[TokenChunk]:
        """Take new tokens and return the chunks that are now complete.

        Args:
            token_ids: speech tokens 0..6560, any number.
            elapsed_s: seconds since the request began; only `time_based` looks at it.
        """
        self.add(token_ids)
        chunks = []
        while (chunk := self.next_chunk(elapsed_s)) is not None:
            chunks.append(chunk)
        return chunks

    def add(self, token_ids: list[int]) -> None:
        """Take new tokens, 0..6560, any number."""
        self._tokens.extend(token_ids)

    def next_chunk(self, elapsed_s: float = 0.0, pace: Pace = UNMEASURED) -> TokenChunk | None:
        """Cut the next chunk if it is complete; call it until it returns None, and again when tokens have come.

        Args:
            elapsed_s: seconds since the request began; only `time_based` looks at it.
            pace: measured up to now, chunks cut before included; only `deadline` looks at it.
        """
        if not self.has_pending:
            return None
        pending = len(self._tokens) - self._start
        if self._first_tokens and not self._cut_chunks:
            hop = self._first_tokens - LOOKAHEAD_TOKENS
        else:
            # NOTE: decided when there is something to speak, so that a policy sees the time and the backlog.
            progress = ChunkProgress(
                self._cut_chunks, self._start, pending, elapsed_s, self._last_hop, self._considered, pace
            )
            hop = self._considered = self._policy.next_hop(progress)
        if self._cut_chunks:
            hop = max(hop // self._hop_multiple, 1) * self._hop_multiple
        if pending < hop + LOOKAHEAD_TOKENS:
            return None
        chunk = self._cut(hop + LOOKAHEAD_TOKENS, is_last=False)
        self._start += hop
        self._last_hop, self._considered = hop, None
        return chunk

    def flush(self) -> TokenChunk:
        """Return the last chunk: all that remains, at least 3 tokens if any chunk went before."""
        return self._cut(len(self._tokens) - self._start, is_last=True)

    def _cut(self, size: int, is_last: bool) -> TokenChunk:
        token_ids = tuple(self._tokens[self._start : self._start + size])
        self._cut_chunks += 1
        return TokenChunk(self._cut_chunks - 1, self._start, token_ids, is_last)
