"""Draws the next tokens of a batch with repetition-aware sampling, as the embedded engine does. Pure torch and numpy.

Nothing here knows of vLLM. Source of the rule: the VALL-E 2 paper, in the reference's form: a token that holds a share
of the last tokens is excluded, and another is drawn from all that remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

NO_TOKEN = -1
"""Fills the places of tokens that do not exist yet."""

# Source: splitmix64 (Steele, Lea and Flood, 2014).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIXERS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT = np.uint64(31)
_UNUSED_BITS = np.uint64(11)
_UNIT = 2.0**-53
_DRAWS = 2


class Limits(NamedTuple):
    """How each row draws; tensors of [N]."""

    top_k: torch.Tensor
    """Most rows of the nucleus, int64, at least 1."""
    top_p: torch.Tensor
    """Probability of the nucleus, float64."""
    redrawn_from: torch.Tensor
    """Number of occurrences from which a token is drawn again, float64."""


def draw(scores: torch.Tensor, recent: torch.Tensor, limits: Limits, uniforms: torch.Tensor) -> torch.Tensor:
    """Return one column of each row of scores, int64 [N].

    A column is drawn from the nucleus. If it occurs too often in `recent`, it is excluded, and one is drawn from all
    others, unless no other is possible.

    Args:
        scores: [N, C], penalised and divided by the temperature; minus infinity: impossible, and some column is not.
        recent: columns drawn last, int64 [N, W]; `NO_TOKEN` where there is none.
        limits: of each row.
        uniforms: float64 [N, 2] in 0..1: one for each draw.
    """
    probabilities = torch.softmax(scores.double(), dim=-1)
    falling, columns = probabilities.sort(dim=-1, descending=True, stable=True)
    is_in = falling.cumsum(-1).roll(1, dims=-1) < limits.top_p[:, None]  # the mass before each one
    is_in[:, 0] = True
    is_in &= torch.arange(falling.shape[-1], device=falling.device) < limits.top_k[:, None]
    drawn = columns.gather(-1, _pick(falling * is_in, uniforms[:, 0]))
    others = probabilities.scatter(-1, drawn, 0.0)
    another = _pick(others, uniforms[:, 1])
    is_redrawn = (recent == drawn).sum(-1, keepdim=True) >= limits.redrawn_from[:, None]
    is_redrawn &= others.sum(-1, keepdim=True) > 0
    return torch.where(is_redrawn, another, drawn)[:, 0]


def uniforms_of(seeds: Sequence[int], counts: Sequence[int]) -> torch.Tensor:
    """Return the two random numbers of each row's next token, float64 [N, 2] in 0..1, on the CPU.

    They depend on the row's seed and on the number of tokens it has, and on nothing else. So a request that is put back
    and taken up again goes on as it would have.
    """
    seed = np.array([each & 0xFFFFFFFFFFFFFFFF for each in seeds], dtype=np.uint64)[:, None]
    number = np.array(counts, dtype=np.uint64)[:, None] * np.uint64(_DRAWS) + np.arange(_DRAWS, dtype=np.uint64)
    mixed = _mixed(_mixed(seed + _GOLDEN) + (number + np.uint64(1)) * _GOLDEN)
    return torch.from_numpy((mixed >> _UNUSED_BITS).astype(np.float64) * _UNIT)


def last_columns(answers: Sequence[Sequence[int]], windows: Sequence[int], first_id: int) -> torch.Tensor:
    """Return what `draw` takes as `recent`, on the CPU.

    Args:
        answers: ids drawn so far, one sequence a row.
        windows: number of the last tokens that count, of each row.
        first_id: id of column 0.
    """
    recent = np.full((len(answers), max(windows, default=0)), NO_TOKEN, dtype=np.int64)
    for row, (ids, window) in enumerate(zip(answers, windows, strict=True)):
        last = ids[-window:] if window else []
        recent[row, : len(last)] = [each - first_id for each in last]
    return torch.from_numpy(recent)


def _pick(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return an index of each row with probability proportional to its weight, int64 [N, 1]."""
    mass = weights.cumsum(-1)
    whole = mass[:, -1:]
    index = (mass <= uniforms[:, None] * whole).sum(-1, keepdim=True)
    last_possible = (mass < whole).sum(-1, keepdim=True)
    return torch.minimum(index, last_possible)


def _mixed(values: Any) -> Any:
    """Mix the bits of uint64 values; sums and products wrap around."""
    for shift, factor in _MIXERS:
        values = (values ^ (values >> shift)) * factor
    return values ^ (values >> _LAST_SHIFT)
