"""Alias rules and phonemes: what matches, in which order, where it was written, and what it is read as."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequestError, UnsupportedOptionError
from gateway.text import WHOLE_TEXT, TextFrontEnd, TextOptions, load_text_front_end
from gateway.text.aliases import AliasRule, Lexicon, apply_lexicons
from gateway.text.phonemes import phoneme_tags
from gateway.text.ssml import check_ssml
from llm_service.text_encoder import PHONEME_TOKENS
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.text.builders import CASES, prepared, shouting, source_position


def spoken(text: str, *lexicons: list[AliasRule]) -> str:
    return apply_lexicons(text, [Lexicon(rules) for rules in lexicons]).text


@pytest.mark.parametrize(("text", "expected"), CASES["aliases"])
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
    (spoken,) = prepared(front_end, "l’Hôpital, l`Ho\u0302pital, l'Hôpital, café.", TextOptions(aliases=rules))
    assert spoken.text == "Low pit, Low pit, Low pit, caff."


def test_aliases_come_before_normalisation_and_leave_tags_alone() -> None:
    front_end = TextFrontEnd({"en": shouting}, lambda text: "en")
    options = TextOptions("en", aliases=(AliasRule("cinco", "5"), AliasRule("breath", "air"), AliasRule("b", "c")))
    (spoken,) = prepared(front_end, "**cinco** [breath] is b.", options)
    assert spoken.text == "FIVE [breath] is c."
    assert source_position(spoken, spoken.text.index("[")) == spoken.source.text.index("[")


@pytest.fixture(scope="module")
def front_end() -> TextFrontEnd:
    return load_text_front_end(None, CheckpointDeclaration(family="cosyvoice3", phonemes="cosyvoice3"))


@pytest.mark.parametrize(("written", "alphabet", "tags"), CASES["phonemes"])
def test_phonemes_become_the_model_s_tags(written: str, alphabet: str, tags: str) -> None:
    assert phoneme_tags(written, alphabet) == tags
    assert {f"[{part}]" for part in tags.replace(" ", "")[1:-1].split("][")} <= set(PHONEME_TOKENS)


@pytest.mark.parametrize(("written", "alphabet", "told"), CASES["refused phonemes"])
def test_what_is_in_no_alphabet_is_refused(written: str, alphabet: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        phoneme_tags(written, alphabet)


def test_every_syllable_of_mandarin_has_its_tokens() -> None:
    finals = "a o e ai ei ao ou an en ang eng ong i iao ian in iang ing iong u uo uai ui uan un uang er".split()
    for final in finals:
        for tone in "1234":
            initial = {"i": "n", "u": "g"}.get(final[0], "" if final == "er" else "h")
            if final in ("iong", "iang"):
                initial = "x"
            try:
                tags = phoneme_tags(f"{initial}{final}{tone}", "pinyin")
            except ValueError:
                assert (final, tone) in {("o", "2"), ("o", "3"), ("un", "1")} or final == "er", (final, tone)
            else:
                assert tags.startswith(f"[{initial}]" if initial else "[")


def test_a_dictionary_s_phonemes_stand_in_the_text_untouched(front_end: TextFrontEnd) -> None:
    rule = AliasRule("Xiaomi", "ˈʃaʊ ˈmiː", alphabet="ipa")
    (said,) = prepared(front_end, "The Xiaomi 14.", TextOptions("en", aliases=(rule,)))
    assert said.text == "The [SH][AW1] [M][IY1] fourteen."
    with pytest.raises(InvalidRequestError, match=r"phonemes of 'a': got the CMU phone 'Q'"):
        AliasRule("a", "Q", alphabet="cmu")


def test_ssml_says_phonemes(front_end: TextFrontEnd) -> None:
    text = '<speak>我<phoneme alphabet="pinyin" ph="hang2">行</phoneme>. <phoneme ph="kæt">cat</phoneme></speak>'
    options = TextOptions("zh", is_ssml=True)
    check_ssml(text, "zh", takes_phonemes=True)
    said = "".join(each.text for each in prepared(front_end, text, options))
    assert said.startswith("我[h][áng]. [K][AE1][T]")
    with pytest.raises(InvalidRequestError, match=r"column 2: <phoneme>: got 'ʁ'"):
        check_ssml('A<phoneme ph="ʁ">r</phoneme>', "en", takes_phonemes=True)
    with pytest.raises(InvalidRequestError, match="lacks the attribute ph"):
        check_ssml("A<phoneme>r</phoneme>", "en", takes_phonemes=True)


def test_where_words_only_are_read_they_are_refused() -> None:
    rule = AliasRule("Xiaomi", "ˈʃaʊ ˈmiː", alphabet="ipa")
    with pytest.raises(UnsupportedOptionError, match="pronunciation of 'Xiaomi': phonemes can't be spoken"):
        load_text_front_end(None, CheckpointDeclaration()).open(TextOptions(aliases=(rule,)), WHOLE_TEXT)
