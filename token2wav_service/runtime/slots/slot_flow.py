"""Tokens to mel for streams whose state lives in slots; fit to be captured as a CUDA graph.

What `models/flow.py` computes under history policy `prompt_and_recent`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.models.attention import AttentionPlan
from token2wav_service.models.causal import valid_mask
from token2wav_service.models.encoder import EncoderHistory, EncoderPlans
from token2wav_service.models.flow import Flow
from token2wav_service.models.noise import NoiseDomain
from token2wav_service.runtime.kernels import ops
from token2wav_service.runtime.slots.fused_solver import ChunkSolver, SolverBatch
from token2wav_service.runtime.slots.pool import StreamPool


@dataclass(frozen=True)
class SlotBatch:
    """Who runs in this step and with what; every tensor [B] int64 on the device."""

    slots: Tensor
    solver_prompts: Tensor
    """Addresses of the voices' solver keys and values, each [n, L, 2, H, P, 2D]."""
    token_prompts: Tensor
    """Addresses of the conformer blocks', each [L1, h, P/2, 2d]."""
    frame_prompts: Tensor
    """Addresses of the up-blocks', each [L2, h, P, 2d]."""
    prompt_frames: Tensor
    """P, even."""
    generated: Tensor
    """Mel frames of each stream before this chunk."""
    num_tokens: Tensor
    """Valid tokens, look-ahead included."""
    is_last: Tensor
    """1 or 0."""
    seeds: Tensor
    mel_tails: Tensor
    """Mel frames in the vocoder's tail, 0..8."""
    has_speech: Tensor
    """1 where the vocoder has run before."""


