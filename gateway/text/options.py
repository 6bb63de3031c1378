"""What a request may say about how its text is treated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from gateway.errors import InvalidRequestError
from gateway.text.aliases import AliasRule
from gateway.text.normalization.language import primary_language
from gateway.text.styles import Style

AUTO = "auto"
"""The language value that asks for a guess."""
MAX_LEXICONS = 8
"""Most dictionaries that one request may name."""
MAX_ALIASES = 500
"""Most rules that one request may bring."""
_NAMES = dict(
    pair.split(":")
    for pair in (
        "arabic:ar bengali:bn cantonese:yue chinese:zh czech:cs danish:da dutch:nl english:en finnish:fi french:fr "
        "german:de greek:el hebrew:he hindi:hi hungarian:hu indonesian:id italian:it japanese:ja korean:ko malay:ms "
        "mandarin:zh norwegian:no persian:fa polish:pl portuguese:pt romanian:ro russian:ru spanish:es swedish:sv "
        "thai:th turkish:tr ukrainian:uk vietnamese:vi"
    ).split()
)
"""Languages by their English names, as clients of vllm-omni and sglang-omni send them."""
_LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")


class Normalization(Enum):
    """Whether written forms such as 3.50 become words."""

    ON = "on"
    OFF = "off"


def check_counts(lexicons: int, aliases: int) -> None:
    """Check how many dictionaries and rules a request brings; call it before any rule is made.

    Raises:
        InvalidRequestError: too many.
    """
    if lexicons > MAX_LEXICONS or aliases > MAX_ALIASES:
        got = f"got {lexicons} dictionaries and {aliases} words with a pronunciation"
        raise InvalidRequestError(f"{got}, expected at most {MAX_LEXICONS} and {MAX_ALIASES}", param="lexicons")


@dataclass(frozen=True)
class TextOptions:
    """How one text is treated."""

    language: str | None = None
    """BCP 47 tag such as `en`, `zh-CN` or `pt_BR`, or an English name such as `English`, in any case; None or `auto`:
    guessed from the text, segment by segment."""
    normalization: Normalization = Normalization.ON
    is_ssml: bool = False
    """Whether the text is SSML, or content of a <speak> element."""
    aliases: tuple[AliasRule, ...] = ()
    """The request's own rules, applied before any dictionary."""
    lexicons: tuple[str, ...] = ()
    """Names of dictionaries, in order of use; the operator's default one comes after them."""
    style: Style | None = None
    """How to speak; None: the voice's own way."""
    has_audio_tags: bool = False
    """Whether words in brackets such as [whispers] say how to speak what follows; see `styles`."""

    primary_language: str | None = field(init=False, compare=False)
    """The language without script and region, in lower case; None if it is to be guessed."""
    regional_language: str | None = field(init=False, compare=False)
    """The whole tag in lower case with hyphens; None if it is to be guessed."""

    def __post_init__(self) -> None:
        tag = None
        if self.language is not None and self.language.lower() != AUTO:
            tag = _NAMES.get(self.language.lower(), self.language)
        if tag is not None and not _LANGUAGE_TAG.fullmatch(tag):
            expected = "expected a BCP 47 tag such as en or zh-CN, a name such as English, or auto to have it guessed"
            raise InvalidRequestError(f"got language {self.language!r}, {expected}", param="language")
        object.__setattr__(self, "primary_language", None if tag is None else primary_language(tag))
        object.__setattr__(self, "regional_language", None if tag is None else tag.lower().replace("_", "-"))
        if self.lexicons or self.aliases:
            check_counts(len(self.lexicons), len(self.aliases))
