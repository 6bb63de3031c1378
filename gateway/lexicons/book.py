"""The pronunciation dictionaries of a gateway: the operator's files, read once at the start.

    lexicons_for(options) ─► DIR/<name>.json and .pls that the request names ─► DIR/default.json behind them

Implements `gateway.text.front_end.LexiconSource`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from gateway.errors import ConfigError, InvalidRequestError, LexiconNotFoundError
from gateway.lexicons.forms import MAX_FORM_CHARACTERS, rules_of_json, rules_of_pls
from gateway.text.options import Normalization, TextOptions
from gateway.text.pronunciation.aliases import Lexicon

logger = logging.getLogger(__name__)

DEFAULT_LEXICON = "default"
_READERS = {".json": rules_of_json, ".pls": rules_of_pls}


class LexiconBook:
    """Finds dictionaries for texts."""

    def __init__(self, lexicons: Mapping[str, Lexicon]) -> None:
        """Keep the dictionaries, by name."""
        self._lexicons = dict(lexicons)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all dictionaries, in the order of the alphabet."""
        return tuple(sorted(self._lexicons))

    def lexicons_for(self, options: TextOptions) -> tuple[Lexicon, ...]:
        """See `LexiconSource.lexicons_for`; a text that is read as it is written gets no default dictionary.

        Raises:
            LexiconNotFoundError: there is none of that name.
        """
        asked = tuple(map(self._found, options.lexicons))
        default = self._lexicons.get(DEFAULT_LEXICON)
        if default is None or options.normalization is Normalization.OFF:
            return asked
        return (*asked, default)

    def _found(self, name: str) -> Lexicon:
        found = self._lexicons.get(name)
        if found is None:
            got = f"there is no pronunciation dictionary {name[:100]!r}"
            expected = f"this server has {', '.join(self.names) or 'none'}"
            raise LexiconNotFoundError(f"{got}; {expected}; its operator adds a file", param="lexicons")
        return found


def load_lexicons(directory: Path | None, *, takes_phonemes: bool = False) -> LexiconBook:
    """Read every <name>.json and <name>.pls of a directory.

    Args:
        directory: None: there are no dictionaries.
        takes_phonemes: whether the checkpoint reads phonemes; else dictionaries of them are refused.

    Raises:
        ConfigError: there is no such directory, or a file can't be read.
    """
    if directory is None:
        return LexiconBook({})
    if not directory.is_dir():
        raise ConfigError(f"the directory of pronunciation dictionaries {directory} is not there; make it")
    files = sorted(file for file in directory.iterdir() if file.suffix in _READERS)
    names = [file.stem for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{directory} has two dictionaries {twice!r}; rename one of {twice}.json and {twice}.pls")
    return LexiconBook({file.stem: _load(file, takes_phonemes) for file in files})


def _load(file: Path, takes_phonemes: bool) -> Lexicon:
    try:
        if file.stat().st_size > MAX_FORM_CHARACTERS:
            raise ConfigError(f"{file} is larger than {MAX_FORM_CHARACTERS} bytes; make several files of it")
        text = file.read_text(encoding="utf-8-sig")
        rules = _READERS[file.suffix](text, takes_phonemes=takes_phonemes)
    except (OSError, UnicodeDecodeError, InvalidRequestError) as error:
        raise ConfigError(f"the pronunciation dictionary {file} can't be read: {error}") from error
    logger.info("pronunciation dictionary %s: %d rules", file.stem, len(rules))
    return Lexicon(rules)
