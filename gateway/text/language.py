"""Guesses the language of a text: by its script where that tells, else by the library py3langid; offline.

Says nothing rather than something doubtful: a text of unknown language is spoken as it is written.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_KANA = re.compile("[\u3040-\u30ff\uff66-\uff9f]")
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]")
_OTHER_WORD = re.compile("[^\\W\\d_\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]+")
_MIN_KANA_SHARE = 0.1
"""Of Han and kana; Chinese borrows a kana now and then, Japanese sentences rarely have fewer than a third."""
_MIN_PROBABILITY = 0.9
# Cantonese and Mandarin are written alike; the rest are older or narrower codes of the same languages.
_SAME_AS = {"cmn": "zh", "yue": "zh", "iw": "he", "nb": "no", "nn": "no"}


def primary_language(tag: str) -> str:
    """Return the language of a BCP 47 tag without script and region, in lower case; one code per written language."""
    primary = re.split("[-_]", tag)[0].lower()
    return _SAME_AS.get(primary, primary)


class LanguageGuesser:
    """Tells languages apart by text alone."""

    def __init__(self) -> None:
        """Load the model: once per process."""
        self._identifier = load_identifier()

    def guess(self, text: str) -> str | None:
        """Return the language as a primary subtag of BCP 47; None if the text does not tell."""
        east_asian = _east_asian(text)
        if east_asian is not None:
            return east_asian
        words = _OTHER_WORD.findall(text)
        if not words:
            return None
        language, probability = self._identifier.classify(" ".join(words))
        return primary_language(language) if probability >= _MIN_PROBABILITY else None


def load_identifier() -> Any:
    """Load the library's model: once per process."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    class FrugalIdentifier(LanguageIdentifier):  # type: ignore[misc]
        """Multiplies only the few features that a text has, without BLAS.

        The library's own product is large enough for BLAS to share it among threads, which then spin for the next one:
        all cores of the host were busy at a few texts a second.
        """

        def nb_classprobs(self, fv: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
            used = np.flatnonzero(fv)
            scores: npt.NDArray[np.float32] = (self.nb_ptc[used] * fv[used, np.newaxis]).sum(axis=0) + self.nb_pc
            return scores

    return FrugalIdentifier.from_pickled_model(MODEL_FILE, norm_probs=True)


def _east_asian(text: str) -> str | None:
    """Tell Chinese, Japanese and Korean by their scripts, unless other words outnumber their characters."""
    han, kana, hangul = (len(script.findall(text)) for script in (_HAN, _KANA, _HANGUL))
    count = han + kana + hangul
    if not count or count < len(_OTHER_WORD.findall(text)):
        return None
    if hangul > han + kana:
        return "ko"
    return "ja" if kana >= _MIN_KANA_SHARE * (han + kana) else "zh"
