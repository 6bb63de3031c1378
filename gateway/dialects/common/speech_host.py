"""What the dialects that pace their audio speak with."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field

from gateway.delivery.pacer import DEFAULT_RUN_AHEAD_S
from gateway.dialects.common.sending import DEFAULT_READER_TIMEOUT_S
from gateway.speech.pipeline import SpeechPipeline
from gateway.voices.registry import VoiceRegistry
from servicekit.clock import Clock


@dataclass(frozen=True)
class SpeechHost:
    """The gateway's parts that such a dialect needs."""

    pipeline: SpeechPipeline
    voices: VoiceRegistry
    clock: Clock
    executor: Executor
    """Threads for codecs that take time."""
    run_ahead_s: float = DEFAULT_RUN_AHEAD_S
    """For callers whose interruptions can't be seen, and those who don't say; see `Pacer`."""
    reader_timeout_s: float = field(default=DEFAULT_READER_TIMEOUT_S, kw_only=True)
    """Of HTTP and gRPC, see `sent`."""
