"""The fused path on pools against the plain modules, kernels run by Triton's interpreter on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.token2wav_service.engine.factory import (
    ManualClock,
    SeededExtractor,
    audio_of,
    drain,
    make_prompt,
    push_all,
    run_step,
    tokens_of,
)
from tests.token2wav_service.runtime.test_block_slot_runner import MelSlotVocoder
from tests.token2wav_service.streaming.flow_factory import make_flow, make_hift
from tests.workers import is_whole
from token2wav_service.config import HistoryPolicy, NoiseSource, SynthesisPolicy, Token2WavConfig
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.voices import VoiceStore
from token2wav_service.errors import CapacityError
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.noise import NoiseDomain, counter_normal
from token2wav_service.models.vocoder.hift import fold_weight_norm
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.replay.vectors import WAVE_SNR_DB, snr_db
from token2wav_service.runtime.kernels import ops
from token2wav_service.runtime.slots import slot_vocoder
from token2wav_service.runtime.slots.bucket_program import BucketProgram
from token2wav_service.runtime.slots.pool import PoolSizes, pool_tensors
from token2wav_service.runtime.slots.slot_runner import SlotRunner
from token2wav_service.runtime.slots.step_shapes import StepShapes
from token2wav_service.runtime.torch_runner import ModelRunner
from token2wav_service.types import StreamOptions, TokenChunk

POLICY = SynthesisPolicy(
    history=HistoryPolicy.PROMPT_AND_RECENT, ode_steps=1, estimator_recent_frames=10, conformer_recent_frames=12
)
STREAM_BUCKETS = (1, 2, 4)
SIZES = {"streams": 4, "estimator_recent": 10, "conformer_recent": 12, "max_prompt_frames": 32}


def _engine(runner: object) -> Token2WavEngine:
    config = replace(Token2WavConfig(Path("unused"), synthesis=POLICY), max_batch_size=4)
    voices = VoiceStore(SeededExtractor(), runner, config.voice_cache_bytes)  # type: ignore[arg-type]
    return Token2WavEngine(config, voices, runner, ManualClock())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain() -> Token2WavEngine:
    return _engine(ModelRunner(StreamFlow(make_flow(), POLICY), StreamVocoder(make_hift(), POLICY)))


@pytest.fixture
def fused() -> Token2WavEngine:
    hift = fold_weight_norm(make_hift())
    return _engine(SlotRunner(make_flow(), hift, POLICY, PoolSizes(**SIZES), STREAM_BUCKETS, (4, 6)))


@pytest.fixture
def plain_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the noise without its kernel: the interpreter needs as long for it as for the rest of the flow.

    The kernel is held against the same function in test_kernels.py.
    """

    def drawn(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: int) -> Tensor:
        return counter_normal(seeds, starts, positions, width, NoiseDomain(domain))

    for module in (ops, slot_vocoder):
        monkeypatch.setattr(module, "counter_noise", drawn)


def _open(engine: Token2WavEngine, seed: int) -> str:
    voice_id = engine.voices.register(make_prompt(seed % 3, tokens=6 + 4 * (seed % 3))).voice_id
    return engine.open_stream(voice_id, StreamOptions(seed=seed))


def _speak_all(engine: Token2WavEngine, plans: list[tuple[int, int]]) -> list[np.ndarray]:  # type: ignore[type-arg]
    streams = [_open(engine, seed) for seed in range(len(plans))]
    for seed, (stream, (tokens, hop)) in enumerate(zip(streams, plans, strict=True)):
        push_all(engine, stream, tokens_of(tokens, seed), hop)
    results = drain(engine)
    return [audio_of(results, stream) for stream in streams]


@pytest.mark.slow
@pytest.mark.usefixtures("plain_noise")
def test_mixed_streams_equal_the_plain_modules(plain: Token2WavEngine, fused: Token2WavEngine) -> None:
    """Chunk sizes and histories mixed, rings overflowing, a row that nobody uses, streams that end in one batch.

    Three streams share a program of four rows. The second one's chunks are shorter than its rings, and its third finds
    them full; of the last two streams only the end comes.
    """
    plans = [(9, 6), (11, 4), (5, 6), (5, 6)]
    for got, expected in zip(_speak_all(fused, plans), _speak_all(plain, plans), strict=True):
        assert got.shape == expected.shape
        assert snr_db(torch.from_numpy(got), torch.from_numpy(expected)) >= WAVE_SNR_DB


