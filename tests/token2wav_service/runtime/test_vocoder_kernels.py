"""The vocoder's kernels against plain tensor code and the plain modules, by Triton's interpreter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.token2wav_service.runtime.plain_convolution import activate, convolve
from tests.token2wav_service.streaming.family_factory import normal
from tests.token2wav_service.streaming.flow_factory import make_hift
from token2wav_service.models.vocoder.hift import MAX_MAGNITUDE, HiFT, fold_weight_norm
from token2wav_service.runtime.kernels import vocoder_kernels as kernels
from token2wav_service.runtime.kernels import vocoder_ops as ops
from token2wav_service.runtime.kernels.vocoder_ops import Activation, Convolution, Ends, Tiles
from token2wav_service.runtime.slots.vocoder_network import VocoderNetwork

pytestmark = pytest.mark.slow

TILES = Tiles(64, 16, 16, 4, 1)
LENGTHS = torch.tensor([5, 3])
SNAKE, ELU, LEAKY = (kind.value for kind in (kernels.SNAKE, kernels.ELU, kernels.LEAKY))


@pytest.fixture(scope="module")
def hift() -> HiFT:
    return fold_weight_norm(make_hift())


def _convolution(taps: tuple[int, ...], inner: int, channels: int, **sizes: int) -> Convolution:
    weight = normal(sum(taps), inner, channels, seed=1) * (sum(taps) * inner) ** -0.5
    return Convolution(weight, normal(len(taps), channels, seed=2), taps, **sizes)


@pytest.mark.parametrize(
    ("convolution", "activation", "has_residual"),
    [
        (_convolution((11, 7, 3), 20, 20, dilation=3), Activation(SNAKE, normal(3, 20, seed=3).abs() + 0.1), True),
        (_convolution((7, 3), 16, 24), Activation(SNAKE, normal(2, 24, seed=3).abs() + 0.1), False),
        (_convolution((3,), 16, 40, pad=1), Activation(ELU), False),
        (_convolution((7,), 20, 16, pad=3), Activation(LEAKY, slope=0.1), True),
        (_convolution((6,), 32, 8, stride=3, pad=1), None, False),
    ],
)
def test_convolution_equals_pytorchs(
    convolution: Convolution, activation: Activation | None, has_residual: bool
) -> None:
    """Branches of different taps, dilations, strides, channels that fill no block, rows that end early."""
    inner, channels = convolution.weight.shape[1:]
    branches, columns = len(convolution.taps), 70 // convolution.stride
    x = normal(2, 70, inner) if branches == 1 else normal(branches, 2, 70, inner)
    shape = (2, columns, channels) if branches == 1 else (branches, 2, columns, channels)
    residual = normal(*shape, seed=4) if has_residual else None
    ends = Ends(torch.tensor([5, 2]), columns // 6, 1)
    options: dict[str, Any] = {"residual": residual, "activation": activation}
    got = ops.convolve(x, convolution, ends, columns, tiles=TILES, **options)
    expected = convolve(x, convolution, ends, columns, **options)
    for one, other in zip(got, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_half_precision_saturates() -> None:
    weight = torch.full((1, 16, 16), 200.0, dtype=torch.float16)
    x = torch.full((1, 8, 16), 100.0, dtype=torch.float16)
    made, _ = ops.convolve(
        x, Convolution(weight, torch.zeros(1, 16), (1,)), Ends(torch.tensor([8]), 1), 8, tiles=Tiles(16, 16, 16, 4, 1)
    )
    assert made is not None and made.isfinite().all() and made.max() == torch.finfo(torch.float16).max


def test_network_equals_the_plain_vocoder_for_rows_of_any_length(hift: HiFT) -> None:
    network = VocoderNetwork(hift, torch.float32)
    mel, source = normal(2, 80, 5), normal(2, 2400, seed=1) * 0.1
    ended = (mel * (torch.arange(5) < LENGTHS[:, None])[:, None]).transpose(1, 2).contiguous()
    torch.testing.assert_close(
        network.decode(ended, source, LENGTHS), hift(mel, source[:, None], LENGTHS), atol=1e-5, rtol=0
    )
    pitch, expected = network.predict_pitch(ended, LENGTHS).abs(), hift.f0_predictor(mel, LENGTHS)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(pitch[row, :length], expected[row, :length], atol=1e-3, rtol=1e-5)


def test_spectrum_and_its_inverse_equal_the_plain_ones(hift: HiFT) -> None:
    spectrum = VocoderNetwork(hift, torch.float32).spectrum
    source = normal(2, 2400)
    got = spectrum.analyse(source, LENGTHS, torch.float32)
    torch.testing.assert_close(got[..., :18], hift.stft(source, LENGTHS).transpose(1, 2), atol=1e-5, rtol=0)
    assert not got[..., 18:].any()
    spectra = normal(2, 601, 18, seed=1)
    mask = (torch.arange(601) < (LENGTHS * 120 + 1)[:, None])[:, None].float()
    expected = hift.samples(spectra.transpose(1, 2), mask)
    held, fade, slots = normal(3, 480, seed=2), normal(960, seed=3), torch.tensor([2, 1])
    fades = ops.Fades(torch.tensor([1, 0]), slots, held, fade)
    limits = (hift.config.audio_limit, MAX_MAGNITUDE)
    made = spectrum.synthesise(spectra, LENGTHS, limits, fades)
    expected[0, :480] = expected[0, :480] * fade[:480] + held[2] * fade[480:]
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(made[row, : 480 * length], expected[row, : 480 * length], atol=1e-5, rtol=0)
        assert not made[row, 480 * length :].any()


def test_source_equals_the_plain_one(hift: HiFT) -> None:
    module = hift.m_source
    pitch = torch.tensor([[120.0, 130.0, 0.0, 5.0, 140.0], [200.0, 210.0, 190.0, 7.0, 7.0]])
    has_speech, slots, tails = torch.tensor([1, 0]), torch.tensor([2, 1]), torch.tensor([2, 0])
    carried, cached = normal(3, 9, seed=1).abs(), normal(3, 960, seed=2)
    before, noise = carried.clone(), normal(2, 5, 480 * 9, seed=3)
    phase, edges = module.phase(pitch, LENGTHS)
    offset = torch.zeros(2, 9)
    offset[0] = (before[2] - edges[0, :, 1]) % (2 * math.pi)
    expected = module(pitch, noise.view(2, -1, 9), phase + offset[:, :, None])[:, 0]
    expected[0, :960] = cached[2]
    # The pitch's sign means nothing.
    phases = ops.integrate_pitch(-pitch, LENGTHS, tails, has_speech, slots, carried, 480, 24_000)
    linear, c = module.l_linear, hift.config
    merge = ops.SourceMerge(linear.weight.flatten(), linear.bias, c.nsf_alpha, c.nsf_sigma, c.nsf_voiced_threshold)
    got = ops.make_source(-pitch, phases, noise, merge, LENGTHS, has_speech, slots, cached, 480)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(got[row, : 480 * length], expected[row, : 480 * length], atol=2e-3, rtol=0)
        gap = (carried[slots[row]] - edges[row, :, length - 1] - offset[row] + math.pi) % (2 * math.pi) - math.pi
        assert gap.abs().max() < 1e-2
    assert torch.equal(carried[0], before[0])


def test_tails_are_joined_and_kept() -> None:
    tail, mel, slots = normal(3, 80, 8), normal(2, 6, 80, seed=1), torch.tensor([2, 1])
    held, new = torch.tensor([8, 3]), torch.tensor([6, 2])
    joined, half = ops.join_tail(tail, mel, slots, held, new, torch.float16)
    for row in range(2):
        expected = torch.cat([tail[slots[row], :, : held[row]].T, mel[row, : new[row]]])
        assert torch.equal(joined[row, : len(expected)], expected)
        assert not joined[row, len(expected) :].any()
    assert torch.equal(half, joined.half())
    source, speech, lengths = normal(2, 140, seed=2), normal(2, 140, seed=3), held + new
    tails = (tail.clone(), torch.zeros(3, 80), torch.zeros(3, 80))
    ops.keep_tails(joined, source, speech, slots, lengths, tails)
    assert torch.equal(tails[0][2], joined[0, 6:14].T)
    assert torch.equal(tails[0][1, :, :5], joined[1, :5].T)
    for kept, values in zip(tails[1:], (source, speech), strict=True):
        assert torch.equal(kept[2], values[0, 60:140])
        assert torch.equal(kept[1, :50], values[1, :50])


def test_sums_and_means() -> None:
    ends = Ends(torch.tensor([2, 4]), 2, 1)
    first, second, alphas = normal(2, 9, 20), normal(2, 10, 20, seed=1), normal(3, 20, seed=2).abs() + 0.1
    total, snakes = ops.fan_out(first, second, alphas, ends, True)
    reflected = functional.pad(first.transpose(1, 2), (1, 0), mode="reflect").transpose(1, 2)
    expected = (reflected + second).masked_fill(
        torch.arange(10)[None, :, None] >= torch.tensor([5, 9])[:, None, None], 0
    )
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(snakes, activate(Activation(SNAKE, alphas), expected[None].expand(3, -1, -1, -1)))
    torch.testing.assert_close(ops.mean_leaky(snakes, 0.1), functional.leaky_relu(snakes.mean(0), 0.1))
