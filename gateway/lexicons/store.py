"""Keeps the pronunciation dictionaries that callers create: one JSON file each, with its latest versions.

The disk is the truth: what is remembered of a file is dropped when the file changes, so that gateways that share a
directory agree. Whose a dictionary is stands in its file; nobody else sees it. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gateway.errors import (
    ConfigError,
    InvalidRequestError,
    LexiconNotFoundError,
    LexiconStoreError,
    LexiconStoreFullError,
)
from gateway.lexicons.forms import MAX_RULES
from gateway.text.pronunciation.aliases import AliasRule
from servicekit.files import locked, write_private

logger = logging.getLogger(__name__)

KeyOfCall = Callable[[], str | None]
"""Returns the name of the API key of the call under way, empty if it came without one; None where keys are not used."""
LEXICON_ID = re.compile(r"lexicon_[0-9a-f]{24}")
"""Ids are made here, never taken from a caller: no other name becomes a path."""
MAX_NAME = 100
MAX_DESCRIPTION = 1000
KEPT_VERSIONS = 10
"""Versions kept of each dictionary; an older one can no longer be asked for."""
DEFAULT_MAX_LEXICONS = 1000
_MAX_SHARE = 0.1
"""Largest share of all dictionaries for one key."""
_ID_BYTES, _VERSION_BYTES = 12, 8
_SUFFIX = ".json"
_DIRECTORY_MODE = 0o700


@dataclass(frozen=True)
class LexiconVersion:
    """What a dictionary was at one time."""

    id: str
    rules: tuple[AliasRule, ...]


@dataclass(frozen=True)
class StoredLexicon:
    """One created dictionary."""

    id: str
    name: str
    versions: tuple[LexiconVersion, ...]
    """All kept versions, the newest last."""
    created_at: int
    """Time of creation, seconds since 1970."""
    description: str = ""
    owner: str = ""
    """Name of the API key that created it; empty: created while no keys were used."""
    archived_at: int | None = None
    """Time of archiving; None: not archived. Archived ones are not listed and can still be spoken with."""

    @property
    def latest(self) -> LexiconVersion:
        """The newest version."""
        return self.versions[-1]

    def version(self, version_id: str | None) -> LexiconVersion:
        """Return a version; None is the newest.

        Raises:
            LexiconNotFoundError: there is none of that id, or no longer.
        """
        found = [each for each in self.versions if version_id in (None, each.id)]
        if not found:
            got = f"pronunciation dictionary {self.id} has no version {str(version_id)[:64]!r}"
            raise LexiconNotFoundError(f"{got}; the last {KEPT_VERSIONS} are kept", param="version_id")
        return found[-1]


_LEXICONS = TypeAdapter(StoredLexicon)
_Stamp = tuple[int, int, int]


def no_keys() -> str | None:
    """Return None: see `KeyOfCall`."""
    return None


@dataclass
class LexiconStore:
    """The created dictionaries of one directory; lives in one event loop."""

    path: Path
    key_of_call: KeyOfCall = no_keys
    max_lexicons: int = DEFAULT_MAX_LEXICONS
    unix_time: Callable[[], float] = time.time
    _seen: dict[str, tuple[_Stamp, StoredLexicon | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self.path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            os.listdir(self.path)
        except OSError as error:
            got = f"the directory of created pronunciation dictionaries {self.path} can't be used ({error.strerror})"
            raise ConfigError(f"{got}; name another") from error

    def lexicons(self) -> list[StoredLexicon]:
        """List the caller's own dictionaries, the oldest first.

        Raises:
            LexiconStoreError: the directory can't be read.
        """
        return [each for each in self._all() if self._sees(each)]

    def find(self, name: str) -> StoredLexicon | None:
        """Find one of the caller's own by its id or its name; of two with one name, the older."""
        if LEXICON_ID.fullmatch(name):
            found = self._read(name)
            return found if found is not None and self._sees(found) else None
        return next((each for each in self.lexicons() if each.name == name), None)

    async def create(self, name: str, description: str, rules: Sequence[AliasRule]) -> StoredLexicon:
        """Keep a new dictionary, which belongs to the caller's key.

        Raises:
            InvalidRequestError: a name or description that can't be.
            LexiconStoreFullError: as many as allowed are kept.
            LexiconStoreError: the disk refuses.
        """
        lexicon = StoredLexicon(
            id=f"lexicon_{secrets.token_hex(_ID_BYTES)}",
            name=checked_name(name),
            versions=(_version(rules),),
            created_at=int(self.unix_time()),
            description=_checked_description(description),
            owner=self.key_of_call() or "",
        )
        async with self._changing():
            self._check_room(lexicon.owner)
            await asyncio.to_thread(self._write, lexicon)
        logger.info("pronunciation dictionary %s created: %d rules", lexicon.id, len(rules))
        return lexicon

    async def change_rules(
        self, lexicon_id: str, change: Callable[[tuple[AliasRule, ...]], Sequence[AliasRule]]
    ) -> StoredLexicon:
        """Give a dictionary a new version.

        Args:
            lexicon_id: of one of the caller's own.
            change: makes the new rules out of the latest.

        Raises:
            LexiconNotFoundError: the caller has none of that id.
            InvalidRequestError: too many rules.
            LexiconStoreError: the disk refuses.
        """
        async with self._changing():
            lexicon = self.own(lexicon_id)
            rules = tuple(change(lexicon.latest.rules))
            if len(rules) > MAX_RULES:
                raise InvalidRequestError(f"{len(rules)} rules would be kept, the limit is {MAX_RULES}", param="rules")
            versions = (*lexicon.versions, _version(rules))[-KEPT_VERSIONS:]
            changed = replace(lexicon, versions=versions)
            await asyncio.to_thread(self._write, changed)
        return changed

    async def describe(self, lexicon_id: str, name: str | None, is_archived: bool | None) -> StoredLexicon:
        """Rename a dictionary, or archive it or bring it back; None leaves things as they are.

        Raises:
            LexiconNotFoundError: the caller has none of that id.
            InvalidRequestError: a name that can't be.
            LexiconStoreError: the disk refuses.
        """
        async with self._changing():
            lexicon = self.own(lexicon_id)
            if name is not None:
                lexicon = replace(lexicon, name=checked_name(name))
            if is_archived is not None:
                lexicon = replace(lexicon, archived_at=int(self.unix_time()) if is_archived else None)
            await asyncio.to_thread(self._write, lexicon)
        return lexicon

    def own(self, lexicon_id: str) -> StoredLexicon:
        """Return one of the caller's own.

        Raises:
            LexiconNotFoundError: the caller has none of that id.
        """
        found = self.find(lexicon_id) if LEXICON_ID.fullmatch(lexicon_id) else None
        if found is None:
            raise not_found(lexicon_id)
        return found

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Lock the directory against changes by all other processes that share it, until the context is left."""
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(locked(self.path))
            except OSError as error:
                got = f"pronunciation dictionaries can't be changed ({error.strerror})"
                raise LexiconStoreError(f"{got}; see the disk's space") from error
            yield

    def _sees(self, lexicon: StoredLexicon) -> bool:
        key = self.key_of_call()
        return key is None or bool(lexicon.owner and lexicon.owner == key)

    def _check_room(self, owner: str) -> None:
        kept = self._all()
        share = self.max_lexicons if not owner else max(1, round(self.max_lexicons * _MAX_SHARE))
        own = sum(each.owner == owner for each in kept)
        if len(kept) >= self.max_lexicons or own >= share:
            got = f"{own} pronunciation dictionaries of yours and {len(kept)} of all are kept, the most allowed"
            raise LexiconStoreFullError(f"{got}; set new rules on one that is there")

    def _all(self) -> list[StoredLexicon]:
        try:
            names = [entry.name for entry in os.scandir(self.path) if entry.name.endswith(_SUFFIX)]
        except OSError as error:
            got = f"the directory of pronunciation dictionaries can't be read ({error.strerror})"
            raise LexiconStoreError(f"{got}; make {self.path} readable again") from error
        ids = [name.removesuffix(_SUFFIX) for name in names]
        self._seen = {each: seen for each, seen in self._seen.items() if each in set(ids)}
        found = [lexicon for each in ids if LEXICON_ID.fullmatch(each) and (lexicon := self._read(each)) is not None]
        return sorted(found, key=lambda lexicon: (lexicon.created_at, lexicon.id))

    def _read(self, lexicon_id: str) -> StoredLexicon | None:
        """Read a file unless it is known; None if there is none of that name, or it can't be used."""
        file = self._file(lexicon_id)
        try:
            status = file.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._seen.get(lexicon_id)
            if known is None or known[0] != stamp:
                known = (stamp, _parsed(file))
                self._seen[lexicon_id] = known
        except OSError:
            return None
        return known[1]

    def _write(self, lexicon: StoredLexicon) -> None:
        data = _LEXICONS.dump_json(lexicon, indent=1)
        try:
            write_private(self._file(lexicon.id), data)
        except OSError as error:
            got = f"the pronunciation dictionary can't be written ({error.strerror})"
            raise LexiconStoreError(f"{got}; see the disk's space") from error

    def _file(self, lexicon_id: str) -> Path:
        return self.path / f"{lexicon_id}{_SUFFIX}"


