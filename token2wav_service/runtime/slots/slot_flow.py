"""Tokens to mel for streams whose state lives in slots; fit to be captured as a CUDA graph.

What the plain flows compute under history policy `prompt_and_recent`. A block-masked flow (CosyVoice2's, CosyVoice3's)
computes a chunk from the stream's last complete block on, and what complete blocks leave behind joins the pool;
Step-Audio2's has no blocks: each chunk begins where the last one ended, and all of it joins the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.models.causal import valid_mask
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.flow.dit import DiT
from token2wav_service.models.flow.flow import ConformerFlow, CosyVoice3Flow
from token2wav_service.models.flow.flow_stream import PROMPT_SEED
from token2wav_service.models.flow.rotary_dit import RotaryDiT
from token2wav_service.models.flow.unet import UNet
from token2wav_service.models.noise import NoiseDomain
from token2wav_service.runtime.kernels import ops
from token2wav_service.runtime.kernels.attention_ops import KeyPlaces
from token2wav_service.runtime.slots.chunk_solver import ChunkSolver, FusedSolver, SolverBatch
from token2wav_service.runtime.slots.dit_solver import DiTSolver
from token2wav_service.runtime.slots.fused_encoder import BlockMasking, EncoderTails, FusedEncoder, FusedLookahead
from token2wav_service.runtime.slots.pool import SlotBatch, StreamPool
from token2wav_service.runtime.slots.rotary_solver import RotarySolver
from token2wav_service.runtime.slots.unet_solver import UNetSolver

SOLVERS: dict[type[Any], Callable[[Any, int, torch.dtype], FusedSolver]] = {
    DiT: DiTSolver,
    UNet: UNetSolver,
    RotaryDiT: RotarySolver,
}
"""The solver of each estimator."""


def make_solver(flow: AnyFlow, steps: int) -> FusedSolver:
    """Pack the weights of a flow's estimator, in the flow's dtype."""
    return SOLVERS[type(flow.decoder.estimator)](flow.decoder, steps, flow.dtype)


class SlotFlow:
    """Runs the flow on a pool; holds the models, no stream."""

    def __init__(
        self,
        flow: AnyFlow,
        solver: ChunkSolver,
        pool: StreamPool,
        max_prompt_frames: int,
        token_buckets: Sequence[int],
    ) -> None:
        """Pack the weights of what stands before the estimator.

        Args:
            flow: in eval mode, on its device.
            solver: runs the estimator.
            pool: states.
            max_prompt_frames: longest prompt.
            token_buckets: tokens of the chunks that are planned for.
        """
        self.flow, self.solver, self.pool = flow, solver, pool
        self.stride, self.lookahead = flow.stride, flow.lookahead
        self.block = flow.block_tokens
        """Tokens of a block; 0 without a block mask."""
        self._mixer: FusedEncoder | FusedLookahead
        if isinstance(flow, CosyVoice3Flow):
            self._mixer = FusedLookahead(flow.pre_lookahead_layer, flow.dtype)
        else:
            assert isinstance(flow, ConformerFlow)
            self._mixer = FusedEncoder(flow.encoder, max_prompt_frames, token_buckets)

    def frame_lengths(self, batch: SlotBatch) -> Tensor:
        """Return [B] mel frames that each row gives out."""
        computed = self._computed(batch)
        return computed - batch.skipped if self.block else computed

    def run(self, tokens: Tensor, batch: SlotBatch, prompt_size: int = 0) -> Tensor:
        """Run one chunk of every row and keep what the next needs.

        Args:
            tokens: [B, T + 3] int64 from each row's last complete block on, padded; T at most without look-ahead.
            batch: who runs.
            prompt_size: what the solver pads prompts to.

        Returns:
            Mel [B, 2T, 80] float32, each row from its first new frame on; frames past its length are meaningless.
        """
        frames = self._computed(batch)
        own = batch.first_frames - batch.shared_frames
        places = KeyPlaces(batch.slots, batch.solver_prompts, batch.shared_frames, own, frames)
        mu = self._encode(tokens, batch, own, frames)
        speaker = self.pool.speaker.index_select(0, batch.slots)
        noise = self._noise(batch, mu.shape[1])
        if not self.block:
            solving = SolverBatch(places, batch.first_frames, frames, prompt_size=prompt_size)
            return self.solver.solve(noise, mu, speaker, None, solving, self.pool.solver)
        committed, block = batch.committed * self.stride, self.block * self.stride
        solving = SolverBatch(places, batch.first_frames, committed, block, prompt_size)
        cond = self._cond(batch, own, mu.shape[1]).to(mu.dtype)
        return _shifted_left(self.solver.solve(noise, mu, speaker, cond, solving, self.pool.solver), batch.skipped)

    def _computed(self, batch: SlotBatch) -> Tensor:
        """Return [B] mel frames from each row's last complete block on."""
        return self.stride * (batch.num_tokens - self.lookahead * (1 - batch.is_last))

    def _encode(self, tokens: Tensor, batch: SlotBatch, own: Tensor, frames: Tensor) -> Tensor:
        """Return mu [B, 2T, 80]; `own` and `frames` count the stream's frames before the chunk and the chunk's."""
        pool, slots, stride = self.pool, batch.slots, self.stride
        embedded = embed_tokens(self.flow, tokens, batch.num_tokens)
        if isinstance(self._mixer, FusedLookahead):
            size = tokens.shape[1] - self.lookahead
            mixed = self._mixer(embedded, size, batch.committed, pool.lookahead_tail, slots)
            return mixed.repeat_interleave(stride, dim=1, output_size=size * stride)
        c = pool.conformer
        assert c is not None
        spoken = frames // stride
        places = (
            KeyPlaces(slots, batch.token_prompts, batch.shared_frames // stride, own // stride, spoken),
            KeyPlaces(slots, batch.frame_prompts, batch.shared_frames, own, frames),
        )
        hidden = self._mixer.encode(
            embedded, batch.num_tokens, spoken, places, (c.token_window, c.frame_window),
            EncoderTails(pool.lookahead_tail, c.upsample_tail),
            BlockMasking(self.block, batch.committed) if self.block else None,
        )  # fmt: skip
        return project(self.flow, hidden)

    def _noise(self, batch: SlotBatch, size: int) -> Tensor:
        """[B, T, 80] from each row's first frame: by the voice's seed in the prompt, by the stream's behind it."""
        first, width = batch.first_frames, self.flow.output_size
        own = ops.counter_noise(batch.seeds, first, size, width, int(NoiseDomain.FLOW))
        if not self.block:
            return own
        shared = torch.full_like(batch.seeds, PROMPT_SEED)
        in_prompt = first[:, None] + torch.arange(size, device=first.device) < batch.prompt_frames[:, None]
        return torch.where(
            in_prompt[:, :, None], ops.counter_noise(shared, first, size, width, int(NoiseDomain.FLOW)), own
        )

    def _cond(self, batch: SlotBatch, own: Tensor, size: int) -> Tensor:
        """[B, T, 80] what is left of the prompts' mel, then zeros."""
        assert self.pool.cond is not None
        kept = self.pool.cond.index_select(0, batch.slots)
        at = own[:, None] + torch.arange(size, device=kept.device)
        is_prompt = at < (batch.prompt_frames - batch.shared_frames)[:, None]
        index = at.clamp(max=kept.shape[1] - 1)[:, :, None].expand(-1, -1, kept.shape[2])
        return torch.where(is_prompt[:, :, None], kept.gather(1, index), 0.0)


def embed_tokens(flow: AnyFlow, tokens: Tensor, num_tokens: Tensor) -> Tensor:
    """Return embeddings [B, N, C] of tokens [B, N], 0 behind the `num_tokens` [B] valid ones."""
    embedded = flow.input_embedding(tokens)
    return torch.as_tensor(embedded * valid_mask(num_tokens, tokens.shape[1])[:, :, None].to(embedded.dtype))


def project(flow: AnyFlow, hidden: Tensor) -> Tensor:
    """Return mu [B, 2T, 80] of what the conformer made, [B, 2T, C]."""
    assert isinstance(flow, ConformerFlow)
    return functional.linear(hidden, flow.encoder_proj.weight, flow.encoder_proj.bias)


def _shifted_left(mel: Tensor, skipped: Tensor) -> Tensor:
    """Return [B, F, 80] from each row's column `skipped` on; what is past the end repeats the last column."""
    size = mel.shape[1]
    index = (skipped[:, None] + torch.arange(size, device=mel.device)).clamp(max=size - 1)
    return mel.gather(1, index[:, :, None].expand_as(mel))
