"""Diffusion transformer: the velocity of the flow at one time, for whole utterances or chunks.

It knows nothing of the solver, of guidance or of streams; its state is passed in and out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.causal import causal_tail
from token2wav_service.models.config import DiTConfig
from token2wav_service.models.flow.cfm import EstimatorHistory, empty_history

TIME_FEATURES = 256
TIME_SCALE = 1000.0
MODULATIONS = 9
"""Number of modulations: shift, scale and gate, for attention, MLP and convolution."""


class DiT(nn.Module):
    """The upstream DiT estimator, with its parameter names.

    Source: specification section 5.
    """

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        self.t_embedder = _TimeEmbedder(config.hidden_size)
        self.in_proj = nn.Linear(config.in_channels, config.hidden_size)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.depth))
        self.final_layer = _FinalLayer(config.hidden_size, config.out_channels)

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
    ) -> tuple[Tensor, EstimatorHistory]:
        """Estimate the velocity at `time`.

        Args:
            x: [B, 80, T] noisy mel.
            mu: [B, 80, T] what the encoder or the look-ahead layer made of the tokens.
            speaker: [B, 80] projected speaker vector.
            cond: [B, 80, T] conditioning mel.
            time: [B] in 0..1.
            mask: [B, 1, T or 1, S + T] bool, true where a key may be seen; history keys come first.
            lengths: [B] frames per row after which the convolution tails are taken.
            history: what earlier chunks left at this time; None starts from nothing.

        Returns:
            Velocity [B, 80, T] (also at padded frames), and what this chunk adds: keys and values of its own
            frames [L, B, h, T, 2d] and the new convolution tails.
        """
        history = history or empty_history(self.config.past, x)
        rows = torch.cat([x, mu, speaker[:, :, None].expand(-1, -1, x.shape[2]), cond], 1)
        hidden = self.in_proj(rows.transpose(1, 2))
        condition = functional.silu(self.t_embedder(time))
        kv, tails = [], []
        for block, layer_kv, layer_tail in zip(self.blocks, history.kv, history.tail, strict=True):
            hidden, own_kv, tail = block(hidden, condition, mask, lengths, layer_kv, layer_tail)
            kv.append(own_kv)
            tails.append(tail)
        velocity = self.final_layer(hidden, condition).transpose(1, 2)
        return velocity, EstimatorHistory(torch.stack(kv), torch.stack(tails))


def time_features(time: Tensor) -> Tensor:
    """Return [B, 256] float32 cosines then sines of 1000 t at geometric frequencies."""
    half = TIME_FEATURES // 2
    steps = torch.arange(half, device=time.device, dtype=torch.float32)
    angle = TIME_SCALE * time.float()[:, None] * torch.exp(-math.log(10000.0) * steps / half)[None]
    return torch.cat([angle.cos(), angle.sin()], 1)


class _TimeEmbedder(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(TIME_FEATURES, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, time: Tensor) -> Tensor:
        return torch.as_tensor(self.mlp(time_features(time).to(next(self.mlp.parameters()).dtype)))


class _Attention(nn.Module):
    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        inner = config.num_heads * config.head_dim
        self.heads, self.head_dim = config.num_heads, config.head_dim
        self.to_q = nn.Linear(config.hidden_size, inner)
        self.to_k = nn.Linear(config.hidden_size, inner)
        self.to_v = nn.Linear(config.hidden_size, inner)
        self.q_norm = nn.LayerNorm(config.head_dim, eps=1e-5)
        self.k_norm = nn.LayerNorm(config.head_dim, eps=1e-5)
        self.proj = nn.Linear(inner, config.hidden_size)

    def forward(self, x: Tensor, mask: Tensor, history_kv: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.q_norm(self._split(self.to_q(x))), self.k_norm(self._split(self.to_k(x)))
        own_kv = torch.cat([k, self._split(self.to_v(x))], -1)
        keys, values = torch.cat([history_kv, own_kv], 2).chunk(2, -1)
        mixed = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.proj(mixed.transpose(1, 2).flatten(2)), own_kv

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, self.head_dim).transpose(1, 2)


class _Transpose(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class _CausalConvBlock(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        # Indices 1, 3 and 6 carry the checkpoint's parameters.
        self.block = nn.Sequential(
            _Transpose(),
            nn.Conv1d(hidden, hidden, 3),
            _Transpose(),
            nn.LayerNorm(hidden, eps=1e-5),
            nn.Mish(),
            _Transpose(),
            nn.Conv1d(hidden, hidden, 3),
            _Transpose(),
        )

    def forward(self, x: Tensor, lengths: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        first_tail, second_tail = tail.chunk(2, 1)
        first = torch.cat([first_tail, x.transpose(1, 2)], 2)
        y = self.block[4](self.block[3](self.block[1](first).transpose(1, 2)))
        second = torch.cat([second_tail, y.transpose(1, 2)], 2)
        tails = [causal_tail(columns, lengths, tail.shape[2]) for columns in (first, second)]
        return self.block[6](second).transpose(1, 2), torch.cat(tails, 1)


class _MLP(nn.Module):
    def __init__(self, hidden: int, ratio: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden, int(hidden * ratio))
        self.fc2 = nn.Linear(int(hidden * ratio), hidden)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.fc2(functional.gelu(self.fc1(x), approximate="tanh")))


class _Block(nn.Module):
    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.attn = _Attention(config)
        self.conv = _CausalConvBlock(hidden)
        self.mlp = _MLP(hidden, config.mlp_ratio)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden, MODULATIONS * hidden))

    def forward(
        self, x: Tensor, condition: Tensor, mask: Tensor, lengths: Tensor, kv: Tensor, tail: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        modulation = self.adaLN_modulation[1](condition)[:, None, :].chunk(MODULATIONS, -1)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m, shift_c, scale_c, gate_c = modulation
        attended, own_kv = self.attn(modulate(x, shift_a, scale_a), mask, kv)
        x = x + gate_a * attended
        convolved, new_tail = self.conv(modulate(x, shift_c, scale_c), lengths, tail)
        x = x + gate_c * convolved
        return x + gate_m * self.mlp(modulate(x, shift_m, scale_m)), own_kv, new_tail


class _FinalLayer(nn.Module):
    def __init__(self, hidden: int, out_channels: int) -> None:
        super().__init__()
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 2 * hidden))
        self.linear = nn.Linear(hidden, out_channels)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation[1](condition)[:, None, :].chunk(2, -1)
        return torch.as_tensor(self.linear(modulate(x, shift, scale)))


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return norm(x) * (1 + scale) + shift."""
    return functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift
