"""What requests of several dialects say about their text in the same words: pronunciations and dictionaries. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gateway.errors import InvalidRequestError, UnsupportedOptionError
from gateway.lexicons import rules_of_mapping
from gateway.text import Normalization, TextOptions
from gateway.text.options import check_counts
from gateway.text.pronunciation.aliases import MAX_ALIAS, MAX_WORD, NO_PHONEMES, AliasRule
from gateway.text.pronunciation.phonemes import CMU, IPA
from gateway.text.styles import Style

_IPA = re.compile("[\u0250-\u02af\u02b0-\u02ff\u0300-\u036f\u1d00-\u1dbfæðøŋœθβχ]|\\{@?[A-Z]")
"""Letters that only phonetic alphabets have, and the start of Riva's ARPABET in braces."""
_ARPABET = re.compile(r"\{@?([^{}]*)\}")
_MAX_PHONEMES = 10_000
"""Most characters of phonemes of one request: each takes the event loop some three microseconds."""
_MAX_ENTRY = MAX_WORD + MAX_ALIAS + 100
_ENTRY = re.compile(r"(?P<word>\S.*?)(?:\s{2,}|\t)(?P<spoken>\S.*)", re.DOTALL)


def text_options_of(
    language: str | None,
    normalization: Normalization,
    lexicons: Sequence[str] | None,
    pronunciations: Mapping[str, str] | None,
    is_ssml: bool = False,
    style: Style | None = None,
    rules: tuple[AliasRule, ...] = (),
) -> TextOptions:
    """Make the options of a text out of a request's fields.

    Raises:
        InvalidRequestError: a language, word or pronunciation that can't be, or too many of them.
    """
    if pronunciations:
        check_counts(len(lexicons or ()), len(pronunciations))
        rules = (*rules, *rules_of_mapping(dict(pronunciations)))
    return TextOptions(language, normalization, is_ssml, rules, tuple(lexicons or ()), style)


def is_ssml_document(text: str) -> bool:
    """Tell whether a text says itself that it is SSML: Riva's clients have no other way to say so."""
    return text.lstrip()[:7].lower() in ("<speak>", "<speak ")


def rules_of_riva(custom_dictionary: str, *, takes_phonemes: bool) -> tuple[AliasRule, ...]:
    """Read Riva's dictionary: entries `word␣␣pronunciation`, with two blanks between, joined by commas.

    Raises:
        InvalidRequestError: an entry of another form.
        UnsupportedOptionError: a pronunciation in phonemes, where the checkpoint reads words only.
    """
    check_counts(0, custom_dictionary.count(","))
    entries = [_parted(entry.strip()) for entry in custom_dictionary.split(",") if entry.strip()]
    phonemes = sum(len(spoken) for _, spoken in entries if _IPA.search(spoken))
    if phonemes > _MAX_PHONEMES:
        got = f"custom_dictionary has {phonemes} characters of phonemes, expected at most {_MAX_PHONEMES}"
        raise InvalidRequestError(f"{got}; leave out the words that the text lacks", param="custom_dictionary")
    return tuple(_rule(word, spoken, takes_phonemes) for word, spoken in entries)


def _parted(entry: str) -> tuple[str, str]:
    found = _ENTRY.fullmatch(entry) if len(entry) <= _MAX_ENTRY else None
    if found is None:
        expected = 'expected a word, two blanks and what is spoken for it, such as "Xiaomi  show me"'
        raise InvalidRequestError(
            f"custom_dictionary: got the entry {entry[:80]!r}, {expected}", param="custom_dictionary"
        )
    return found["word"], found["spoken"].strip()


def _rule(word: str, spoken: str, takes_phonemes: bool) -> AliasRule:
    if not _IPA.search(spoken):
        return AliasRule(word, spoken)
    if not takes_phonemes:
        raise UnsupportedOptionError(f"custom_dictionary, {word[:40]!r}: {NO_PHONEMES}", param="custom_dictionary")
    if "{" in spoken:
        return AliasRule(word, " ".join(_ARPABET.findall(spoken)), alphabet=CMU)
    return AliasRule(word, spoken, alphabet=IPA)
