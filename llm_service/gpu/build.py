"""Puts a GPU engine together: weights, as many slots and pages as memory allows, all graphs captured.

The only file here that looks at devices and memory.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from gpukit.overlap import IS_INTERPRETED
from llm_service.embedded.answer import WAIT_SHARE
from llm_service.embedded.decoder import free_memory_bytes
from llm_service.embedded.engine import EngineLimits, SpeechLMEngine
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.steps import PAGE_TOKENS, pages_for
from llm_service.errors import CheckpointError, LLMConfigError
from llm_service.gpu.decoder import SlotDecoder
from llm_service.gpu.slot_state import SlotState, StateSizes, page_bytes
from llm_service.gpu.step_runner import RunnerSizes, StepRunner
from llm_service.gpu.weights import Weights, load_weights
from servicekit.clock import Clock

logger = logging.getLogger(__name__)

DECODE_ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
PROMPT_ROWS = (64, 128, 192, 256, 512, 1024, 2048)
CPU_PROMPT_ROWS = (8, 32, 128)
DRAWS = 64
MAX_WINDOW_TOKENS = 256
"""Longest window of repetition-aware sampling; the device reads all of it at once."""
LEAST_RECENT = 16
"""Shortest list of recent tokens; the kernels take powers of two."""


@dataclass(frozen=True)
class GpuEngineOptions:
    """What a GPU engine is built with."""

    device: torch.device
    dtype: torch.dtype
    slots: int  # most; memory may allow fewer pages than they could use
    max_sequence_tokens: int
    memory_share: float  # of what is free once the weights are there
    guard: RepetitionGuard
    wait_share: float = WAIT_SHARE  # 0: tokens come one by one


def build_gpu_engine(model_dir: Path, options: GpuEngineOptions, clock: Clock) -> SpeechLMEngine:
    """Load a checkpoint and make the engine ready.

    Raises:
        CheckpointError: the checkpoint is incomplete, or made for shorter sequences.
        LLMConfigError: memory does not hold a single answer, there is no GPU, or a setting is out of range.
    """
    if options.device.type != "cuda" and not IS_INTERPRETED:
        raise LLMConfigError(f"the engine of graphs needs a GPU and got device {options.device}; use --engine eager")
    weights = load_weights(model_dir, options.device, options.dtype)
    if options.max_sequence_tokens > weights.shape.max_positions:
        got, allowed = options.max_sequence_tokens, weights.shape.max_positions
        raise CheckpointError(f"max_seq_len is {got}, the model allows {allowed}")
    return engine_of(weights, options, clock)


def engine_of(weights: Weights, options: GpuEngineOptions, clock: Clock) -> SpeechLMEngine:
    """Make an engine of weights that are on the device already; see `build_gpu_engine`."""
    window = options.guard.window_tokens
    if window > MAX_WINDOW_TOKENS:
        raise LLMConfigError(f"ras_window is {window}; the GPU engine takes at most {MAX_WINDOW_TOKENS}")
    pages = _pages_that_fit(weights, options)
    positions = options.max_sequence_tokens
    recent = 1 << (max(window, LEAST_RECENT) - 1).bit_length()
    prompt_rows = PROMPT_ROWS if options.device.type == "cuda" else CPU_PROMPT_ROWS
    sizes = RunnerSizes(_up_to(DECODE_ROWS, options.slots), prompt_rows, min(DRAWS, max(options.slots, 1)))
    state = SlotState(StateSizes(options.slots, pages, positions, weights.vocabulary.head_rows, recent), options.device)
    with torch.inference_mode():
        max_draws = max(sizes.max_draws, *(sizes.draws_of(rows) for rows in sizes.prompt_rows))
        runner = StepRunner(SlotDecoder(weights, state, sizes.max_rows, max_draws), sizes)
        runner.warm_up()
    limits = EngineLimits(options.slots, positions)
    shared = (limits, options.guard, clock, weights.vocabulary, pages)
    return SpeechLMEngine(runner, *shared, wait_share=options.wait_share)


def _up_to(sizes: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return the sizes below `most`, and `most` itself if the last of them is not enough."""
    chosen = [size for size in sizes if size < most]
    return (*chosen, most) if most <= sizes[-1] else sizes


def _pages_that_fit(weights: Weights, options: GpuEngineOptions) -> int:
    shape = weights.shape
    size = page_bytes(shape.layers, shape.key_value_heads, shape.head_size, weights.embedding.dtype)
    share_bytes = int(free_memory_bytes(options.device) * options.memory_share)
    whole = pages_for(options.max_sequence_tokens)
    pages = min(share_bytes // size, options.slots * whole)
    if pages < whole:
        raise LLMConfigError(
            f"an answer of {options.max_sequence_tokens} tokens takes {whole * size} bytes, the share of free memory "
            f"is {share_bytes}; lower max_seq_len or raise kv_cache_free_gpu_memory_fraction"
        )
    tokens = pages * PAGE_TOKENS
    logger.info("the cache holds %d tokens in pages of %d (%.1f GB)", tokens, PAGE_TOKENS, pages * size / 1e9)
    return pages
