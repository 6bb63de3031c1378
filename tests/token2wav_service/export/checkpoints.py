"""Makes the checkpoints that the export is tested with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from token2wav_service.checkpoint.family import Family
from token2wav_service.checkpoint.make_random import make_random_token2wav
from token2wav_service.models.config import (
    AnyFlowConfig,
    CosyVoice2FlowConfig,
    CosyVoice3FlowConfig,
    DiTConfig,
    EncoderConfig,
    FlowConfig,
    HiFTConfig,
    RotaryDiTConfig,
    UNetConfig,
)

TINY_FLOW = FlowConfig(
    input_size=8,
    encoder=EncoderConfig(
        input_size=8, output_size=8, num_blocks=1, num_up_blocks=1, attention_heads=2, linear_units=8
    ),
    estimator=DiTConfig(depth=1, num_heads=2, head_dim=4, hidden_size=8),
)


SHORT_HIFT = HiFTConfig(
    base_channels=8,
    f0_cond_channels=8,
    resblock_kernel_sizes=(3,),
    resblock_dilation_sizes=((1, 3),),
    source_resblock_dilation_sizes=((1,), (1,), (1,)),
)


TINY_SIZES: dict[Family, tuple[AnyFlowConfig, HiFTConfig]] = {
    Family.STEP_AUDIO2: (TINY_FLOW, SHORT_HIFT),
    Family.COSYVOICE2: (
        CosyVoice2FlowConfig(
            input_size=8,
            block_tokens=10,
            encoder=TINY_FLOW.encoder,
            estimator=UNetConfig(channels=8, head_dim=4, n_blocks=1, num_mid_blocks=1, num_heads=2),
        ),
        SHORT_HIFT,
    ),
    Family.COSYVOICE3: (
        CosyVoice3FlowConfig(
            block_tokens=10, lookahead_channels=8, estimator=RotaryDiTConfig(dim=16, depth=1, heads=2, head_dim=4)
        ),
        dataclasses.replace(SHORT_HIFT, conv_pre_look_right=4),
    ),
}
"""One block of every kind."""


def make_stream_checkpoint(directory: Path, family: Family = Family.STEP_AUDIO2) -> Path:
    """Write a checkpoint whose vocoder has few blocks, too; returns `directory`."""
    make_random_token2wav(directory, 0, *TINY_SIZES[family])
    return directory
