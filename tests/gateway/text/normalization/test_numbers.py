"""Numbers, addresses and what a caller says a text is, in words, with and without grammars."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.alignment import Normalizer
from gateway.text.chinese import normalize_chinese
from gateway.text.normalization.addresses import spoken_addresses
from gateway.text.normalization.numbers import NUMBER_STYLES, NumberNormalizer
from gateway.text.normalization.say_as import said_as
from gateway.text.normalization.wetext_normalizer import WeTextNormalizer
from tests.gateway.text.builders import CASES, texts

LANGUAGES = sorted(NUMBER_STYLES)
NORMALIZERS = {language: NumberNormalizer(language) for language in LANGUAGES}


@pytest.mark.parametrize(("language", "written", "spoken"), CASES["numbers"])
def test_numbers_become_words(language: str, written: str, spoken: str) -> None:
    assert NORMALIZERS[language].normalize(written).text == spoken


@pytest.mark.parametrize("written", CASES["no plain numbers"])
def test_what_may_not_be_a_plain_number_stays_as_it_is(written: str) -> None:
    assert NORMALIZERS["de"].normalize(written).text == written


def test_the_digits_of_other_scripts_are_digits() -> None:
    assert NORMALIZERS["de"].normalize("٣").text == "drei"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("number", [0, 7, 16, 100, 1984, 2024, 999_999, 10**14])
def test_every_language_has_words_for_every_size_of_number(language: str, number: int) -> None:
    words = NORMALIZERS[language].normalize(str(number)).text
    assert words
    assert not any(map(str.isdigit, words))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_reads_its_own_decimals(language: str) -> None:
    words = NORMALIZERS[language].normalize(f"7{NUMBER_STYLES[language].decimal_mark}25").text
    assert not any(map(str.isdigit, words))


@given(texts, st.sampled_from(["en", "de", "fr", "ja", "pl"]))
def test_a_normalised_text_is_covered_by_its_alignment_and_normalising_again_changes_nothing(
    text: str, language: str
) -> None:
    normalized = NORMALIZERS[language].normalize(text)
    assert normalized.alignment.source_length == len(text)
    assert normalized.alignment.spoken_length == len(normalized.text)
    assert NORMALIZERS[language].normalize(normalized.text).text == normalized.text


@given(st.text(st.characters(exclude_categories=["Nd", "Cs"]), max_size=60))
def test_a_text_without_digits_stays_as_it_is(text: str) -> None:
    assert NORMALIZERS["de"].normalize(text).text == text


@pytest.mark.parametrize(("written", "spoken"), CASES["addresses"])
def test_addresses_become_words(written: str, spoken: str) -> None:
    assert spoken_addresses(written, "en").text == spoken


@pytest.mark.parametrize(("written", "spoken"), CASES["addresses in Chinese"])
def test_an_address_begins_and_ends_beside_chinese(written: str, spoken: str) -> None:
    assert spoken_addresses(written, "zh").text == spoken


@pytest.mark.parametrize(
    ("language", "spoken"), [("de", "a Punkt com"), ("zh", "a点com"), ("xx", "a dot com"), (None, "a dot com")]
)
def test_the_words_are_the_languages(language: str | None, spoken: str) -> None:
    assert spoken_addresses("https://a.com", language).text == spoken


@pytest.mark.parametrize(
    "text", ["node.js", "e.g. this", "1.5", "The end.Next one", "a@b", "Dr.Smith", "192.168.0.1", "I.am"]
)
def test_what_is_no_address_stays(text: str) -> None:
    assert spoken_addresses(text, "en").text == text


@given(texts)
def test_an_address_is_covered_by_its_alignment(text: str) -> None:
    spoken = spoken_addresses(text, "en")
    assert (spoken.alignment.source_length, spoken.alignment.spoken_length) == (len(text), len(spoken.text))


@cache
def saying(language: str) -> Normalizer:
    pytest.importorskip("wetext", reason="the text extra is not installed")
    return WeTextNormalizer("en").normalize if language == "en" else normalize_chinese


def said(text: str, kind: str, language: str, form: str | None = None) -> str:
    return said_as(text, kind, form, language, lambda plain: saying(language)(plain).text)


@pytest.mark.parametrize(("kind", "text", "english", "chinese"), CASES["say-as"])
def test_a_text_is_read_as_what_it_is_said_to_be(kind: str, text: str, english: str, chinese: str) -> None:
    assert said(text, kind, "en").replace("two hundred thirty", "two hundred and thirty") == english
    assert said(text, kind, "zh") == chinese


@pytest.mark.parametrize(("form", "text", "english", "chinese"), CASES["dates by format"])
def test_a_date_is_read_by_its_format(form: str, text: str, english: str, chinese: str) -> None:
    assert (said(text, "date", "en", form), said(text, "date", "zh", form)) == (english, chinese)


@pytest.mark.parametrize(("kind", "text", "form"), CASES["refused say-as"])
def test_what_can_not_be_read_so_is_refused(kind: str, text: str, form: str | None) -> None:
    for language in ("en", "zh"):
        with pytest.raises(ValueError, match=r"expected|nothing to read"):
            said(text, kind, language, form)
