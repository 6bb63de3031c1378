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


def test_the_guard_redraws_a_recent_token() -> None:
    sampler = make_sampler(replace(PLAIN, window=10, repeat_limit=1))
    drawn = [sampler.sample(peaked_logits(3, 60.0)) for _ in range(40)]
    assert drawn[0] == 3
    places = [place for place, row in enumerate(drawn) if row == 3]
    assert np.diff(places).min() > 10
    unguarded = make_sampler(PLAIN)
    assert [unguarded.sample(peaked_logits(3, 60.0)) for _ in range(40)] == [3] * 40


def test_scores_that_can_not_be_drawn_from_are_told() -> None:
    assert make_sampler(PLAIN).sample(np.full(ROWS, np.nan, dtype=np.float32)) == NOT_FINITE
    sampler = make_sampler(replace(PLAIN, min_tokens=5), closing=tuple(range(ROWS)))
    assert sampler.sample(np.zeros(ROWS, dtype=np.float32)) == NO_TOKEN
