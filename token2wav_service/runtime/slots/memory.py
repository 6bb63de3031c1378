"""Whether a GPU's memory holds what the settings ask for: the pool of streams, and one voice of the longest prompt.

Checked before the pool is allocated and again when all programs are captured, whose memory nobody can tell before. A
refusal names the setting to lower and the value that fits. Looks at no device: free memory is passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from token2wav_service.errors import MemoryBudgetError
from token2wav_service.models.flow.any_flow import AnyFlow, state_bytes
from token2wav_service.models.flow.flow_stream import MAX_STARTS
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.runtime.slots.pool import PoolSizes, pool_bytes
from token2wav_service.runtime.slots.slot_vocoder import allocate_vocoder

logger = logging.getLogger(__name__)

R = TypeVar("R")

GB = 1e9
GRAPH_STREAMS = 24
"""Number of slots whose memory stays free for programs when a smaller pool is named: 1.7 GB at full size."""


CACHE_SHARE = 0.9
"""Share of the memory left that voices may take."""


@dataclass(frozen=True)
class MemoryNeed:
    """What the slots need of a GPU's memory, beside models and programs."""

    streams: int
    stream_bytes: int
    """Bytes of one slot of the pool."""
    voice_bytes: int
    """Bytes of one voice with the longest prompt that is accepted."""
    prompt_bytes: int = 0
    """Bytes of the buffers in which prompts are run."""

    @property
    def pool_bytes(self) -> int:
        """Of all slots, the scratch slot included."""
        return (self.streams + 1) * self.stream_bytes


def memory_need(sizes: PoolSizes, flow: AnyFlow, vocoder: HiFT | CausalHiFT, steps: int) -> MemoryNeed:
    """Return what a pool of these sizes takes, and a voice in all its alignments; allocates no pool."""
    ring, conformer_ring = (frames // flow.stride for frames in sizes.rings(flow))
    speaker = flow.output_size * flow.dtype.itemsize
    slot = state_bytes(flow, steps, ring, conformer_ring) + speaker + pool_bytes(allocate_vocoder(1, vocoder))
    voice = state_bytes(flow, steps, sizes.max_prompt_frames // flow.stride)
    if flow.block_tokens:
        return MemoryNeed(sizes.streams, slot, MAX_STARTS * voice)
    # A prompt runs in buffers for what the longest voice keeps.
    return MemoryNeed(sizes.streams, slot, voice, prompt_bytes=voice)


def runner_that_fits(need: MemoryNeed, free_bytes: Callable[[], int], make: Callable[[], R]) -> R:
    """Make a runner and see to it that a voice fits beside it.

    Raises:
        MemoryBudgetError: the GPU's memory does not hold both.
    """
    before = free_bytes()
    if need.pool_bytes + need.voice_bytes + need.prompt_bytes > before:
        raise _budget_error(need, before)
    try:
        runner = make()
    except torch.cuda.OutOfMemoryError as err:
        raise _budget_error(need, before) from err
    after = free_bytes()
    if need.voice_bytes > after:
        missing = -(-(need.voice_bytes - after) // need.stream_bytes)
        raise _refusal(need, need.streams - missing, f"{after / GB:.1f} GB are left beside pool, models and programs")
    logger.info(
        "GPU memory: %.1f GB were free; %d streams take %.1f GB, %.1f GB are left for voices (one of 18 s: %.1f GB)",
        *(before / GB, need.streams, need.pool_bytes / GB, after / GB, need.voice_bytes / GB),
    )
    return runner


def warn_of_cache(cache_bytes: int, free_bytes: int) -> None:
    """Say in the log that the cache of voices may grow beyond the memory that is left."""
    if cache_bytes > free_bytes:
        fitting = int(free_bytes * CACHE_SHARE)
        logger.warning(
            "voice_cache_bytes=%d, but %d bytes of the GPU are left: many voices may exhaust it; lower it to %d",
            *(cache_bytes, free_bytes, fitting),
        )


def _budget_error(need: MemoryNeed, free_bytes: int) -> MemoryBudgetError:
    """Return the refusal of a pool that does not fit into so much memory, with room kept for voice and programs."""
    fitting = (free_bytes - need.voice_bytes - need.prompt_bytes) // need.stream_bytes - 1 - GRAPH_STREAMS
    return _refusal(need, fitting, f"{free_bytes / GB:.1f} GB were free before")


def _refusal(need: MemoryNeed, streams: int, found: str) -> MemoryBudgetError:
    asked = (
        f"max_streams={need.streams} takes {need.pool_bytes / GB:.1f} GB of the GPU's memory and a voice of 18 s "
        f"{need.voice_bytes / GB:.1f} GB; {found}"
    )
    if streams < 1:
        return MemoryBudgetError(f"{asked}: not even one stream fits; free memory on this GPU, or take a larger one")
    return MemoryBudgetError(f"{asked}; lower max_streams to {streams} (--token2wav-max-streams {streams})")
