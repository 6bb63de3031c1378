"""Normalises English and Japanese by the grammars of the library wetext; offline.

Needs the `text` extra. The library's grammars lose or escape a few characters, and its English one fails on some more;
those are kept from it, and what it still fails on stays as it is. `load_normalizers` loads these, our own Chinese rules
and those of the languages that have number words only.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from gateway.text.alignment import NormalizedText, Normalizer, align, joined, unchanged
from gateway.text.chinese import normalize_chinese
from gateway.text.english.forms import english_forms, read_english
from gateway.text.normalization.numbers import NUMBER_STYLES, NumberNormalizer
from gateway.text.rules import applied, noted, rule
from servicekit.extras import install_command

logger = logging.getLogger(__name__)

WETEXT_LANGUAGES = ("en", "ja")
_ENGLISH = "en"
# Quotes and backslashes come back escaped, control characters not at all.
_KEPT = r"[\x00-\x1f\x7f\"\\]+"
# English: any blank space but single spaces, brackets, and marks that are markup more often than words ("asterisk").
_KEPT_FROM_ENGLISH = (
    r"(?:[\x00-\x1f\x7f\xa0\"\\\[\]{}<>*#`~|^]|[^\S ]|(?<=\s)\s|(?<![^\W_])_|_(?![^\W_])|(?<!\w)No\.(?=\s))+"
)
# A letter, a digit or a symbol that a grammar has a word for; without one there is nothing to write out, and English
# takes 0.2 s to find that of a segment's worth of marks.
_READ_ALOUD = re.compile(r"[^\W_]|[$€£¥₩%&@+=§°#©®™]")
_WARM_UP = "1"
_NUMBER = r"\d{1,9}(?:\.\d{1,4})?"
_JAPANESE_DIGITS = dict(zip(range(ord("0"), ord("9") + 1), "〇一二三四五六七八九", strict=True))
_ALONE = rf"(?<![\d.〒-])(?P<first>{_NUMBER})(?P<part>[%℃度年月日時分歳人円個回名cmkg]{{0,2}})"
# Hyphens, which Japanese writes in names, scores and ranges; its grammar takes each for a minus.
_JAPANESE = (
    rule(r"(?<=[A-Za-z])[-‐](?=\d)", lambda _: ""),
    rule(
        rf"{_ALONE} ?- ?(?P<last>\d{{1,3}})(?=\s?(?:で[勝敗負引]|の[勝敗引]|と[勝敗]))",
        lambda m: f"{m['first']}対{m['last']}",
    ),
    rule(rf"(?<=[目地号番]){_NUMBER}-(?=\d{{1,4}}(?![-\d]))", lambda m: f"{m[0][:-1]}の"),
    rule(r"(?<=〒)\d{3}-\d{4}", lambda m: m[0].replace("-", "の").translate(_JAPANESE_DIGITS)),
    rule(rf"{_ALONE}\s?[-–〜～~]\s?(?=(?!0\d){_NUMBER}(?![-\d]))", lambda m: f"{m['first']}{m['part']}から"),
)


# A grammar takes half a millisecond for a digit or mark, a tenth for a letter, and nothing else runs meanwhile.
_LETTER_COST, _MARK_COST = 1, 5
_PIECE_COST = 300
"""Largest cost of a piece normalised at once; only text full of digits and marks costs more."""
_CLAUSE_END = re.compile(r"(?<!\d)[，。！？；、]|(?<=[^\W\d_]{4}[,;:!?])\s(?=[^\W\d_]{2})")
"""Ends of clauses, where no number or name continues."""
_BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_]{3})\s(?=[^\W\d_]{3})")
_BLANK = re.compile(r"\s")
_PLACES = (_CLAUSE_END, _BETWEEN_WORDS, _BLANK)


def clauses(text: str) -> Iterator[str]:
    """Cut a text that is costly to normalise into pieces that are normalised one by one; joined they are the text.

    A piece ends where a clause does, or else between two words, or at a blank, or anywhere in what has none of these.
    """
    at = 0
    while (limit := _affordable_end(text, at)) < len(text):
        places = ([found.end() for found in place.finditer(text, at, limit)] for place in _PLACES)
        end = next((ends[-1] for ends in places if ends), limit)
        yield text[at:end]
        at = end
    yield text[at:]


def _affordable_end(text: str, at: int) -> int:
    cost = 0
    for end in range(at, len(text)):
        cost += _LETTER_COST if text[end].isalpha() or text[end].isspace() else _MARK_COST
        if cost > _PIECE_COST:
            return end
    return len(text)


class WeTextNormalizer:
    """Normalises one of the library's languages."""

    def __init__(self, language: str) -> None:
        """Load the grammar: once per process, not per request.

        Args:
            language: one of `WETEXT_LANGUAGES`.

        Raises:
            ImportError: wetext is not installed.
        """
        from wetext import Normalizer

        grammar: Callable[[str], str] = Normalizer(lang=language, operator="tn").normalize
        grammar(_WARM_UP)
        self._kept = re.compile(_KEPT_FROM_ENGLISH if language == _ENGLISH else _KEPT)
        self._read = read_english(grammar) if language == _ENGLISH else grammar
        self._prepared = english_forms if language == _ENGLISH else partial(applied, _JAPANESE)

    def normalize(self, text: str) -> NormalizedText:
        """See `Normalizer`."""
        prepared = self._prepared(text)
        normalized = self._by_grammar(prepared)
        return normalized if prepared == text else NormalizedText(normalized.text, align(text, normalized.text))

    def _by_grammar(self, text: str) -> NormalizedText:
        parts, at = [], 0
        for match in self._kept.finditer(text):
            parts += [self._normalized(text[at : match.start()]), unchanged(match[0])]
            at = match.end()
        parts.append(self._normalized(text[at:]))
        return joined(parts)

    def _normalized(self, text: str) -> NormalizedText:
        """Normalise text without kept characters; the library strips blank space at the ends, which goes round it."""
        core = text.strip()
        if not _READ_ALOUD.search(core):
            return unchanged(text)
        start = text.index(core)
        spoken = text[:start] + self._spoken(core) + text[start + len(core) :]
        return NormalizedText(spoken, align(text, spoken))

    def _spoken(self, core: str) -> str:
        """Return the text as the grammar reads it; of what it can't read, as much as it can."""
        try:
            return noted("WeText's grammar", core, self._read(core))
        except (AssertionError, RuntimeError, LookupError) as error:
            # NOTE: the library asserts that its grammar reads a text, and there are texts it does not read.
            middle = core.find(" ", len(core) // 2)
            if middle < 0:
                logger.debug("wetext can't read %r (%r); it stays as it is", core, error)
                return core
            return f"{self._spoken(core[:middle])} {self._spoken(core[middle + 1 :])}"


def load_normalizers() -> Mapping[str, Normalizer]:
    """Return normalisers by BCP 47 tag in lower case; loads grammars, so once per process.

    Without wetext (the `text` extra), English and Japanese get number words only, which is logged.
    """
    normalizers: dict[str, Normalizer] = {language: NumberNormalizer(language).normalize for language in NUMBER_STYLES}
    normalizers["zh"] = normalize_chinese
    try:
        normalizers |= {language: WeTextNormalizer(language).normalize for language in WETEXT_LANGUAGES}
    except ImportError as error:
        logger.warning(
            "text normalisation is reduced (%s): English and Japanese get number words only; for all of it: %s",
            *(error, install_command("text")),
        )
    return normalizers
