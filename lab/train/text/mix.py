"""Decides who says what: a seeded, endless plan of utterances over all speakers and kinds of text.

The n-th utterance depends on the seed and n alone, so any part of a corpus can be made again anywhere.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lab.train.text.generated import generated_sentence, varied_sentence

TEXT_FILES = ("examples.txt.gz", "definitions.txt.gz", "words.txt.gz", "people.txt.gz", "places.txt.gz")
"""Written by `lab.train.collect`: one text a line."""

_KIND_SHARES = {"example": 0.50, "definition": 0.20, "generated": 0.18, "words": 0.12}
_TWO_SENTENCES = 0.15
"""Share of utterances that say two texts in a row: the pause between them has to be learnt too."""
_MAX_CHARACTERS = 230
_VARIED_SHARES = {
    **{"plain": 0.28, "fragment": 0.10, "joined": 0.09, "varied": 0.13},
    **{"named": 0.24, "repeated": 0.08, "short": 0.08},
}
_NAME_SHARES = (0.45, 0.2, 0.35)
"""Of what stands in the frames for names: those of known people, of known places, and any."""
_LOWER_CASE = 0.3
_JOINTS = (", and ", ", but ", "; ", ", because ", ", so ", " while ")
_LONG_LETTERS = (100, 200)
_LONG_JOINTS = (
    *_JOINTS,
    ", though ",
    " when ",
    ", for ",
    ", if ",
    " that ",
    ", as ",
    "; and ",
    " before ",
    ", or ",
    ", ",
)
_LONG_SHARES = {"example": 0.55, "definition": 0.2, "named": 0.15, "generated": 0.1}
_LONG_ENDS = (*"........", "!", "?")
_NAME_FRAMES = (
    *("{}.", "{} {}", "Hello, {}.", "This is {} {} speaking.", "Is {} there?", "{}'s car is in {}.", "Call {} {} now!"),
    *("{}, {} and {}", "Mr. {} wrote to {}.", "Mrs. {} and {} {} live in {}.", "{} likes {}, and {} likes {}."),
    *("The train to {} stops in {} and {}.", "{} is far from {}.", "Dr. {} has not seen {} {} since he left {}."),
    *("{} and {} {} have moved to {}.", "We flew from {} to {} with {}.", "A friend of {} {} lives in {}.", "{} {}"),
    *("Have you met {} {}?", "I know {}, {} and {}, but not {}.", "Miss {} called {} {} yesterday.", "{} {} of {}"),
    *("It was {} {} who found it.", "Send this to {} {} in {}, please.", "{} married {} {} in {}.", "{} told {} so."),
    *("My name is {} {}.", "{} and her brother {} grew up near {}.", "Tell {} that {} {} is here.", "{}, {}!"),
    *("The {} family comes from {}.", "They played {} by {} {}.", "Neither {} nor {} has been to {}.", "Not {}, {}!"),
)
_REPEATED_FRAMES = ("{0} {0}.", "{0}, {0}!", "{0} {0} {0}", "{0}, {0}, {0}, {0}.", "{0} {0} {0} {0} {0} {0}.")
_REPEATED_INSIDE = "It is {0}, he told me, and I heard him call {0} from below."
_SHORT_WORDS = (1, 4)
"""Fewest words of a short text, and the number behind the most."""
_SHORT_ENDS = (".", ".", "!", "?", "")
_ALLITERATED = (3, 6)
"""Fewest words in a row that begin alike, and the number behind the most."""
_ALLITERATED_LETTERS = 2
_LONGEST_COMMON = 7
_SPELLED = re.compile("[a-z]+")
_WORD_FRAMES = ("{}.", "The word is {}.", "{}, {}.", "{} and {}.", "{}, {} and {}.", "Is it {} or {}?", "Say {} again.")


@dataclass(frozen=True)
class PlannedUtterance:
    """One utterance to make."""

    number: int
    speaker: int
    """Index into the teachers' speakers."""
    text: str


