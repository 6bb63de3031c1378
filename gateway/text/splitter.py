"""Cuts text that arrives in pieces into segments that are spoken one by one.

    text     Yes, of course.  He said: "Dr. Smith paid 3.50 for it."  Then he left
    segment  [0             )[1                                      )[2         )

Segments joined are the text. The same text gives the same segments however it is divided into pieces, with one
exception: a flush ends a segment wherever it comes. Knows nothing of languages beyond the break finder it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from gateway.errors import ConfigError
from gateway.text.alignment import NormalizedText
from gateway.text.breaks import Break, BreakFinder, Strength, spoken_length
from gateway.text.manner import Manner

# Characters of a slice of a long piece, so that memory and work per character do not grow with it.
_SLICE = 1024
SHORTEST_MAX_LENGTH = 160
"""Smallest `max_length` in letters; a place to cut must exist within so many."""


@dataclass(frozen=True)
class CutBounds:
    """How long a segment is, in letters as spoken (see `spoken_length`)."""

    min_sentence: int
    """From this length on, the end of a sentence ends the segment."""
    min_clause: int
    """From this length on, the end of a clause ends the segment."""
    max_length: int
    """The segment is cut at the best place before this length."""
    min_words: int | None = None
    """From this length on, a blank between two words of letters alone ends the segment; None: it does not."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_sentence <= self.min_clause <= self.max_length:
            raise ConfigError(f"got {self}, expected 1 <= min_sentence <= min_clause <= max_length")

    def capped(self, letters: int) -> CutBounds:
        """Return bounds for shorter segments: a sentence may end one from a third of the letters on, a clause from all.

        Text without either is cut no earlier than `SHORTEST_MAX_LENGTH`.
        """
        return replace(
            self,
            min_sentence=min(self.min_sentence, max(1, letters // 3)),
            min_clause=min(self.min_clause, letters),
            max_length=min(self.max_length, max(letters, SHORTEST_MAX_LENGTH)),
        )


@dataclass(frozen=True)
class SplitSettings:
    """Bounds of a text's segments."""

    first: CutBounds
    """Bounds for the first segment of a text, and for the first after a flush."""
    later: CutBounds

    @property
    def cuts_words(self) -> bool:
        """Whether segments are parts of sentences, to be spoken as one with those behind them."""
        return self.later.min_words is not None

    @lru_cache(maxsize=16)  # noqa: B019  (settings are few, and live as long as the process)
    def capped(self, letters: int | None) -> SplitSettings:
        """Return bounds for segments of about so many letters; None changes nothing."""
        return self if letters is None else SplitSettings(self.first.capped(letters), self.later.capped(letters))


_LATER = CutBounds(min_sentence=80, min_clause=240, max_length=240)
"""About 5 to 16 s; a shorter sentence is never cut. 240 letters are at most 960 text tokens even of 4 each,
within the LLM's bound of 1024."""
LIVE_TEXT = SplitSettings(first=CutBounds(min_sentence=12, min_clause=30, max_length=200), later=_LATER)
"""Bounds for text that is still being written: the first segment ends at the first clause worth speaking."""
_WORDS = CutBounds(min_sentence=1, min_clause=1, max_length=200, min_words=8)
INTERLEAVED_TEXT = SplitSettings(first=_WORDS, later=_WORDS)
"""Bounds for text that the LLM takes while it speaks: a few words each, numbers and abbreviations kept whole."""
WHOLE_TEXT = SplitSettings(first=_LATER, later=_LATER)
"""Bounds for text known from the start: waiting for its later parts costs no time."""


@dataclass(frozen=True)
class Segment:
    """A piece of text to speak at once."""

    text: str
    """The segment as it arrived, blank space and tags included."""
    start: int
    """Position of the segment's first character in the whole text."""
    bare: NormalizedText | None = None
    """The segment without markup; None: it has no markup."""
    is_last: bool = False
    """Whether the text ends here, or a flush asks to speak it without what follows."""
    pause: float | None = None
    """Seconds of silence after the segment; None: it does not end in a break."""
    manner: Manner | None = None
    """How the segment is spoken; None: as the rest of the text."""
    pause_from: int = 0
    """Position in `text` where the tag of `pause` begins."""

    @property
    def plain_text(self) -> str:
        """The segment without markup."""
        return self.text if self.bare is None else self.bare.text

    @property
    def pause_s(self) -> float:
        """Seconds of silence behind it."""
        return self.pause or 0.0

    @property
    def end(self) -> int:
        """Position behind its last character in all the text."""
        return self.start + len(self.text)


@dataclass
class _Scan:
    """How far the segment that begins the pending text has been read, and what was found."""

    end: int = 0
    length: int = 0
    is_in_pair: bool = False
    is_speakable: bool = False
    is_word: bool = False
    """Whether the last chunk read is letters alone, with a blank behind it."""
    best: tuple[bool, Strength, int] | None = None
    """Best place to cut if the segment gets too long: outside a pair of tags first, then strongest, then last."""


class IncrementalSplitter:
    """Cuts one text. Holds what has not been cut yet, at most `max_length` and one further chunk."""

    def __init__(self, finder: BreakFinder, settings: SplitSettings) -> None:
        """Begin a text.

        Raises:
            ConfigError: a `max_length` has no room for the finder's chunks.
        """
        shortest = min(settings.first.max_length, settings.later.max_length)
        if shortest < finder.longest_chunk:
            raise ConfigError(f"got max_length {shortest}, expected {finder.longest_chunk} letters or more")
        self._finder = finder
        self._settings = settings
        self._bounds = settings.first
        self._start = 0
        self._text = ""
        self._scan = _Scan()

    def push(self, piece: str) -> list[Segment]:
        """Take more text, of any length, and return the segments that it completes."""
        return [segment for segment in self.cutting(piece) if segment is not None]

    def flush(self) -> list[Segment]:
        """Return all that is left, as if the text ended here; more may be pushed afterwards."""
        return [segment for segment in self.finishing() if segment is not None]

    def cutting(self, piece: str) -> Iterator[Segment | None]:
        """Do what `push` does in small steps, to the end: each yields a segment, or None while there is none yet."""
        for at in range(0, len(piece), _SLICE):
            self._text += piece[at : at + _SLICE]
            yield from self._cut_all(is_complete=False)

    def finishing(self) -> Iterator[Segment | None]:
        """Do what `flush` does in small steps, to the end; see `cutting`."""
        yield from self._cut_all(is_complete=True)
        if self._text:
            yield self._take(len(self._text))
        self._bounds = self._settings.first

    def _cut_all(self, *, is_complete: bool) -> Iterator[Segment | None]:
        """Read on from break to break."""
        while found := self._finder.next_break(self._text, self._scan.end, is_complete=is_complete):
            scan = self._scan
            chunk = self._text[scan.end : found.end]
            length = scan.length + spoken_length(chunk)
            if length > self._bounds.max_length and scan.best is not None:
                yield self._take(scan.best[-1])
                continue
            if self._bounds.min_words is not None and self._is_cut_before(chunk, self._bounds.min_words):
                yield self._take(scan.end)
                continue
            self._read(chunk, length, found)
            yield self._take(found.end) if self._is_cut(found.strength) else None

    def _read(self, chunk: str, length: int, found: Break) -> None:
        scan, tags = self._scan, self._finder.tags
        scan.end, scan.length = found.end, length
        scan.is_word = found.strength == Strength.SPACE and chunk.strip().isalpha()
        scan.is_speakable = scan.is_speakable or tags.is_speakable(chunk)
        if "<" in chunk:
            scan.is_in_pair = tags.is_left_open(chunk, was_open=scan.is_in_pair)
        candidate = (not scan.is_in_pair, found.strength, found.end)
        scan.best = candidate if scan.best is None else max(scan.best, candidate)

    def _is_cut_before(self, chunk: str, least: int) -> bool:
        """Tell whether the segment ends with a word that another word follows, from so many letters on."""
        scan = self._scan
        if not scan.is_word or scan.is_in_pair or not scan.is_speakable:
            return False
        return scan.length >= least and chunk.strip().isalpha()

    def _is_cut(self, strength: Strength) -> bool:
        if self._scan.is_in_pair or not self._scan.is_speakable:
            return False
        if strength == Strength.SENTENCE:
            return self._scan.length >= self._bounds.min_sentence
        if strength == Strength.CLAUSE:
            return self._scan.length >= self._bounds.min_clause
        return strength == Strength.PARAGRAPH

    def _take(self, end: int) -> Segment:
        segment = Segment(self._text[:end], self._start)
        self._text = self._text[end:]
        self._start += end
        self._bounds = self._settings.later
        self._scan = _Scan()
        return segment
