"""The text front end as its users see it; its libraries are stood in for where they are not the point."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from hypothesis import given

from gateway.errors import InvalidRequestError
from gateway.text import (
    LIVE_TEXT,
    WHOLE_TEXT,
    Normalization,
    Segment,
    SpokenSegment,
    TextFrontEnd,
    TextOptions,
    load_text_front_end,
)
from gateway.text.breaks import ended
from gateway.text.normalization import wetext_normalizer
from gateway.text.normalization.language import DeclaredLanguages
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.text.builders import CASES, SHORT, prepared, shouting, source_position, texts_in_pieces

SHOUTING = TextFrontEnd({"en": shouting, "pt-br": shouting}, lambda text: "en" if "the" in text else None)
ENGLISH = TextOptions(language="en-US")
OFFLINE = """
import socket, sys
def refuse(*args, **kwargs):
    raise OSError("the network is cut")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from gateway.text import WHOLE_TEXT, TextOptions, load_text_front_end
assert not {"wetext", "num2words", "py3langid", "torch"} & set(sys.modules), "imported before they are needed"
stream = load_text_front_end().open(TextOptions(), WHOLE_TEXT)
for text in ["The price of this is 5 dollars.", "Das kostet heute genau 21 Euro.", "我有3个苹果。"]:
    for segment in stream.push(text) + stream.flush():
        print(stream.prepare(segment).text)
