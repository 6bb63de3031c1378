"""The models as CPU cores run them: equal to the plain modules, in place, and safe to run again."""

from __future__ import annotations

import pytest
import torch

from tests.token2wav_service.streaming.flow_factory import (
    make_flow,
    make_hift,
    prepared,
    random_speaker,
    random_tokens,
    run_stream,
    windows,
)
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.models.causal import FlowInput
from token2wav_service.models.flow import flow_state
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.hift import fold_weight_norm
from token2wav_service.replay.vectors import FLOW_TOLERANCE
from token2wav_service.runtime.cpu.packed_flow import ColumnHiFT, PackedFlow, PackedState
from token2wav_service.runtime.cpu.packed_solver import product_type

HOPS = [[1, 2, 15, 4], [15, 25, 50], [5, 7, 11, 13] * 3, [40, 40], [60]]
TOTALS = [30, 120, 90, 85, 4]
LIMIT_FRAMES = 150
"""Stands for the 5000 at which `auto` changes its history, so that short streams pass it."""


LEAST_DB = 40.0
"""Ratio to the error of bfloat16 products."""
NEEDS_BFLOAT16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="these cores have no bfloat16 products"
)


def _packed(dtype: torch.dtype | None = None, **policy: object) -> PackedFlow:
    return PackedFlow(make_flow(), SynthesisPolicy(**{"ode_steps": 3, **policy}), dtype)  # type: ignore[arg-type]


def _row(state: PackedState, tokens: int, seed: int = 0, is_last: bool = False) -> FlowInput[PackedState]:
    return FlowInput(state, random_tokens(tokens, seed), random_speaker(0), 0, is_last)


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize(
    "policy", [HistoryPolicy.AUTO, HistoryPolicy.PROMPT_AND_RECENT], ids=lambda policy: policy.value
)
def test_mixed_batches_equal_the_plain_modules(policy: HistoryPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_state, "UPSTREAM_LIMIT_FRAMES", LIMIT_FRAMES)
    settings = SynthesisPolicy(history=policy, ode_steps=3, estimator_recent_frames=30, conformer_recent_frames=40)
    plain, packed = StreamFlow(make_flow(), settings), PackedFlow(make_flow(), settings, torch.float32)
    prompts = [prepared(plain, 10 + 9 * index, seed=index) for index in range(len(TOTALS))]
    voices = [plain.begin(prompt, 15) for prompt in prompts]
    speakers = [random_speaker(index) for index in range(len(TOTALS))]
    tokens = [random_tokens(total, 50 + index) for index, total in enumerate(TOTALS)]
    cuts = [windows(hops, total) for hops, total in zip(HOPS, TOTALS, strict=True)]
    expected = [
        run_stream(plain, *each, seed=index)[0]
        for index, each in enumerate(zip(voices, tokens, cuts, speakers, strict=True))
    ]
    states = [packed.begin(voice, 15) for voice in prompts]
    for step in range(max(map(len, cuts))):
        active = [index for index, cut in enumerate(cuts) if step < len(cut)]
        rows = []
        for index in active:
            start, end, is_last = cuts[index][step]
            rows.append(FlowInput(states[index], tokens[index][start:end], speakers[index], index, is_last))
        mels, made = packed.forward(rows)
        for index, mel, state in zip(active, mels, made, strict=True):
            torch.testing.assert_close(mel, expected[index][step], atol=FLOW_TOLERANCE, rtol=0)
            states[index] = state


@torch.inference_mode()
@NEEDS_BFLOAT16
def test_bfloat16_products_change_the_mel_little_and_halve_the_memory_of_a_stream() -> None:
    voices, made = [], []
    for dtype in (torch.float32, torch.bfloat16):
        flow = _packed(dtype)
        voices.append(prepared(flow, 12, 0))
        (first,), (state,) = flow.forward([_row(flow.begin(voices[-1], 15), 30)])
        (second,), (state,) = flow.forward([_row(state, 20, seed=1, is_last=True)])
        made.append((torch.cat([first, second], 1), state.store.num_bytes))
    (exact, exact_bytes), (close, close_bytes) = made
    assert _ratio_db(exact, close) > LEAST_DB
    assert close_bytes == exact_bytes / 2
    assert voices[1].num_bytes < 0.8 * voices[0].num_bytes


def test_cores_with_tiles_get_the_products_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_tiles, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda answer=has_tiles: answer)
        assert product_type() is dtype


@torch.inference_mode()
def test_a_chunk_that_failed_behind_the_flow_runs_again_to_the_same_bits() -> None:
    flow = _packed()
    state = flow.begin(prepared(flow, 12, 0), 15)
    _, (state,) = flow.forward([_row(state, 80)])
    first = flow.forward([_row(state, 18, seed=1)])[0][0]
    again, (after,) = flow.forward([_row(state, 18, seed=1)])
    assert torch.equal(first, again[0])
    flow.forward([_row(after, 70, seed=2)])
    with pytest.raises(ValueError, match="a later chunk of the stream has run"):
        flow.forward([_row(state, 18, seed=1)])


@torch.inference_mode()
def test_streams_of_one_voice_share_nothing_that_changes() -> None:
    flow = _packed()
    voice = prepared(flow, 12, 0)
    alone = flow.forward([_row(flow.begin(voice, 15), 30)])[0][0]
    states = [flow.begin(voice, 15), flow.begin(voice, 15)]
    flow.forward([_row(states[0], 60, seed=9)])
    assert torch.equal(flow.forward([_row(states[1], 30)])[0][0], alone)


@torch.inference_mode()
def test_a_long_chunk_leaves_no_memory_behind() -> None:
    flow = _packed(history=HistoryPolicy.PROMPT_AND_RECENT, estimator_recent_frames=10)
    state = flow.begin(prepared(flow, 12, 0), 15)
    sizes = []
    for number, tokens in enumerate((20, 400, 20, 20)):
        _, (state,) = flow.forward([_row(state, tokens, seed=number)])
        sizes.append(state.store.num_bytes)
    assert sizes[1] > 3 * sizes[0]
    assert sizes[3] <= 2 * sizes[0]


@torch.inference_mode()
@pytest.mark.parametrize("lengths", [None, [9, 4, 1]], ids=["full rows", "padded rows"])
def test_the_vocoder_with_columns_in_one_piece_equals_the_plain_one(lengths: list[int] | None) -> None:
    expected, made = _vocoded(lengths, torch.float32)
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)


@torch.inference_mode()
@NEEDS_BFLOAT16
def test_bfloat16_products_change_the_vocoders_samples_little() -> None:
    expected, made = _vocoded([9, 4, 1], torch.bfloat16)
    assert not torch.equal(made, expected)
    assert _ratio_db(expected, made) > LEAST_DB


def _vocoded(lengths: list[int] | None, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples of the plain vocoder and of the one with columns in one piece."""
    hift = fold_weight_norm(make_hift())
    for name, alpha in hift.named_parameters():
        if name.endswith("alpha"):
            alpha[:2] = torch.tensor([0.0, -2.0])
    generator = torch.Generator().manual_seed(1)
    mel = torch.randn(3, 80, 9, generator=generator)
    source = 0.1 * torch.randn(3, 1, 9 * 480, generator=generator)
    rows = None if lengths is None else torch.tensor(lengths)
    return hift(mel, source, rows), ColumnHiFT(hift, dtype)(mel, source, rows)


def _ratio_db(exact: torch.Tensor, close: torch.Tensor) -> float:
    return 20 * float(torch.log10(exact.norm() / (exact - close).norm()))
