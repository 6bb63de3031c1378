"""How long the speech of a segment may be: long enough for any good one, short enough to end a babbling one."""

from __future__ import annotations

import pytest

from gateway.llm.length import longest_speech
from llm_service.vocab import SPEECH_TOKENS_PER_SECOND

REFERENCE = "The quick brown fox jumps over the lazy dog and runs into the wood."
AT_USUAL_PACE = [0] * int(1.6 * len(REFERENCE))


def longest_s(text: str, tokens: list[int] = AT_USUAL_PACE, reference: str = REFERENCE) -> float:
    return longest_speech(text, reference, tokens) / SPEECH_TOKENS_PER_SECOND


@pytest.mark.parametrize(
    ("text", "usual_s"),
    [
        ("Yes.", 1.6),
        ("Please bring the blue folder.", 1.9),
        ("I thought you were against me.", 2.3),
        ("NASA, IBM and the FBI.", 3.0),
        ("$5 & 7% = 3", 3.5),
        ("[laughter]", 1.5),
        ("今天天气很好，我们去公园吧！", 3.2),
    ],
)
def test_usual_speech_fits_and_babble_does_not(text: str, usual_s: float) -> None:
    assert usual_s * 1.2 < longest_s(text) < usual_s * 2 + 4


def test_a_slow_voice_may_take_longer() -> None:
    text = "Please bring the blue folder."
    assert longest_s(text, [0] * 3 * len(REFERENCE)) > 1.5 * longest_s(text)


@pytest.mark.parametrize(
    ("reference", "tokens"), [("", []), ("", [0] * 9), (REFERENCE, []), (REFERENCE, [0]), ("a", [0] * 900)]
)
def test_a_prompt_that_tells_no_pace_bounds_loosely(reference: str, tokens: list[int]) -> None:
    assert 3 < longest_s("Please bring the blue folder.", tokens, reference) < 12
