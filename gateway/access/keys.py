"""API keys: one line each in a file or a variable, kept as SHA-256 digests, compared in constant time.

    # NAME  KEY-OR-ITS-DIGEST  [LIMIT=VALUE ...]
    anna    sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  streams=4 audio_s_per_day=7200

No message of this module quotes a key, or a field that may be one put in the wrong place. `redact` keeps keys
out of the log, and what a caller writes into a URL short, whoever logs it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from gateway.access.caller import CallerLimits
from gateway.errors import ConfigError
from servicekit.clock import Clock

MIN_KEY_CHARACTERS = 16
MAX_KEY_CHARACTERS = 512
KEY_PREFIX = "sk-cosydit-"
_KEY_RANDOM_BYTES = 32
_DIGEST_PREFIX = "sha256:"
_DIGEST = re.compile(r"sha256:[0-9a-fA-F]{64}")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
MAX_WORD_CHARACTERS = 200
_QUERY = re.compile(r"(?<=[^\s\"'?])\?[^\s\"']+")
"""The query of a path or URL in any message."""
_KEY_IN_TEXT = re.compile(rf"{re.escape(KEY_PREFIX)}[\w-]+")
_LONG_WORD = re.compile(rf"(?<=\S{{{MAX_WORD_CHARACTERS}}})\S+")
_SERVERS = ("uvicorn", "websockets", "h11", "asyncio")
"""Loggers of libraries that log what callers sent."""
_KEY = re.compile(rf"[!-~]{{{MIN_KEY_CHARACTERS},{MAX_KEY_CHARACTERS}}}")
_COMMENT = re.compile(r"(?:^|\s)#")
_ENTRY_END = re.compile(r";(?:\s|$)")
_UNLIMITED = "unlimited"
_LIMIT_NAMES = tuple(each.name for each in fields(CallerLimits))
_EXPECTED = f"expected NAME KEY [{'|'.join(_LIMIT_NAMES)}=NUMBER|{_UNLIMITED} ...]"


@dataclass(frozen=True)
class ApiKey:
    """A key that may be used here, without its secret."""

    name: str
    digest: bytes = field(repr=False)
    """SHA-256 of the key."""
    limits: CallerLimits = field(default_factory=CallerLimits)


def find_key(keys: Iterable[ApiKey], presented: bytes) -> ApiKey | None:
    """Return the key that was presented, if it is one of these; takes as long for any other."""
    digest = hashlib.sha256(presented).digest()
    found = [key for key in keys if hmac.compare_digest(key.digest, digest)]
    return found[0] if found else None


def check_unique(keys: list[ApiKey], where: str) -> None:
    """Check that each key has a name and a secret of its own; `where` they come from is for messages.

    Raises:
        ConfigError: a name or a secret stands twice.
    """
    for what, values in (("name", {each.name for each in keys}), ("key", {each.digest for each in keys})):
        if len(values) < len(keys):
            raise ConfigError(f"{where}: the same {what} stands twice; give each line one of its own")


def parse_keys(text: str, defaults: CallerLimits, where: str) -> list[ApiKey]:
    """Read lines of keys; a word that begins with `#` begins a comment, one that ends in `;` ends a line.

    Args:
        defaults: limits that a line does not name.
        where: they come from, for messages.

    Raises:
        ConfigError: a line that can't be read; the message tells its number and quotes no key.
    """
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        for entry in _ENTRY_END.split(_COMMENT.split(line)[0]):
            if entry.strip():
                keys.append(_parse_key(entry.split(), defaults, f"{where}, line {number}"))
    return keys


def without_key(text: str, name: str, where: str) -> str:
    """Return lines of keys without the entry of that name; everything else stays as it is written.

    Raises:
        ConfigError: a line that can't be read, see `parse_keys`.
    """
    parse_keys(text, CallerLimits(), where)
    lines = []
    for line in text.splitlines(keepends=True):
        code = _COMMENT.split(line)[0].rstrip()
        entries = [entry.strip() for entry in _ENTRY_END.split(code) if entry.strip()]
        kept = [entry for entry in entries if entry.split()[0] != name]
        if len(kept) == len(entries):
            lines.append(line)
        elif kept:
            lines.append("; ".join(kept) + line[len(code) :])
    return "".join(lines)


def key_of(authorization: str, xi_api_key: str) -> str:
    """Return the key in a call's headers, empty if there is none: a bearer token, else ElevenLabs' header."""
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else xi_api_key.strip()


def new_key() -> str:
    """Draw a key: 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_RANDOM_BYTES)


