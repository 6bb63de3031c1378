"""Replaces words by what is to be spoken for them: the rules of pronunciation dictionaries.

    written   The Xiaomi of NYC.      rules   Xiaomi -> show me, NYC -> New York City
    spoken    The show me of New York City.

Dictionaries are asked in order: what an earlier one has replaced a later one does not see. Within one, the leftmost
match counts and of several there the longest. Pure; knows nothing of files or callers.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gateway.errors import InvalidRequestError
from gateway.text.alignment import NormalizedText, replaced
from gateway.text.breaks import is_of_word
from gateway.text.cleaning import cleaned
from gateway.text.phonemes import phoneme_tags

MAX_WORD = 200
"""Most characters of the word that a rule replaces; a segment of text has not many more."""
MAX_ALIAS = 400
"""Most characters of the text that a rule puts in its place."""
_KEY = 2
"""Number of leading characters by which rules are looked up."""
_GROWS = "İ"
"""The only letter that is two characters in lower case."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and lone surrogates."""
NO_PHONEMES = (
    "phonemes can't be spoken: this checkpoint reads words only; CosyVoice3 checkpoints read pinyin and CMU phonemes, "
    "where checkpoint.json declares it; give an alias, spelled as it is to be spoken"
)


@dataclass(frozen=True)
class AliasRule:
    """One word, or some in a row, and what is spoken for it."""

    word: str
    alias: str
    is_case_sensitive: bool = True
    has_word_boundaries: bool = True
    """Whether the rule replaces whole words only; in Chinese and Japanese every character is a word."""
    alphabet: str | None = None
    """Alphabet of the alias's phonemes; None: the alias is words. See `phonemes.phoneme_tags`."""

    def __post_init__(self) -> None:
        _check("string_to_replace", self.word, MAX_WORD)
        _check("phoneme" if self.alphabet else "alias", self.alias, MAX_ALIAS)
        try:
            self.spoken  # noqa: B018  which reads phonemes
        except ValueError as error:
            raise InvalidRequestError(f"phonemes of {self.word[:40]!r}: {error}", param="phoneme") from error

    @cached_property
    def spoken(self) -> str:
        """What the LLM gets for the word."""
        return cleaned(self.alias) if self.alphabet is None else phoneme_tags(self.alias, self.alphabet)


def _also_clean(rule: AliasRule) -> Iterator[AliasRule]:
    """Yield a rule as it is, and for a clean text: a word's `’` is `'` there."""
    yield rule
    word = cleaned(rule.word)
    if word != rule.word and 0 < len(word) <= MAX_WORD and not word.isspace():
        yield replace(rule, word=word)


class Lexicon:
    """One dictionary, ready to be applied."""

    def __init__(self, rules: Iterable[AliasRule]) -> None:
        """Sort the rules for the lookup; of two for the same word the first counts."""
        rules = tuple(each for rule in rules for each in _also_clean(rule))
        self.in_phonemes = next((rule.word for rule in rules if rule.alphabet is not None), None)
        """The first word whose pronunciation is phonemes; None if there is none."""
        self._rules: dict[tuple[str, bool], list[tuple[int, AliasRule]]] = {}
        """By the word, in lower case unless its case counts, and whether it does: place in the order, and rule."""
        self._words: set[str] = set()
        """In lower case."""
        lengths: dict[str, set[int]] = {}
        for place, rule in enumerate(rules):
            folded = _folded(rule.word)
            word = rule.word if rule.is_case_sensitive else folded
            same = self._rules.setdefault((word, rule.is_case_sensitive), [])
            if all(each.has_word_boundaries != rule.has_word_boundaries for _, each in same):
                same.append((place, rule))
            self._words.add(folded)
            lengths.setdefault(folded[:_KEY], set()).add(len(folded))
        self._lengths = {key: sorted(found, reverse=True) for key, found in lengths.items()}
        """Lengths of the words that begin so, the longest first."""

    def matches(self, text: str, folded: str, start: int, end: int) -> Iterator[tuple[int, AliasRule]]:
        """Yield where rules match between two positions, from left to right.

        Args:
            text: all of it.
            folded: see `_folded`.
            start: first position that may be replaced.
            end: behind the last one.
        """
        at = start
        while at < end:
            rule = self._match(text, folded, at, end)
            if rule is not None:
                yield at, rule
            at += 1 if rule is None else len(rule.word)

    def _match(self, text: str, folded: str, at: int, end: int) -> AliasRule | None:
        for key in (folded[at : at + _KEY], folded[at]):
            for length in self._lengths.get(key, ()):
                if folded[at : at + length] not in self._words or at + length > end:
                    continue
                if (rule := self._first(text, folded, at, at + length)) is not None:
                    return rule
        return None

    def _first(self, text: str, folded: str, at: int, end: int) -> AliasRule | None:
        """Return the first rule for the text between two positions."""
        exact, anyhow = (self._rules.get(key, []) for key in ((text[at:end], True), (folded[at:end], False)))
        candidates = sorted([*exact, *anyhow], key=lambda candidate: candidate[0]) if exact or anyhow else ()
        return next((rule for _, rule in candidates if _fits(text, at, end, rule)), None)


def apply_lexicons(text: str, lexicons: Sequence[Lexicon]) -> NormalizedText:
    """Return a text with the words of dictionaries replaced.

    Args:
        text: at most a segment, without tags.
        lexicons: in order.
    """
    folded, found = _folded(text), list[tuple[int, AliasRule]]()
    for lexicon in lexicons:
        new = [match for start, end in _gaps(found, len(text)) for match in lexicon.matches(text, folded, start, end)]
        if new:
            found = sorted([*found, *new], key=lambda match: match[0])
    return replaced(text, ((start, start + len(rule.word), rule.spoken) for start, rule in found))


def _gaps(found: list[tuple[int, AliasRule]], length: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of a text that nothing has replaced yet."""
    at = 0
    for start, rule in found:
        yield at, start
        at = start + len(rule.word)
    yield at, length


def _fits(text: str, at: int, end: int, rule: AliasRule) -> bool:
    """Tell whether a rule whose word stands between two positions may replace it there."""
    if not rule.has_word_boundaries:
        return True
    is_begun = at > 0 and _belong_together(text[at - 1], text[at])
    return not is_begun and not (end < len(text) and _belong_together(text[end - 1], text[end]))


def _belong_together(left: str, right: str) -> bool:
    """Tell whether there is no border of words between two characters."""
    if unicodedata.category(right).startswith("M"):
        return True
    return all(each == "_" or is_of_word(each) for each in (left, right))


def _folded(text: str) -> str:
    """Return the text in lower case, character by character: positions stay."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.replace(_GROWS, "\0").lower().replace("\0", _GROWS)


def _check(name: str, value: str, limit: int) -> None:
    if not value.strip() or value != value.strip():
        raise InvalidRequestError(f"got {name} {value[:40]!r}, expected text without blanks at its ends", param=name)
    if len(value) > limit:
        raise InvalidRequestError(f"{name} has {len(value)} characters, the limit is {limit}", param=name)
    if _CONTROL.search(value):
        raise InvalidRequestError(f"{name} {value[:40]!r} holds a control character; leave it out", param=name)
