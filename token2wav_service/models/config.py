"""Sizes of the models. Defaults are the official checkpoint's; every other size comes from its files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
UPSTREAM_STEPS = 10
"""Euler steps of the flow's solver, where a checkpoint asks for no other number."""


@dataclass(frozen=True)
class EncoderConfig:
    """Conformer encoder: token embeddings at 25 Hz to hidden frames at 50 Hz."""

    input_size: int = 512
    output_size: int = 512
    pre_lookahead_len: int = 3
    num_blocks: int = 6
    num_up_blocks: int = 4
    up_stride: int = 2
    up_scale_factor: int = 2
    attention_heads: int = 8
    linear_units: int = 2048
    key_bias: bool = True

    @property
    def head_dim(self) -> int:
        return self.output_size // self.attention_heads


CONVOLUTION_COLUMNS = 2
"""Frames that the DiT's and the U-Net's convolutions of 3 continue from."""
ROTARY_COLUMNS = 30
"""Frames that the rotary DiT's position convolutions of 31 continue from."""


@dataclass(frozen=True)
class PastShape:
    """What an estimator keeps of earlier frames at one time."""

    layers: int
    heads: int
    pair: int
    """Channels of one head's keys and values together."""
    tail: tuple[int, int, int]
    """Groups, channels and columns that the convolutions continue from."""


@dataclass(frozen=True)
class DiTConfig:
    """Diffusion transformer that estimates the flow's velocity."""

    in_channels: int = 320
    out_channels: int = 80
    mlp_ratio: float = 4.0
    depth: int = 16
    num_heads: int = 8
    head_dim: int = 64
    hidden_size: int = 512

    @property
    def past(self) -> PastShape:
        tail = (self.depth, 2 * self.hidden_size, CONVOLUTION_COLUMNS)
        return PastShape(self.depth, self.num_heads, 2 * self.head_dim, tail)


@dataclass(frozen=True)
class AnyFlowSizes:
    """What the flows of all families have."""

    output_size: int = 80
    spk_embed_dim: int = 192
    vocab_size: int = 6561
    inference_cfg_rate: float = 0.7
    ode_steps: int = UPSTREAM_STEPS


@dataclass(frozen=True)
class FlowConfig(AnyFlowSizes):
    """The whole of flow.yaml."""

    input_size: int = 512
    encoder: EncoderConfig = EncoderConfig()
    estimator: DiTConfig = DiTConfig()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> FlowConfig:
        """Read the nesting of flow.yaml; entries that only steer training (dropout rates) are ignored.

        Raises:
            ValueError: sizes that no model can be built from.
        """
        decoder = values["decoder"]
        config = cls(
            **_wrapper_fields(values, decoder["inference_cfg_rate"]),
            encoder=pick_fields(EncoderConfig, values["encoder"]),
            estimator=pick_fields(DiTConfig, decoder["estimator"]),
        )
        _check_encoder(config.input_size, config.encoder)
        return config


@dataclass(frozen=True)
class UNetConfig:
    """U-Net of one level that estimates the velocity of CosyVoice2's flow."""

    in_channels: int = 320
    out_channels: int = 80
    channels: int = 256
    head_dim: int = 64
    n_blocks: int = 4
    """Transformer layers in a stage."""
    num_mid_blocks: int = 12
    num_heads: int = 8

    @property
    def num_layers(self) -> int:
        """Transformer layers of all stages."""
        return (self.num_mid_blocks + 2) * self.n_blocks

    @property
    def time_channels(self) -> int:
        return 4 * self.channels

    @property
    def tail_channels(self) -> int:
        """Input channels of all causal convolutions together."""
        down = self.in_channels + 2 * self.channels
        up = 4 * self.channels
        return down + 2 * self.num_mid_blocks * self.channels + up + self.channels

    @property
    def past(self) -> PastShape:
        tail = (1, self.tail_channels, CONVOLUTION_COLUMNS)
        return PastShape(self.num_layers, self.num_heads, 2 * self.head_dim, tail)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> UNetConfig:
        """Read the constructor arguments as upstream names them.

        Raises:
            ValueError: more than one level, or an activation that the models lack.
        """
        channels = values.get("channels", [cls.channels])
        if len(channels) != 1:
            raise ValueError(f"got U-Net channels {channels}, expected one level: others down-sample")
        if values.get("act_fn", "gelu") != "gelu":
            raise ValueError(f"got act_fn {values['act_fn']!r}, expected 'gelu'")
        config = pick_fields(cls, {key: value for key, value in values.items() if key != "channels"})
        head_dim = values.get("attention_head_dim", cls.head_dim)
        return dataclasses.replace(config, channels=channels[0], head_dim=head_dim)