assert "torch" not in sys.modules
"""


def speak(text: str, options: TextOptions) -> list[SpokenSegment]:
    return prepared(SHOUTING, text, options)


def test_a_segment_is_normalised_and_knows_where_its_words_were_written() -> None:
    stream = SHOUTING.open(ENGLISH, LIVE_TEXT)
    _, segment = [*stream.push("The first one ends here. "), *stream.push("I have 5 of them."), *stream.flush()]
    spoken = stream.prepare(segment)
    assert spoken.text == "I have FIVE of them."
    assert source_position(spoken, spoken.text.index("FIVE")) == len("The first one ends here. I have ")
    assert source_position(spoken, len(spoken.text)) == segment.end


@pytest.fixture(scope="module")
def official() -> TextFrontEnd:
    pytest.importorskip("wetext", reason="the text extra is not installed")
    return load_text_front_end(declaration=CheckpointDeclaration(languages=("zh", "en")))


@pytest.mark.parametrize(("written", "spoken"), CASES["official checkpoints"])
def test_an_official_checkpoints_text_is_read_in_the_words_of_its_languages(
    official: TextFrontEnd, written: str, spoken: str
) -> None:
    assert "".join(each.text for each in prepared(official, written, TextOptions())).startswith(spoken)


def test_a_text_that_tells_no_language_is_in_the_only_declared_one_or_in_english() -> None:
    for languages, spoken in ((("en",), "FIVE!"), (("zh", "en"), "5!"), (("pt", "de"), "5!"), (None, "5!")):
        declared = None if languages is None else DeclaredLanguages(languages, lambda text: None)
        stream = TextFrontEnd({"en": shouting}, lambda text: None, declared=declared).open(TextOptions(), WHOLE_TEXT)
        (segment, latin) = [*stream.push("5!"), *stream.flush(), *stream.push("No 5!"), *stream.flush()]
        assert stream.prepare(segment).text == spoken
        is_english = languages is not None and "en" in languages
        assert stream.prepare(latin).text == ("No FIVE!" if is_english else "No 5!")


def test_tags_are_not_normalised() -> None:
    (spoken,) = speak("[breath]5<strong>5</strong>5", ENGLISH)
    assert spoken.text == "[breath]FIVE<strong>FIVE</strong>FIVE."


@given(texts_in_pieces())
def test_positions_cover_the_text(pieces: list[str]) -> None:
    stream = SHOUTING.open(ENGLISH, SHORT)
    segments = [segment for piece in pieces for segment in stream.push(piece)] + stream.flush()
    spoken = [stream.prepare(segment) for segment in segments]
    assert "".join(one.source.text for one in spoken) == "".join(pieces)
    assert stream.flush() == []
    assert all(source_position(one, len(one.text)) == one.source.end for one in spoken)


@given(texts_in_pieces())
def test_the_same_text_is_cut_and_cleaned_alike_however_it_is_divided(pieces: list[str]) -> None:
    whole, divided = (SHOUTING.open(ENGLISH, SHORT) for _ in range(2))
    text = "".join(pieces)
    segments = [segment for piece in pieces for segment in divided.push(piece)] + divided.flush()
    expected = [*whole.push(text), *whole.flush()]
    assert [divided.prepare(each).text for each in segments] == [whole.prepare(each).text for each in expected]
    assert [(each.start, each.text) for each in segments] == [(each.start, each.text) for each in expected]
    known = SHOUTING.open(ENGLISH, SHORT, text)
    assert [*known.push(text), *known.flush()] == expected, "a whole text without markup is not searched for any"


@given(texts_in_pieces())
def test_without_normalisation_everything_is_read_as_written(pieces: list[str]) -> None:
    stream = SHOUTING.open(TextOptions("en", Normalization.OFF), SHORT)
    segments = [segment for piece in pieces for segment in stream.push(piece)] + stream.flush()
    for segment in segments:
        assert stream.prepare(segment).text == ended(segment.text, "en", is_last=segment.is_last).text


def test_without_normalisation_markup_stays() -> None:
    text = "# Read **this** <b>as</b> it is: https://a.example/b 🙂 5."
    (spoken,) = speak(text, TextOptions("en", Normalization.OFF))
    assert spoken.text == text


def test_a_spoken_text_is_cleaned_and_knows_where_it_was_written() -> None:
    text = "## Plan\n- **Buy** 5 [apples](https://a.example/b_c) 🍏\n<p>See a.example.com</p>"
    spoken = speak(text, ENGLISH)
    assert "".join(one.text for one in spoken) == "Plan.\nBuy FIVE apples.\nSee a dot example dot com.\n"
    (one,) = spoken
    assert text[source_position(one, one.text.index("FIVE"))] == "5"
    assert text[source_position(one, one.text.index("See"))] == "S"


@pytest.mark.parametrize(
    ("segment_letters", "spoken"), [(None, "By then it was late, "), (200, "By then it was late. ")]
)
def test_a_cut_within_a_sentence_gives_an_llm_of_whole_texts_a_stop(segment_letters: int | None, spoken: str) -> None:
    front_end = TextFrontEnd({}, lambda text: "en", segment_letters=segment_letters)
    stream = front_end.open(ENGLISH, SHORT)
    first, *_ = stream.push("By then it was late, and we went home. Then")
    assert stream.prepare(first).text == spoken


@pytest.mark.parametrize("language", ["xx", "pt", "tlh-Latn"])
def test_an_unknown_language_passes_through_untouched(language: str) -> None:
    (spoken,) = speak("5  “x” [1]", TextOptions(language=language))
    assert spoken.text == "5  “x” [1]."


def test_a_region_can_have_a_normaliser_of_its_own() -> None:
    (spoken,) = speak("5", TextOptions(language="pt_BR"))
    assert spoken.text == "FIVE."


def test_a_segment_that_tells_no_language_is_spoken_in_the_one_before() -> None:
    stream = SHOUTING.open(TextOptions(), WHOLE_TEXT)
    prepared = [stream.prepare(Segment(text, 0)) for text in ("5", "the 5", "5")]
    assert [(one.text, one.language) for one in prepared] == [("5.", None), ("the FIVE.", "en"), ("FIVE.", "en")]


def test_a_segment_with_nothing_to_say_is_marked() -> None:
    assert [one.is_speakable for one in speak(" … 🙂 <strong></strong>", ENGLISH)] == [False]
    assert [one.is_speakable for one in speak("[breath]", ENGLISH)] == [True]


@pytest.mark.parametrize(
    ("given", "primary", "regional"),
    [("English", "en", "en"), ("CHINESE", "zh", "zh"), ("cantonese", "zh", "yue"), ("Auto", None, None)],
)
def test_a_language_may_be_named_in_english(given: str, primary: str | None, regional: str | None) -> None:
    options = TextOptions(given)
    assert (options.primary_language, options.regional_language) == (primary, regional)


@pytest.mark.parametrize("language", ["", "e", "english please", "en-", "zh/CN", "русский"])
def test_a_malformed_language_is_refused(language: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected a BCP 47 tag") as refused:
        TextOptions(language=language)
    assert refused.value.param == "language"


def test_without_wetext_the_gateway_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wetext", None)
    with caplog.at_level(logging.WARNING):
        loaded = wetext_normalizer.load_normalizers()
    assert "[text]'" in caplog.text
    assert loaded["zh"]("5月2日").text == "五月二日"
    assert loaded["en"]("5 men").text == "five men"


@pytest.mark.slow
def test_everything_loads_late_and_runs_with_the_network_cut() -> None:
    pytest.importorskip("wetext", reason="the text extra is not installed")
    done = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, text=True, timeout=120, check=False)
    expected = "The price of this is five dollars.\nDas kostet heute genau einundzwanzig Euro.\n我有三个苹果。\n"
    assert (done.stdout, done.returncode) == (expected, 0), done.stderr
