"""Tokens to mel for streams of a block-masked flow whose state lives in slots; fit to be captured as a CUDA graph.

What `models/block_flow.py` and `models/block_stream.py` compute under history policy `prompt_and_recent`: a chunk is
computed from the stream's last complete block on, and what complete blocks leave behind joins the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.models.causal import valid_mask
from token2wav_service.models.flow.block_flow import BlockFlow, CosyVoice2Flow, CosyVoice3Flow
from token2wav_service.models.flow.block_stream import PROMPT_SEED
from token2wav_service.models.flow.cfm import ConditionalFlowMatching
from token2wav_service.models.flow.rotary_dit import RotaryDiT
from token2wav_service.models.flow.unet import UNet
from token2wav_service.models.noise import NoiseDomain
from token2wav_service.runtime.kernels import ops
from token2wav_service.runtime.kernels.attention_ops import KeyPlaces
from token2wav_service.runtime.slots.block_pool import BlockBatch, BlockStreamPool
from token2wav_service.runtime.slots.block_solver import BlockSolver, BlockSolverBatch
from token2wav_service.runtime.slots.fused_encoder import BlockMasking, EncoderTails, FusedEncoder, FusedLookahead
from token2wav_service.runtime.slots.rotary_solver import RotarySolver
from token2wav_service.runtime.slots.unet_solver import UNetSolver


def make_solver(flow: BlockFlow, steps: int) -> RotarySolver | UNetSolver:
    """Pack the weights of a flow's estimator, in the flow's dtype."""
    dtype = flow.spk_embed_affine_layer.weight.dtype
    if isinstance(flow, CosyVoice3Flow):
        return RotarySolver(cast("ConditionalFlowMatching[RotaryDiT]", flow.decoder), steps, dtype)
    assert isinstance(flow, CosyVoice2Flow)
    return UNetSolver(cast("ConditionalFlowMatching[UNet]", flow.decoder), steps, dtype)


class BlockSlotFlow:
    """Runs the flow on a pool; holds the models, no stream."""

    batch_type: ClassVar[type[BlockBatch]] = BlockBatch

    def __init__(
        self,
        flow: BlockFlow,
        solver: BlockSolver,
        pool: BlockStreamPool,
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
        self.stride, self.lookahead, self.block = flow.stride, flow.lookahead, flow.block_tokens
        self._encoder: FusedEncoder | None = None
        self._lookahead: FusedLookahead | None = None
        if isinstance(flow, CosyVoice2Flow):
            self._encoder = FusedEncoder(flow.encoder, max_prompt_frames, token_buckets)
        elif isinstance(flow, CosyVoice3Flow):
            self._lookahead = FusedLookahead(flow.pre_lookahead_layer, flow.spk_embed_affine_layer.weight.dtype)

    def prompt_sizes(self) -> tuple[int, ...]:
        """Return what the solver wants prompts padded to."""
        return self.solver.prompt_sizes

    def frame_lengths(self, batch: BlockBatch) -> Tensor:
        """Return [B] mel frames that each row gives out."""
        return self._computed(batch) - batch.skipped

    def run(self, tokens: Tensor, batch: BlockBatch, prompt_size: int = 0) -> Tensor:
        """Run one chunk of every row and keep what the next needs.

        Args:
            tokens: [B, T + 3] int64 from each row's last complete block on, padded; T at most without look-ahead.
            batch: who runs.
            prompt_size: what the solver pads prompts to.

        Returns:
            Mel [B, 2T, 80] float32, each row from its first new frame on; frames past its length are meaningless.
        """
        frames = self._computed(batch)
        places = self._places(batch, batch.solver_prompts, frames, 1)
        mu = self._encode(tokens, batch, frames)
        speaker = self.pool.speaker.index_select(0, batch.slots)
        size = mu.shape[1]
        committed, block = batch.committed * self.stride, self.block * self.stride
        solving = BlockSolverBatch(places, batch.first_frames, committed, block, prompt_size)
        mel = self.solver.solve(
            self._noise(batch, size), mu, speaker, self._cond(batch, size).to(mu.dtype), solving, self.pool.solver
        )
        return _shifted_left(mel, batch.skipped)

    def _computed(self, batch: BlockBatch) -> Tensor:
        """Return [B] mel frames from each row's last complete block on."""
        return self.stride * (batch.num_tokens - self.lookahead * (1 - batch.is_last))

    def _places(self, batch: BlockBatch, prompts: Tensor, frames: Tensor, stride: int) -> KeyPlaces:
        """Return where keys stand, in columns of `stride` mel frames."""
        own = batch.first_frames - batch.shared_frames
        return KeyPlaces(batch.slots, prompts, batch.shared_frames // stride, own // stride, frames // stride)

    def _encode(self, tokens: Tensor, batch: BlockBatch, frames: Tensor) -> Tensor:
        """Return mu [B, 2T, 80]."""
        flow, pool, slots = self.flow, self.pool, batch.slots
        embedded = flow.input_embedding(tokens)
        embedded = embedded * valid_mask(batch.num_tokens, tokens.shape[1])[:, :, None].to(embedded.dtype)
        if self._lookahead is not None:
            size = tokens.shape[1] - self.lookahead
            mixed = self._lookahead(embedded, size, batch.committed, pool.lookahead_tail, slots)
            return mixed.repeat_interleave(self.stride, dim=1, output_size=size * self.stride)
        assert self._encoder is not None and pool.conformer is not None and isinstance(flow, CosyVoice2Flow)
        places = (
            self._places(batch, batch.token_prompts, frames, self.stride),
            self._places(batch, batch.frame_prompts, frames, 1),
        )
        c = pool.conformer
        hidden = self._encoder.encode(
            embedded, batch.num_tokens, frames // self.stride, places, (c.token_window, c.frame_window),
            EncoderTails(pool.lookahead_tail, c.upsample_tail), BlockMasking(self.block, batch.committed),
        )  # fmt: skip
        return functional.linear(hidden, flow.encoder_proj.weight, flow.encoder_proj.bias)

    def _noise(self, batch: BlockBatch, size: int) -> Tensor:
        """[B, T, 80] from each row's first frame: by the voice's seed in the prompt, by the stream's behind it."""
        first, width = batch.first_frames, self.flow.output_size
        own, shared = (
            ops.counter_noise(seeds, first, size, width, int(NoiseDomain.FLOW))
            for seeds in (batch.seeds, torch.full_like(batch.seeds, PROMPT_SEED))
        )
        in_prompt = first[:, None] + torch.arange(size, device=first.device) < batch.prompt_frames[:, None]
        return torch.where(in_prompt[:, :, None], shared, own)

    def _cond(self, batch: BlockBatch, size: int) -> Tensor:
        """[B, T, 80] what is left of the prompts' mel, then zeros."""
        kept = self.pool.cond.index_select(0, batch.slots)
        at = (batch.first_frames - batch.shared_frames)[:, None] + torch.arange(size, device=kept.device)
        is_prompt = at < (batch.prompt_frames - batch.shared_frames)[:, None]
        index = at.clamp(max=kept.shape[1] - 1)[:, :, None].expand(-1, -1, kept.shape[2])
        return torch.where(is_prompt[:, :, None], kept.gather(1, index), 0.0)


def _shifted_left(mel: Tensor, skipped: Tensor) -> Tensor:
    """Return [B, F, 80] from each row's column `skipped` on; what is past the end repeats the last column."""
    size = mel.shape[1]
    index = (skipped[:, None] + torch.arange(size, device=mel.device)).clamp(max=size - 1)
    return mel.gather(1, index[:, :, None].expand_as(mel))