@pytest.mark.slow
@pytest.mark.skipif(not is_whole(), reason="the interpreter takes half a minute; the nightly run has it")
@pytest.mark.usefixtures("plain_noise")
def test_chunks_of_several_buckets_share_a_program_and_equal_each_alone(fused: Token2WavEngine) -> None:
    """Each stream's chunk is once the smaller one; the second step reads what the first kept of a padded row."""
    runner = fused._runner
    voice = runner.prepare_voice(SeededExtractor().extract(make_prompt(1, tokens=6)))
    steps = [[(tokens_of(6, 0), False), (tokens_of(9, 1), False)], [(tokens_of(6, 2), True), (tokens_of(2, 3), True)]]
    made: list[tuple[int, int]] = []

    def program(streams: int, tokens: int, prompt_size: int = 0) -> BucketProgram:
        made.append((streams, tokens))
        return runner._programs.get(streams, tokens, prompt_size)

    runner.program = program
    together = [runner.open(voice) for _ in range(2)]
    mixed = [run_step(runner, chunks, together) for chunks in steps]
    assert made == [(2, 6), (2, 6)]
    for place in range(2):
        alone = runner.open(voice)
        expected = [run_step(runner, [chunks[place]], [alone], seed=place)[0] for chunks in steps]
        got = torch.from_numpy(np.concatenate([samples[place] for samples in mixed]))
        assert snr_db(got, torch.from_numpy(np.concatenate(expected))) >= WAVE_SNR_DB
    assert made[2:] == [(1, 4), (1, 6), (1, 6), (1, 4)]


@pytest.mark.slow
@pytest.mark.usefixtures("plain_noise")
def test_a_used_slot_leaves_nothing_for_the_next_stream(plain: Token2WavEngine, fused: Token2WavEngine) -> None:
    plans = [(10, 6)]
    runner = fused._runner
    for tensor in pool_tensors(runner.pool):
        tensor.fill_(float("nan"))
    (got,), (expected,) = _speak_all(fused, plans), _speak_all(plain, plans)
    assert snr_db(torch.from_numpy(got), torch.from_numpy(expected)) >= WAVE_SNR_DB


@pytest.mark.slow
@pytest.mark.usefixtures("plain_noise")
def test_every_exit_frees_the_slot(fused: Token2WavEngine) -> None:
    runner, slots = fused._runner, fused._runner.slots
    runner.vocoder = runner._programs.vocoder = MelSlotVocoder()
    finished, aborted = _open(fused, 0), _open(fused, 1)
    push_all(fused, finished, tokens_of(5, 0), 6)
    fused.add_chunk(TokenChunk(aborted, 0, tokens_of(9, 1), False))
    drain(fused)
    fused.abort(aborted)
    assert slots.num_free == SIZES["streams"]
    slots.check_integrity()
    fused.check_integrity()


def test_a_full_pool_refuses_and_recovers(fused: Token2WavEngine) -> None:
    streams = [_open(fused, seed) for seed in range(SIZES["streams"])]
    with pytest.raises(CapacityError, match="slots are in use"):
        _open(fused, 9)
    fused.abort(streams[0])
    fused.abort(_open(fused, 9))
    fused.check_integrity()


def test_a_stream_costs_its_slot_and_shares_its_voice(fused: Token2WavEngine) -> None:
    one = _open(fused, 0)
    first = fused.stats()
    _open(fused, 0)
    second = fused.stats()
    assert second.voice_bytes == first.voice_bytes
    assert second.state_bytes == 2 * first.state_bytes > 0
    fused.abort(one)


def test_policies_of_the_original_are_refused() -> None:
    for policy in (replace(POLICY, history=HistoryPolicy.UPSTREAM), replace(POLICY, noise=NoiseSource.UPSTREAM)):
        with pytest.raises(ValueError, match="use runner=torch"):
            SlotRunner(make_flow(), make_hift(), policy, PoolSizes(**SIZES))


@pytest.mark.parametrize(
    ("bucket", "ready", "taken"),
    [(15, 1, 1), (15, 3, 3), (15, 5, 4), (15, 13, 13), (15, 40, 32), (15, 48, 48), (15, 99, 64), (100, 64, 8)],
)
def test_a_step_fills_its_program_and_stays_short(bucket: int, ready: int, taken: int) -> None:
    runner = SlotRunner(make_flow(), make_hift(), POLICY, PoolSizes(**SIZES), token_buckets=(15, 100))
    assert runner.step_size(bucket, ready) == taken


@pytest.mark.parametrize(
    ("tokens", "groups"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([100, 9], [([0, 1], 103)], id="the largest chunk's program has room for all"),
        pytest.param([15, 14, 103, *[15] * 5], [(list(range(8)), 103)], id="as many as it holds"),
        pytest.param([15, 14, 103, *[15] * 6], [([0, 1, *range(3, 9)], 15), ([2], 103)], id="one more than it holds"),
        pytest.param([103] * 9, [(list(range(8)), 103), ([8], 103)], id="more of one bucket than one program holds"),
    ],
)
def test_chunks_share_the_largest_ones_program_or_run_by_bucket(
    tokens: list[int], groups: list[tuple[list[int], int]]
) -> None:
    assert StepShapes().groups(tokens) == groups
