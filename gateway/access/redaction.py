"""Keeps keys out of the log, and what a caller writes into a URL short, whoever logs it."""

from __future__ import annotations

import logging
import re

from gateway.access.keys import KEY_PREFIX

MAX_WORD_CHARACTERS = 200
_QUERY = re.compile(r"(?<=[^\s\"'?])\?[^\s\"']+")
"""Of a path or URL, in any message."""
_KEY = re.compile(rf"{re.escape(KEY_PREFIX)}[\w-]+")
_LONG_WORD = re.compile(rf"(?<=\S{{{MAX_WORD_CHARACTERS}}})\S+")
_SERVERS = ("uvicorn", "websockets", "h11", "asyncio")
"""Loggers of those who log what callers sent."""


def redacted(message: str) -> str:
    """Return a message without the queries of URLs and without keys, its long words cut."""
    return _LONG_WORD.sub("...", without_keys(_QUERY.sub("?...", message)))


def without_keys(message: str) -> str:
    """Return a message without keys that this project made."""
    return _KEY.sub(f"{KEY_PREFIX}...", message)


class RedactingFilter(logging.Filter):
    """Rewrites records; lets all pass. For handlers, so that it sees the records of all loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        message = record.getMessage()
        is_of_server = record.name.partition(".")[0] in _SERVERS
        clean = redacted(message) if is_of_server else without_keys(message)
        if clean != message:
            record.msg, record.args = clean, ()
        return True
