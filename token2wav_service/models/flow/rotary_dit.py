"""Diffusion transformer with rotary positions: the velocity of CosyVoice3's flow at one time, whole or in chunks.

It knows nothing of the solver, of guidance or of streams; its state is passed in and out.

Source: specification of the flows, section 5.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.causal import ChunkAttention, causal_tail
from token2wav_service.models.config import ROTARY_COLUMNS, RotaryDiTConfig
from token2wav_service.models.flow.cfm import EstimatorHistory, empty_history
from token2wav_service.models.flow.dit import modulate
from token2wav_service.models.flow.unet import time_features

TIME_FEATURES = 256
CONV_KERNEL = ROTARY_COLUMNS + 1
CONV_GROUPS = 16
LEFT_CONTEXT = ROTARY_COLUMNS
"""Columns that each of the two position convolutions sees before its own."""
MODULATIONS = 6
"""Number of modulations: shift, scale and gate, for attention and feed-forward."""
ROTARY_BASE = 10000.0


class RotaryDiT(nn.Module):
    """The upstream DiT of CosyVoice3, with its parameter names."""

    def __init__(self, config: RotaryDiTConfig) -> None:
        super().__init__()
        self.config = config
        self.time_embed = _TimeEmbedding(config.dim)
        self.input_embed = _InputEmbedding(config)
        self.rotary_embed = _RotaryFrequencies(config.head_dim)
        self.transformer_blocks = nn.ModuleList(_Block(config) for _ in range(config.depth))
        self.norm_out = _FinalNorm(config.dim)
        self.proj_out = nn.Linear(config.dim, config.out_channels)

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        time: Tensor,
        mask: Tensor,
        lengths: Tensor,
        history: EstimatorHistory | None = None,
        *,
        first_frames: Tensor | None = None,
        rotation: Tensor | None = None,
    ) -> tuple[Tensor, EstimatorHistory]:
        """Estimate the velocity at `time`; the arguments are `DiT.forward`'s, and

        Args:
            first_frames: [B] absolute frame of each row's first column; None is 0.
            rotation: [B or 1, T, head_dim / 2, 2] what `rotation_table` gives, where the caller has it already.

        Returns:
            Velocity [B, 80, T], and what this chunk adds: rotated keys and values of its own frames [L, B, h, T, 2d]
            and the tails [1, B, 2 dim, 30] of the two position convolutions.
        """
        history = history or empty_history(self.config.past, x)
        rows = torch.cat([x, cond, mu, speaker[:, :, None].expand(-1, -1, x.shape[2])], 1)
        hidden, tail = self.input_embed(rows.transpose(1, 2), lengths, history.tail[0])
        if rotation is None:
            rotation = rotation_table(first_frames, x.shape[2], self.config.head_dim, like=hidden)
        condition = functional.silu(self.time_embed(time))
        kv = []
        for block, layer_kv in zip(self.transformer_blocks, history.kv, strict=True):
            hidden, own_kv = block(hidden, condition, mask, rotation, layer_kv)
            kv.append(own_kv)
        velocity = self.proj_out(self.norm_out(hidden, condition)).transpose(1, 2)
        return velocity, EstimatorHistory(torch.stack(kv), tail[None])


def rotation_table(first_frames: Tensor | None, frames: int, head_dim: int, like: Tensor) -> Tensor:
    """Return [B or 1, T, head_dim / 2, 2]: cosines and sines of every frame's angles, in like's dtype and device.

    The angles are formed in float64 from the closed form: a half-precision model would round the checkpoint's
    frequencies, which turns the angles by 0.2 rad at frame 1000.
    """
    pairs = torch.arange(0, head_dim, 2, device=like.device, dtype=torch.float64)
    frequency = ROTARY_BASE ** (-pairs / head_dim)
    position = torch.arange(frames, device=like.device, dtype=torch.float64)[None]
    if first_frames is not None:
        position = position + first_frames[:, None]
    angle = position[:, :, None] * frequency
    return torch.stack([angle.cos(), angle.sin()], -1).to(like.dtype)


class _RotaryFrequencies(nn.Module):
    """Holds the checkpoint's frequencies, a key of flow.pt; `rotation_table` computes them afresh."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float32)
        self.register_buffer("inv_freq", ROTARY_BASE ** (-pairs / head_dim))


class _TimeEmbedding(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(TIME_FEATURES, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, time: Tensor) -> Tensor:
        features = time_features(time, TIME_FEATURES).to(next(self.time_mlp.parameters()).dtype)
        return torch.as_tensor(self.time_mlp(features))


class _PositionConvs(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv1d(dim, dim, CONV_KERNEL, groups=CONV_GROUPS), nn.Mish())
        self.conv2 = nn.Sequential(nn.Conv1d(dim, dim, CONV_KERNEL, groups=CONV_GROUPS), nn.Mish())

    def forward(self, x: Tensor, lengths: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        tails = []
        for conv, own_tail in zip((self.conv1, self.conv2), tail.chunk(2, 1), strict=True):
            columns = torch.cat([own_tail, x], 2)
            tails.append(causal_tail(columns, lengths, LEFT_CONTEXT))
            x = conv(columns)
        return x, torch.cat(tails, 1)


class _InputEmbedding(nn.Module):
    def __init__(self, config: RotaryDiTConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.in_channels, config.dim)
        self.conv_pos_embed = _PositionConvs(config.dim)

    def forward(self, rows: Tensor, lengths: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.proj(rows)
        convolved, new_tail = self.conv_pos_embed(hidden.transpose(1, 2), lengths, tail)
        return hidden + convolved.transpose(1, 2), new_tail


class _BlockNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, MODULATIONS * dim)


class _FinalNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, 2 * dim)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        # NOTE: scale first, unlike in the blocks.
        scale, shift = self.linear(condition)[:, None, :].chunk(2, -1)
        return modulate(x, shift, scale)


class _FeedForward(nn.Module):
    def __init__(self, dim: int, ratio: float) -> None:
        super().__init__()
        hidden = int(dim * ratio)
        first = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(approximate="tanh"))
        self.ff = nn.Sequential(first, nn.Identity(), nn.Linear(hidden, dim))

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.ff(x))


class _Block(nn.Module):
    def __init__(self, config: RotaryDiTConfig) -> None:
        super().__init__()
        self.attn_norm = _BlockNorm(config.dim)
        self.attn = ChunkAttention(config.dim, config.heads, config.head_dim, has_bias=True)
        self.ff = _FeedForward(config.dim, config.ff_mult)

    def forward(
        self, x: Tensor, condition: Tensor, mask: Tensor, rotation: Tensor, history_kv: Tensor
    ) -> tuple[Tensor, Tensor]:
        modulation = self.attn_norm.linear(condition)[:, None, :].chunk(MODULATIONS, -1)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation
        attended, own_kv = self.attn(modulate(x, shift_a, scale_a), mask, history_kv, rotation)
        x = x + gate_a * attended
        return x + gate_m * self.ff(modulate(x, shift_m, scale_m)), own_kv
