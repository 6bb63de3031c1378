"""Attention as streaming has it, over a whole training window at once.

A window is a prompt followed by a target. The prompt is one block; the target is cut into chunks. A chunk sees the
prompt, what came before it, and itself:

            prompt  chunk 1  chunk 2
    prompt    x
    chunk 1   x        x
    chunk 2   x        x        x      <- of earlier chunks perhaps only the newest frames
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from token2wav_service.models.causal import AttentionPlan
from token2wav_service.models.flow.encoder import EncoderPlans

FRAMES_PER_TOKEN = 2
_SCHEDULES = ((15, 25, 50, 100), (15,), (25,), (25, 50, 100), (5, 10, 20, 40, 80))
"""Hops (tokens) of the chunk policies; the last one of each goes on. The gateway's own are among them."""
_WHOLE_SHARE = 0.25
"""Share of windows whose target is one chunk, as offline synthesis has it."""
_SHORT_HISTORY_SHARE = 0.5
_ALL_FRAMES = 1 << 30
_HISTORY_FRAMES = (50, 300)
"""Newest earlier frames that the estimator sees, where it doesn't see all."""


@dataclass(frozen=True)
class FlowPlans:
    """Attention of both parts of the flow, under streaming's masks."""

    encoder: EncoderPlans
    solver_mask: Tensor
    """[B, 1, T, T] bool."""


@dataclass(frozen=True)
class WindowCut:
    """How one batch of windows is cut; the same for all its rows."""

    prompt_tokens: int
    chunk_ends: tuple[int, ...]
    """Ends of the chunks in tokens from the target's beginning; the last one is the target's end."""
    history_frames: int | None
    """Newest earlier frames of the target that the estimator sees; None: all."""


def draw_cut(draw: random.Random, prompt_tokens: int, target_tokens: int) -> WindowCut:
    """Choose a chunk schedule and a history at random."""
    is_short = draw.random() < _SHORT_HISTORY_SHARE
    history = draw.randrange(*_HISTORY_FRAMES) if is_short else None
    if draw.random() < _WHOLE_SHARE:
        return WindowCut(prompt_tokens, (target_tokens,), history)
    hops = draw.choice(_SCHEDULES)
    ends = [draw.randrange(hops[0] // 2, hops[0] + 1)] if draw.random() < _SHORT_HISTORY_SHARE else [hops[0]]
    while ends[-1] < target_tokens:
        ends.append(ends[-1] + hops[min(len(ends), len(hops) - 1)])
    return WindowCut(prompt_tokens, (*ends[:-1], target_tokens), history)


def blocks_of(cut: WindowCut) -> Tensor:
    """Return [T, 2] int64 on the CPU, T tokens: where each token's own block begins and ends."""
    edges = [0, *(cut.prompt_tokens + end for end in (0, *cut.chunk_ends))]
    sizes = torch.tensor([end - start for start, end in pairwise(edges)])
    spans = torch.tensor(list(pairwise(edges)))
    return spans.repeat_interleave(sizes, dim=0)


def history_of(cut: WindowCut) -> Tensor:
    """Return the newest earlier frames that the estimator sees, int64 on the CPU."""
    return torch.tensor(_ALL_FRAMES if cut.history_frames is None else cut.history_frames)


def plans_for(blocks: Tensor, history: Tensor, prompt_tokens: int) -> FlowPlans:
    """Return the masks of both rates, each [1, 1, T, T]: one for all rows of a batch.

    Args:
        blocks: from `blocks_of`, on the masks' device.
        history: from `history_of`, there too.
        prompt_tokens: of the window.
    """
    frames = FRAMES_PER_TOKEN * blocks.repeat_interleave(FRAMES_PER_TOKEN, dim=0)
    encoder = EncoderPlans(_plan(_seen(blocks)), _plan(_seen(frames)))
    keys = torch.arange(len(frames), device=frames.device)
    is_remembered = (keys < prompt_tokens * FRAMES_PER_TOKEN) | (keys >= frames[:, :1] - history)
    return FlowPlans(encoder, (_seen(frames) & is_remembered)[None, None])


def _seen(blocks: Tensor) -> Tensor:
    """Return [T, T] bool: which keys each query sees."""
    return torch.arange(len(blocks), device=blocks.device) < blocks[:, 1:]


def _plan(seen: Tensor) -> AttentionPlan:
    size = len(seen)
    index = torch.arange(size, device=seen.device)
    return AttentionPlan(seen[None, None], index[:, None] - index[None, :], 1 - size, size - 1)