def key_line(name: str, key: str, limits: Iterable[str] = ()) -> str:
    """Write the line that lets a key be used, without the key itself.

    Args:
        limits: as they stand in the line, e.g. `streams=4`.

    Raises:
        ConfigError: a name or limit that can't stand in such a line.
    """
    words = [name, _DIGEST_PREFIX + hashlib.sha256(key.encode("ascii")).hexdigest(), *limits]
    _parse_key(words, CallerLimits(), "the new key")
    return " ".join(words)


def _parse_key(words: list[str], defaults: CallerLimits, where: str) -> ApiKey:
    if len(words) < len(("name", "key")):
        raise ConfigError(f"{where}: got one word, {_EXPECTED}")
    name, secret, *options = words
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: the name must begin with a letter and hold letters, digits, _ . - only (64)")
    return ApiKey(name, _digest(secret, f"{where} ({name})"), _limits(options, defaults, f"{where} ({name})"))


def _digest(secret: str, where: str) -> bytes:
    if secret.startswith(_DIGEST_PREFIX):
        if not _DIGEST.fullmatch(secret):
            raise ConfigError(f"{where}: the digest must be {_DIGEST_PREFIX} and 64 hexadecimal digits")
        return bytes.fromhex(secret.removeprefix(_DIGEST_PREFIX))
    if not _KEY.fullmatch(secret):
        length = f"{MIN_KEY_CHARACTERS} to {MAX_KEY_CHARACTERS} printable ASCII characters"
        raise ConfigError(f"{where}: the key must have {length}; make one with: cosydit keys new NAME")
    return hashlib.sha256(secret.encode("ascii")).digest()


def _limits(options: list[str], defaults: CallerLimits, where: str) -> CallerLimits:
    given: dict[str, float | int | None] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in _LIMIT_NAMES or name in given:
            raise ConfigError(f"{where}: a word after the key is no limit, or the same again; {_EXPECTED}")
        given[name] = _limit(name, value, where)
    return replace(defaults, **given)  # type: ignore[arg-type]


def _limit(name: str, value: str, where: str) -> float | int | None:
    if value == _UNLIMITED:
        return None
    try:
        number = int(value) if name == "streams" else float(value)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise ConfigError(f"{where}: {name} must be a number above 0, or {_UNLIMITED}")
    return number


logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
"""Pause in seconds between two looks at the keys file."""

_Stamp = tuple[int, int, int]


class KeyBook:
    """Finds keys; if the file can't be read any more, the keys from before stay valid."""

    def __init__(self, fixed: tuple[ApiKey, ...], file: Path | None, defaults: CallerLimits, clock: Clock) -> None:
        """Read the file.

        Args:
            fixed: keys that hold until the end.
            file: see `keys`.
            defaults: limits that a line of the file does not name.

        Raises:
            ConfigError: it can't be read, or there is no key at all.
        """
        self._fixed = fixed
        self._file = file
        self._defaults = defaults
        self._clock = clock
        self._checked_s = clock.now()
        self._stamp = self._read_stamp()
        self._keys = self._read()
        if not self._keys:
            raise ConfigError(f"{file} holds no key; make one with: cosydit keys new NAME --file {file}")

    def find(self, presented: bytes) -> ApiKey | None:
        """Return the key that was presented, if it may be used now."""
        if self._file is not None and self._clock.now() - self._checked_s >= CHECK_INTERVAL_S:
            self._refresh()
        return find_key(self._keys, presented)

    def _refresh(self) -> None:
        self._checked_s = self._clock.now()
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = self._read()
        except ConfigError as error:
            logger.error("API keys: %s; those read before stay good", error)
        else:
            logger.info("API keys: %s was read again: %d keys", self._file, len(self._keys))

    def _read_stamp(self) -> _Stamp | None:
        """Return what changes with the file; None if there is none."""
        try:
            stat = self._file.stat() if self._file is not None else None
        except OSError:
            return None
        return (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat is not None else None

    def _read(self) -> list[ApiKey]:
        keys = list(self._fixed)
        if self._file is not None:
            keys += parse_keys(_text_of(self._file), self._defaults, str(self._file))
        check_unique(keys, str(self._file or "the keys"))
        return keys


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the keys file {file} can't be read ({reason}); give a file of one key a line") from error


def redact(record: logging.LogRecord) -> bool:
    """Remove keys from a log record, and from those of servers the queries of URLs and what is long; drop none.

    For handlers, so that it sees the records of all loggers.
    """
    message = record.getMessage()
    is_of_server = record.name.partition(".")[0] in _SERVERS
    clean = _KEY_IN_TEXT.sub(f"{KEY_PREFIX}...", _QUERY.sub("?...", message) if is_of_server else message)
    clean = _LONG_WORD.sub("...", clean) if is_of_server else clean
    if clean != message:
        record.msg, record.args = clean, ()
    return True
