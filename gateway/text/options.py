"""What a request may say about how its text is treated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from gateway.errors import InvalidRequestError
from gateway.text.language import primary_language

_LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")


class Normalization(Enum):
    """Whether written forms such as 3.50 become words."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True)
class TextOptions:
    """How one text is treated."""

    language: str | None = None
    """BCP 47 tag such as `en`, `zh-CN` or `pt_BR`; None: guessed from the text, segment by segment."""
    normalization: Normalization = Normalization.ON

    def __post_init__(self) -> None:
        if self.language is not None and not _LANGUAGE_TAG.fullmatch(self.language):
            expected = "expected a BCP 47 tag such as en or zh-CN, or none to have it guessed"
            raise InvalidRequestError(f"got language {self.language!r}, {expected}", param="language")

    @property
    def primary_language(self) -> str | None:
        """The language without script and region, in lower case; None if it is to be guessed."""
        return None if self.language is None else primary_language(self.language)

    @property
    def regional_language(self) -> str | None:
        """The whole tag in lower case with hyphens; None if it is to be guessed."""
        return None if self.language is None else self.language.lower().replace("_", "-")
