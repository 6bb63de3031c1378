"""Alias rules: what matches, in which order, and where it was written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequestError
from gateway.text import WHOLE_TEXT, TextFrontEnd, TextOptions
from gateway.text.pronunciation.aliases import AliasRule, Lexicon, apply_lexicons
from tests.gateway.text.builders import Shouting


def spoken(text: str, *lexicons: list[AliasRule]) -> str:
    return apply_lexicons(text, [Lexicon(rules) for rules in lexicons]).text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Xiaomi phone.", "The show me phone."),
        ("Xiaomi's and Xiaomi", "show me's and show me"),
        ("xiaomi XIAOMI", "xiaomi XIAOMI"),
        ("Xiaomis aXiaomi _Xiaomi Xiaomi5", "Xiaomis aXiaomi _Xiaomi Xiaomi5"),
        ("我喜欢Xiaomi手机", "我喜欢show me手机"),
        ("Xiaomi\u0301", "Xiaomi\u0301"),
    ],
)
def test_a_word_is_replaced_where_it_is_a_word_of_its_own(text: str, expected: str) -> None:
    assert spoken(text, [AliasRule("Xiaomi", "show me")]) == expected


def test_case_and_boundaries_can_be_left_out() -> None:
    anyhow = AliasRule("Sql", "sequel", is_case_sensitive=False, has_word_boundaries=False)
    assert spoken("SQL, MySQL, İsql", [anyhow]) == "sequel, Mysequel, İsequel"
    assert spoken("STRASSE straße", [AliasRule("STRASSE", "road", is_case_sensitive=False)]) == "road straße"


def test_every_ideograph_is_a_word_of_its_own() -> None:
    assert spoken("银行和行走", [AliasRule("银行", "yin hang"), AliasRule("行", "xing")]) == "yin hang和xing走"


def test_the_longest_match_counts_and_what_was_replaced_stays() -> None:
    rules = [AliasRule("New", "old"), AliasRule("New York", "the Big Apple"), AliasRule("Apple", "pear")]
    assert spoken("New York is New, Apple", rules) == "the Big Apple is old, pear"


def test_dictionaries_are_asked_in_order() -> None:
    first, second = [AliasRule("York", "city")], [AliasRule("New York", "NY"), AliasRule("New", "old")]
    assert spoken("New York", first, second) == "old city"
    assert spoken("New York", second, first) == "NY"
    assert spoken("a b", [AliasRule("a", "b")], [AliasRule("b", "c")]) == "b c"


def test_of_two_rules_for_a_word_the_first_counts() -> None:
    assert spoken("SQL", [AliasRule("SQL", "sequel"), AliasRule("SQL", "squirrel")]) == "sequel"


@pytest.mark.parametrize("bad", ["", " ", "a ", "x" * 401, "a\nb", "a\x00b"])
def test_a_rule_that_can_not_be_had_is_refused(bad: str) -> None:
    with pytest.raises(InvalidRequestError):
        AliasRule(bad, "alias")
    with pytest.raises(InvalidRequestError):
        AliasRule("word", bad)


_WORDS = st.sampled_from(["ab", "a", "b c", "B", "银行", "行", "ba"])
_RULES = st.lists(
    st.builds(AliasRule, _WORDS, st.sampled_from(["X", "YY", "ab"]), st.booleans(), st.booleans()), max_size=5
)


@settings(deadline=None)
@given(st.text(alphabet="abc BC银行. \u0301İ", max_size=40), st.lists(_RULES, max_size=3))
def test_what_is_spoken_is_aligned_with_what_was_written(text: str, lexicons: list[list[AliasRule]]) -> None:
    result = apply_lexicons(text, [Lexicon(rules) for rules in lexicons])
    assert result.alignment.source_length == len(text)
    assert result.alignment.spoken_length == len(result.text)


def test_a_word_is_found_however_its_characters_are_written() -> None:
    front_end = TextFrontEnd({}, lambda text: None)
    rules = (AliasRule("l’Hôpital", "Low\u00a0pit"), AliasRule("cafe\u0301", "caff"))
    stream = front_end.open(TextOptions(aliases=rules), WHOLE_TEXT)
    (segment,) = [*stream.push("l’Hôpital, l`Ho\u0302pital, l'Hôpital, café."), *stream.flush()]
    assert stream.prepare(segment).text == "Low pit, Low pit, Low pit, caff."


def test_aliases_come_before_normalisation_and_leave_tags_alone() -> None:
    front_end = TextFrontEnd({"en": Shouting()}, lambda text: "en")
    options = TextOptions("en", aliases=(AliasRule("cinco", "5"), AliasRule("breath", "air"), AliasRule("b", "c")))
    stream = front_end.open(options, WHOLE_TEXT)
    (segment,) = [*stream.push("**cinco** [breath] is b."), *stream.flush()]
    prepared = stream.prepare(segment)
    assert prepared.text == "FIVE [breath] is c."
    assert prepared.source_position(prepared.text.index("[")) == segment.text.index("[")
