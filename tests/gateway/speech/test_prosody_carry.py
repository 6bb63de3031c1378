"""What a segment takes over from those before it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import Utterance
from gateway.speech.prosody_carry import CarryLimits, ProsodyCarry

LIMITS = CarryLimits(max_speech_tokens=10, max_text_characters=20)
segments = st.lists(st.tuples(st.text(max_size=12), st.lists(st.integers(0, 6560), max_size=6)), max_size=8)


def test_an_utterance_goes_on_from_the_voice_and_then_from_what_was_said() -> None:
    carry = ProsodyCarry(LIMITS).after("One. ", [1, 2]).after("Two. ", [3])
    continued = carry.continued(Utterance("Three.", "Voice. ", (9,)))
    assert continued == Utterance("Three.", "Voice. One. Two. ", (9, 1, 2, 3))


def test_only_as_much_is_carried_as_leaves_an_llm_of_short_texts_room_for_the_new_one() -> None:
    carry = ProsodyCarry(CarryLimits(max_letters=16)).after("One. ", [1, 2]).after("Two. ", [3])
    asked = [carry.continued(Utterance(text, "", ())) for text in ("Three.", "Seventeen.", "Seventeen eighteen.")]
    assert [each.reference_text for each in asked] == ["One. Two. ", "Two. ", ""]
    assert [each.reference_tokens for each in asked] == [(1, 2, 3), (3,), ()]


def test_nothing_is_carried_into_the_first_segment() -> None:
    utterance = Utterance("One.", "Voice. ", (9,))
    assert ProsodyCarry(LIMITS).continued(utterance) == utterance


@pytest.mark.parametrize(
    ("text", "tokens"), [pytest.param("x", [0] * 11, id="tokens"), pytest.param("x" * 21, [0], id="characters")]
)
def test_a_segment_beyond_the_limits_breaks_the_thread(text: str, tokens: list[int]) -> None:
    assert ProsodyCarry(LIMITS).after("One. ", [1]).after(text, tokens) == ProsodyCarry(LIMITS)


@given(segments)
def test_the_latest_segments_are_carried_whole_as_far_as_the_limits_allow(spoken: list[tuple[str, list[int]]]) -> None:
    carry = ProsodyCarry(LIMITS)
    for text, tokens in spoken:
        carry = carry.after(text, tokens)
    kept = [(part.text, list(part.speech_tokens)) for part in carry.parts]
    assert kept == spoken[len(spoken) - len(kept) :]
    assert len(carry.speech_tokens) <= LIMITS.max_speech_tokens
    assert len(carry.text) <= LIMITS.max_text_characters
    if len(kept) < len(spoken):
        text, tokens = spoken[-len(kept) - 1]
        is_beyond = len(carry.speech_tokens) + len(tokens) > 10 or len(carry.text) + len(text) > 20
        assert is_beyond


def test_a_limit_of_no_tokens_carries_nothing() -> None:
    assert ProsodyCarry(CarryLimits(max_speech_tokens=0)).after("One. ", [1]).parts == ()