class SlotFlow:
    """Runs the flow on a pool; holds the models, no stream."""

    def __init__(self, flow: Flow, solver: ChunkSolver, pool: StreamPool, max_prompt_frames: int) -> None:
        self.flow, self.solver, self.pool = flow, solver, pool
        self.stride = flow.config.encoder.up_stride
        self.lookahead = flow.config.encoder.pre_lookahead_len
        self.max_prompt_frames = max_prompt_frames

    def frame_lengths(self, batch: SlotBatch) -> Tensor:
        """Return [B] mel frames that each row makes."""
        return self.stride * (batch.num_tokens - self.lookahead * (1 - batch.is_last))

    def run(self, tokens: Tensor, batch: SlotBatch, prompt_size: int = 0) -> Tensor:
        """Run one chunk of every row and keep what the next needs.

        Args:
            tokens: [B, T + 3] int64, padded; T spoken tokens at most.
            prompt_size: what the solver pads prompts to.

        Returns:
            Mel [B, 2T, 80] float32; frames past a row's length are meaningless.
        """
        frames = self.frame_lengths(batch)
        mu = self._encode(tokens, batch, frames)
        size, mel = mu.shape[1], self.flow.config.output_size
        start = batch.prompt_frames + batch.generated
        noise = ops.counter_noise(batch.seeds, start, size, mel, int(NoiseDomain.FLOW))
        solving = SolverBatch(
            batch.slots, batch.solver_prompts, batch.prompt_frames, batch.generated, frames, prompt_size
        )
        pool = self.pool.solver
        speaker = self.pool.speaker.index_select(0, batch.slots)
        x, own, tails = self.solver.solve(noise, mu, speaker, None, solving, pool)
        ops.commit_window(own, pool.window, batch.slots, batch.generated, frames)
        pool.tails.index_copy_(0, batch.slots, tails)
        return x

    def _encode(self, tokens: Tensor, batch: SlotBatch, frames: Tensor) -> Tensor:
        """Return mu [B, 2T, 80]."""
        size = tokens.shape[1] - self.lookahead
        stride, pool = self.stride, self.pool
        embedded = self.flow.input_embedding(tokens)
        embedded = embedded * valid_mask(batch.num_tokens, tokens.shape[1])[:, :, None].to(embedded.dtype)
        prompt_tokens, generated_tokens = batch.prompt_frames // stride, batch.generated // stride
        history = EncoderHistory(
            token_kv=self._history(batch.token_prompts, prompt_tokens, pool.token_window, batch, stride),
            frame_kv=self._history(batch.frame_prompts, batch.prompt_frames, pool.frame_window, batch, 1),
            token_lengths=prompt_tokens,
            frame_lengths=batch.prompt_frames,
            lookahead_tail=pool.lookahead_tail.index_select(0, batch.slots),
            upsample_tail=pool.upsample_tail.index_select(0, batch.slots),
        )
        prompt_size = self.max_prompt_frames
        token_window, frame_window = pool.token_window.shape[3], pool.frame_window.shape[3]
        plans = EncoderPlans(
            ring_plan(prompt_tokens, prompt_size // stride, generated_tokens, token_window, frames // stride, size),
            ring_plan(batch.prompt_frames, prompt_size, batch.generated, frame_window, frames, size * stride),
        )
        hidden, _, update = self.flow.encoder(
            embedded, batch.num_tokens, batch.is_last.bool(), history, plans=plans, size=size
        )
        _commit(update.token_kv, pool.token_window, batch.slots, generated_tokens, frames // stride)
        _commit(update.frame_kv, pool.frame_window, batch.slots, batch.generated, frames)
        pool.lookahead_tail.index_copy_(0, batch.slots, update.lookahead_tail)
        pool.upsample_tail.index_copy_(0, batch.slots, update.upsample_tail)
        return functional.linear(hidden, self.flow.encoder_proj.weight, self.flow.encoder_proj.bias)

    def _history(self, addresses: Tensor, lengths: Tensor, window: Tensor, batch: SlotBatch, stride: int) -> Tensor:
        """[L, B, h, prompt + window, 2d] of one stack, `stride` mel frames per column."""
        layers, heads = window.shape[1:3]
        gathered = ops.gather_history(
            addresses, lengths, window, batch.slots, batch.generated // stride, self.max_prompt_frames // stride
        )
        return gathered.view(gathered.shape[0], layers, heads, *gathered.shape[2:]).transpose(0, 1)


def ring_plan(
    prompts: Tensor, prompt_size: int, generated: Tensor, window_size: int, own: Tensor, own_size: int
) -> AttentionPlan:
    """Mask and distances of [prompt aligned right | ring | own chunk], as if all valid columns stood side by side.

    Args:
        prompts, generated, own: [B] valid columns: of the prompt, made before this chunk, of this chunk.
        prompt_size, window_size, own_size: padded columns.
    """
    device = prompts.device
    prompt_column = torch.arange(prompt_size, device=device)[None] - (prompt_size - prompts[:, None])
    place = torch.arange(window_size, device=device)[None]
    newest = generated[:, None] - 1
    # The newest column that stands at this place of the ring.
    frame = newest - (newest - place) % window_size
    kept = generated.clamp(max=window_size)[:, None]
    in_ring = (frame >= 0) & (generated[:, None] > 0)
    ring_position = prompts[:, None] + frame - (generated[:, None] - kept)
    own_column = torch.arange(own_size, device=device)[None]
    before_own = prompts[:, None] + kept
    keys = torch.cat([prompt_column, ring_position, before_own + own_column], 1)
    mask = torch.cat([prompt_column >= 0, in_ring, own_column < own[:, None]], 1)
    low, high = 1 - own_size, prompt_size + window_size + own_size - 1
    relative = (before_own + own_column)[:, :, None] - keys[:, None, :]
    return AttentionPlan(mask[:, None, None, :], relative.clamp(low, high), low, high)


def _commit(own: Tensor, window: Tensor, slots: Tensor, generated: Tensor, lengths: Tensor) -> None:
    """Write [L, B, h, T, 2d] of a chunk into the rings [S, L, h, W, 2d]."""
    ops.commit_window(own.transpose(0, 1).contiguous(), window, slots, generated, lengths)
