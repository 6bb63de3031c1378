"""Numbers in words, in languages without a grammar of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.normalization.numbers import NUMBER_STYLES, NumberNormalizer
from tests.gateway.text.builders import texts

LANGUAGES = sorted(NUMBER_STYLES)
NORMALIZERS = {language: NumberNormalizer(language) for language in LANGUAGES}


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("de", "Es sind 21 Leute.", "Es sind einundzwanzig Leute."),
        (
            "de",
            "1.234,5 im Jahr 1984",
            "eintausendzweihundertvierunddreißig Komma fünf im Jahr neunzehnhundertvierundachtzig",
        ),
        ("de", "genau 1.984", "genau eintausendneunhundertvierundachtzig"),
        ("fr", "l'11 septembre, 10 000 fois", "l'onze septembre, dix mille fois"),
        ("es", "3,5 litros", "tres punto cinco litros"),
        ("pt", "16", "dezasseis"),
        ("pt-br", "16", "dezesseis"),
        ("ru", "5 собак", "пять собак"),
        ("th", "21", "ยี่สิบเอ็ด"),
    ],
)
def test_numbers_become_words(language: str, written: str, spoken: str) -> None:
    assert NORMALIZERS[language].normalize(written).text == spoken


@pytest.mark.parametrize(
    "written",
    [
        *("A4", "3,50 €", "€5", "50 %", "5%", "12:30", "1.2.3", "5.5.2024", "5-6", "-5", "007", "am 5. Mai", "1'234"),
        *("192.168.0.1", "v2", "#1", "1" * 16, "²", "5²", "x_5", "50 $", "$ 50", "1.23", "5e3"),
    ],
)
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
