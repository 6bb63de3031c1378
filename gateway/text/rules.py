"""Rules of written forms and their words, for every language, and a record of what each rule changed.

The record costs nothing while nobody watches:

    with watched() as changes:
        ...                      # read a text
    changes[0]                     # Change(rule="money.money", written="$3.50", spoken="three dollars and ...")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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


@dataclass(frozen=True)
class Rule:
    """One written form and its words."""

    pattern: re.Pattern[str]
    words: Callable[[re.Match[str]], str]

    @property
    def name(self) -> str:
        """Where the rule is found: module and function, or the line of a short one."""
        module, name = self.words.__module__.rpartition(".")[2], self.words.__name__
        return f"{module}:{self.words.__code__.co_firstlineno}" if name == "<lambda>" else f"{module}.{name.strip('_')}"


def rule(pattern: str, words: Callable[[re.Match[str]], str], flags: int = 0) -> Rule:
    """Return a rule; see `applied`."""
    return Rule(re.compile(pattern, flags), words)


def applied(rules: tuple[Rule, ...], text: str) -> str:
    """Return the text with every form of the rules in words, one rule after the other."""
    for each in rules:
        spoken = each.pattern.sub(each.words, text)
        if spoken != text:
            text = noted(each.name, text, spoken)
    return text
