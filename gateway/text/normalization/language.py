"""Guesses the language of a text: by its script where that tells, else by the library py3langid; offline.

Says nothing rather than something doubtful: a text of unknown language is spoken as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_KANA = re.compile("[\u3040-\u30ff\uff66-\uff9f]")
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]")
_OTHER_WORD = re.compile("[^\\W\\d_\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]+")
_OTHER_TOKEN = re.compile(rf"(?:{_OTHER_WORD.pattern})(?:[.@/:_'’-]+(?:{_OTHER_WORD.pattern}))*")
"""A word or an address, of scripts with letters."""
_MIN_KANA_SHARE = 0.1
"""Least share of kana among Han and kana for Japanese; Chinese rarely has any, Japanese mostly a third."""
_MIN_PROBABILITY = 0.9
_SURE_PROBABILITY = 0.99
_NO_SCORE = -1e9  # of a language that is no candidate
_SURE_LETTERS = 20
"""Latin letters that a guess needs; a few words may be names or belong to several languages."""
_EAST_ASIAN_WEIGHT = 3
_FOREIGN_SHARE = 0.25
"""Share of a text in an undeclared script that makes it foreign; less is a name or a word."""
# Cantonese and Mandarin are written alike; the rest are older or narrower codes of the same languages.
_SAME_AS = {"cmn": "zh", "yue": "zh", "iw": "he", "nb": "no", "nn": "no"}


def primary_language(tag: str) -> str:
    """Return the language of a BCP 47 tag without script and region, in lower case; one code per written language."""
    primary = re.split("[-_]", tag)[0].lower()
    return _SAME_AS.get(primary, primary)


class LanguageGuesser:
    """Tells languages apart by text alone."""

    def __init__(self, languages: Sequence[str] | None = None) -> None:
        """Load the model: once per process.

        Args:
            languages: what texts are in, as far as the script leaves it open; None: anything.
        """
        self._identifier = load_identifier()
        self._of_script: dict[str | None, list[str]] = {}
        for language in sorted(set(map(primary_language, languages or ()))):
            for script in _scripts_of(language):
                self._of_script.setdefault(script, []).append(language)

    def surely(self, text: str) -> str | None:
        """Return the language, any that there is, where there is hardly a doubt."""
        east_asian = None if text.isascii() else _east_asian(text)
        return east_asian or self._likeliest(_OTHER_WORD.findall(text), _SURE_PROBABILITY)

    def guess(self, text: str) -> str | None:
        """Return the language as a primary subtag of BCP 47; None if the text does not tell."""
        words = _OTHER_WORD.findall(text)
        if (east_asian := None if text.isascii() else _east_asian(text)) is not None or not words:
            return east_asian
        languages = self._of_script.get(_LATIN if text.isascii() else _main_script(text), [])
        if len(languages) == 1:
            return languages[0]
        return self._likeliest(words, _SURE_PROBABILITY if languages else _MIN_PROBABILITY, languages)

    def _likeliest(self, words: list[str], least: float, languages: Sequence[str] = ()) -> str | None:
        """Return the language that words are in, of these or of all, where the probability is at `least` so high."""
        if not words:
            return None
        scores, names = self._identifier.scores(" ".join(words)), self._identifier.nb_classes
        if languages:
            scores = np.where(np.isin(names, languages), scores, _NO_SCORE)
        best = int(scores.argmax())
        return primary_language(names[best]) if 1 / np.exp(scores - scores[best]).sum() >= least else None


class DeclaredLanguages:
    """The languages that a checkpoint declares; tells texts in others."""

    def __init__(self, languages: Sequence[str], surely: Callable[[str], str | None]) -> None:
        """Keep them.

        Args:
            languages: primary subtags of BCP 47.
            surely: guesses a text's language where there is hardly a doubt.
        """
        self.languages = tuple(map(primary_language, languages))
        self._surely = surely
        self._scripts = frozenset(script for each in self.languages for script in _scripts_of(each))

    def usual(self, text: str, earlier: str | None) -> str | None:
        """Return the language to read a text in that tells none: without letters, the first declared one.

        Args:
            text: without tags.
            earlier: the language of the text before it.
        """
        is_other_script = earlier is None or _LATIN not in _scripts_of(earlier)
        if is_other_script and _ENGLISH in self.languages and _main_script(text) == _LATIN:
            return _ENGLISH
        is_told_by_nothing = len(self.languages) == 1 or not _script_weights(text)
        return earlier or (self.languages[0] if is_told_by_nothing else None)

    def foreign(self, text: str, named: str | None) -> str | None:
        """Return the language of a text that the checkpoint does not declare; None if it does, or nobody can tell.

        Args:
            text: without tags.
            named: its language as the caller has it, a primary subtag; None: guessed.
        """
        if named is not None:
            return None if named in self.languages else named
        weights = _script_weights(text)
        if not weights:
            return None
        main = max(weights, key=weights.__getitem__)
        least = _FOREIGN_SHARE * sum(weights.values())
        others = [each for each, weight in weights.items() if each not in self._scripts and weight >= least]
        # Languages that share another script, as Russian and Ukrainian, are not told apart.
        is_told = main in _EAST_ASIAN or (main == _LATIN and weights[main] >= _SURE_LETTERS)
        guess = self._surely(text) if is_told or main in others else None
        if others:
            return guess if main in others and guess is not None else _USUAL_LANGUAGE.get(others[0], UNKNOWN)
        return guess if guess is not None and guess not in self.languages else None


_ENGLISH = "en"
UNKNOWN = "und"
"""The BCP 47 tag for an undetermined language."""
_LATIN, _EAST_ASIAN = "Latin", ("Han", "Kana", "Hangul")
_SCRIPTS = {
    "Han": _HAN,
    "Kana": _KANA,
    "Hangul": _HANGUL,
    "Cyrillic": re.compile("[\u0400-\u052f]"),
    "Greek": re.compile("[\u0370-\u03ff\u1f00-\u1fff]"),
    "Hebrew": re.compile("[\u0590-\u05ff]"),
    "Arabic": re.compile("[\u0600-\u06ff\u0750-\u077f]"),
    "Devanagari": re.compile("[\u0900-\u097f]"),
    "Bengali": re.compile("[\u0980-\u09ff]"),
    "Tamil": re.compile("[\u0b80-\u0bff]"),
    "Thai": re.compile("[\u0e00-\u0e7f]"),
    _LATIN: re.compile("[A-Za-z\u00c0-\u024f\u1e00-\u1eff]"),
}
_SCRIPTS_OF = {
    "zh": ("Han",),
    "ja": ("Han", "Kana"),
    "ko": ("Hangul", "Han"),
    **dict.fromkeys(("ru", "uk", "be", "bg", "mk", "kk", "ky", "mn", "tg"), ("Cyrillic",)),
    "sr": ("Cyrillic", _LATIN),
    "el": ("Greek",),
    **dict.fromkeys(("he", "yi"), ("Hebrew",)),
    **dict.fromkeys(("ar", "fa", "ur", "ps"), ("Arabic",)),
    **dict.fromkeys(("hi", "mr", "ne"), ("Devanagari",)),
    "bn": ("Bengali",),
    "ta": ("Tamil",),
    "th": ("Thai",),
}
"""Scripts of languages that are not written in Latin letters."""
_USUAL_LANGUAGE = {script: language for language, (script, *_) in reversed(_SCRIPTS_OF.items())}


def _scripts_of(language: str) -> tuple[str, ...]:
    return _SCRIPTS_OF.get(language, (_LATIN,))


def _main_script(text: str) -> str | None:
    """Return the script of most letters of a text that are no East Asian characters."""
    weights = {each: weight for each, weight in _script_weights(text).items() if each not in _EAST_ASIAN}
    return max(weights, key=weights.__getitem__, default=None)


def _script_weights(text: str) -> dict[str, int]:
    """Return the scripts of a text with their letters; one of Han or kana weighs as much as three others."""
    if text.isascii():
        letters = sum(map(str.isalpha, text))
        return {_LATIN: letters} if letters else {}
    weights = {
        script: len(pattern.findall(text)) * (_EAST_ASIAN_WEIGHT if script in _EAST_ASIAN else 1)
        for script, pattern in _SCRIPTS.items()
    }
    return {script: weight for script, weight in weights.items() if weight}


_ASIAN = "\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff01-\uff60\U00020000-\U0003ffff"
_NOT_ASIAN_RUN = re.compile(f"[^{_ASIAN}“”…—]+")
_ASIAN_RUN = re.compile(rf"(?:\d[\d.:%]{{0,20}})?[{_ASIAN}](?:[{_ASIAN}\d.:%“”$¥€£+-]*[{_ASIAN}\d%])?")
_LATIN_WORD, _LOWER_WORD = re.compile("[A-Za-z]{2,}"), re.compile(r"(?<![A-Za-z\d.])[a-z]{2,}(?![A-Za-z])")
_ASIAN_LANGUAGES = ("zh", "ja", "ko")
_SENTENCE = re.compile(r".+?(?:[。！？]+|[.!?]+\s+|\Z)", re.DOTALL)
_SENTENCE_END = re.compile(r"[.!?]\s*$")
_NUMBER_FIRST, _NUMBER_LAST = re.compile(r"[^A-Za-z]*"), re.compile(r"(?<!\d)[^A-Za-z\s.!?]*\d[^A-Za-z.!?]*$")
_FEW_WORDS = 2


def language_runs(text: str, language: str | None, others: Collection[str]) -> list[tuple[str, str | None]]:
    """Cut a text where another language begins or ends, so that its numbers are read as the words beside them.

    Args:
        text: any.
        language: most of the text's, a primary subtag of BCP 47.
        others: languages that may stand within it; only English and Chinese are told.
    """
    if language is None:
        return [(text, None)]
    runs = list[tuple[str, str | None]]()
    for sentence in _SENTENCE.findall(text):
        main = (
            "zh" if "zh" in others and language not in _ASIAN_LANGUAGES and _east_asian(sentence) == "zh" else language
        )
        for run, its_language in _runs(sentence, main, others):
            before = runs.pop()[0] if runs and runs[-1][1] == its_language else ""
            runs += [(before + run, its_language)] if before + run else []
    return runs


def _runs(sentence: str, language: str, others: Collection[str]) -> Iterator[tuple[str, str]]:
    is_asian = language in _ASIAN_LANGUAGES
    other, pattern, is_other = (_ENGLISH, _NOT_ASIAN_RUN, _is_english) if is_asian else ("zh", _ASIAN_RUN, _is_chinese)
    at = 0
    for match in pattern.finditer(sentence) if other in others else ():
        start, end = _without_numbers_of_others(match) if is_asian else match.span()
        if is_other(sentence, start, end):
            yield sentence[at:start], language
            yield sentence[start:end], other
            at = end
    yield sentence[at:], language


def _without_numbers_of_others(match: re.Match[str]) -> tuple[int, int]:
    """Return where a run of Latin words is, without the numbers at its ends that stand close to another script."""
    start, end = match.span()
    if start and _HAN.match(match.string, start - 1) and (first := _NUMBER_FIRST.match(match.string, start, end)):
        start = first.end()
    if _HAN.match(match.string, end) and (last := _NUMBER_LAST.search(match.string, start, end)):
        end = last.start()
    return start, end


def _is_english(text: str, start: int, end: int) -> bool:
    """Tell a clause or several words from a name within a sentence of another language."""
    run = text[start:end]
    lower, words = len(_LOWER_WORD.findall(run)), len(_LATIN_WORD.findall(run))
    is_clause = not _HAN.match(text, end) and not (start and _HAN.match(text, start - 1))
    return lower >= _FEW_WORDS or (is_clause and words >= _FEW_WORDS and bool(lower or _SENTENCE_END.search(run)))


def _is_chinese(text: str, start: int, end: int) -> bool:
    run = text[start:end]
    return any(map(str.isdigit, run)) and _HAN.search(run) is not None and not _KANA.search(run)


def load_identifier() -> Any:
    """Load the library's model: once per process."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    class FrugalIdentifier(LanguageIdentifier):  # type: ignore[misc]
        """Multiplies only the few features that a text has, without BLAS.

        The library's own product is large enough for BLAS to share it among threads, which then spin for the next one:
        all cores of the host were busy at a few texts a second.
        """

        def scores(self, text: str) -> npt.NDArray[np.float32]:
            """Return the logarithms of the languages' likelihoods, [`nb_classes`]."""
            counts = self.instance2fv(text)
            used = np.flatnonzero(counts > 0)
            scores: npt.NDArray[np.float32] = (self.nb_ptc[used] * counts[used, np.newaxis]).sum(axis=0) + self.nb_pc
            return scores

    return FrugalIdentifier.from_pickled_model(MODEL_FILE)


def _east_asian(text: str) -> str | None:
    """Tell Chinese, Japanese and Korean by their scripts, unless other words outnumber their characters."""
    han, kana, hangul = (len(script.findall(text)) for script in (_HAN, _KANA, _HANGUL))
    count = han + kana + hangul
    # Codes and initials say nothing of the language: COVID-19和B2B.
    if not count or count < sum(len(each) > 1 and not each.isupper() for each in _OTHER_TOKEN.findall(text)):
        return None
    if hangul > han + kana:
        return "ko"
    return "ja" if kana >= _MIN_KANA_SHARE * (han + kana) else "zh"
