"""A pool that a GPU's memory does not hold is refused, with a value that fits. No GPU is needed."""

from __future__ import annotations

import re

import pytest
import torch

from tests.token2wav_service.streaming.family_factory import make_block_flow, make_causal_hift
from tests.token2wav_service.streaming.flow_factory import make_hift
from token2wav_service.checkpoint.family import Family
from token2wav_service.config import SynthesisPolicy
from token2wav_service.errors import MemoryBudgetError
from token2wav_service.models.config import FlowConfig, HiFTConfig
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.runtime.slots.memory import MemoryNeed, memory_need, runner_that_fits, warn_of_cache
from token2wav_service.runtime.slots.pool import PoolSizes
from token2wav_service.runtime.slots.slot_runner import SlotRunner
from token2wav_service.runtime.slots.step_shapes import STREAM_BUCKETS, stream_buckets_up_to

NEED = MemoryNeed(streams=400, stream_bytes=70_000_000, voice_bytes=612_000_000)


def start(need: MemoryNeed, before: int, after: int | None = None) -> None:
    """Make a runner where so many bytes are free before it and after; None: as many as before."""
    free = iter((before, before if after is None else after))
    runner_that_fits(need, lambda: next(free), lambda: None)


def fitting(message: str) -> int:
    found = re.search(r"lower max_streams to (\d+) \(--token2wav-max-streams \1\)", message)
    assert found, message
    return int(found[1])


def test_the_full_size_takes_what_was_measured() -> None:
    with torch.device("meta"):
        flow, hift = Flow(FlowConfig()).half(), HiFT(HiFTConfig())
    need = memory_need(PoolSizes(400, 100, 250, 900), flow, hift, 10)
    assert need.stream_bytes == 70_470_340, "bytes_per_stream of benchmarks/results/h200_engine.json"
    assert need.voice_bytes == pytest.approx(170_133_352 * 900 / 250, rel=0.05)
    assert need.prompt_bytes == need.voice_bytes


@pytest.mark.slow
@pytest.mark.parametrize("family", [Family.COSYVOICE2, Family.COSYVOICE3])
def test_a_block_masked_flow_takes_what_its_pool_does(family: Family) -> None:
    flow = make_block_flow(family)
    vocoder = make_causal_hift() if family is Family.COSYVOICE3 else make_hift()
    sizes = PoolSizes(streams=2, estimator_recent=30, conformer_recent=30, max_prompt_frames=60)
    runner = SlotRunner(flow, vocoder, SynthesisPolicy(ode_steps=2), sizes)
    need = memory_need(sizes, flow, vocoder, 2)
    assert need.stream_bytes == pytest.approx(runner.pool.bytes_per_stream, rel=0.05)
    assert need.voice_bytes > 2 * need.stream_bytes


def test_a_pool_that_does_not_fit_is_refused_with_a_value_that_does() -> None:
    start(NEED, 30_000_000_000)
    with pytest.raises(MemoryBudgetError, match=r"max_streams=400 takes 28\.1 GB") as refusal:
        start(NEED, 16_000_000_000)
    streams = fitting(str(refusal.value))
    start(MemoryNeed(streams, NEED.stream_bytes, NEED.voice_bytes), 16_000_000_000)
    assert 100 < streams < 210, "with room for programs"
    with pytest.raises(MemoryBudgetError, match="not even one stream fits"):
        start(NEED, 1_000_000_000)


def test_the_buffers_of_a_prompt_must_fit_too() -> None:
    need = MemoryNeed(2, stream_bytes=70_000_000, voice_bytes=612_000_000, prompt_bytes=612_000_000)
    start(need, 1_434_000_000)
    with pytest.raises(MemoryBudgetError, match="max_streams"):
        start(need, 1_433_000_000)


def test_what_is_left_must_hold_a_voice() -> None:
    start(NEED, 30_000_000_000, 700_000_000)
    with pytest.raises(MemoryBudgetError) as refusal:
        start(NEED, 30_000_000_000, 100_000_000)
    assert fitting(str(refusal.value)) == 392


def test_memory_that_ends_while_programs_are_captured_is_a_refusal_too() -> None:
    def make() -> None:
        raise torch.cuda.OutOfMemoryError("out of memory")

    with pytest.raises(MemoryBudgetError, match="lower max_streams to"):
        runner_that_fits(NEED, lambda: 29_000_000_000, make)


def test_a_cache_beyond_what_is_left_is_said(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_cache(5_000, 10_000)
    assert not caplog.text
    warn_of_cache(20_000, 10_000)
    assert "lower it to 9000" in caplog.text


def test_only_programs_that_steps_can_use_are_captured() -> None:
    assert stream_buckets_up_to(64) == stream_buckets_up_to(500) == STREAM_BUCKETS
    assert stream_buckets_up_to(1) == (1,)
    assert stream_buckets_up_to(16) == (1, 2, 4, 8, 16) == stream_buckets_up_to(9)
