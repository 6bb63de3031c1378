"""Which rule changed what of a text, for who wants to see it; it costs nothing while nobody watches.

with watched() as changes:
    ...                          # read a text
changes[0]                       # Change(rule="money.money", written="$3.50", spoken="three dollars and ...")
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from gateway.text.alignment import align


@dataclass(frozen=True)
class Change:
    """One replacement; the next rule reads what this one left."""

    rule: str
    written: str
    spoken: str


_watcher: ContextVar[list[Change] | None] = ContextVar("watcher", default=None)


@contextmanager
def watched() -> Iterator[list[Change]]:
    """Yield a list that is filled with the changes of texts read within, in order."""
    changes = list[Change]()
    token = _watcher.set(changes)
    try:
        yield changes
    finally:
        _watcher.reset(token)


def noted(rule: str, written: str, spoken: str) -> str:
    """Return what a rule made of a text, and note where it differs, in whole words, if anybody watches."""
    changes = _watcher.get()
    if changes is not None and written != spoken:
        at = said = 0
        for span in align(written, spoken).spans:
            before, after = written[at : at + span.source_length], spoken[said : said + span.spoken_length]
            at, said = at + span.source_length, said + span.spoken_length
            if before.strip() != after.strip():
                changes.append(Change(rule, before.strip(), after.strip()))
    return spoken
