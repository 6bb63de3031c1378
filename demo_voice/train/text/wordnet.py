"""Sentences out of WordNet's data files: what a word means, and examples of its use.

Source of the format: the wndb(5) manual page of the wordnet-base package. The gloss follows the bar; examples stand in
quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from demo_voice.train.text.clean import as_sentence

DATA_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
_QUOTED = re.compile(r'"([^"]+)"')
_LICENCE_LINE = "  "


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
        for gloss in _glosses((directory / name).read_text(encoding="utf-8")):
            for quoted in _QUOTED.findall(gloss):
                _keep(examples, quoted)
            _keep(definitions, _QUOTED.sub("", gloss).split(";")[0])
    return Glosses(list(examples), list(definitions))


def _glosses(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.startswith(_LICENCE_LINE):
            yield line.partition("|")[2].strip()


def _keep(sentences: dict[str, None], text: str) -> None:
    sentence = as_sentence(text)
    if sentence is not None:
        sentences[sentence] = None
