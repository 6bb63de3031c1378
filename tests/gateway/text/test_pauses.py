"""`<break>` tags: what they ask for, and where the text is cut for them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequestError
from gateway.text import LIVE_TEXT, WHOLE_TEXT, Normalization, SpokenSegment, TextOptions, plain_front_end
from gateway.text.manner import check_breaks, read_break
from tests.gateway.text.builders import CASES, prepared


@pytest.mark.parametrize(("attributes", "seconds"), CASES["breaks"])
def test_a_break_lasts_what_it_says(attributes: str, seconds: float) -> None:
    assert read_break(attributes) == pytest.approx(seconds)


@pytest.mark.parametrize(("attributes", "told"), CASES["refused breaks"])
def test_a_break_that_can_not_be_had_is_refused(attributes: str, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        read_break(attributes)
    with pytest.raises(InvalidRequestError, match=told):
        check_breaks(f"One.<break{attributes}/> Two.")


def test_all_breaks_of_a_text_have_a_limit_together() -> None:
    check_breaks('a<break time="10s"/>' * 60)
    with pytest.raises(InvalidRequestError, match="610 s together, the limit is 600 s"):
        check_breaks('a<break time="10s"/>' * 61)


ENGLISH = TextOptions("en")


def spoken(text: str, options: TextOptions = ENGLISH, size: int = 10**6) -> list[SpokenSegment]:
    return prepared(plain_front_end(), text, options, LIVE_TEXT, size)


def test_a_break_ends_its_segment_and_says_how_long_the_silence_is() -> None:
    first, second = spoken('Wait <break time="300ms"/> for it.')
    assert (first.text, first.source.text, first.source.pause_s) == ("Wait. ", 'Wait <break time="300ms"/>', 0.3)
    assert first.source.text[first.source.pause_from :] == '<break time="300ms"/>'
    assert (second.text.strip(), second.source.pause_s) == ("for it.", 0.0)


def test_breaks_before_behind_and_beside_each_other_are_all_kept() -> None:
    segments = spoken('<break time="1s"/>One.<break/> <break time="2s"/>Two.<break time="3s"/>')
    assert [(each.text.strip(), each.is_speakable, each.source.pause_s) for each in segments] == [
        ("", False, 1.0),
        ("One.", True, 0.75),
        ("", False, 2.0),
        ("Two.", True, 3.0),
    ]


def test_without_normalisation_a_break_is_read_as_it_is_written() -> None:
    text = 'Wait <break time="99 s"/> for it.'
    (segment,) = spoken(text, TextOptions("en", Normalization.OFF))
    assert (segment.text, segment.source.pause) == (text, None)


def test_a_bad_break_in_a_text_that_grows_is_refused_once_and_left_out() -> None:
    stream = plain_front_end().open(TextOptions("en"), LIVE_TEXT)
    with pytest.raises(InvalidRequestError, match="the longest is 10s"):
        stream.push('One <break time="11s"/> two. ')
    assert "".join(stream.prepare(each).text for each in stream.flush()).strip() == "One two."


def test_a_text_that_grows_has_a_limit_of_silence_between_two_flushes() -> None:
    stream = plain_front_end().open(TextOptions("en"), WHOLE_TEXT)
    for _ in range(2):
        stream.push('One.<break time="10s"/>' * 60)
        stream.flush()
    with pytest.raises(InvalidRequestError, match="610 s together"):
        stream.push('One.<break time="10s"/>' * 61)


_PIECES = ["One", " ", ". ", "two, ", "<b>", "</b>", "\n", "# ", "- ", "<p>", "🙂", '<break time="1s"/>', "<break/>"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(_PIECES), max_size=25).map("".join), st.integers(1, 7))
def test_segments_and_pauses_are_alike_however_a_text_is_divided(text: str, size: int) -> None:
    def told(segments: list[SpokenSegment]) -> list[tuple[str, str, float]]:
        return [(each.source.text, each.text, each.source.pause_s) for each in segments]

    assert told(spoken(text, size=size)) == told(spoken(text))
