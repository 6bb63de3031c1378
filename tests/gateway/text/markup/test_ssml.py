"""SSML: what is spoken of it, what is refused with line and column, and that pieces change nothing."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequestError
from gateway.text import LIVE_TEXT, Normalization, SpokenSegment, TextFrontEnd, TextOptions
from gateway.text.manner import Manner
from gateway.text.ssml import check_ssml
from tests.gateway.text.builders import CASES, prepared, shouting

FRONT_END = TextFrontEnd({"en": shouting}, lambda text: None)
SSML = TextOptions("en", is_ssml=True)


def spoken(text: str, size: int = 10**6, options: TextOptions = SSML) -> list[SpokenSegment]:
    return prepared(FRONT_END, text, options, LIVE_TEXT, size)


def words(text: str) -> str:
    return " ".join("".join(each.text + " " for each in spoken(text) if each.is_speakable).split())


@pytest.mark.parametrize(("text", "expected"), CASES["ssml"])
def test_ssml_is_spoken(text: str, expected: str) -> None:
    check_ssml(text, "en")
    assert words(text) == expected


def test_breaks_and_manners_cut_the_text() -> None:
    text = (
        '<speak>One.<break time="300ms"/> <prosody rate="slow" volume="-6dB">Two. <lang xml:lang="zh-CN">三。</lang>'
        "</prosody> Four.</speak>"
    )
    said = [each for each in spoken(text) if each.is_speakable]
    assert [(each.text.strip(), each.source.pause_s, each.language) for each in said] == [
        ("One.", 0.3, "en"),
        ("Two.", 0.0, "en"),
        ("三。", 0.0, "zh"),
        ("Four.", 0.0, "en"),
    ]
    slow = said[1].source.manner
    assert slow is not None and (slow.rate, slow.gain) == (0.75, pytest.approx(0.501, abs=1e-3))
    assert [each.source.manner for each in (said[0], said[3])] == [None, None]
    assert said[2].source.manner == Manner("zh", slow.rate, slow.gain)


def test_ssml_acts_where_normalisation_is_off_too() -> None:
    options = TextOptions("en", Normalization.OFF, is_ssml=True)
    said = spoken('I have 5<break time="1s"/> or <say-as interpret-as="digits">5</say-as>.', options=options)
    assert [(each.text.strip(), each.source.pause_s) for each in said] == [("I have 5.", 1.0), ("or five.", 0.0)]


ENDLESS = [
    (f'<say-as interpret-as="digits">{"1" * 201}</say-as>', "holds more than 200 characters"),
    ("<p>" * 40, "<p> lies within 32 others"),
    ('a<break time="10s"/>' * 61, "610 s together"),
]


@pytest.mark.parametrize(("text", "told"), [*CASES["refused ssml"], *ENDLESS])
def test_what_is_not_obeyed_is_refused_with_its_place(text: str, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told) as refused:
        check_ssml(text, "en")
    assert refused.value.param == "input"


@pytest.mark.parametrize("text", ["One <bre", "One &am", '<say-as interpret-as="digits">5'])
def test_a_flush_within_a_tag_is_refused(text: str) -> None:
    stream = FRONT_END.open(SSML, LIVE_TEXT)
    stream.push(text)
    with pytest.raises(InvalidRequestError, match="ends within a tag"):
        stream.flush()


def test_text_may_go_on_behind_a_flush() -> None:
    stream = FRONT_END.open(SSML, LIVE_TEXT)
    segments = [*stream.push("<speak><p>One. "), *stream.flush(), *stream.push("Two</p></speak>"), *stream.flush()]
    assert " ".join(stream.prepare(each).text.strip() for each in segments) == "One. Two."


_PIECES = CASES["ssml pieces"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(_PIECES), max_size=15).map("".join), st.integers(1, 7))
@example("<speak>One</speak>", 1)
@example("<s/>One<p/>", 3)
def test_ssml_is_read_alike_however_it_is_divided(text: str, size: int) -> None:
    try:
        check_ssml(text, "en")
    except InvalidRequestError:
        return

    def told(segments: list[SpokenSegment]) -> list[object]:
        return [(each.source.text, each.text, each.source.pause_s, each.source.manner) for each in segments]

    assert told(spoken(text, size)) == told(spoken(text))


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["a ", "<s>a</s>", "&amp;", "<break/>a", "\n"])
def test_a_hundred_thousand_characters_are_checked_in_linear_time(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    began_s = time.process_time()
    try:
        check_ssml(text, "en")
    except InvalidRequestError as error:
        assert "together" in str(error)
    assert time.process_time() - began_s < 10, "0.5 s is usual; a quadratic reading takes minutes"
