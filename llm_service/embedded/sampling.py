"""Draws one request's next token from its logits. Pure numpy: knows nothing of models, batches or ids beyond rows.

A row is a place in the speech head: 0..6560 speech tokens, then the end tokens. All randomness comes from the request's
own generator, so equal seeds and equal logits give equal tokens whatever runs beside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_service.embedded.types import SamplingParams
from llm_service.errors import GenerationFailedError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class RepetitionGuard:
    """Repetition-aware sampling: redraw a token that holds a share `tau` of the last `window_tokens` tokens.

    Source: the VALL-E 2 paper; window and share as the reference serves them.
    """

    window_tokens: int = 10  # 0 is off
    tau: float = 0.1

    def is_repeated(self, row: int, recent: Iterable[int]) -> bool:
        """Tell whether `row` occurs in `recent` often enough to be redrawn."""
        if self.window_tokens == 0:
            return False
        return sum(1 for earlier in recent if earlier == row) >= self.window_tokens * self.tau


class TokenSampler:
    """The sampling state of one request."""

    def __init__(
        self,
        params: SamplingParams,
        guard: RepetitionGuard,
        rows: int,
        prompt_rows: Iterable[int],
        end_rows: Iterable[int],
        stop_rows: Iterable[int],
        barred_rows: Iterable[int] = (),
    ) -> None:
        """Start a request.

        Args:
            params: how to draw.
            guard: repetition-aware sampling.
            rows: rows of the head.
            prompt_rows: the prompt's speech tokens; the repetition penalty counts them.
            end_rows: rows of end tokens, impossible with ignore_eos.
            stop_rows: rows that end the answer; with the end rows impossible before min_tokens.
            barred_rows: rows that are never drawn.
        """
        self._params = params
        self._guard = guard
        self._random = np.random.Generator(np.random.PCG64(params.seed & _SEED_MASK))
        self._is_seen = np.zeros(rows, dtype=bool)
        self._is_seen[list(prompt_rows)] = True
        self._recent: deque[int] = deque(maxlen=guard.window_tokens)
        self._end_rows = np.array(sorted(end_rows), dtype=np.int64)
        self._closing_rows = np.array(sorted({*end_rows, *stop_rows}), dtype=np.int64)
        self._barred_rows = np.array(sorted(barred_rows), dtype=np.int64)
        self._drawn = 0

    def sample(self, logits: npt.NDArray[np.float32], barred_now: IntArray | None = None) -> int:
        """Draw the next row and remember it.

        Args:
            logits: [rows] float32; not modified.
            barred_now: rows that this draw must not give.

        Raises:
            GenerationFailedError: the logits are not finite, or no token is possible.
        """
        scores = self._scores(logits)
        if barred_now is not None:
            scores[barred_now] = -np.inf
        row = self._draw_from_nucleus(scores)
        if self._guard.is_repeated(row, self._recent):
            scores[row] = -np.inf
            row = self._draw(scores)
        self._is_seen[row] = True
        self._recent.append(row)
        self._drawn += 1
        return row

    def _scores(self, logits: npt.NDArray[np.float32]) -> FloatArray:
        """Penalise, mask and cool the logits; [rows] float64, impossible rows are minus infinity."""
        if not np.isfinite(logits).all():
            raise GenerationFailedError("the model gave logits that are not finite; check the checkpoint and dtype")
        scores = logits.astype(np.float64)
        penalty = self._params.repetition_penalty
        if penalty != 1.0:
            seen = scores[self._is_seen]
            scores[self._is_seen] = np.where(seen > 0, seen / penalty, seen * penalty)
        if self._drawn < self._params.min_tokens:
            scores[self._closing_rows] = -np.inf
        if self._params.ignore_eos:
            scores[self._end_rows] = -np.inf
        scores[self._barred_rows] = -np.inf
        if self._params.temperature > 0:
            scores /= self._params.temperature
        return scores

    def _draw_from_nucleus(self, scores: FloatArray) -> int:
        if self._params.temperature == 0:
            return _most_likely(scores)
        probabilities = _softmax(scores)
        candidates = _by_falling_probability(probabilities, self._params.top_k)
        # Likeliest first, so that the first one is never dropped.
        candidates = candidates[probabilities[candidates] >= self._params.min_p * probabilities[candidates[0]]]
        mass = np.cumsum(probabilities[candidates])
        # Taken while the mass before is under top_p: at least one.
        count = max(1, int(np.searchsorted(mass, self._params.top_p, side="left")) + 1)
        return int(candidates[self._pick(mass[:count])])

    def _draw(self, scores: FloatArray) -> int:
        if self._params.temperature == 0:
            return _most_likely(scores)
        return self._pick(np.cumsum(_softmax(scores)))

    def _pick(self, mass: FloatArray) -> int:
        """Return an index with probability proportional to its step in the cumulative `mass`."""
        index = int(np.searchsorted(mass, self._random.random() * mass[-1], side="right"))
        last_possible = int(np.searchsorted(mass, mass[-1], side="left"))
        return min(index, last_possible)


def _most_likely(scores: FloatArray) -> int:
    row = int(scores.argmax())
    if scores[row] == -np.inf:
        raise GenerationFailedError("no token is possible: stop_token_ids and min_tokens exclude all of them")
    return row


def _softmax(scores: FloatArray) -> FloatArray:
    highest = scores[_most_likely(scores)]
    weights: FloatArray = np.exp(scores - highest)
    weights /= weights.sum()
    return weights


def _by_falling_probability(probabilities: FloatArray, top_k: int) -> IntArray:
    """Return the `top_k` likeliest rows (all if 0 or less), likeliest first, ties by row."""
    if 0 < top_k < len(probabilities):
        rows = np.sort(np.argpartition(-probabilities, top_k - 1)[:top_k])
    else:
        rows = np.arange(len(probabilities))
    return rows[np.argsort(-probabilities[rows], kind="stable")]
