"""Replaces words by what is to be spoken for them: the rules of pronunciation dictionaries.

    written   The Xiaomi of NYC.      rules   Xiaomi -> show me, NYC -> New York City
    spoken    The show me of New York City.

Dictionaries are asked in order: what an earlier one has replaced a later one does not see. Within one, the leftmost
match counts and of several there the longest. Pure; knows nothing of files or callers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from gateway.errors import InvalidRequestError
from gateway.text.alignment import Alignment, Span
from gateway.text.normalization.normalizer import NormalizedText, unchanged
from gateway.text.pronunciation.phonemes import phoneme_tags
from gateway.text.segments.breaks import spoken_length

MAX_WORD = 200
"""Most characters of the word that a rule replaces; a segment of text has not many more."""
MAX_ALIAS = 400
"""Most characters of the text that a rule puts in its place."""
_KEY = 2
"""Number of leading characters by which rules are looked up."""
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
        return self.alias if self.alphabet is None else phoneme_tags(self.alias, self.alphabet)


class Lexicon:
    """One dictionary, ready to be applied."""

    def __init__(self, rules: Iterable[AliasRule]) -> None:
        """Sort the rules for the lookup; of two for the same word the first counts."""
        rules = tuple(rules)
        self.in_phonemes = next((rule.word for rule in rules if rule.alphabet is not None), None)
        """The first word whose pronunciation is phonemes; None if there is none."""
        self._by_key: dict[str, list[tuple[str, AliasRule]]] = {}
        for rule in rules:
            folded = _folded(rule.word)
            self._by_key.setdefault(folded[:_KEY], []).append((folded, rule))
        for candidates in self._by_key.values():
            candidates.sort(key=lambda candidate: -len(candidate[0]))

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
            for word, rule in self._by_key.get(key, ()):
                if at + len(word) <= end and _is_match(text, folded, at, word, rule):
                    return rule
        return None


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
    return _replaced(text, found) if found else unchanged(text)


def _replaced(text: str, found: list[tuple[int, AliasRule]]) -> NormalizedText:
    parts, spans, at = list[str](), list[Span](), 0
    for start, rule in found:
        parts += [text[at:start], rule.spoken]
        spans += [Span(start - at, start - at), Span(len(rule.word), len(rule.spoken))]
        at = start + len(rule.word)
    parts.append(text[at:])
    spans.append(Span(len(text) - at, len(text) - at))
    return NormalizedText("".join(parts), Alignment(tuple(span for span in spans if span.source_length)))


def _gaps(found: list[tuple[int, AliasRule]], length: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of a text that nothing has replaced yet."""
    at = 0
    for start, rule in found:
        yield at, start
        at = start + len(rule.word)
    yield at, length


def _is_match(text: str, folded: str, at: int, word: str, rule: AliasRule) -> bool:
    is_same = text.startswith(rule.word, at) if rule.is_case_sensitive else folded.startswith(word, at)
    if not is_same or not rule.has_word_boundaries:
        return is_same
    end = at + len(word)
    is_begun = at > 0 and _belong_together(text[at - 1], text[at])
    return not is_begun and not (end < len(text) and _belong_together(text[end - 1], text[end]))


def _belong_together(left: str, right: str) -> bool:
    """Tell whether there is no border of words between two characters."""
    if unicodedata.category(right).startswith("M"):
        return True
    return _is_of_word(left) and _is_of_word(right)


def _is_of_word(character: str) -> bool:
    """Tell letters that are spelled into words, and digits, from syllables and ideographs, which stand alone."""
    return character.isdigit() or (character.isalnum() and spoken_length(character) == 1) or character == "_"


def _folded(text: str) -> str:
    """Return the text in lower case, character by character: positions stay."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(small if len(small := character.lower()) == 1 else character for character in text)


def _check(name: str, value: str, limit: int) -> None:
    if not value.strip() or value != value.strip():
        raise InvalidRequestError(f"got {name} {value[:40]!r}, expected text without blanks at its ends", param=name)
    if len(value) > limit:
        raise InvalidRequestError(f"{name} has {len(value)} characters, the limit is {limit}", param=name)
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise InvalidRequestError(f"{name} {value[:40]!r} holds a control character; leave it out", param=name)
