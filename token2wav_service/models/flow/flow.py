"""The flow of each family: Step-Audio2's, CosyVoice2's and CosyVoice3's; see `AnyFlow`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.causal import CacheSpec, PreLookahead
from token2wav_service.models.config import CosyVoice2FlowConfig, CosyVoice3FlowConfig, FlowConfig
from token2wav_service.models.flow.any_flow import AnyFlow, Past
from token2wav_service.models.flow.cfm import ConditionalFlowMatching
from token2wav_service.models.flow.dit import DiT
from token2wav_service.models.flow.encoder import ConformerEncoder
from token2wav_service.models.flow.rotary_dit import RotaryDiT
from token2wav_service.models.flow.unet import UNet


class ConformerFlow(AnyFlow):
    """A flow whose encoder is the conformer."""

    config: FlowConfig | CosyVoice2FlowConfig

    def __init__(self, config: FlowConfig | CosyVoice2FlowConfig, block_tokens: int) -> None:
        super().__init__(config, config.encoder.up_stride, config.encoder.pre_lookahead_len, block_tokens)
        self.encoder = ConformerEncoder(config.encoder)
        self.encoder_proj = nn.Linear(config.encoder.output_size, config.output_size)

    def state_specs(self, steps: int) -> tuple[CacheSpec, ...]:
        """What the conformer and the estimator keep."""
        return (*self.encoder.state_specs(), *self.solver_specs(steps))

    def encode(
        self, inputs: Tensor, token_lengths: Tensor, is_last: Tensor, committed: Tensor, past: Past, *, is_masked: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `AnyFlow.encode`."""
        hidden, _, added = self.encoder(
            inputs, token_lengths, is_last, past.caches, past.tokens,
            block=self.block_tokens if is_masked else None, committed=committed,
        )  # fmt: skip
        return self.encoder_proj(hidden).transpose(1, 2), added


class Flow(ConformerFlow):
    """Step-Audio2's, the upstream CausalMaskedDiffWithXvec: conformer encoder and DiT, without a block mask."""

    config: FlowConfig
    decoder: ConditionalFlowMatching[DiT]
    noise_frames = 30_000

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config, 0)
        self.config = config
        self.decoder = ConditionalFlowMatching(DiT(config.estimator), config.inference_cfg_rate)


class CosyVoice2Flow(ConformerFlow):
    """The upstream CausalMaskedDiffWithXvec: conformer encoder and U-Net estimator, under a block mask."""

    config: CosyVoice2FlowConfig

    def __init__(self, config: CosyVoice2FlowConfig) -> None:
        super().__init__(config, config.block_tokens)
        self.config = config
        self.decoder = ConditionalFlowMatching(UNet(config.estimator), config.inference_cfg_rate)


class CosyVoice3Flow(AnyFlow):
    """The upstream CausalMaskedDiffWithDiT: a look-ahead layer on the tokens' embeddings and a rotary DiT."""

    config: CosyVoice3FlowConfig
    has_positions = True

    def __init__(self, config: CosyVoice3FlowConfig) -> None:
        super().__init__(config, config.token_mel_ratio, config.pre_lookahead_len, config.block_tokens)
        self.config = config
        self.pre_lookahead_layer = PreLookahead(config.input_size, config.lookahead_channels, config.pre_lookahead_len)
        self.decoder = ConditionalFlowMatching(RotaryDiT(config.estimator), config.inference_cfg_rate)

    def state_specs(self, steps: int) -> tuple[CacheSpec, ...]:
        """The left contexts of the look-ahead's convolution, and what the estimator keeps."""
        return (CacheSpec("lookahead_tail", (self.config.lookahead_channels, 2), 0), *self.solver_specs(steps))

    def encode(
        self, inputs: Tensor, token_lengths: Tensor, is_last: Tensor, committed: Tensor, past: Past, *, is_masked: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `AnyFlow.encode`; there is no attention here to be masked."""
        size = inputs.shape[1] - (0 if bool(is_last.any()) else self.lookahead)
        padded = functional.pad(inputs, (0, 0, 0, self.lookahead))
        mixed, tail = self.pre_lookahead_layer(padded, size, committed, past.caches["lookahead_tail"])
        mu = mixed.repeat_interleave(self.stride, dim=1).transpose(1, 2)
        return torch.as_tensor(mu), {"lookahead_tail": tail}
