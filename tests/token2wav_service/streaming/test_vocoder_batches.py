"""Rows of different lengths share a vocoder batch, and each sounds as if it were alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.token2wav_service.engine.factory import SeededExtractor, make_prompt, tokens_of
from tests.token2wav_service.streaming.flow_factory import make_flow, make_hift
from token2wav_service.config import SynthesisPolicy
from token2wav_service.engine.runner import ChunkWork
from token2wav_service.models.causal import VocoderInput
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import OVERLAP_FRAMES, StreamVocoder, VocoderState, total_frames
from token2wav_service.replay.vectors import DECODE_TOLERANCE, F0_TOLERANCE_HZ, WAVE_SNR_DB, snr_db
from token2wav_service.runtime.torch_runner import ModelRunner

FRAME = 480
LENGTHS = [2, 8, 30, 38, 58, 108]
GARBAGE = 1e4


@pytest.fixture(scope="module")
def hift() -> HiFT:
    return make_hift()


def _mel(frames: int, seed: int) -> Tensor:
    return torch.randn(80, frames, generator=torch.Generator().manual_seed(seed))


def _source(frames: int, seed: int) -> Tensor:
    return 0.1 * torch.randn(1, frames * FRAME, generator=torch.Generator().manual_seed(100 + seed))


def _padded(rows: list[Tensor], size: int, fill: float) -> Tensor:
    return torch.stack([torch.nn.functional.pad(row, (0, size - row.shape[1]), value=fill) for row in rows])


def _decode_together(hift: HiFT, lengths: list[int], fill: float) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    mels = [_mel(frames, i) for i, frames in enumerate(lengths)]
    sources = [_source(frames, i) for i, frames in enumerate(lengths)]
    longest = max(lengths)
    together = hift(_padded(mels, longest, fill), _padded(sources, longest * FRAME, fill), torch.tensor(lengths))
    return together, mels, sources


@pytest.mark.slow
def test_decoding_a_mixed_batch_equals_each_row_alone_and_is_silent_beyond(hift: HiFT) -> None:
    together, mels, sources = _decode_together(hift, LENGTHS, 0.0)
    for wave, mel, source in zip(together, mels, sources, strict=True):
        end = mel.shape[1] * FRAME
        torch.testing.assert_close(wave[:end], hift(mel[None], source[None])[0], atol=DECODE_TOLERANCE, rtol=0)
        assert not wave[end:].any()


@pytest.mark.parametrize("fill", [GARBAGE, -GARBAGE, float("nan")])
def test_what_is_in_the_padding_does_not_matter(hift: HiFT, fill: float) -> None:
    lengths = [2, 9, 20]
    clean, *_ = _decode_together(hift, lengths, 0.0)
    dirty, mels, _ = _decode_together(hift, lengths, fill)
    assert torch.equal(clean, dirty)
    pitch = [hift.f0_predictor(_padded(mels, 20, value), torch.tensor(lengths)) for value in (0.0, fill)]
    assert torch.equal(*pitch)


@pytest.mark.parametrize("is_reference", [False, True])
def test_pitch_and_phase_end_where_the_row_ends(hift: HiFT, is_reference: bool) -> None:
    mels, lengths = [_mel(frames, i) for i, frames in enumerate(LENGTHS)], torch.tensor(LENGTHS)
    pitch = hift.f0_predictor(_padded(mels, max(LENGTHS), GARBAGE), lengths)
    f0s = [hift.f0_predictor(mel[None]) for mel in mels]
    phase, edges = hift.m_source.phase(_padded(f0s, max(LENGTHS), 333.0)[:, 0], lengths, is_reference=is_reference)
    for row, f0 in enumerate(f0s):
        frames = f0.shape[1]
        torch.testing.assert_close(pitch[row, :frames], f0[0], atol=F0_TOLERANCE_HZ, rtol=0)
        alone, alone_edges = hift.m_source.phase(f0, is_reference=is_reference)
        assert torch.equal(phase[row, :, : frames * FRAME], alone[0])
        assert torch.equal(edges[row, :, :frames], alone_edges[0])
        assert torch.equal(edges[row, :, -1], alone_edges[0, :, -1])


def _started(vocoder: StreamVocoder, seed: int) -> VocoderState:
    """Return the state of a stream after a first chunk."""
    row = VocoderInput(vocoder.initial_state(), _mel(10, 50 + seed), seed, False)
    _, (state,), _ = vocoder.forward([row])
    return state


def _rows(vocoder: StreamVocoder, lengths: Sequence[int], started: bool) -> list[VocoderInput]:
    """Return rows of these total lengths; the shortest and the longest are last chunks."""
    rows = []
    for seed, frames in enumerate(lengths):
        state = _started(vocoder, seed) if started else vocoder.initial_state()
        is_last = frames in (min(lengths), max(lengths))
        rows.append(VocoderInput(state, _mel(frames - state.mel_tail.shape[1], seed), seed, is_last))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("is_reference", [False, True])
@pytest.mark.parametrize(
    ("lengths", "started"),
    [pytest.param(LENGTHS, False, id="first chunks"), pytest.param(LENGTHS[1:], True, id="later chunks")],
)
def test_a_mixed_batch_of_streams_equals_each_alone(
    hift: HiFT, lengths: list[int], started: bool, is_reference: bool
) -> None:
    vocoder = StreamVocoder(hift, SynthesisPolicy(is_reference=is_reference))
    rows = _rows(vocoder, lengths, started)
    waves, states, _ = vocoder.forward(rows)
    for row, wave, state in zip(rows, waves, states, strict=True):
        (alone,), (expected,), _ = vocoder.forward([row])
        held_back = 0 if row.is_last else OVERLAP_FRAMES
        assert wave.shape == alone.shape == ((total_frames(row) - held_back) * FRAME,)
        assert len(wave) == 0 or snr_db(wave, alone) >= WAVE_SNR_DB
        _assert_same_state(state, expected)


def _assert_same_state(state: VocoderState, expected: VocoderState) -> None:
    assert torch.equal(state.mel_tail, expected.mel_tail) and state.frames == expected.frames
    for name in ("source_tail", "speech_tail"):
        got, wanted = getattr(state, name), getattr(expected, name)
        assert snr_db(got, wanted) >= WAVE_SNR_DB, name
    assert state.phase is not None and expected.phase is not None
    # Phases are in 0..2 pi, and may lie on both sides of 0.
    torch.testing.assert_close(torch.cos(state.phase - expected.phase), torch.ones(9), atol=1e-3, rtol=0)


class CountingVocoder(StreamVocoder):
    """Remembers the lengths of every batch."""

    batches: list[list[int]]

    def forward(
        self, rows: Sequence[VocoderInput], *, noise: Tensor | None = None, source: Tensor | None = None
    ) -> tuple[list[Tensor], list[VocoderState], Tensor]:
        self.batches.append([total_frames(row) for row in rows])
        return super().forward(rows, noise=noise, source=source)


@pytest.mark.slow
def test_streams_whose_last_chunks_differ_in_length_share_one_vocoder_call(hift: HiFT) -> None:
    policy = SynthesisPolicy(ode_steps=1)
    vocoder = CountingVocoder(hift, policy)
    vocoder.batches = []
    runner = ModelRunner(StreamFlow(make_flow(), policy), vocoder)
    voice = runner.prepare_voice(SeededExtractor().extract(make_prompt()))
    works = [ChunkWork(tokens_of(18, seed), False, seed, runner.open(voice)) for seed in range(3)]
    states = [outcome.state for outcome in runner.run(works)]
    counts = (1, 7, 12)
    # Rows of very different lengths run apart.
    runner.run([ChunkWork(tokens_of(n, n), True, n, runner.open(voice)) for n in (4, 50, 6)])
    last = [ChunkWork(tokens_of(n, n), True, seed, states[seed]) for seed, n in enumerate(counts)]
    together = runner.run(last)
    assert vocoder.batches == [[30, 30, 30], [100], [12, 8], [32, 22, 10]]
    for work, outcome in zip(last, together, strict=True):
        (alone,) = runner.run([work])
        assert len(outcome.samples) == (2 * len(work.token_ids) + OVERLAP_FRAMES) * FRAME
        assert snr_db(torch.from_numpy(outcome.samples), torch.from_numpy(alone.samples)) >= WAVE_SNR_DB
