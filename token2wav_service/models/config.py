"""Sizes of the models. Defaults are the official checkpoint's; every other size comes from its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


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


@dataclass(frozen=True)
class FlowConfig:
    """The whole of flow.yaml."""

    input_size: int = 512
    output_size: int = 80
    spk_embed_dim: int = 192
    vocab_size: int = 6561
    inference_cfg_rate: float = 0.7
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
            input_size=values["input_size"],
            output_size=values["output_size"],
            spk_embed_dim=values["spk_embed_dim"],
            vocab_size=values["vocab_size"],
            inference_cfg_rate=decoder["inference_cfg_rate"],
            encoder=pick_fields(EncoderConfig, values["encoder"]),
            estimator=pick_fields(DiTConfig, decoder["estimator"]),
        )
        encoder = config.encoder
        if not config.input_size == encoder.input_size == encoder.output_size:
            raise ValueError(
                f"flow input_size {config.input_size}, encoder input_size {encoder.input_size} and output_size "
                f"{encoder.output_size} must be equal: both embedding layers share one width"
            )
        if encoder.output_size % encoder.attention_heads:
            raise ValueError(f"{encoder.attention_heads} heads do not divide width {encoder.output_size}")
        return config


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

    @property
    def frame_samples(self) -> int:
        """Samples per mel frame (480 for the official sizes)."""
        samples = self.istft_hop
        for rate in self.upsample_rates:
            samples *= rate
        return samples

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> HiFTConfig:
        """Read the constructor arguments as upstream names them (nested istft_params and f0_predictor)."""
        flat = {k: _freeze(v) for k, v in values.items() if k not in ("istft_params", "f0_predictor")}
        istft, f0 = values.get("istft_params", {}), values.get("f0_predictor", {})
        flat["istft_n_fft"] = istft.get("n_fft", cls.istft_n_fft)
        flat["istft_hop"] = istft.get("hop_len", cls.istft_hop)
        flat["f0_cond_channels"] = f0.get("cond_channels", cls.f0_cond_channels)
        return cls(**flat)


def pick_fields(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a config from those of `values` that it has fields for."""
    names = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{k: v for k, v in values.items() if k in names})


def _freeze(value: Any) -> Any:
    return tuple(_freeze(v) for v in value) if isinstance(value, list | tuple) else value
