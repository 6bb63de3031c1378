"""Sentences and names out of WordNet's data files, and what may stand in a training text at all.

A word's gloss says what it means and gives examples of its use. Source of the format: the wndb(5) manual page of the
wordnet-base package. The gloss follows the bar; examples stand in quotes. Before the bar stand the words of an entry
and its pointers; one pointer says that it is one person or one place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIN_CHARACTERS, MAX_CHARACTERS = 6, 220
"""About half a second to 15 s of speech."""
_ALLOWED = re.compile(r"[A-Za-z0-9 ,.;:?!'\"$%&/()\-]+")
_HAS_WORD = re.compile(r"[A-Za-z]{2}|\d")
_PARENTHESIS = re.compile(r"\s*\([^()]*\)")
_SPACES = re.compile(r"\s+")
_DASH = re.compile(r"\s*--\s*")
_ENDS = ".?!"


def as_sentence(text: str) -> str | None:
    """Return the text as one sentence, capital first and a stop at the end; None if it has what we don't train on."""
    plain = _SPACES.sub(" ", _PARENTHESIS.sub("", _DASH.sub(", ", text.replace("`", "'")))).strip(" ;,:-\"'")
    if not plain or not _ALLOWED.fullmatch(plain) or not _HAS_WORD.search(plain):
        return None
    sentence = plain[0].upper() + plain[1:]
    if sentence[-1] not in _ENDS:
        sentence += "."
    return sentence if MIN_CHARACTERS <= len(sentence) <= MAX_CHARACTERS else None


NOUNS = "data.noun"
DATA_FILES = (NOUNS, "data.verb", "data.adj", "data.adv")
_QUOTED = re.compile(r'"([^"]+)"')
_LICENCE_LINE = "  "
_PERSON, _PLACE = "18", "15"
"""Numbers of the lexicographers' files."""
_INSTANCE = "@i"
_NAME = re.compile(r"[A-Z][A-Za-z']+(?: [A-Z][A-Za-z']+)*")
_MOST_NAME_WORDS = 3
_RANK = re.compile("[IVX]+|Jr|Sir|Saint|President|Prince|King|Baron|Dame|Duke|Captain|First|Great|Elder|Apostle")


@dataclass(frozen=True)
class Glosses:
    """All usable sentences, in the files' order, each once."""

    examples: list[str]
    definitions: list[str]


def read_glosses(directory: Path) -> Glosses:
    """Read the four data files.

    Raises:
        OSError: one of them is missing.
    """
    examples: dict[str, None] = {}
    definitions: dict[str, None] = {}
    for name in DATA_FILES:
        for _, gloss in _entries(directory / name):
            for quoted in _QUOTED.findall(gloss):
                _keep(examples, quoted)
            _keep(definitions, _QUOTED.sub("", gloss).split(";")[0])
    return Glosses(list(examples), list(definitions))


@dataclass(frozen=True)
class Names:
    """Names as often as entries have them, in the files' order."""

    people: list[str]
    """Given names and family names, each by itself."""
    places: list[str]
    """Of one to three words."""


def read_names(directory: Path) -> Names:
    """Read the names of people and places.

    Raises:
        OSError: the nouns' file is missing.
    """
    people, places = list[str](), list[str]()
    for fields, _ in _entries(directory / NOUNS):
        if _INSTANCE not in fields:
            continue
        words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
        names = [name for word in words if _NAME.fullmatch(name := word.replace("_", " "))]
        if fields[1] == _PERSON:
            people += [part for name in names for part in name.split() if not _RANK.fullmatch(part)]
        elif fields[1] == _PLACE:
            places += [name for name in names if len(name.split()) <= _MOST_NAME_WORDS]
    return Names(people, places)


def _entries(path: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the fields before the bar of each entry, and its gloss."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(_LICENCE_LINE):
            before, _, gloss = line.partition("|")
            yield before.split(), gloss.strip()


def _keep(sentences: dict[str, None], text: str) -> None:
    sentence = as_sentence(text)
    if sentence is not None:
        sentences[sentence] = None
