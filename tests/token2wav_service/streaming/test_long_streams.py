"""History policies over long streams, and the vocoder's joins."""

from __future__ import annotations

import pytest
import torch

from tests.token2wav_service.streaming.flow_factory import (
    make_flow,
    make_hift,
    make_voice,
    random_speaker,
    random_tokens,
)
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.models.causal import FlowInput, VocoderInput
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder, crossfade_window, is_ready
from token2wav_service.replay.vectors import snr_db

pytestmark = pytest.mark.slow


def _advance(flow: StreamFlow, state: object, chunks: int, tokens: int = 203) -> list:  # type: ignore[type-arg]
    states = [state]
    for number in range(chunks):
        row = FlowInput(states[-1], random_tokens(tokens, number), random_speaker(0), 0, False)
        states.append(flow.forward([row])[1][0])
    return states[1:]


def test_prompt_and_recent_keeps_the_prompt_the_newest_frames_and_constant_memory() -> None:
    policy = SynthesisPolicy(history=HistoryPolicy.PROMPT_AND_RECENT, ode_steps=1)
    flow = StreamFlow(make_flow(), policy)
    states = _advance(flow, make_voice(flow, 30, 0), 4)
    assert len({state.num_bytes for state in states}) == 1
    newest = 2 * states[-1].end_token
    expected = [*range(60), *range(newest - 100, newest)]
    assert states[-1].labels.tolist() == expected
    assert states[-1].caches["frame_kv"].shape[2] == 60 + 250
    assert states[-1].caches["token_kv"].shape[2] == 30 + 125


def test_auto_changes_to_prompt_and_recent_where_upstream_would_end() -> None:
    flow = StreamFlow(make_flow(), SynthesisPolicy(history=HistoryPolicy.AUTO, ode_steps=1))
    states = _advance(flow, make_voice(flow, 60, 0), 15)
    last_upstream, after = states[11], states[14]
    assert last_upstream.caches["frame_kv"].shape[2] == 2 * last_upstream.end_token == 120 + 12 * 400
    assert after.caches["frame_kv"].shape[2] == 120 + 250
    newest = 2 * after.end_token
    assert after.labels.tolist() == [*range(120), *range(newest - 100, newest)]


@pytest.mark.parametrize("hops", [[1] * 6, [1, 1, 20], [3, 2, 30], [4, 4, 4]], ids=str)
def test_tiny_hops_lose_no_sample(hops: list[int]) -> None:
    vocoder = StreamVocoder(make_hift(), SynthesisPolicy())
    mel = torch.randn(80, 2 * sum(hops), generator=torch.Generator().manual_seed(0))
    state, samples, start = vocoder.initial_state(), 0, 0
    for number, hop in enumerate(hops):
        row = VocoderInput(state, mel[:, start : start + 2 * hop], 0, number == len(hops) - 1)
        start += 2 * hop
        if is_ready(row):
            (wave,), (state,), _ = vocoder.forward([row])
            samples += len(wave)
        else:
            state = vocoder.hold(row)
    assert samples == 960 * sum(hops)


def test_normalised_crossfade_sums_to_one_and_upstreams_to_1_08() -> None:
    for is_reference, total in ((False, 1.0), (True, 1.08)):
        window = crossfade_window(SynthesisPolicy(is_reference=is_reference), 3840)
        torch.testing.assert_close(
            window[:3840] + window[3840:], torch.full((3840,), total).double(), atol=3e-4, rtol=0
        )


def test_joins_are_inaudible_when_the_source_is_given() -> None:
    """With the same source, chunked vocoding equals the whole but for the convolutions' edges."""
    hift = make_hift()
    vocoder = StreamVocoder(hift, SynthesisPolicy())
    generator = torch.Generator().manual_seed(0)
    mel = torch.randn(80, 120, generator=generator).cumsum(1) * 0.1
    source = 0.1 * torch.randn(1, 1, 120 * 480, generator=generator)
    (whole,), _, _ = vocoder.forward([VocoderInput(vocoder.initial_state(), mel, 0, True)], source=source)
    state, waves = vocoder.initial_state(), []
    for start in range(0, 120, 30):
        row = VocoderInput(state, mel[:, start : start + 30], 0, start == 90)
        part = source[:, :, max(0, start - 8) * 480 : (start + 30) * 480]
        (wave,), (state,), _ = vocoder.forward([row], source=part)
        waves.append(wave)
    assert snr_db(torch.cat(waves), whole) > 20


def test_continuous_source_has_no_phase_jump_at_the_join() -> None:
    jumps = {}
    for is_reference in (False, True):
        hift = make_hift()
        with torch.no_grad():
            hift.f0_predictor.classifier.weight.zero_()
        vocoder = StreamVocoder(hift, SynthesisPolicy(is_reference=is_reference))
        mel = torch.randn(80, 30, generator=torch.Generator().manual_seed(0))
        quiet = torch.zeros(1, 38 * 480, 9)
        row = VocoderInput(vocoder.initial_state(), mel, 0, False)
        _, (state,), _ = vocoder.forward([row], noise=quiet[:, : 30 * 480])
        _, _, source = vocoder.forward([VocoderInput(state, mel, 0, False)], noise=quiet)
        steps = source[0, 0].diff().abs()
        jumps[is_reference] = float(steps[3838:3841].max() / steps[4500:].max())
    assert jumps[False] < 1.1 < jumps[True]
