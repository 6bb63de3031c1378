"""Drawing tokens: nucleus, penalties, masks and the repetition guard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from llm_service.embedded.sampling import RepetitionGuard, TokenSampler
from llm_service.embedded.types import SamplingParams
from llm_service.errors import GenerationFailedError

ROWS = 40
END_ROWS = (37, 38, 39)
PLAIN = SamplingParams(max_tokens=100, seed=1, temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0)
NO_GUARD = RepetitionGuard(window_tokens=0)


def make_sampler(
    params: SamplingParams,
    guard: RepetitionGuard = NO_GUARD,
    prompt_rows: tuple[int, ...] = (),
    stop_rows: tuple[int, ...] = (),
) -> TokenSampler:
    return TokenSampler(params, guard, ROWS, prompt_rows, END_ROWS, stop_rows)


def peaked_logits(row: int, height: float = 20.0) -> npt.NDArray[np.float32]:
    logits = np.zeros(ROWS, dtype=np.float32)
    logits[row] = height
    return logits


def test_equal_seeds_draw_equal_tokens_and_others_differ() -> None:
    logits = np.random.default_rng(0).normal(size=ROWS).astype(np.float32)

    def draw(seed: int) -> list[int]:
        sampler = make_sampler(replace(PLAIN, seed=seed))
        return [sampler.sample(logits) for _ in range(50)]

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)
    assert draw(-1) == draw(-1)


def test_draws_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2] + [1e-9] * (ROWS - 3))).astype(np.float32)
    sampler = make_sampler(PLAIN)
    counts = np.bincount([sampler.sample(logits) for _ in range(4000)], minlength=ROWS) / 4000
    np.testing.assert_allclose(counts[:3], [0.5, 0.3, 0.2], atol=0.04)


def test_temperature_zero_takes_the_likeliest() -> None:
    sampler = make_sampler(replace(PLAIN, temperature=0.0))
    assert [sampler.sample(peaked_logits(4, 0.1)) for _ in range(5)] == [4] * 5


def test_top_k_and_top_p_keep_only_the_nucleus() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05] + [1e-9] * (ROWS - 4))).astype(np.float32)
    top_k = make_sampler(replace(PLAIN, top_k=2))
    assert {top_k.sample(logits) for _ in range(300)} == {0, 1}
    # Taken while the mass so far is under top_p: 0.5 is, 0.8 is not.
    top_p = make_sampler(replace(PLAIN, top_p=0.7))
    assert {top_p.sample(logits) for _ in range(300)} == {0, 1}
    tiny = make_sampler(replace(PLAIN, top_p=1e-6))
    assert {tiny.sample(logits) for _ in range(50)} == {0}


def test_the_guard_redraws_a_recent_token() -> None:
    sampler = make_sampler(PLAIN, RepetitionGuard(window_tokens=10, tau=0.1))
    drawn = [sampler.sample(peaked_logits(3, 60.0)) for _ in range(40)]
    assert drawn[0] == 3
    places = [place for place, row in enumerate(drawn) if row == 3]
    assert np.diff(places).min() > 10
    unguarded = make_sampler(PLAIN)
    assert [unguarded.sample(peaked_logits(3, 60.0)) for _ in range(40)] == [3] * 40


def test_the_guard_counts_the_share_of_its_window() -> None:
    guard = RepetitionGuard(window_tokens=10, tau=0.2)
    assert not guard.is_repeated(3, [3, 1, 2])
    assert guard.is_repeated(3, [3, 1, 3])


def test_the_repetition_penalty_counts_prompt_and_answer() -> None:
    logits = np.zeros(ROWS, dtype=np.float32)
    logits[1], logits[2] = 2.0, 1.5
    greedy = replace(PLAIN, temperature=0.0, repetition_penalty=2.0)
    assert make_sampler(greedy).sample(logits) == 1
    assert make_sampler(greedy, prompt_rows=(1,)).sample(logits) == 2
    sampler = make_sampler(greedy)
    assert [sampler.sample(logits) for _ in range(2)] == [1, 2]


def test_end_and_stop_rows_wait_for_min_tokens() -> None:
    sampler = make_sampler(replace(PLAIN, min_tokens=3), stop_rows=(5,))
    logits = peaked_logits(37, 60.0)
    logits[5] = 60.0
    drawn = [sampler.sample(logits) for _ in range(4)]
    assert not set(drawn[:3]) & {5, *END_ROWS}
    assert drawn[3] in (5, 37)


def test_ignore_eos_makes_end_rows_impossible() -> None:
    sampler = make_sampler(replace(PLAIN, ignore_eos=True))
    assert not {sampler.sample(peaked_logits(37, 60.0)) for _ in range(50)} & set(END_ROWS)


def test_logits_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(GenerationFailedError, match="not finite"):
        make_sampler(PLAIN).sample(np.full(ROWS, np.nan, dtype=np.float32))


def test_excluding_every_token_is_an_error() -> None:
    sampler = make_sampler(replace(PLAIN, min_tokens=5), stop_rows=tuple(range(ROWS)))
    with pytest.raises(GenerationFailedError, match="no token is possible"):
        sampler.sample(np.zeros(ROWS, dtype=np.float32))
