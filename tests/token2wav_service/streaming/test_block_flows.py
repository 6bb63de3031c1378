"""Chunks of block-masked flows equal one whole pass under the same mask; rows of any batch equal each alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.token2wav_service.streaming.family_factory import (
    BLOCK,
    COSYVOICE,
    make_block_flow,
    normal,
    prepare_voice,
    random_speaker,
)
from tests.token2wav_service.streaming.flow_factory import SEED, make_flow, random_tokens, run_stream, windows
from token2wav_service.checkpoint.family import Family
from token2wav_service.config import SynthesisPolicy
from token2wav_service.models.causal import FlowInput
from token2wav_service.models.flow.flow_state import FlowState
from token2wav_service.models.flow.flow_stream import PROMPT_SEED, StreamFlow
from token2wav_service.models.noise import NoiseDomain, counter_normal
from token2wav_service.replay.vectors import FLOW_TOLERANCE

STEPS = 3
POLICY = SynthesisPolicy(ode_steps=STEPS)


@pytest.fixture(scope="module", params=COSYVOICE)
def streamed(request: pytest.FixtureRequest) -> StreamFlow:
    return StreamFlow(make_block_flow(Family(request.param)), POLICY)


def whole_pass(streamed: StreamFlow, prompt: int, tokens: Tensor, *, is_last: bool = True) -> Tensor:
    """One pass without state over a prompt of seed 1 and all tokens; the generated mel."""
    ids = torch.cat([random_tokens(prompt, 1), tokens])[None]
    frames = 2 * ids.shape[1]
    cond = torch.zeros(1, 80, frames)
    cond[0, :, : 2 * prompt] = normal(2 * prompt, 80, seed=2).T
    shared, own = (
        counter_normal(torch.tensor([seed]), torch.tensor([0]), frames, 80, NoiseDomain.FLOW).transpose(1, 2)
        for seed in (PROMPT_SEED, SEED)
    )
    noise = torch.cat([shared[:, :, : 2 * prompt], own[:, :, 2 * prompt :]], 2)
    made = frames if is_last else frames - 6
    mel, _ = streamed.flow(
        ids,
        torch.tensor([ids.shape[1]]),
        torch.tensor([is_last]),
        random_speaker(1)[None],
        noise,
        STEPS,
        cond=cond[:, :, :made],
    )
    return mel[0, :, 2 * prompt :]


# Hops that end blocks when they are counted from the prompt's start.
@pytest.mark.parametrize(
    ("prompt", "hops", "total"),
    [
        pytest.param(25, [5, 10, 20], 58, id="the prompt ends inside a block"),
        pytest.param(20, [10, 30], 47, id="the prompt ends a block"),
        pytest.param(22, [8, 10, 10, 10], 41, id="the look-ahead of the prompt's block is in the stream"),
        pytest.param(4, [16, 10], 33, id="the prompt is shorter than a block"),
        pytest.param(3, [], 1, id="one last token"),
    ],
)
def test_chunks_that_end_blocks_equal_one_whole_pass(
    streamed: StreamFlow, prompt: int, hops: list[int], total: int
) -> None:
    tokens, voice = random_tokens(total, 9), prepare_voice(streamed, prompt, 1)
    mels, states = run_stream(streamed, voice, tokens, windows(hops, total), random_speaker(1))
    expected = whole_pass(streamed, prompt, tokens)
    torch.testing.assert_close(torch.cat(mels, 1), expected, atol=FLOW_TOLERANCE, rtol=0)
    assert [state.end_token for state in states[1:-1]] == [prompt + sum(hops[: n + 1]) for n in range(len(hops))]


def test_chunks_that_end_inside_blocks_equal_whole_passes_over_the_prefixes(streamed: StreamFlow) -> None:
    tokens, voice = random_tokens(60, 9), prepare_voice(streamed, 16, 1)
    cuts = windows([6, 1, 13, 20, 3], 60)
    mels, states = run_stream(streamed, voice, tokens, cuts, random_speaker(1))
    for (start, end, is_last), mel in zip(cuts, mels, strict=True):
        expected = whole_pass(streamed, 16, tokens[:end], is_last=is_last)[:, 2 * start :]
        torch.testing.assert_close(mel, expected, atol=FLOW_TOLERANCE, rtol=0)
    assert all(state.first_token % BLOCK == 0 and len(state.pending) < BLOCK for state in states[1:-1])


def test_a_trimmed_prompt_equals_a_shorter_one(streamed: StreamFlow) -> None:
    """The stream starts where the prompt's trimmed part ended, noise and positions included."""
    full, trimmed = random_tokens(23, 1), 3
    mel, speaker = normal(46, 80, seed=2), random_speaker(1)
    voices = (
        streamed.run_prompt(full, mel, speaker, trimmed=trimmed),
        streamed.run_prompt(full[trimmed:], mel[2 * trimmed :], speaker),
    )
    tokens = random_tokens(20, 9)
    first, second = (run_stream(streamed, voice, tokens, windows([10], 20), speaker)[0] for voice in voices)
    torch.testing.assert_close(torch.cat(first, 1), torch.cat(second, 1), atol=0, rtol=0)
    assert voices[0].prompt_tokens == 20


