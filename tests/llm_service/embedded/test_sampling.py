"""Drawing tokens: nucleus, penalties, masks and the repetition guard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from llm_service.embedded.sampling import TokenSampler
from llm_service.embedded.steps import BANNED, CLOSING, NO_TOKEN, NOT_FINITE, SEEN, AnswerStart

ROWS = 40
END_ROWS = (37, 38, 39)
PLAIN = AnswerStart(
    slot=0, seed=1, prompt_tokens=3, drawn=0, min_tokens=0, window=0, repeat_limit=0, top_k=0, temperature=1.0,
    top_p=1.0, min_p=0.0, penalty=1.0, recent_rows=(), pages=(), flags=np.zeros(ROWS, np.int8),
)  # fmt: skip


def make_sampler(start: AnswerStart, **flags: tuple[int, ...]) -> TokenSampler:
    """Begin, with the rows that are seen, banned or closing; end rows close."""
    marks = np.zeros(ROWS, np.int8)
    marks[list(END_ROWS)] = CLOSING
    for name, bit in (("seen", SEEN), ("banned", BANNED), ("closing", CLOSING)):
        marks[list(flags.get(name, ()))] |= bit
    return TokenSampler(replace(start, flags=marks))


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
    sampler = make_sampler(replace(PLAIN, window=10, repeat_limit=1))
    drawn = [sampler.sample(peaked_logits(3, 60.0)) for _ in range(40)]
    assert drawn[0] == 3
    places = [place for place, row in enumerate(drawn) if row == 3]
    assert np.diff(places).min() > 10
    unguarded = make_sampler(PLAIN)
    assert [unguarded.sample(peaked_logits(3, 60.0)) for _ in range(40)] == [3] * 40


def test_the_repetition_penalty_counts_prompt_and_answer() -> None:
    logits = np.zeros(ROWS, dtype=np.float32)
    logits[1], logits[2] = 2.0, 1.5
    greedy = replace(PLAIN, temperature=0.0, penalty=2.0)
    assert make_sampler(greedy).sample(logits) == 1
    assert make_sampler(greedy, seen=(1,)).sample(logits) == 2
    sampler = make_sampler(greedy)
    assert [sampler.sample(logits) for _ in range(2)] == [1, 2]


def test_end_and_stop_rows_wait_for_min_tokens() -> None:
    sampler = make_sampler(replace(PLAIN, min_tokens=3), closing=(5,))
    logits = peaked_logits(37, 60.0)
    logits[5] = 60.0
    drawn = [sampler.sample(logits) for _ in range(4)]
    assert not set(drawn[:3]) & {5, *END_ROWS}
    assert drawn[3] in (5, 37)


def test_banned_rows_are_impossible() -> None:
    sampler = make_sampler(PLAIN, banned=END_ROWS)
    assert not {sampler.sample(peaked_logits(37, 60.0)) for _ in range(50)} & set(END_ROWS)


def test_scores_that_can_not_be_drawn_from_are_told() -> None:
    assert make_sampler(PLAIN).sample(np.full(ROWS, np.nan, dtype=np.float32)) == NOT_FINITE
    sampler = make_sampler(replace(PLAIN, min_tokens=5), closing=tuple(range(ROWS)))
    assert sampler.sample(np.zeros(ROWS, dtype=np.float32)) == NO_TOKEN
