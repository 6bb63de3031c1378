"""Loads the normaliser of every language that has one."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gateway.text.normalization.normalizer import Normalizer
from gateway.text.normalization.numbers import NUMBER_STYLES, NumberNormalizer
from gateway.text.normalization.wetext_normalizer import WETEXT_LANGUAGES, WeTextNormalizer
from servicekit.extras import install_command

logger = logging.getLogger(__name__)


def load_normalizers() -> Mapping[str, Normalizer]:
    """Return normalisers by BCP 47 tag in lower case; loads grammars, so once per process.

    Without wetext (the `text` extra), English and Japanese get number words only and Chinese nothing, which is logged.
    """
    normalizers: dict[str, Normalizer] = {language: NumberNormalizer(language) for language in NUMBER_STYLES}
    try:
        normalizers |= {language: WeTextNormalizer(language) for language in WETEXT_LANGUAGES}
    except ImportError as error:
        logger.warning(
            "text normalisation is reduced (%s): Chinese is spoken as written, English and Japanese get number words "
            "only; for all of it: %s",
            *(error, install_command("text")),
        )
    return normalizers
