"""The keys of one gateway: those of the start, and those of a file that is read again whenever it changes."""

from __future__ import annotations

import logging
from pathlib import Path

from gateway.access.caller import CallerLimits
from gateway.access.keys import ApiKey, KeyRing, parse_keys
from gateway.errors import ConfigError
from servicekit.clock import Clock

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
"""A changed file is seen this much later at most."""

_Stamp = tuple[int, int, int]


class KeyBook:
    """Finds keys; a file that can't be read any more leaves those that were good before."""

    def __init__(self, fixed: tuple[ApiKey, ...], file: Path | None, defaults: CallerLimits, clock: Clock) -> None:
        """Read the file.

        Args:
            fixed: keys that hold until the end.
            file: see `keys`.
            defaults: limits that a line of the file does not name.
            clock: says when to look at the file again.

        Raises:
            ConfigError: it can't be read, or there is no key at all.
        """
        self._fixed = fixed
        self._file = file
        self._defaults = defaults
        self._clock = clock
        self._checked_s = clock.now()
        self._stamp = self._read_stamp()
        self._ring = self._read()
        if not self._ring.keys:
            raise ConfigError(f"{file} holds no key; make one with: cosydit keys new NAME --file {file}")

    def find(self, presented: bytes) -> ApiKey | None:
        """Return the key that was presented, if it may be used now."""
        if self._file is not None and self._clock.now() - self._checked_s >= CHECK_INTERVAL_S:
            self._refresh()
        return self._ring.find(presented)

    def _refresh(self) -> None:
        self._checked_s = self._clock.now()
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._ring = self._read()
        except ConfigError as error:
            logger.error("API keys: %s; those read before stay good", error)
        else:
            logger.info("API keys: %s was read again: %d keys", self._file, len(self._ring.keys))

    def _read_stamp(self) -> _Stamp | None:
        """Return what changes with the file; None if there is none."""
        try:
            stat = self._file.stat() if self._file is not None else None
        except OSError:
            return None
        return (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat is not None else None

    def _read(self) -> KeyRing:
        keys = list(self._fixed)
        if self._file is not None:
            keys += parse_keys(_text_of(self._file), self._defaults, str(self._file))
        return KeyRing(keys, where=str(self._file or "the keys"))


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the keys file {file} can't be read ({reason}); give a file of one key a line") from error
