"""Streams of any chunk and history length in one batch give what each gives alone."""

from __future__ import annotations

import pytest
import torch

from tests.token2wav_service.streaming.flow_factory import (
    make_flow,
    make_voice,
    random_speaker,
    random_tokens,
    run_stream,
    windows,
)
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.streaming import FlowInput
from token2wav_service.replay.vectors import FLOW_TOLERANCE

pytestmark = pytest.mark.slow

POLICIES = [HistoryPolicy.UPSTREAM, HistoryPolicy.PROMPT_AND_RECENT, HistoryPolicy.AUTO]
HOPS = [[15] * 20, [15, 25, 50], [5, 7, 11, 13] * 3, [40, 40], [15, 25], [4] * 12, [30], [15] * 3]
TOTALS = [129, 120, 90, 85, 60, 50, 34, 4]


@pytest.mark.parametrize("history", POLICIES)
def test_batch_of_eight_mixed_streams_equals_eight_singles(history: HistoryPolicy) -> None:
    flow = StreamFlow(make_flow(), SynthesisPolicy(history=history, ode_steps=3))
    voices = [make_voice(flow, 10 + 9 * i, seed=i) for i in range(8)]
    speakers = [random_speaker(i) for i in range(8)]
    tokens = [random_tokens(total, 50 + i) for i, total in enumerate(TOTALS)]
    cuts = [windows(hops, total) for hops, total in zip(HOPS, TOTALS, strict=True)]
    alone = [run_stream(flow, voices[i], tokens[i], cuts[i], speakers[i], seed=i)[0] for i in range(8)]
    states, done = list(voices), [0] * 8
    while any(done[i] < len(cuts[i]) for i in range(8)):
        active = [i for i in range(8) if done[i] < len(cuts[i])]
        rows = []
        for i in active:
            start, end, last = cuts[i][done[i]]
            rows.append(FlowInput(states[i], tokens[i][start:end], speakers[i], i, last))
        mels, new = flow.forward(rows)
        for i, mel, state in zip(active, mels, new, strict=True):
            torch.testing.assert_close(mel, alone[i][done[i]], atol=FLOW_TOLERANCE, rtol=0)
            states[i] = state
            done[i] += 1


def test_an_extreme_neighbour_changes_nothing() -> None:
    flow = StreamFlow(make_flow(), SynthesisPolicy(ode_steps=3))
    voices = [make_voice(flow, 12 + i, seed=i) for i in range(2)]
    row = FlowInput(voices[0], random_tokens(18, 0), random_speaker(0), 0, False)
    wild = FlowInput(voices[1], random_tokens(30, 1), random_speaker(1) * 1e6, 1, True)
    (alone,), _ = flow.forward([row])
    torch.testing.assert_close(flow.forward([row, wild])[0][0], alone, atol=FLOW_TOLERANCE, rtol=0)
