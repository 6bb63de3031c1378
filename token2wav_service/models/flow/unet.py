"""U-Net estimator: the velocity of CosyVoice2's flow at one time, for whole utterances or chunks.

Every convolution is causal and nothing is down-sampled, so a chunk needs two columns of each convolution's input and
the keys and values of earlier frames. It knows nothing of the solver, of guidance or of streams.

Source: specification of the flows, section 4.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.causal import ChunkAttention, causal_tail
from token2wav_service.models.config import CONVOLUTION_COLUMNS, UNetConfig
from token2wav_service.models.flow.cfm import EstimatorHistory, empty_history

TIME_SCALE = 1000.0
KERNEL = CONVOLUTION_COLUMNS + 1
LEFT_CONTEXT = CONVOLUTION_COLUMNS
"""Columns that every convolution sees before its own."""
FEED_FORWARD_RATIO = 4


class UNet(nn.Module):
    """The upstream CausalConditionalDecoder with one level, and its parameter names."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        width = config.channels
        self.time_mlp = _TimeMLP(config.in_channels, config.time_channels)
        self.down_blocks = nn.ModuleList([_Stage(config, config.in_channels, has_conv=True)])
        self.mid_blocks = nn.ModuleList(_Stage(config, width, has_conv=False) for _ in range(config.num_mid_blocks))
        self.up_blocks = nn.ModuleList([_Stage(config, 2 * width, has_conv=True)])
        self.final_block = _ConvBlock(width, width)
        self.final_proj = nn.Conv1d(width, config.out_channels, 1)

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
        """Estimate the velocity at `time`; the arguments are `DiT.forward`'s.

        Returns:
            Velocity [B, 80, T], and what this chunk adds: keys and values of its own frames [L, B, h, T, 2d] and the
            tails [1, B, C, 2] of all convolutions, in the order in which they run.
        """
        history = history or empty_history(self.config.past, x)
        run = _Run(mask, lengths, history)
        emb = functional.mish(self.time_mlp(time).to(x.dtype))
        hidden = torch.cat([x, mu, speaker[:, :, None].expand(-1, -1, x.shape[2]), cond], 1)
        down, up = cast(_Stage, self.down_blocks[0]), cast(_Stage, self.up_blocks[0])
        skip = run.stage(down, hidden, emb)
        hidden = run.conv(down.conv, skip)
        for stage in self.mid_blocks:
            hidden = run.stage(cast(_Stage, stage), hidden, emb)
        hidden = run.stage(up, torch.cat([hidden, skip], 1), emb)
        hidden = run.conv(up.conv, hidden)
        return self.final_proj(run.conv_block(self.final_block, hidden)), run.update()


def time_features(time: Tensor, width: int) -> Tensor:
    """Return [B, width] float32 sines then cosines of 1000 t; the last frequency is exactly 1 / 10000."""
    half = width // 2
    steps = torch.arange(half, device=time.device, dtype=torch.float32)
    angle = TIME_SCALE * time.float()[:, None] * torch.exp(steps * -(math.log(10000.0) / (half - 1)))[None]
    return torch.cat([angle.sin(), angle.cos()], 1)


