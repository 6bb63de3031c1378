"""The conformer on fused kernels against the plain module, by Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.token2wav_service.streaming.flow_factory import make_flow, randomise
from token2wav_service.models.flow.encoder import ConformerEncoder, EncoderHistory, EncoderUpdate
from token2wav_service.runtime.kernels import attention_ops
from token2wav_service.runtime.kernels.attention_ops import KeyPlaces
from token2wav_service.runtime.slots.fused_encoder import EncoderTails, FusedEncoder

pytestmark = pytest.mark.slow

WINDOW, SIZE, SLOTS = 12, 6, 4
PROMPTS = (8, 12, 10)
GENERATED = torch.tensor([0, 8, 30])
CHOSEN = torch.tensor([2, 1, 3])
TOKENS, SPOKEN = torch.tensor([9, 7, 4]), torch.tensor([6, 4, 4])
IS_LAST = torch.tensor([False, False, True])


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _history(prompt: Tensor, window: Tensor, made: int) -> Tensor:
    """[L, 1, h, S, 2d] prompt and ring of one row in time order."""
    size = window.shape[2]
    places = [frame % size for frame in range(max(0, made - size), made)]
    return torch.cat([prompt, window[:, :, places]], 2)[:, None]


@pytest.mark.parametrize(("splits", "channels"), [(1, 32), (2, 32), (2, 48)])
def test_fused_encoder_equals_the_plain_one_for_every_row(
    splits: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that begin, go on, and end; rings that overflow; keys attended to at once and in parts."""
    monkeypatch.setattr(attention_ops, "choose_splits", lambda *_: splits)
    c = replace(make_flow().encoder.config, input_size=channels, output_size=channels)
    encoder = randomise(ConformerEncoder(c), 0)
    heads, width = c.attention_heads, 2 * c.head_dim
    token_prompts = [_normal(c.num_blocks, heads, n // 2, width, seed=n) for n in PROMPTS]
    frame_prompts = [_normal(c.num_up_blocks, heads, n, width, seed=n + 1) for n in PROMPTS]
    token_window = _normal(SLOTS, c.num_blocks, heads, WINDOW // 2, width, seed=1)
    frame_window = _normal(SLOTS, c.num_up_blocks, heads, WINDOW, width, seed=2)
    tails = EncoderTails(_normal(SLOTS, channels, 2, seed=3), _normal(SLOTS, channels, 4, seed=4))
    embedded = _normal(3, SIZE + 3, channels, seed=5)
    embedded = embedded * (torch.arange(SIZE + 3) < TOKENS[:, None])[:, :, None]
    expected: list[tuple[Tensor, EncoderUpdate]] = []
    for row, slot in enumerate(CHOSEN):
        made, one = int(GENERATED[row]), slice(row, row + 1)
        tokens = _history(token_prompts[row], token_window[slot], made // 2)
        frames = _history(frame_prompts[row], frame_window[slot], made)
        counts = [torch.tensor([kv.shape[3]]) for kv in (tokens, frames)]
        history = EncoderHistory(tokens, frames, *counts, tails.lookahead[slot][None], tails.upsample[slot][None])
        hidden, _, update = encoder(embedded[one, : TOKENS[row]], TOKENS[one], IS_LAST[one], history)
        expected.append((hidden[0], update))
    places = [
        KeyPlaces(
            CHOSEN, torch.tensor([p.data_ptr() for p in prompts]), torch.tensor(PROMPTS) // stride,
            GENERATED // stride, SPOKEN * 2 // stride,
        )
        for prompts, stride in ((token_prompts, 2), (frame_prompts, 1))
    ]  # fmt: skip
    fused = FusedEncoder(encoder, 32, (SIZE,))
    windows = (token_window, frame_window)
    got = fused.encode(embedded, TOKENS, SPOKEN, (places[0], places[1]), windows, tails)
    for row, slot in enumerate(CHOSEN):
        hidden, update = expected[row]
        frames_made = 2 * int(SPOKEN[row])
        torch.testing.assert_close(got[row, :frames_made], hidden, atol=1e-4, rtol=0)
        torch.testing.assert_close(tails.lookahead[slot], update.lookahead_tail[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(tails.upsample[slot], update.upsample_tail[0], atol=1e-4, rtol=0)
        for window, kv, stride in ((token_window, update.token_kv, 2), (frame_window, update.frame_kv, 1)):
            for frame in range(frames_made // stride):
                place = (int(GENERATED[row]) // stride + frame) % window.shape[3]
                torch.testing.assert_close(window[slot, :, :, place], kv[:, 0, :, frame], atol=1e-4, rtol=0)
