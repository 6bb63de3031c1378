"""Numbered items within running text: `1. Apples 2. Pears`, `a) stay b) go`, `• 9. ... • 10. ...`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_MARKER = re.compile(r"(?:(?<=\s)|^)(?P<bullet>[•⁃]\s?)?(?P<number>\d{1,2}|[a-z])(?P<style>\.\)|[.)])(?!\S|\s+\d)")
_FIRST = ("1", "a")
_BEFORE_FIRST = ":;.!?。：；！？\n"
"""What stands before the first item of a list, if anything does."""


@dataclass(frozen=True)
class ListMarker:
    """What numbers an item: `2.`"""

    start: int
    end: int
    bullet: str
    number: str
    style: str

    @property
    def following(self) -> str:
        """The marker of the next item."""
        last = self.number
        number = str(int(last) + 1) if last.isdecimal() else chr(ord(last) + 1)
        return f"{self.bullet}{number}{self.style}"


def list_markers(text: str) -> Iterator[ListMarker]:
    """Yield the markers of a list's items; a number with a full stop that has no place in a list is none.

    The one at the beginning may have any number, as a longer list may have been cut there. Elsewhere a list begins with
    1 or a, behind a mark; each further item counts on from the one before.
    """
    last: ListMarker | None = None
    for found in _MARKER.finditer(text):
        before = text[: found.start()].rstrip(" ")
        is_first = not before or (before[-1] in _BEFORE_FIRST and found["number"] in _FIRST)
        marker = ListMarker(found.start(), found.end(), found["bullet"] or "", found["number"], found["style"])
        if is_first or (last is not None and found[0] == last.following):
            last = marker
            yield marker