def not_found(name: str) -> LexiconNotFoundError:
    """Make the error for a dictionary that is not there for this caller."""
    got = f"there is no pronunciation dictionary {name[:100]!r}"
    return LexiconNotFoundError(f"{got}; GET /v1/pronunciation-dictionaries lists yours", param="lexicons")


def checked_name(name: str) -> str:
    """Return a name without blanks at its ends.

    Raises:
        InvalidRequestError: it is empty, too long or holds what can't be printed.
    """
    name = name.strip()
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or LEXICON_ID.fullmatch(name):
        got = f"got the name {name[: MAX_NAME + 1]!r}"
        raise InvalidRequestError(f"{got}, expected 1 to {MAX_NAME} printable characters, and no id", param="name")
    return name


def _checked_description(description: str) -> str:
    if len(description) > MAX_DESCRIPTION:
        got = f"the description has {len(description)} characters, the limit is {MAX_DESCRIPTION}"
        raise InvalidRequestError(f"{got}; shorten it", param="description")
    return description


def _version(rules: Sequence[AliasRule]) -> LexiconVersion:
    return LexiconVersion(f"version_{secrets.token_hex(_VERSION_BYTES)}", tuple(rules))


def _parsed(file: Path) -> StoredLexicon | None:
    """Read a file; one that can't be used must not hide the others."""
    try:
        lexicon = _LEXICONS.validate_json(file.read_bytes())
    except (ValidationError, InvalidRequestError) as error:
        logger.warning("%s is no pronunciation dictionary of ours and is left alone: %s", file, error)
        return None
    is_ours = lexicon.id == file.name.removesuffix(_SUFFIX) and lexicon.versions
    return lexicon if is_ours else None