@dataclass(frozen=True)
class TextSources:
    """Everything sentences are drawn from."""

    examples: list[str]
    definitions: list[str]
    words: list[str]
    people: list[str]
    """Given and family names, common ones more often."""
    places: list[str]

    @cached_property
    def names(self) -> list[str]:
        """The words that are always written with a capital."""
        return [word for word in self.words if word[0].isupper()]

    @cached_property
    def common(self) -> list[str]:
        """Short words that the examples use, in the order of the alphabet."""
        used = {word for example in self.examples for word in _SPELLED.findall(example)}
        return sorted(used.intersection(word for word in self.words if word.islower() and len(word) <= _LONGEST_COMMON))

    def alike(self, word: str) -> list[str]:
        """Return the common words that begin as this one does, itself among them."""
        return self._alike[word[:_ALLITERATED_LETTERS]]

    @cached_property
    def _alike(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for word in self.common:
            groups.setdefault(word[:_ALLITERATED_LETTERS], []).append(word)
        return groups

    @classmethod
    def read(cls, directory: Path) -> TextSources:
        """Read the files that `lab.train.collect` wrote.

        Raises:
            OSError: one of them is missing.
        """
        return cls(*(_lines(directory / name) for name in TEXT_FILES))


def planned(
    sources: TextSources,
    seed: int,
    first: int,
    shares: Sequence[float],
    is_varied: bool = False,
    is_long: bool = False,
) -> Iterator[PlannedUtterance]:
    """Yield utterance `first`, the one after it, and so on without end.

    Args:
        sources: what sentences are drawn from.
        seed: of the plan.
        first: number of the first utterance.
        shares: each speaker's share of the utterances.
        is_varied: also fragments, dialogue, lists, long sentences, one to three words, many names, and words said
            again and again.
        is_long: nothing but sentences of 100 to 200 letters.
    """
    write = _long if is_long else _varied_text if is_varied else _text
    number = first
    while True:
        draw = random.Random(f"{seed}:{number}")
        speaker = draw.choices(range(len(shares)), shares)[0]
        yield PlannedUtterance(number, speaker, write(sources, draw))
        number += 1


def _text(sources: TextSources, draw: random.Random) -> str:
    text = _sentence(sources, draw)
    if draw.random() < _TWO_SENTENCES:
        both = f"{text} {_sentence(sources, draw)}"
        return both if len(both) <= _MAX_CHARACTERS else text
    return text


def _varied_text(sources: TextSources, draw: random.Random) -> str:
    kind = draw.choices(list(_VARIED_SHARES), list(_VARIED_SHARES.values()))[0]
    if kind == "joined":
        return _joined(sources, draw)
    if kind == "varied":
        return varied_sentence(draw)
    if kind == "named":
        return _named(sources, draw)
    if kind == "repeated":
        return _repeated(sources, draw)
    if kind == "short":
        return _short(sources, draw)
    text = _text(sources, draw)
    if kind == "fragment":
        # What people type without a stop is spoken as if there were one, so sound and end must not hang on it.
        bare = text[:-1] if text.endswith(".") else text
        return bare[0].lower() + bare[1:] if draw.random() < _LOWER_CASE else bare
    return text


def _named(sources: TextSources, draw: random.Random) -> str:
    frame = draw.choice(_NAME_FRAMES)
    return frame.format(*(_name(sources, draw) for _ in range(frame.count("{}"))))


def _name(sources: TextSources, draw: random.Random) -> str:
    (names,) = draw.choices((sources.people, sources.places, sources.names), _NAME_SHARES)
    return draw.choice(names)


def _repeated(sources: TextSources, draw: random.Random) -> str:
    """One word again and again, alone or in a sentence, or words that begin alike."""
    form, word = draw.randrange(4), draw.choice(sources.common)
    if form == 0:
        text = draw.choice(_REPEATED_FRAMES).format(word)
        return text[0].upper() + text[1:]
    if form == 1:
        return _REPEATED_INSIDE.format(" ".join([word] * draw.randrange(2, 5)))
    if form == 2:
        sentence = draw.choice(sources.examples)
        words = sentence.split(" ")
        place = draw.randrange(len(words))
        again = words[place].rstrip(".,;:!?").lower()
        words[place] = words[place].lower()
        text = " ".join([*words[:place], *[again] * draw.randrange(1, 5), *words[place:]])
        return text[0].upper() + text[1:] if len(text) <= _MAX_CHARACTERS else sentence
    alike = sources.alike(word)
    text = " ".join(draw.choice(alike) for _ in range(draw.randrange(*_ALLITERATED)))
    return f"{text[0].upper()}{text[1:]}."


def _short(sources: TextSources, draw: random.Random) -> str:
    """One to three words that follow each other in an example."""
    words = draw.choice(sources.examples).split(" ")
    count = min(draw.randrange(*_SHORT_WORDS), len(words))
    first = draw.randrange(len(words) - count + 1)
    text = " ".join(words[first : first + count]).rstrip(".,;:!?")
    return f"{text[:1].upper()}{text[1:]}{draw.choice(_SHORT_ENDS)}"


def _joined(sources: TextSources, draw: random.Random) -> str:
    """One long sentence of two or three."""
    parts = [draw.choice(sources.examples) for _ in range(draw.randrange(2, 4))]
    text = parts[0]
    for part in parts[1:]:
        longer = f"{text.rstrip('.?!')}{draw.choice(_JOINTS)}{part[0].lower()}{part[1:]}"
        text = longer if len(longer) <= _MAX_CHARACTERS else text
    return text


def _long(sources: TextSources, draw: random.Random) -> str:
    """One sentence of several clauses."""
    least, most = _LONG_LETTERS
    wanted = draw.randrange(least, most)
    text, joint = "", ""
    while len(text) < wanted:
        clause = _clause(sources, draw).rstrip(".?! ")
        longer = f"{text}{joint}{clause[0].lower() if text else clause[0]}{clause[1:]}"
        if len(longer) < most:
            text, joint = longer, draw.choice(_LONG_JOINTS)
        elif len(text) >= least:
            break
    return f"{text}{draw.choice(_LONG_ENDS)}"


def _clause(sources: TextSources, draw: random.Random) -> str:
    (kind,) = draw.choices(list(_LONG_SHARES), list(_LONG_SHARES.values()))
    if kind == "named":
        return _named(sources, draw)
    if kind == "generated":
        return generated_sentence(draw)
    return draw.choice(sources.examples if kind == "example" else sources.definitions)


def _sentence(sources: TextSources, draw: random.Random) -> str:
    kind = draw.choices(list(_KIND_SHARES), list(_KIND_SHARES.values()))[0]
    if kind == "example":
        return draw.choice(sources.examples)
    if kind == "definition":
        return draw.choice(sources.definitions)
    if kind == "generated":
        return generated_sentence(draw)
    frame = draw.choice(_WORD_FRAMES)
    sentence = frame.format(*(draw.choice(sources.words) for _ in range(frame.count("{}"))))
    return sentence[0].upper() + sentence[1:]


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]
