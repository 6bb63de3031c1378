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


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("https://example.com", "example dot com"),
        (
            "See http://www.example.com/docs/a_b, please.",
            "See example dot com slash docs slash a underscore b, please.",
        ),
        ("https://example.co.uk/?utm=1#top", "example dot co dot U K"),
        ("www.example.org.", "example dot org."),
        ("example.com/path", "example dot com slash path"),
        ("Visit docs.python.org/3 now", "Visit docs dot python dot org slash 3 now"),
        ("http://localhost:8080/", "localhost 8 0 8 0"),
        ("john.doe99@mail.com", "john dot doe 9 9 at mail dot com"),
        ("write to a-b@c.io!", "write to a dash b at c dot I O!"),
    ],
)
def test_addresses_become_words(written: str, spoken: str) -> None:
    assert spoken_addresses(written, "en").text == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("发到a_b@qq.com，谢谢", "发到a下划线b艾特qq点com，谢谢"),
        ("访问www.a.com/x吧", "访问a点com斜杠x吧"),
        ("邮箱ab@c.cn谢谢", "邮箱ab艾特c点C N谢谢"),
    ],
)
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


@pytest.mark.parametrize(
    ("kind", "text", "english", "chinese"),
    [
        ("digits", "4207", "four two zero seven", "四二零七"),
        ("characters", "AB3", "A B three", "A B 三"),
        ("spell-out", "a-b", "A B", "A B"),
        ("cardinal", "1,234", "one thousand two hundred and thirty four", "一千二百三十四"),
        ("cardinal", "-5", "minus five", "负五"),
        ("ordinal", "21", "twenty first", "第二十一"),
        ("ordinal", "3rd", "third", "第三"),
        ("telephone", "+86 110-119", "plus eight six, one one zero, one one nine", "加八六，幺幺零，幺幺九"),
        ("time", "14:30", "fourteen thirty", "十四点三十分"),
        ("time", "2:05 p.m.", "two oh five P M", "下午两点五分"),
        ("time", "8:00am", "eight A M", "上午八点整"),
        ("currency", "$3.50", "three dollars and fifty cents", "三点五零美元"),
        ("currency", "20 EUR", "twenty euros", "二十欧元"),
        ("currency", "CNY5", "five yuan", "五元"),
    ],
)
def test_a_text_is_read_as_what_it_is_said_to_be(kind: str, text: str, english: str, chinese: str) -> None:
    assert said(text, kind, "en").replace("two hundred thirty", "two hundred and thirty") == english
    assert said(text, kind, "zh") == chinese


@pytest.mark.parametrize(
    ("form", "text", "english", "chinese"),
    [
        ("mdy", "5/3/2024", "May third, twenty twenty four", "二零二四年五月三日"),
        ("dmy", "3.5.2024", "May third, twenty twenty four", "二零二四年五月三日"),
        ("ymd", "2024-05-03", "May third, twenty twenty four", "二零二四年五月三日"),
        ("md", "5/3", "May third", "五月三日"),
        ("my", "5/2024", "May twenty twenty four", "二零二四年五月"),
        ("y", "1999", "nineteen ninety nine", "一九九九年"),
    ],
)
def test_a_date_is_read_by_its_format(form: str, text: str, english: str, chinese: str) -> None:
    assert (said(text, "date", "en", form), said(text, "date", "zh", form)) == (english, chinese)


@pytest.mark.parametrize(
    ("kind", "text", "form"),
    [
        ("digits", "four", None),
        ("characters", "-", None),
        ("cardinal", "1.2.3", None),
        ("ordinal", "first", None),
        ("telephone", "call me", None),
        ("date", "13/13/2024", "mdy"),
        ("date", "5/3", "mdy"),
        ("date", "5/3", "xyz"),
        ("time", "25:61", None),
        ("currency", "3.50", None),
        ("currency", "$3 EUR", None),
        ("poem", "a", None),
        ("digits", "", None),
    ],
)
def test_what_can_not_be_read_so_is_refused(kind: str, text: str, form: str | None) -> None:
    for language in ("en", "zh"):
        with pytest.raises(ValueError, match=r"expected|nothing to read"):
            said(text, kind, language, form)
