"""Texts share the event loop: nothing that is written stops it for long, and nobody cuts a text before its turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TypeVar

import pytest

from gateway.text import LIVE_TEXT, TextFrontEnd, TextOptions, load_text_front_end
from gateway.text.normalization.wetext_normalizer import clauses
from gateway.text.turns import Steps, TextTurns

T = TypeVar("T")
TURN_S = 0.01
LONGEST_STEP_S = 2.0
"""Of the processor's time; a step takes 2 to 50 ms where nothing else runs. What a whole text took was 31 s."""
CHARACTERS = 20_000
WORST = (
    *("A. ", "1. ", "a.b. ", "A.B.C. ", 'A."', "؟ ", "今。", "Am 5. Mai. "),
    *("<!-- ", "<!-- a", "<a b='c ", "<a ", "[a](b ", "![[a]", "[", "<", "&#", "*a ", "_a", "|-", "- ", "1. a\n", "`"),
    *("🙂", "a\ufe0f. ", "\u200d", "a\u0301", " ", "\n", "\u200b", "."),
    *("1) ", "½", "Mr., ", "x-€ ", "a.b@c.d ", "$1.50 ", "9" * 60, "12:30:", "1/1/", "http://a.", "<laughter>A. "),
)
"""What was found to cost most, of some hundred forms."""


class Counting:
    """A clock that goes on by a millisecond whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


async def test_a_long_text_lets_others_run_after_each_turn() -> None:
    turns, passed = TextTurns(TURN_S, Counting()), [0]

    async def others() -> None:
        while True:
            passed.append(0)
            await asyncio.sleep(0)

    def steps() -> Iterator[None]:
        for _ in range(1000):
            passed[-1] += 1
            yield None

    running = asyncio.create_task(others())
    await turns.next_of(steps())
    running.cancel()
    assert sum(passed) == 1000 and max(passed) <= TURN_S / 0.001 + 1


async def test_of_many_texts_one_has_its_turn_at_a_time() -> None:
    turns, order = TextTurns(TURN_S, Counting()), list[int]()

    def steps(text: int) -> Steps[int]:
        for _ in range(30):
            order.append(text)
            yield None
        yield text

    assert await asyncio.gather(*(turns.next_of(steps(text)) for text in range(3))) == [0, 1, 2]
    changes = [text for text, before in zip(order, [None, *order], strict=False) if text != before]
    assert changes[:3] == [0, 1, 2] and len(changes) >= 6


async def test_a_cancelled_wait_loses_no_step() -> None:
    turns, steps = TextTurns(0.0, Counting()), iter([None, None, "segment"])
    waiting = asyncio.create_task(turns.next_of(steps))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await turns.next_of(steps) == "segment"


def test_the_language_is_not_guessed_anew_at_every_full_stop() -> None:
    guessed = list[str]()

    def guess(text: str) -> None:
        guessed.append(text)

    stream = TextFrontEnd({}, guess).open(TextOptions(), LIVE_TEXT)
    segments = stream.push("A. " * (CHARACTERS // 3)) + stream.flush()
    assert len(guessed) <= 9 * len(segments)  # one for each doubling of a segment's 240 letters


@pytest.fixture(scope="module")
def front_end() -> TextFrontEnd:
    return load_text_front_end()


@pytest.mark.slow
@pytest.mark.parametrize("unit", WORST)
@pytest.mark.parametrize("size", [CHARACTERS, 16])
def test_no_step_of_cutting_or_preparing_takes_long(unit: str, size: int, front_end: TextFrontEnd) -> None:
    text = (unit * CHARACTERS)[: CHARACTERS if size == CHARACTERS else 2000]
    stream = front_end.open(TextOptions(), LIVE_TEXT)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    cutting = [stream.cutting(piece) for piece in pieces]
    segments = [each for steps in [*cutting, stream.finishing()] for each in timed(steps) if each is not None]
    assert "".join(segment.text for segment in segments) == text
    for segment in segments[:3] + segments[-1:]:
        timed(stream._preparing(segment))


def timed(steps: Iterator[T]) -> list[T]:
    """Take all steps; each may take so long of this thread's processor time and no longer."""
    taken = list[T]()
    while True:
        began_s = time.thread_time()
        step = next(steps, steps)
        assert time.thread_time() - began_s < LONGEST_STEP_S
        if step is steps:
            return taken
        taken.append(step)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1) " * 200, "Plain words, and more. " * 30, "½" * 500, "今天天气很好，" * 60])
def test_what_costs_much_is_normalised_in_pieces_that_are_the_text(text: str) -> None:
    pieces = list(clauses(text))
    assert "".join(pieces) == text and len(pieces) > 1 and max(map(len, pieces)) <= 300


def test_a_segment_of_plain_words_is_normalised_whole() -> None:
    text = "The train that leaves at nine goes on to the north, where it stays until the morning. " * 2
    assert list(clauses(text)) == [text]
