"""All pronunciation dictionaries of a gateway: the operator's files, and those that callers create.

    lexicons_for(options) ─► operator's DIR/<name>.json, .pls ─► created by this caller ─► DIR/default.json behind all

The operator's files are read once, at the start. Implements `gateway.text.front_end.LexiconSource`.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import ConfigError, InvalidRequestError, LexiconNotFoundError, LexiconProtectedError
from gateway.lexicons.forms import MAX_FORM_CHARACTERS, rules_of_json, rules_of_pls
from gateway.lexicons.store import (
    DEFAULT_MAX_LEXICONS,
    KeyOfCall,
    LexiconStore,
    LexiconVersion,
    StoredLexicon,
    no_keys,
    not_found,
)
from gateway.text.options import LexiconLocator, Normalization, TextOptions
from gateway.text.pronunciation.aliases import Lexicon

logger = logging.getLogger(__name__)

DEFAULT_LEXICON = "default"
_READERS = {".json": rules_of_json, ".pls": rules_of_pls}
_MAX_READY = 256
"""Most created dictionaries kept ready; the one used longest ago is forgotten first."""
_VERSION_LETTERS = 16


@dataclass(frozen=True)
class LexiconSettings:
    """Where dictionaries lie."""

    operator_dir: Path | None = None
    created_dir: Path | None = None
    """Folder of created dictionaries; None: callers can't create any."""
    max_created: int = DEFAULT_MAX_LEXICONS


@dataclass(frozen=True)
class NamedLexicon:
    """One of the operator's."""

    name: str
    version: LexiconVersion


class LexiconBook:
    """Finds dictionaries for texts."""

    def __init__(
        self, named: list[NamedLexicon], store: LexiconStore | None = None, *, takes_phonemes: bool = False
    ) -> None:
        """Keep the dictionaries.

        Args:
            named: the operator's.
            store: where the created ones are; None: callers can't create any.
            takes_phonemes: whether the checkpoint reads phonemes.
        """
        self.takes_phonemes = takes_phonemes
        self.named = {each.name: each for each in named}
        self._store = store
        self._of_operator = {each.name: Lexicon(each.version.rules) for each in named}
        self._ready: OrderedDict[str, Lexicon] = OrderedDict()

    @property
    def can_create(self) -> bool:
        """Whether callers can create dictionaries here."""
        return self._store is not None

    def own(self, lexicon_id: str) -> StoredLexicon:
        """Return one that the caller created, by its id.

        Raises:
            LexiconNotFoundError: the caller has none of that id.
        """
        if self._store is None:
            raise not_found(lexicon_id)
        return self._store.own(lexicon_id)

    @property
    def store(self) -> LexiconStore:
        """Where created ones are kept.

        Raises:
            LexiconProtectedError: none can be created.
        """
        if self._store is None:
            got = "pronunciation dictionaries can't be created on this server"
            raise LexiconProtectedError(f"{got}; its operator allows it by --created-lexicons-dir")
        return self._store

    def lexicons_for(self, options: TextOptions) -> tuple[Lexicon, ...]:
        """See `LexiconSource.lexicons_for`; a text that is read as it is written gets no default dictionary.

        Raises:
            LexiconNotFoundError: there is none of that name or version for this caller.
            LexiconStoreError: the directory can't be read.
        """
        asked = tuple(map(self._found, options.lexicons)) if options.lexicons else ()
        default = self._of_operator.get(DEFAULT_LEXICON)
        if default is None or options.normalization is Normalization.OFF:
            return asked
        return (*asked, default)

    def _found(self, locator: LexiconLocator) -> Lexicon:
        named = self.named.get(locator.name)
        if named is not None:
            if locator.version not in (None, named.version.id):
                got = f"the operator's pronunciation dictionary {named.name!r} has version {named.version.id} only"
                raise LexiconNotFoundError(f"{got}; leave the version out", param="lexicons")
            return self._of_operator[named.name]
        created = None if self._store is None else self._store.find(locator.name)
        if created is None:
            raise not_found(locator.name)
        return self._prepared(created.version(locator.version))

    def _prepared(self, version: LexiconVersion) -> Lexicon:
        lexicon = self._ready.pop(version.id, None) or Lexicon(version.rules)
        self._ready[version.id] = lexicon
        if len(self._ready) > _MAX_READY:
            self._ready.popitem(last=False)
        return lexicon


def open_lexicons(
    settings: LexiconSettings, key_of_call: KeyOfCall = no_keys, *, takes_phonemes: bool = False
) -> LexiconBook:
    """Read the operator's dictionaries and find the directory of the others.

    Args:
        settings: where they are.
        key_of_call: whose call is under way.
        takes_phonemes: whether the checkpoint reads phonemes; else dictionaries of them are refused.

    Raises:
        ConfigError: a file or directory that can't be used.
    """
    named = [] if settings.operator_dir is None else load_lexicons(settings.operator_dir, takes_phonemes)
    store = None
    if settings.created_dir is not None:
        store = LexiconStore(settings.created_dir, key_of_call, settings.max_created)
    return LexiconBook(named, store, takes_phonemes=takes_phonemes)


def load_lexicons(directory: Path, takes_phonemes: bool = False) -> list[NamedLexicon]:
    """Read every <name>.json and <name>.pls of a directory.

    Raises:
        ConfigError: there is no such directory, or a file can't be read.
    """
    if not directory.is_dir():
        raise ConfigError(f"the directory of pronunciation dictionaries {directory} is not there; make it")
    files = sorted(file for file in directory.iterdir() if file.suffix in _READERS)
    names = [file.stem for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{directory} has two dictionaries {twice!r}; rename one of {twice}.json and {twice}.pls")
    return [_load(file, takes_phonemes) for file in files]


def _load(file: Path, takes_phonemes: bool) -> NamedLexicon:
    try:
        if file.stat().st_size > MAX_FORM_CHARACTERS:
            raise ConfigError(f"{file} is larger than {MAX_FORM_CHARACTERS} bytes; make several files of it")
        data = file.read_bytes()
        rules = _READERS[file.suffix](data.decode("utf-8-sig"), takes_phonemes=takes_phonemes)
    except (OSError, UnicodeDecodeError, InvalidRequestError) as error:
        raise ConfigError(f"the pronunciation dictionary {file} can't be read: {error}") from error
    logger.info("pronunciation dictionary %s: %d rules", file.stem, len(rules))
    version = hashlib.sha256(data).hexdigest()[:_VERSION_LETTERS]
    return NamedLexicon(file.stem, LexiconVersion(version, rules))


def add_lexicon_options(parser: argparse.ArgumentParser) -> None:
    """Add what `lexicon_settings` reads."""
    group = parser.add_argument_group("pronunciation dictionaries")
    operator = f"directory of dictionaries <name>.json and <name>.pls; {DEFAULT_LEXICON} is applied to every text"
    group.add_argument("--lexicons-dir", type=Path, default=None, help=operator)
    created = "directory for dictionaries that callers create; None: callers can't create any"
    group.add_argument("--created-lexicons-dir", type=Path, default=None, help=created)
    most = "most created dictionaries; a tenth of them for one key"
    group.add_argument("--max-created-lexicons", type=_positive_int, default=DEFAULT_MAX_LEXICONS, help=most)


def lexicon_settings(args: argparse.Namespace) -> LexiconSettings:
    """Read the parsed options."""
    return LexiconSettings(args.lexicons_dir, args.created_lexicons_dir, args.max_created_lexicons)


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {value}, expected at least 1")
    return value