@pytest.fixture(scope="module", params=Family)
def any_flow(request: pytest.FixtureRequest) -> StreamFlow:
    family = Family(request.param)
    return StreamFlow(make_flow() if family is Family.STEP_AUDIO2 else make_block_flow(family), POLICY)


def test_a_batch_of_different_streams_equals_each_alone(any_flow: StreamFlow) -> None:
    streamed = any_flow
    cases = ((25, 5, 28, False), (4, 16, 19, False), (12, 1, 9, True), (30, 60, 4, False))
    rows = [_row_under_way(streamed, *case) for case in cases]
    together, states = streamed.forward(rows)
    for row, mel, state in zip(rows, together, states, strict=True):
        (alone,), (own,) = streamed.forward([row])
        torch.testing.assert_close(mel, alone, atol=FLOW_TOLERANCE, rtol=0)
        assert (state.first_token, state.end_token) == (own.first_token, own.end_token)
        for name, cache in own.caches.items():
            torch.testing.assert_close(state.caches[name], cache, atol=FLOW_TOLERANCE, rtol=0)


def _row_under_way(streamed: StreamFlow, prompt: int, hop: int, tokens: int, is_last: bool) -> FlowInput[FlowState]:
    """A stream that has had one chunk of `hop` tokens and gets another of `tokens`, look-ahead included."""
    ids, speaker = random_tokens(hop + tokens, prompt), random_speaker(prompt, streamed)
    voice = prepare_voice(streamed, prompt, prompt)
    _, states = run_stream(streamed, voice, ids, [(0, hop + 3, False)], speaker)
    return FlowInput(states[-1], ids[hop:], speaker, SEED, is_last)


def test_an_extreme_neighbour_changes_nothing(any_flow: StreamFlow) -> None:
    row, wild = _row_under_way(any_flow, 12, 15, 18, False), _row_under_way(any_flow, 13, 15, 30, True)
    (alone,), _ = any_flow.forward([row])
    together, _ = any_flow.forward([row, replace(wild, speaker=wild.speaker * 1e6)])
    torch.testing.assert_close(together[0], alone, atol=FLOW_TOLERANCE, rtol=0)


def test_a_chunk_leaves_the_states_it_started_from_unchanged(streamed: StreamFlow) -> None:
    voice = prepare_voice(streamed, 22, 1)
    before = {name: cache.clone() for name, cache in voice.caches.items()}
    run_stream(streamed, voice, random_tokens(30, 9), windows([8, 10], 30), random_speaker(1))
    for name, cache in voice.caches.items():
        assert torch.equal(cache, before[name])
    assert (voice.first_token, voice.end_token, len(voice.pending)) == (10, 22, 12)


@pytest.mark.parametrize("family", COSYVOICE)
def test_the_state_s_size_is_what_its_description_says(family: Family) -> None:
    streamed = StreamFlow(make_block_flow(family), POLICY)
    voice = prepare_voice(streamed, 3, 1)
    _, states = run_stream(streamed, voice, random_tokens(40, 9), windows([17, 10], 40)[:-1], random_speaker(1))
    for state in states:
        assert state.num_bytes == _described_bytes(streamed, state)


def _described_bytes(streamed: StreamFlow, state: FlowState) -> int:
    floats = 0
    for spec in streamed.specs:
        count = 1
        for axis, size in enumerate(spec.shape):
            count *= state.first_token * spec.columns_per_token if axis == spec.time_axis else size
        floats += count
    return 4 * (floats + state.cond.numel()) + 8 * len(state.pending)


@pytest.mark.parametrize("family", COSYVOICE)
def test_the_original_s_noise_ends_and_the_error_says_what_goes_on(family: Family) -> None:
    policy = SynthesisPolicy(is_reference=True, ode_steps=1)
    streamed = StreamFlow(make_block_flow(family), policy, noise_buffer=torch.zeros(80, 60))
    voice = prepare_voice(streamed, 20, 1)
    run_stream(streamed, voice, random_tokens(10, 9), [(0, 10, True)], random_speaker(1))
    with pytest.raises(ValueError, match=r"would reach 1\.24 s.*ends at 1 s; leave is_reference"):
        run_stream(streamed, voice, random_tokens(11, 9), [(0, 11, True)], random_speaker(1))
