"""The causal vocoder: pieces of any size equal the whole, alone and in a batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.token2wav_service.streaming.family_factory import make_causal_hift, normal
from token2wav_service.config import SynthesisPolicy
from token2wav_service.models.causal import VocoderInput
from token2wav_service.models.noise import NoiseDomain, counter_uniform
from token2wav_service.models.vocoder.causal_vocoder_stream import (
    CausalStreamVocoder,
    CausalVocoderState,
)

SAMPLES = 480
LOOKAHEAD = 4
HELD = 4
SEED = 5
TOLERANCE = 1e-4
"""Of samples in +-1: summed in another order, never another value."""


@pytest.fixture(scope="module")
def vocoder() -> CausalStreamVocoder:
    return CausalStreamVocoder(make_causal_hift(), SynthesisPolicy())


def speech_like_mel(frames: int, seed: int) -> Tensor:
    return normal(80, frames, seed=seed) - 6


def whole(vocoder: CausalStreamVocoder, mel: Tensor, seed: int = SEED) -> Tensor:
    frames, hift = mel.shape[1], vocoder.hift
    harmonics = hift.m_source.harmonics
    noise = counter_uniform(
        torch.tensor([seed]), torch.tensor([0]), frames + 1, SAMPLES * harmonics, NoiseDomain.SOURCE
    )
    samples, _ = hift(
        functional.pad(mel[None], (0, LOOKAHEAD)),
        torch.tensor([frames]),
        torch.tensor([True]),
        hift.initial_state(1),
        noise.view(1, -1, harmonics),
    )
    return samples[0, HELD:]


def in_pieces(
    vocoder: CausalStreamVocoder, mel: Tensor, sizes: list[int], seed: int = SEED
) -> tuple[list[Tensor], CausalVocoderState]:
    state, made = vocoder.initial_state(), []
    pieces = mel.split(sizes, 1)
    for number, piece in enumerate(pieces):
        row = VocoderInput(state, piece, seed, number == len(pieces) - 1)
        (samples,), (state,) = vocoder.vocode([row])
        made.append(samples)
    return made, state


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [[33], [5, 28], [1] * 33, [30, 1, 1, 1], [4, 4, 25, 0], [20, 10, 3]], ids=lambda sizes: str(len(sizes))
)
def test_pieces_equal_the_whole(vocoder: CausalStreamVocoder, sizes: list[int]) -> None:
    mel = speech_like_mel(33, 1)
    made, _ = in_pieces(vocoder, mel, sizes)
    expected = whole(vocoder, mel)
    assert expected.shape == (33 * SAMPLES,)
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(torch.cat(made), expected, atol=TOLERANCE, rtol=0)


def test_four_frames_and_four_samples_are_held_back(vocoder: CausalStreamVocoder) -> None:
    made, _ = in_pieces(vocoder, speech_like_mel(20, 1), [4, 1, 10, 5])
    assert [len(samples) for samples in made] == [0, SAMPLES - HELD, 10 * SAMPLES, 9 * SAMPLES + HELD]


def test_a_batch_of_different_streams_equals_each_alone(vocoder: CausalStreamVocoder) -> None:
    rows = []
    for index, (before, frames, is_last) in enumerate([(0, 12, False), (20, 7, True), (9, 30, False), (0, 3, False)]):
        mel = speech_like_mel(before + frames, index)
        state = vocoder.initial_state()
        if before:
            _, (state,) = vocoder.vocode([VocoderInput(state, mel[:, :before], index, False)])
        rows.append(VocoderInput(state, mel[:, before:], index, is_last))
    together, states = vocoder.vocode(rows)
    for row, samples, state in zip(rows, together, states, strict=True):
        (alone,), (own,) = vocoder.vocode([row])
        torch.testing.assert_close(samples, alone, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(state.floats, own.floats, atol=TOLERANCE, rtol=0)
        assert torch.equal(state.mel_tail, own.mel_tail) and state.frames == own.frames


def test_the_carried_phase_is_a_part_of_a_cycle_in_float64(vocoder: CausalStreamVocoder) -> None:
    """A sum that grew would lose the phase's last digits."""
    _, state = in_pieces(vocoder, speech_like_mel(40, 1), [20, 20])
    cycles = state.doubles[vocoder.hift.f0_predictor.num_doubles :]
    assert cycles.dtype == torch.float64
    assert bool(((cycles >= 0) & (cycles < 1)).all() and (cycles > 0).any())


def test_the_original_s_noise_buffer_is_read_by_absolute_sample() -> None:
    buffer = torch.rand(50 * SAMPLES, 9, generator=torch.Generator().manual_seed(0))
    policy = SynthesisPolicy(is_reference=True)
    vocoder = CausalStreamVocoder(make_causal_hift(), policy, buffer)
    mel = speech_like_mel(33, 1)
    one, many = (torch.cat(in_pieces(vocoder, mel, sizes)[0]) for sizes in ([33], [9, 9, 15]))
    torch.testing.assert_close(one, many, atol=1e-3, rtol=0)
