"""Turns phonemes that callers write into those that CosyVoice3's LLM reads, which are tags in its text.

    ipa       ˈʃoʊ ˈmiː          ->  [SH][OW1] [M][IY1]
    cmu       SH OW1 M IY1       ->  [SH][OW1][M][IY1]
    pinyin    xiǎo mi3           ->  [x][iǎo][m][ǐ]

Pure. The IPA of English alone can be had, as the LLM knows English and Mandarin sounds. Source of the table: the phones
of the CMU Pronouncing Dictionary with the IPA that Wikipedia's page "ARPABET" gives for each; no library of those that
convert the one into the other is kept any longer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from llm_service.text_encoder import CMU_PHONES, PINYIN_PARTS

MAX_PHONEMES = 400
"""Most characters of one pronunciation."""
IPA, CMU, PINYIN = "ipa", "cmu", "pinyin"
_ALPHABETS = {
    IPA: IPA,
    **dict.fromkeys((CMU, "arpabet", "cmu-arpabet", "x-cmu", "x-arpabet", "x-cmu-arpabet"), CMU),
    **dict.fromkeys((PINYIN, "x-pinyin", "x-amazon-pinyin"), PINYIN),
}
_IPA_VOWELS = {
    **dict.fromkeys(("ɑ", "a", "ɒ"), "AA"),
    "æ": "AE",
    **dict.fromkeys(("ʌ", "ə", "ɐ"), "AH"),
    "ɔ": "AO",
    "aʊ": "AW",
    "aɪ": "AY",
    **dict.fromkeys(("ɛ", "e"), "EH"),
    **dict.fromkeys(("ɝ", "ɜ", "ɚ", "ɜɹ", "əɹ"), "ER"),
    "eɪ": "EY",
    **dict.fromkeys(("ɪ", "ɨ"), "IH"),
    "i": "IY",
    **dict.fromkeys(("oʊ", "əʊ", "o"), "OW"),
    "ɔɪ": "OY",
    "ʊ": "UH",
    **dict.fromkeys(("u", "ʉ"), "UW"),
}
_IPA_CONSONANTS = {
    **dict(zip("bdfhklmnpstvwzðŋʃʒθ", "B D F HH K L M N P S T V W Z DH NG SH ZH TH".split(), strict=True)),
    **dict.fromkeys(("ɡ", "g"), "G"),
    **dict.fromkeys(("ɹ", "r", "ɻ"), "R"),
    **{"dʒ": "JH", "ʤ": "JH", "tʃ": "CH", "ʧ": "CH", "j": "Y", "ɫ": "L", "ɾ": "D", "x": "K", "ʍ": "W"},
}
_IPA_SOUNDS = {**_IPA_VOWELS, **_IPA_CONSONANTS}
_IPA_SOUND = re.compile("|".join(sorted(_IPA_SOUNDS, key=len, reverse=True)))
_IPA_STRESS = {"ˈ": "1", "'": "1", "ˌ": "2"}
_IPA_SILENT = re.compile("[ːˑ.|‿/\\[\\]\u0361\u035c\u02b0\u032f]")
"""Marks of length, borders, ties, aspiration and brackets: none distinguishes sounds of English."""
_SYLLABIC = "\u0329"
_UNSTRESSED, _PRIMARY = "0", "1"
_SYLLABLE = re.compile(r"(?P<initial>zh|ch|sh|[bpmfdtnlgkhjqxrzcsyw])?(?P<final>[a-zü]+)")
_TONES = ("", "\u0304", "\u0301", "\u030c", "\u0300")
"""Combining marks by the number of the tone; the fifth has none."""
_PARTS = frozenset(PINYIN_PARTS)
_PHONES = frozenset(CMU_PHONES)


@lru_cache(maxsize=4096)
def phoneme_tags(written: str, alphabet: str) -> str:
    """Return phonemes as the LLM reads them.

    Args:
        written: in the alphabet; words, phones or syllables with blanks between.
        alphabet: `ipa`, `cmu` or `pinyin`, or another name of one of them.

    Raises:
        ValueError: an alphabet that is not known, or something that is not in it; says what is.
    """
    kind = _ALPHABETS.get(alphabet.strip().lower())
    if kind is None:
        raise ValueError(f"got the alphabet {alphabet[:40]!r}, expected ipa, cmu-arpabet or pinyin")
    if len(written) > MAX_PHONEMES or not written.strip():
        raise ValueError(f"got {len(written)} characters of phonemes, expected 1 to {MAX_PHONEMES}")
    return {IPA: _of_ipa, CMU: _of_cmu, PINYIN: _of_pinyin}[kind](written)


def _of_cmu(written: str) -> str:
    phones = written.upper().replace(".", " ").replace("-", " ").split()
    wrong = next((phone for phone in phones if phone not in _PHONES), None)
    if wrong is not None:
        raise ValueError(f"got the CMU phone {wrong[:20]!r}, expected phones such as HH AH0 L OW1")
    return _tags(phones)


def _of_ipa(written: str) -> str:
    return " ".join(_tags(_phones_of_word(word)) for word in _IPA_SILENT.sub("", _decomposed(written)).split())


def _phones_of_word(word: str) -> list[str]:
    phones, stress, at = list[str](), _UNSTRESSED, 0
    while at < len(word):
        if word[at] in _IPA_STRESS:
            stress, at = _IPA_STRESS[word[at]], at + 1
            continue
        found = _IPA_SOUND.match(word, at)
        if found is None:
            raise ValueError(f"got {word[at]!r} (U+{ord(word[at]):04X}) in IPA, which is no sound of English")
        sound, at = found[0], found.end()
        if sound in _IPA_VOWELS:
            phones.append(_IPA_VOWELS[sound] + stress)
            stress = _UNSTRESSED
        elif word[at : at + 1] == _SYLLABIC:
            phones += [f"AH{stress}", _IPA_CONSONANTS[sound]]
            stress, at = _UNSTRESSED, at + 1
        else:
            phones.append(_IPA_CONSONANTS[sound])
    vowels = [index for index, phone in enumerate(phones) if phone[-1].isdigit()]
    if len(vowels) == 1:  # words of one syllable are written without a mark
        phones[vowels[0]] = phones[vowels[0]].replace(_UNSTRESSED, _PRIMARY)
    return phones


def _of_pinyin(written: str) -> str:
    syllables = re.split(r"[\s'’-]+", _decomposed(written).strip().lower())
    return "".join(_tags(_parts_of_syllable(syllable)) for syllable in syllables if syllable)


@lru_cache(maxsize=4096)
def _parts_of_syllable(syllable: str) -> tuple[str, ...]:
    """Return a syllable's initial and its final with the mark of its tone."""
    bare, tone = _without_tone(syllable)
    found = _SYLLABLE.fullmatch(unicodedata.normalize("NFC", bare).replace("u:", "ü").replace("v", "ü"))
    if found is not None:
        parts = [*([found["initial"]] if found["initial"] else []), _marked(found["final"], tone)]
        parts[-1] = parts[-1] if parts[-1] in _PARTS else parts[-1].replace("ü", "v")
        if all(part in _PARTS for part in parts):
            return tuple(parts)
    raise ValueError(f"got the pinyin syllable {syllable[:20]!r}, expected syllables with tones such as ni3 or nǐ")


def _without_tone(syllable: str) -> tuple[str, int]:
    """Return a syllable, decomposed, without its tone, and the tone's number, 0 for none."""
    if syllable[-1] in "012345":
        return syllable[:-1], int(syllable[-1]) % len(_TONES)
    mark = next((mark for mark in _TONES[1:] if mark in syllable), None)
    return (syllable, 0) if mark is None else (syllable.replace(mark, ""), _TONES.index(mark))


def _marked(final: str, tone: int) -> str:
    """Put the mark of a tone on the vowel that bears it: a or e, the o of ou, or else the last one."""
    bearer = next((vowel for vowel in ("a", "e", "ou") if vowel in final), None)
    vowels = [index for index, letter in enumerate(final) if letter in "aeiouü"]
    if not vowels or not tone:
        return final
    at = final.index(bearer) if bearer else vowels[-1]
    return unicodedata.normalize("NFC", final[: at + 1] + _TONES[tone] + final[at + 1 :])


def _decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def _tags(parts: Iterable[str]) -> str:
    return "".join(f"[{part}]" for part in parts)
