"""Inline tags of a text, such as `[breath]` or `<strong>...</strong>`: where they are, and which belong in pairs.

A tag is one of a fixed list, spelled exactly as the model's vocabulary has it. Any other markup is text like any other:
`[1]`, `<3`, `a < b` and links are passed through, because a refused text speaks less than an odd word. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gateway.errors import ConfigError
from llm_service.vocab import INLINE_TAGS

_TAG_FORM = re.compile(r"[\[<][^\[\]<>\s]+[\]>]")
_CLOSING_START = "</"
_MATCHES_NOTHING = "(?!)"


@dataclass(frozen=True)
class TextPart:
    """A stretch of text without tags, or one tag."""

    text: str
    is_tag: bool


class InlineTags:
    """A model's list of inline tags."""

    def __init__(self, tags: Iterable[str] = INLINE_TAGS) -> None:
        """Keep the list.

        Args:
            tags: `[...]` or `<...>` without blanks or further brackets; `</x>` closes `<x>`.

        Raises:
            ConfigError: a tag of another form.
        """
        self._tags = frozenset(tags)
        for tag in self._tags:
            if not _TAG_FORM.fullmatch(tag):
                raise ConfigError(f"got inline tag {tag!r}, expected a form such as [breath] or <strong>")
        self._prefixes = frozenset(tag[:size] for tag in self._tags for size in range(1, len(tag)))
        closing = {tag for tag in self._tags if tag.startswith(_CLOSING_START)}
        self._openings = {"<" + tag.removeprefix(_CLOSING_START) for tag in closing} & self._tags
        self.longest_tag = max(map(len, self._tags), default=0)
        """Length of the longest tag in characters."""
        self.pattern = _any_of(self._tags)
        """Regular expression that matches any tag; no tag is the beginning of another."""
        self.closing_pattern = _any_of(closing)
        self._any = re.compile(self.pattern)
        self._paired = re.compile(_any_of(closing | self._openings))

    def unfinished_from(self, text: str) -> int:
        """Return where a tag begins that more text may complete; the text's length if there is none."""
        at = max(text.rfind("[", -self.longest_tag), text.rfind("<", -self.longest_tag)) if self._tags else -1
        return at if at >= 0 and text[at:] in self._prefixes else len(text)

    def removed(self, text: str) -> str:
        """Return the text without its tags."""
        return self._any.sub("", text) if "[" in text or "<" in text else text

    def is_speakable(self, text: str) -> bool:
        """Tell whether there is anything to say: a letter, a digit or a sound such as `[breath]`."""
        bare = self._paired.sub("", text) if "<" in text else text
        return any(map(str.isalnum, bare))

    def is_left_open(self, text: str, *, was_open: bool) -> bool:
        """Tell whether a pair is open behind the text, knowing whether one was open before it."""
        for match in self._any.finditer(text):
            if match[0] in self._openings:
                was_open = True
            elif match[0].startswith(_CLOSING_START):
                was_open = False
        return was_open

    def parts(self, text: str) -> Iterator[TextPart]:
        """Yield the text's parts in order; joined they are the text."""
        at = 0
        for match in self._any.finditer(text):
            if at < match.start():
                yield TextPart(text[at : match.start()], is_tag=False)
            yield TextPart(match[0], is_tag=True)
            at = match.end()
        if at < len(text):
            yield TextPart(text[at:], is_tag=False)


def _any_of(tags: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(tags))) or _MATCHES_NOTHING
