"""Phonemes of callers as CosyVoice3 reads them, and how they stand in a text."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequestError, UnsupportedOptionError
from gateway.text import WHOLE_TEXT, TextFrontEnd, TextOptions, load_text_front_end
from gateway.text.markup.ssml import check_ssml
from gateway.text.pronunciation.aliases import AliasRule
from gateway.text.pronunciation.phonemes import phoneme_tags
from llm_service.text_encoder import PHONEME_TOKENS
from servicekit.checkpoint_file import CheckpointDeclaration


@pytest.fixture(scope="module")
def front_end() -> TextFrontEnd:
    return load_text_front_end(None, CheckpointDeclaration(family="cosyvoice3", phonemes="cosyvoice3"))


def spoken(front_end: TextFrontEnd, text: str, options: TextOptions) -> str:
    stream = front_end.open(options, WHOLE_TEXT)
    return "".join(stream.prepare(segment).text for segment in [*stream.push(text), *stream.flush()])


@pytest.mark.parametrize(
    ("written", "alphabet", "tags"),
    [
        pytest.param("ˈʃoʊ ˈmiː", "ipa", "[SH][OW1] [M][IY1]", id="two words"),
        pytest.param("/təˈmeɪtoʊ/", "IPA", "[T][AH0][M][EY1][T][OW0]", id="the stress is the next vowel's"),
        pytest.param("ˌɛnˈvɪdiə", "ipa", "[EH2][N][V][IH1][D][IY0][AH0]", id="a secondary stress"),
        pytest.param("kæt", "ipa", "[K][AE1][T]", id="one syllable is stressed"),
        pytest.param("t͡ʃɜːt͡ʃ", "ipa", "[CH][ER1][CH]", id="ties and lengths"),
        pytest.param("ˈbʌtn̩", "ipa", "[B][AH1][T][AH0][N]", id="a consonant for a vowel"),
        pytest.param("HH AH0 L OW1", "cmu-arpabet", "[HH][AH0][L][OW1]", id="CMU"),
        pytest.param("hh-ah0.l ow1", "x-arpabet", "[HH][AH0][L][OW1]", id="CMU with borders"),
        pytest.param("ni3 hao3", "pinyin", "[n][ǐ][h][ǎo]", id="pinyin with numbers"),
        pytest.param("xiǎo mǐ", "x-pinyin", "[x][iǎo][m][ǐ]", id="pinyin with marks"),
        pytest.param("nv3'er2", "pinyin", "[n][ǚ][ér]", id="ü and er"),
        pytest.param("lüè liu2 gui4 ma5", "pinyin", "[l][vè][l][iú][g][uì][m][a]", id="marks of the last vowel"),
    ],
)
def test_phonemes_become_the_model_s_tags(written: str, alphabet: str, tags: str) -> None:
    assert phoneme_tags(written, alphabet) == tags
    assert {f"[{part}]" for part in tags.replace(" ", "")[1:-1].split("][")} <= set(PHONEME_TOKENS)


@pytest.mark.parametrize(
    ("written", "alphabet", "told"),
    [
        pytest.param("HH AX", "cmu", "'AX'", id="no phone of CMU's"),
        pytest.param("ʁa", "ipa", r"U\+0281", id="no sound of English"),
        pytest.param("foo3", "pinyin", "'foo3'", id="no syllable"),
        pytest.param("ni9", "pinyin", "'ni9'", id="no tone"),
        pytest.param("a", "sapi", "expected ipa, cmu-arpabet or pinyin", id="another alphabet"),
        pytest.param(" ", "ipa", "expected 1 to 400", id="nothing"),
    ],
)
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
    text = spoken(front_end, "The Xiaomi 14.", TextOptions("en", aliases=(rule,)))
    assert text == "The [SH][AW1] [M][IY1] fourteen."
    with pytest.raises(InvalidRequestError, match=r"phonemes of 'a': got the CMU phone 'Q'"):
        AliasRule("a", "Q", alphabet="cmu")


def test_ssml_says_phonemes(front_end: TextFrontEnd) -> None:
    text = '<speak>我<phoneme alphabet="pinyin" ph="hang2">行</phoneme>. <phoneme ph="kæt">cat</phoneme></speak>'
    options = TextOptions("zh", is_ssml=True)
    check_ssml(text, "zh", takes_phonemes=True)
    assert spoken(front_end, text, options).startswith("我[h][áng]. [K][AE1][T]")
    with pytest.raises(InvalidRequestError, match=r"column 2: <phoneme>: got 'ʁ'"):
        check_ssml('A<phoneme ph="ʁ">r</phoneme>', "en", takes_phonemes=True)
    with pytest.raises(InvalidRequestError, match="lacks the attribute ph"):
        check_ssml("A<phoneme>r</phoneme>", "en", takes_phonemes=True)


def test_where_words_only_are_read_they_are_refused() -> None:
    rule = AliasRule("Xiaomi", "ˈʃaʊ ˈmiː", alphabet="ipa")
    with pytest.raises(UnsupportedOptionError, match="pronunciation of 'Xiaomi': phonemes can't be spoken"):
        load_text_front_end(None, CheckpointDeclaration()).open(TextOptions(aliases=(rule,)), WHOLE_TEXT)
