"""The counter-based noise."""

from __future__ import annotations

import torch

from token2wav_service.models.noise import NoiseDomain, counter_normal, counter_uniform, philox_4x32


def _words(values: list[int]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


def test_philox_matches_the_published_known_answers() -> None:
    ones = 0xFFFFFFFF
    cases = [
        ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([ones] * 4, [ones] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ]
    for counter, key, expected in cases:
        assert [int(word) for word in philox_4x32(_words(counter), _words(key))] == expected  # type: ignore[arg-type]


def test_noise_depends_on_seed_position_and_domain_only() -> None:
    seeds, starts = torch.tensor([5, 2**40]), torch.tensor([0, 1000])
    both = counter_normal(seeds, starts, 50, 80, NoiseDomain.FLOW)
    later = counter_normal(seeds[:1], starts[:1] + 20, 30, 80, NoiseDomain.FLOW)
    assert torch.equal(both[0, 20:], later[0])
    assert not torch.equal(both[0], counter_normal(seeds, starts, 50, 80, NoiseDomain.SOURCE)[0])


def test_noise_is_standard_normal() -> None:
    values = counter_normal(torch.tensor([1]), torch.tensor([0]), 2000, 81, NoiseDomain.SOURCE).double().flatten()
    assert abs(values.mean()) < 0.01 and abs(values.std() - 1) < 0.01
    assert abs((values.abs() > 1.96).double().mean() - 0.05) < 0.003
    assert bool(torch.isfinite(values).all())


def test_uniform_noise_fills_0_to_1_and_follows_seed_and_position() -> None:
    seeds, starts = torch.tensor([1, 2]), torch.tensor([0, 0])
    both = counter_uniform(seeds, starts, 500, 81, NoiseDomain.SOURCE)
    later = counter_uniform(seeds[:1], starts[:1] + 100, 400, 81, NoiseDomain.SOURCE)
    assert both.dtype == torch.float32 and bool(((both >= 0) & (both < 1)).all())
    assert abs(both.double().mean() - 0.5) < 0.005 and abs(both.double().var() - 1 / 12) < 0.001
    assert torch.equal(both[0, 100:], later[0])
    assert not torch.equal(both[0], both[1])
