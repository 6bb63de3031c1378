"""The rows and figures of the study of speech that keeps to its text. Pure; `lab.voice.guard` fills the rows.

A row is one text. It is bad if every recogniser hears more than half its words wrong although one of them understands
the source engine's own audio of it, or if it is much longer or shorter than that audio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.lib.word_errors import WordErrors
from lab.ears.study import Heard

WORST_ERROR_RATE = 0.5
LONGEST_SHARE, SHORTEST_SHARE = 1.6, 0.6
"""Bounds of an answer's length, as shares of the source engine's own audio of the text."""
SLACK_S = 0.6
"""Seconds of silence at the ends, which differs."""


@dataclass(frozen=True)
class SpokenSegment:
    """One answer of the LLM for a segment of a text."""

    text: str
    seed: int
    token_ids: tuple[int, ...]
    """Speech tokens, 0..6560."""
    finish_reason: str
    """Why the answer ended: `stop`, `length`, or `broken off` by the guard."""


@dataclass(frozen=True)
class GuardRow:
    """One text, spoken with the guard on or off."""

    number: int
    kind: str
    text: str
    spoken_text: str
    """Normalised text, which the errors are counted against."""
    segments: tuple[SpokenSegment, ...]
    audio_s: float
    heard: Mapping[str, Heard]
    """What each recogniser heard, by its name."""
    source_s: float
    """Seconds of the source engine's audio of the spoken text."""
    source: Mapping[str, Heard] | None
    """What they heard in the source engine's audio; None if all heard the text well."""
    notes: tuple[str, ...] = ()
    """Troubles that the guard saw, and their outcomes."""

    @property
    def is_misheard(self) -> bool:
        """Whether no recogniser understands it, and one understands the source engine."""
        return self._is_misheard_by(self.heard)

    def is_bad_to(self, recogniser: str) -> bool:
        """Tell whether it does not keep to its text as one recogniser alone hears it."""
        return self._is_misheard_by([recogniser]) or self.is_out_of_bounds

    def _is_misheard_by(self, recognisers: Iterable[str]) -> bool:
        names = list(recognisers)
        if self.source is None or not all(is_misheard(self.heard[name]) for name in names):
            return False
        return not all(is_misheard(self.source[name]) for name in names)

    @property
    def is_out_of_bounds(self) -> bool:
        """Whether its length is not that of the text."""
        longest = LONGEST_SHARE * self.source_s + SLACK_S
        return not SHORTEST_SHARE * self.source_s - SLACK_S <= self.audio_s <= longest

    @property
    def is_bad(self) -> bool:
        """Whether it does not keep to its text."""
        return self.is_misheard or self.is_out_of_bounds


def is_misheard(heard: Heard) -> bool:
    """Tell whether too many words were heard wrong."""
    return heard.errors.rate > WORST_ERROR_RATE


def shares_by_recogniser(rows: Sequence[GuardRow]) -> dict[str, float]:
    """Return the share of rows that are bad to each recogniser alone."""
    return {name: sum(row.is_bad_to(name) for row in rows) / len(rows) for name in rows[0].heard}


def bad_shares(rows: Sequence[GuardRow]) -> dict[str, float]:
    """Return the share of bad rows of each kind and of all (`all`)."""
    kinds = {row.kind: [each for each in rows if each.kind == row.kind] for row in rows}
    return {kind: sum(row.is_bad for row in own) / len(own) for kind, own in {**kinds, "all": list(rows)}.items()}


def figures(before: Sequence[GuardRow], touched: Sequence[GuardRow]) -> dict[str, Any]:
    """Compute the study's figures.

    Args:
        before: every text, spoken without the guard.
        touched: those that the guard changes, spoken with it; all others sound as before, token for token.
    """
    changed = {row.number: row for row in touched}
    after = [changed.get(row.number, row) for row in before]
    return {
        "sentences": len(before),
        "excess_bad_share_before": bad_shares(before)["all"],
        "excess_bad_share_after": bad_shares(after)["all"],
    }


def row_json(row: GuardRow) -> dict[str, Any]:
    """Return a row ready for JSON."""
    return asdict(row)


def row_from_json(values: Mapping[str, Any]) -> GuardRow:
    """Undo `row_json`."""
    segments = tuple(SpokenSegment(**{**each, "token_ids": tuple(each["token_ids"])}) for each in values["segments"])
    source = values["source"] and _all_heard(values["source"])
    lists = {"segments": segments, "notes": tuple(values.get("notes", ()))}
    return GuardRow(**{**values, **lists, "heard": _all_heard(values["heard"]), "source": source})


def _all_heard(values: Mapping[str, Any]) -> dict[str, Heard]:
    return {name: _heard(each) for name, each in values.items()}


def _heard(values: Mapping[str, Any]) -> Heard:
    return Heard(values["transcript"], WordErrors(**values["errors"]))
