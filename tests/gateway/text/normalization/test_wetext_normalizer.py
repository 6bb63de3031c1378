"""English and Japanese by WeText's grammars, and what is kept from them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.english.forms import read_english
from gateway.text.normalization.wetext_normalizer import WETEXT_LANGUAGES, WeTextNormalizer
from tests.gateway.text.builders import CASES, texts

pytest.importorskip("wetext", reason="the text extra is not installed")

NORMALIZERS = {language: WeTextNormalizer(language) for language in WETEXT_LANGUAGES}
# Written forms whose words are words to the grammars too.
written_english = st.lists(
    st.sampled_from(["It costs $3.50", "on Jan. 5th, 2024", "at 3:30pm", "by Dr. Smith", "1,234 of them", "50% off"])
    | st.sampled_from(["the 1990s", "No. 5", '"quoted"', "(see 5)", "100 km", "1000", "2nd"]),
    min_size=1,
    max_size=5,
).map(", ".join)


@pytest.mark.parametrize(("language", "written", "spoken"), CASES["grammars"])
def test_written_forms_become_words(language: str, written: str, spoken: str) -> None:
    assert NORMALIZERS[language].normalize(written).text == spoken


@pytest.mark.parametrize("mark", [".", "!", "?", "，", "…", "—", "("])
def test_marks_alone_cost_no_time(mark: str) -> None:
    began_s = time.process_time()
    for _ in range(10):
        assert NORMALIZERS["en"].normalize(mark * 240).text == mark * 240
    assert time.process_time() - began_s < 0.5, "the grammar takes more than 0.1 s for one of them"


@pytest.mark.parametrize(
    ("symbol", "words"),
    [("$", "dollar"), ("€", "euro"), ("£", "pound"), ("%", "percent"), ("&", "and"), ("@", "at"), ("§", "section")],
)
def test_symbols_alone_are_read(symbol: str, words: str) -> None:
    assert NORMALIZERS["en"].normalize(f" {symbol} ").text == f" {words} "


def test_what_the_grammar_fails_on_stays_as_it_is() -> None:
    assert NORMALIZERS["en"].normalize("it costs 5$.").text == "it costs 5$."


@settings(deadline=None)
@given(texts, st.sampled_from(WETEXT_LANGUAGES))
def test_any_text_is_normalised_without_error_and_covered_by_its_alignment(text: str, language: str) -> None:
    normalized = NORMALIZERS[language].normalize(text[:240])
    assert normalized.alignment.source_length == len(text[:240])
    assert normalized.alignment.spoken_length == len(normalized.text)


@pytest.mark.slow
@settings(deadline=None)
@given(written_english)
def test_english_normalised_twice_is_english_normalised_once(text: str) -> None:
    once = NORMALIZERS["en"].normalize(text).text
    assert NORMALIZERS["en"].normalize(once).text == once
    assert not any(map(str.isdigit, once))


def test_plain_english_is_what_the_grammar_makes_of_it_without_the_grammar() -> None:
    from wetext import Normalizer

    from cosydit.bench.inputs import read_samples

    grammar = Normalizer(lang="en", operator="tn").normalize

    asked: list[str] = []

    def asking(text: str) -> str:
        asked.append(text)
        return grammar(text)

    texts = [row.text for row in read_samples()]
    assert [read_english(asking)(text) for text in texts] == [grammar(text) for text in texts]
    assert len(asked) < len(texts) / 2


@pytest.mark.parametrize("text", ["Dr. No", "Prof. Smith came.", "It is 5.", "NASA flew.", "On Mon", "B and b"])
def test_anything_else_is_the_grammars(text: str) -> None:
    asked: list[str] = []

    def grammar(text: str) -> str:
        asked.append(text)
        return text

    read_english(grammar)(text)
    assert asked