@dataclass(frozen=True)
class RotaryDiTConfig:
    """Diffusion transformer with rotary positions that estimates the velocity of CosyVoice3's flow."""

    dim: int = 1024
    depth: int = 22
    heads: int = 16
    head_dim: int = 64
    ff_mult: float = 2
    mel_dim: int = 80
    mu_dim: int = 80
    spk_dim: int = 80
    out_channels: int = 80

    @property
    def in_channels(self) -> int:
        """Channels of x, cond, mu and speaker together."""
        return 2 * self.mel_dim + self.mu_dim + self.spk_dim

    @property
    def past(self) -> PastShape:
        return PastShape(self.depth, self.heads, 2 * self.head_dim, (1, 2 * self.dim, ROTARY_COLUMNS))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RotaryDiTConfig:
        """Read the constructor arguments as upstream names them.

        Raises:
            ValueError: a long skip connection, which the models lack.
        """
        if values.get("long_skip_connection", False):
            raise ValueError("got long_skip_connection, expected none")
        return dataclasses.replace(pick_fields(cls, values), head_dim=values.get("dim_head", cls.head_dim))


BLOCK_TOKENS = 25
"""Tokens (25 Hz) in a block of the mask that CosyVoice2 and CosyVoice3 stream under."""


@dataclass(frozen=True)
class CosyVoice2FlowConfig(AnyFlowSizes):
    """CosyVoice2's flow: conformer encoder and U-Net estimator, under a block mask."""

    input_size: int = 512
    block_tokens: int = BLOCK_TOKENS
    encoder: EncoderConfig = EncoderConfig()
    estimator: UNetConfig = UNetConfig()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> CosyVoice2FlowConfig:
        """Read the `flow` tree of cosyvoice2.yaml.

        Raises:
            ValueError: sizes that no model can be built from.
        """
        config = cls(
            **_wrapper_fields(values),
            block_tokens=_block_tokens(values["encoder"].get("static_chunk_size", BLOCK_TOKENS)),
            encoder=_encoder_of(values),
            estimator=UNetConfig.from_mapping(values["decoder"]["estimator"]),
        )
        _check_encoder(config.input_size, config.encoder)
        _check_channels(config.estimator.in_channels, config.output_size)
        return config


@dataclass(frozen=True)
class CosyVoice3FlowConfig(AnyFlowSizes):
    """CosyVoice3's flow: one look-ahead layer and a rotary DiT, under a block mask."""

    input_size: int = 80
    block_tokens: int = BLOCK_TOKENS
    token_mel_ratio: int = 2
    pre_lookahead_len: int = 3
    lookahead_channels: int = 1024
    estimator: RotaryDiTConfig = RotaryDiTConfig()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> CosyVoice3FlowConfig:
        """Read the `flow` tree of cosyvoice3.yaml.

        Raises:
            ValueError: sizes that no model can be built from.
        """
        layer, estimator = values["pre_lookahead_layer"], values["decoder"]["estimator"]
        ratio = values.get("token_mel_ratio", cls.token_mel_ratio)
        config = cls(
            **_wrapper_fields(values),
            block_tokens=_block_tokens(estimator.get("static_chunk_size", BLOCK_TOKENS * ratio) // ratio),
            token_mel_ratio=ratio,
            pre_lookahead_len=values.get("pre_lookahead_len", cls.pre_lookahead_len),
            lookahead_channels=layer.get("channels", cls.lookahead_channels),
            estimator=RotaryDiTConfig.from_mapping(estimator),
        )
        if config.input_size != config.output_size:
            raise ValueError(
                f"got flow input_size {config.input_size} and output_size {config.output_size}, expected equal ones: "
                "the look-ahead layer's result is the mel's condition"
            )
        _check_channels(config.estimator.in_channels, config.output_size)
        return config


AnyFlowConfig = FlowConfig | CosyVoice2FlowConfig | CosyVoice3FlowConfig


def _wrapper_fields(values: Mapping[str, Any], rate: float | None = None) -> dict[str, Any]:
    """Return what all flows name alike; without a rate it is read where both CosyVoice flows have it."""
    names = ("input_size", "output_size", "spk_embed_dim", "vocab_size")
    if rate is None:
        rate = values["decoder"].get("cfm_params", {}).get("content", {}).get("inference_cfg_rate", 0.7)
    steps = values["decoder"].get("n_timesteps", UPSTREAM_STEPS)
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"got n_timesteps {steps!r}, expected a whole number of at least 1")
    return {name: values[name] for name in names} | {"inference_cfg_rate": rate, "ode_steps": steps}