class _Run:
    """One forward's way through the history: every layer takes the next keys, every convolution the next tail."""

    def __init__(self, mask: Tensor, lengths: Tensor, history: EstimatorHistory) -> None:
        self._mask, self._lengths = mask, lengths
        self._kv, self._tail = iter(history.kv), history.tail[0]
        self._channel = 0
        self._new_kv: list[Tensor] = []
        self._new_tails: list[Tensor] = []

    def conv(self, conv: nn.Module, x: Tensor) -> Tensor:
        """Run a causal convolution on [B, C, T]."""
        tail = self._tail[:, self._channel : self._channel + x.shape[1]]
        self._channel += x.shape[1]
        columns = torch.cat([tail, x], 2)
        self._new_tails.append(causal_tail(columns, self._lengths, LEFT_CONTEXT))
        return torch.as_tensor(conv(columns))

    def conv_block(self, block: _ConvBlock, x: Tensor) -> Tensor:
        """Convolution, LayerNorm over the channels, Mish."""
        y = self.conv(block.block[0], x)
        return functional.mish(block.block[2](y.transpose(1, 2)).transpose(1, 2))

    def stage(self, stage: _Stage, x: Tensor, emb: Tensor) -> Tensor:
        """Run a residual convolution block conditioned on the time, then the stage's transformer layers."""
        resnet = stage.resnet
        hidden = self.conv_block(resnet.block1, x) + resnet.mlp[1](emb)[:, :, None]
        hidden = (self.conv_block(resnet.block2, hidden) + resnet.res_conv(x)).transpose(1, 2)
        for layer in stage.layers:
            hidden, own_kv = layer(hidden, self._mask, next(self._kv))
            self._new_kv.append(own_kv)
        return torch.as_tensor(hidden.transpose(1, 2))

    def update(self) -> EstimatorHistory:
        """Return what the chunk adds."""
        return EstimatorHistory(torch.stack(self._new_kv), torch.cat(self._new_tails, 1)[None])


class _TimeMLP(nn.Module):
    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(features, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, time: Tensor) -> Tensor:
        features = time_features(time, self.linear_1.in_features).to(self.linear_1.weight.dtype)
        return torch.as_tensor(self.linear_2(functional.silu(self.linear_1(features))))


class _Transpose(nn.Module):
    """Stands where upstream's sequence has a module without parameters."""


class _ConvBlock(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        # Indices 0 and 2 carry the checkpoint's parameters.
        self.block = nn.Sequential(
            nn.Conv1d(channels, out_channels, KERNEL), _Transpose(), nn.LayerNorm(out_channels, eps=1e-5)
        )


class _Resnet(nn.Module):
    def __init__(self, channels: int, out_channels: int, time_channels: int) -> None:
        super().__init__()
        self.block1 = _ConvBlock(channels, out_channels)
        self.block2 = _ConvBlock(out_channels, out_channels)
        self.mlp = nn.Sequential(nn.Mish(), nn.Linear(time_channels, out_channels))
        self.res_conv = nn.Conv1d(channels, out_channels, 1)


class _Gelu(nn.Module):
    """A linear layer, then the exact (erf) GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.proj(x))


class _FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = FEED_FORWARD_RATIO * width
        self.net = nn.Sequential(_Gelu(width, hidden), nn.Identity(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.net(x))


class _Layer(nn.Module):
    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.channels, eps=1e-5)
        self.attn1 = ChunkAttention(config.channels, config.num_heads, config.head_dim, has_bias=False)
        self.norm3 = nn.LayerNorm(config.channels, eps=1e-5)
        self.ff = _FeedForward(config.channels)

    def forward(self, x: Tensor, mask: Tensor, history_kv: Tensor) -> tuple[Tensor, Tensor]:
        attended, own_kv = self.attn1(self.norm1(x), mask, history_kv)
        x = x + attended
        return x + self.ff(self.norm3(x)), own_kv


class _Stage(nn.ModuleList):
    """Upstream's list of a stage: residual block, transformer layers, and a convolution where there is one."""

    def __init__(self, config: UNetConfig, channels: int, *, has_conv: bool) -> None:
        layers = nn.ModuleList(_Layer(config) for _ in range(config.n_blocks))
        modules = [_Resnet(channels, config.channels, config.time_channels), layers]
        if has_conv:
            modules.append(nn.Conv1d(config.channels, config.channels, KERNEL))
        super().__init__(modules)

    @property
    def resnet(self) -> _Resnet:
        return cast(_Resnet, self[0])

    @property
    def layers(self) -> nn.ModuleList:
        return cast(nn.ModuleList, self[1])

    @property
    def conv(self) -> nn.Conv1d:
        return cast(nn.Conv1d, self[2])
