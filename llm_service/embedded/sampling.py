"""Draws one request's next token from its logits. Pure numpy: knows nothing of models, batches or ids beyond rows.

A row is a place in the speech head: 0..6560 speech tokens, then the end tokens. All randomness comes from the request's
own generator, so equal seeds and equal logits give equal tokens whatever runs beside.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_service.embedded.steps import BANNED, CLOSING, NO_TOKEN, NOT_FINITE, SEEN, AnswerStart

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


class TokenSampler:
    """The sampling state of one answer."""

    def __init__(self, start: AnswerStart) -> None:
        self._random = np.random.Generator(np.random.PCG64(start.seed & _SEED_MASK))
        self._recent: deque[int] = deque(start.recent_rows, maxlen=start.window)
        self.go_on(start)

    def go_on(self, start: AnswerStart) -> None:
        """Take other flags and bounds; randomness goes on where it was."""
        self._start = start
        self._flags = start.flags.copy()
        self._drawn = start.drawn

    def sample(self, logits: npt.NDArray[np.float32]) -> int:
        """Draw the next row of logits [rows] and remember it; `NO_TOKEN` or `NOT_FINITE` where there is none."""
        if not np.isfinite(logits).all():
            return NOT_FINITE
        scores = self._scores(logits)
        if scores.max() == -np.inf:
            return NO_TOKEN
        row = self._draw_from_nucleus(scores)
        if self._start.window and self._recent.count(row) >= self._start.repeat_limit:
            scores[row] = -np.inf
            if scores.max() > -np.inf:
                row = self._draw(scores)
        self._flags[row] |= SEEN
        self._recent.append(row)
        self._drawn += 1
        return row

    def _scores(self, logits: npt.NDArray[np.float32]) -> FloatArray:
        """Penalise, mask and cool the logits; [rows] float64, impossible rows are minus infinity."""
        scores = logits.astype(np.float64)
        penalty = self._start.penalty
        if penalty != 1.0:
            is_seen = (self._flags & SEEN) > 0
            seen = scores[is_seen]
            scores[is_seen] = np.where(seen > 0, seen / penalty, seen * penalty)
        closed = BANNED | CLOSING if self._drawn < self._start.min_tokens else BANNED
        scores[(self._flags & closed) > 0] = -np.inf
        return scores / self._start.temperature if self._start.temperature > 0 else scores

    def _draw_from_nucleus(self, scores: FloatArray) -> int:
        start = self._start
        if start.temperature == 0:
            return int(scores.argmax())
        probabilities = _softmax(scores)
        candidates = _by_falling_probability(probabilities, start.top_k)
        # Likeliest first, so that the first one is never dropped.
        candidates = candidates[probabilities[candidates] >= start.min_p * probabilities[candidates[0]]]
        mass = np.cumsum(probabilities[candidates])
        # Taken while the mass before is under top_p: at least one.
        count = max(1, int(np.searchsorted(mass, start.top_p, side="left")) + 1)
        return int(candidates[self._pick(mass[:count])])

    def _draw(self, scores: FloatArray) -> int:
        return int(scores.argmax()) if self._start.temperature == 0 else self._pick(np.cumsum(_softmax(scores)))

    def _pick(self, mass: FloatArray) -> int:
        """Return an index with probability proportional to its step in the cumulative `mass`."""
        index = int(np.searchsorted(mass, self._random.random() * mass[-1], side="right"))
        last_possible = int(np.searchsorted(mass, mass[-1], side="left"))
        return min(index, last_possible)


def _softmax(scores: FloatArray) -> FloatArray:
    weights: FloatArray = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights


def _by_falling_probability(probabilities: FloatArray, top_k: int) -> IntArray:
    """Return the `top_k` likeliest rows (all if 0), likeliest first, ties by row."""
    if 0 < top_k < len(probabilities):
        rows = np.sort(np.argpartition(-probabilities, top_k - 1)[:top_k])
    else:
        rows = np.arange(len(probabilities))
    return rows[np.argsort(-probabilities[rows], kind="stable")]