def _encoder_of(values: Mapping[str, Any]) -> EncoderConfig:
    """Read CosyVoice2's encoder; its rate and look-ahead stand beside it."""
    outer = {"up_stride": "token_mel_ratio", "up_scale_factor": "token_mel_ratio", "pre_lookahead_len": None}
    found = {name: values[key or name] for name, key in outer.items() if (key or name) in values}
    return pick_fields(EncoderConfig, found | dict(values["encoder"]))


def _block_tokens(value: int) -> int:
    if value < 1:
        raise ValueError(f"got a mask block (static_chunk_size) of {value} tokens, expected at least 1")
    return value


def _check_encoder(input_size: int, encoder: EncoderConfig) -> None:
    if not input_size == encoder.input_size == encoder.output_size:
        raise ValueError(
            f"flow input_size {input_size}, encoder input_size {encoder.input_size} and output_size "
            f"{encoder.output_size} must be equal: both embedding layers share one width"
        )
    if encoder.output_size % encoder.attention_heads:
        raise ValueError(f"{encoder.attention_heads} heads do not divide width {encoder.output_size}")


def _check_channels(in_channels: int, mel_bins: int) -> None:
    if in_channels != 4 * mel_bins:
        raise ValueError(
            f"got an estimator of {in_channels} input channels, expected {4 * mel_bins}: x, mu, speaker and cond"
        )


POST_KERNEL = 7
"""Columns of the causal vocoder's last convolution."""
OVERLAPPING_COLUMNS = 3
"""Spectrum columns before a piece's first that reach into the samples it completes."""


@dataclass(frozen=True)
class HiFTConfig:
    """HiFT vocoder: mel at 50 Hz to audio at 24 kHz."""

    in_channels: int = 80
    base_channels: int = 512
    nb_harmonics: int = 8
    sampling_rate: int = 24_000
    nsf_alpha: float = 0.1
    nsf_sigma: float = 0.003
    nsf_voiced_threshold: float = 10.0
    upsample_rates: tuple[int, ...] = (8, 5, 3)
    upsample_kernel_sizes: tuple[int, ...] = (16, 11, 7)
    istft_n_fft: int = 16
    istft_hop: int = 4
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    source_resblock_kernel_sizes: tuple[int, ...] = (7, 7, 11)
    source_resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    lrelu_slope: float = 0.1
    audio_limit: float = 0.99
    f0_cond_channels: int = 512
    conv_pre_look_right: int = 0
    """Mel frames (50 Hz) that the causal vocoder's first convolution looks ahead; 0 is the vocoder without look-ahead
    rules, which sees its whole input."""

    @property
    def is_causal(self) -> bool:
        """True for CosyVoice3's vocoder."""
        return self.conv_pre_look_right > 0

    @property
    def frame_samples(self) -> int:
        """Samples per mel frame (480 for the official sizes)."""
        return self.istft_hop * math.prod(self.upsample_rates)

    @property
    def causal_context(self) -> int:
        """Floats that the causal vocoder keeps for a row: left contexts of its convolutions and spectra."""
        channels = [self.base_channels >> stage for stage in range(len(self.upsample_rates) + 1)]
        strided = math.prod(self.upsample_rates[1:]) - 1
        count = (self.istft_n_fft + 2) * (strided + OVERLAPPING_COLUMNS) + channels[-1] * POST_KERNEL
        for stage, width in enumerate(channels[1:]):
            count += channels[stage] * (self.upsample_kernel_sizes[stage] - 1)
            source = (self.source_resblock_kernel_sizes[stage], self.source_resblock_dilation_sizes[stage])
            blocks = [source, *zip(self.resblock_kernel_sizes, self.resblock_dilation_sizes, strict=True)]
            count += width * sum((kernel - 1) * sum(gap + 1 for gap in dilations) for kernel, dilations in blocks)
        return count

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> HiFTConfig:
        """Read the constructor arguments as upstream names them (nested istft_params and f0_predictor)."""
        flat = {k: _freeze(v) for k, v in values.items() if k not in ("istft_params", "f0_predictor")}
        istft, f0 = values.get("istft_params", {}), values.get("f0_predictor", {})
        flat["istft_n_fft"] = istft.get("n_fft", cls.istft_n_fft)
        flat["istft_hop"] = istft.get("hop_len", cls.istft_hop)
        flat["f0_cond_channels"] = f0.get("cond_channels", cls.f0_cond_channels)
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(flat) - known)
        if unknown:
            raise ValueError(f"got unknown vocoder arguments {unknown}, expected some of {sorted(known)}")
        return cls(**flat)


def pick_fields(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a config from those of `values` that it has fields for."""
    names = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{k: v for k, v in values.items() if k in names})


def _freeze(value: Any) -> Any:
    return tuple(_freeze(v) for v in value) if isinstance(value, list | tuple) else value
