"""The runner of the plain modules: chunks computed side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.token2wav_service.engine.factory import SeededExtractor, make_prompt
from tests.token2wav_service.streaming.flow_factory import make_flow, make_hift
from token2wav_service.config import SynthesisPolicy
from token2wav_service.engine.runner import ChunkWork
from token2wav_service.models.causal import FlowInput
from token2wav_service.models.flow.flow_state import FlowVoice
from token2wav_service.models.vocoder.hift import fold_weight_norm
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.runtime.cpu.packed_flow import PackedFlow, PackedState
from token2wav_service.runtime.torch_runner import ModelRunner

POLICY = SynthesisPolicy(ode_steps=2)


class FaultyFlow(PackedFlow):
    """Remembers its batches, and how many streams were begun at a time; fails at a chunk of as many tokens."""

    batches: list[list[int]]
    fault: int | None = None
    beginning = most_beginning = 0

    def begin(self, prompt: FlowVoice, hop: int) -> PackedState:
        self.beginning += 1
        self.most_beginning = max(self.most_beginning, self.beginning)
        time.sleep(0.01)
        try:
            return super().begin(prompt, hop)
        finally:
            self.beginning -= 1

    def forward(self, rows: Sequence[FlowInput[PackedState]]) -> tuple[list[Tensor], list[PackedState]]:
        sizes = [len(row.token_ids) for row in rows]
        self.batches.append(sizes)
        made = super().forward(rows)
        if self.fault in sizes:
            raise RuntimeError("a chunk went wrong")
        return made


def runner_of(at_once: int) -> tuple[ModelRunner, FaultyFlow]:
    flow = FaultyFlow(make_flow(), POLICY, torch.float32)
    flow.batches = []
    return ModelRunner(flow, StreamVocoder(fold_weight_norm(make_hift()), POLICY), at_once), flow


def works_of(runner: ModelRunner, sizes: Sequence[int]) -> list[ChunkWork]:
    voice = runner.prepare_voice(SeededExtractor().extract(make_prompt()))
    states = [runner.open(voice) for _ in sizes]
    return [ChunkWork(tuple(range(size)), False, size, state) for size, state in zip(sizes, states, strict=True)]


def test_chunks_side_by_side_sound_as_they_do_together() -> None:
    together, side_by_side = runner_of(1)[0], runner_of(2)[0]
    sizes = (18, 28, 9, 13, 18)
    expected = together.run(works_of(together, sizes))
    threads = torch.get_num_threads()
    made = side_by_side.run(works_of(side_by_side, sizes))
    assert torch.get_num_threads() == threads
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_allclose(one.samples, other.samples, atol=2e-3)


def test_the_longest_chunks_do_not_share_a_thread_and_one_stream_begins_at_a_time() -> None:
    runner, flow = runner_of(2)
    runner.run(works_of(runner, (50, 9, 28, 10)))
    assert sorted(map(sorted, flow.batches)) == [[9, 28], [10, 50]]
    assert flow.most_beginning == 1


def test_a_failure_is_told_when_all_have_ended_and_they_can_run_again() -> None:
    runner, flow = runner_of(2)
    works = works_of(runner, (18, 28, 9))
    flow.fault = 28
    with pytest.raises(RuntimeError, match="a chunk went wrong"):
        runner.run(works)
    assert sum(map(len, flow.batches)) == 3
    flow.fault = None
    (first,) = runner.run(works[:1])
    again = runner.run(works)
    np.testing.assert_allclose(first.samples, again[0].samples, atol=2e-3)
