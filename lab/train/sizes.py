"""Sizes of every model of the demo voice, in one place: what the CPU can afford and what the bundle can hold.

How they were chosen, with the measured costs, is in README.md in this folder.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_service.speech_bounds import SpeechBounds
from token2wav_service.models.config import DiTConfig, EncoderConfig, FlowConfig, HiFTConfig

SILENT_TOKENS = (
    *(242, 485, 701, 728, 971, 1187, 1214, 1457, 1700, 1943, 2159, 2186, 2672, 2780, 2834, 2861, 2915, 3617),
    *(3643, 3644, 3887, 4103, 4130, 4265, 4319, 4343, 4345, 4346, 4364, 4370, 4372, 4373, 4859, 4962, 4963, 4965),
    *(5047, 5048, 5074, 5075, 5101, 5102, 5208, 5451, 5478, 5534, 5587, 5691, 5776, 5777, 5803, 5804, 5828, 5830),
    *(5831, 6256, 6289, 6478, 6479, 6506, 6530, 6532, 6533, 6551, 6557, 6559, 6560),
)
"""Found by `silent_tokens.py`."""
BOUNDS = SpeechBounds(segment_letters=200, carry_tokens=100, silent_tokens=SILENT_TOKENS)
"""The LLM learns from sequences of at most 16 s, its prompt included, and loses the thread of longer ones. 200
letters take 12 s."""


@dataclass(frozen=True)
class TokenizerSizes:
    """Speech tokenizer: log-mel at 100 Hz to codes at 25 Hz."""

    channels: int = 256
    blocks_at_50_hz: int = 2
    blocks_at_25_hz: int = 4
    decoder_channels: int = 256
    """Channels of the heads that exist in training only."""


@dataclass(frozen=True)
class SpeakerSizes:
    """Speaker encoder: filter bank energies to a vector of 192."""

    channels: int = 128
    blocks: int = 3


@dataclass(frozen=True)
class LLMSizes:
    """Speech-token LLM: a Qwen2 of these sizes."""

    hidden: int = 256
    layers: int = 6
    heads: int = 4
    key_value_heads: int = 2
    feed_forward: int = 768
    text_tokens: int = 768
    """Rows of plain text: 256 bytes and the merges."""
    max_positions: int = 4096


@dataclass(frozen=True)
class AlignerSizes:
    """Aligner: which letters a speech token sounds like."""

    token_channels: int = 64
    letter_embedding: int = 24
    letter_channels: int = 48


@dataclass(frozen=True)
class DiscriminatorSizes:
    """The vocoder's adversaries; training only."""

    period_channels: int = 24
    spectrum_channels: int = 24


@dataclass(frozen=True)
class DemoSizes:
    """Everything that is trained."""

    tokenizer: TokenizerSizes
    speaker: SpeakerSizes
    llm: LLMSizes
    flow: FlowConfig
    hift: HiFTConfig
    discriminators: DiscriminatorSizes
    aligner: AlignerSizes = AlignerSizes()
    bounds: SpeechBounds = BOUNDS


DEMO = DemoSizes(
    tokenizer=TokenizerSizes(),
    speaker=SpeakerSizes(),
    llm=LLMSizes(),
    flow=FlowConfig(
        input_size=192,
        ode_steps=4,
        encoder=EncoderConfig(
            input_size=192, output_size=192, num_blocks=3, num_up_blocks=2, attention_heads=4, linear_units=384
        ),
        estimator=DiTConfig(hidden_size=192, depth=6, num_heads=3, head_dim=64, mlp_ratio=3.0),
    ),
    hift=HiFTConfig(base_channels=128, f0_cond_channels=128),
    discriminators=DiscriminatorSizes(),
)

TINY = DemoSizes(
    tokenizer=TokenizerSizes(channels=16, blocks_at_50_hz=1, blocks_at_25_hz=1, decoder_channels=16),
    speaker=SpeakerSizes(channels=16, blocks=1),
    llm=LLMSizes(hidden=32, layers=1, heads=2, key_value_heads=1, feed_forward=48, text_tokens=300),
    flow=FlowConfig(
        input_size=32,
        encoder=EncoderConfig(
            input_size=32, output_size=32, num_blocks=1, num_up_blocks=1, attention_heads=2, linear_units=48
        ),
        estimator=DiTConfig(hidden_size=32, depth=1, num_heads=2, head_dim=16, mlp_ratio=2.0),
    ),
    hift=HiFTConfig(base_channels=16, f0_cond_channels=16),
    discriminators=DiscriminatorSizes(period_channels=4, spectrum_channels=4),
    aligner=AlignerSizes(token_channels=8, letter_embedding=4, letter_channels=8),
)
"""Sizes for tests and dry runs: the same shapes of everything, in seconds on a CPU."""

SIZES = {"demo": DEMO, "tiny": TINY}
