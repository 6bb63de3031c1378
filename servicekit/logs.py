"""How a service writes its log: lines for people, or JSON objects, one a line, for machines.

A record's own facts come in `extra`; facts of the work under way come from filters on the handlers.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from enum import Enum

FORMAT_VARIABLE = "COSYDIT_LOG_FORMAT"
"""Environment variable of the log format: `text` or `json`."""
TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FACTS = ("request_id", "stream_id", "trace_id", "caller", "process_number")
"""Attributes of records that JSON lines show if they are set."""


class PlainError(Exception):
    """Base of errors for a person: what was got, what was expected, what to do next. A traceback would add nothing."""


class LogFormat(str, Enum):
    """How lines are written."""

    TEXT = "text"
    JSON = "json"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, message, the facts, an error's traceback."""

    def format(self, record: logging.LogRecord) -> str:
        written = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line = {"time": written, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        for fact in FACTS:
            value = getattr(record, fact, None)
            if value is not None:
                line[fact] = str(value)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_format_of(environment: Mapping[str, str] = os.environ) -> LogFormat:
    """Return the format that the environment asks for; text by default.

    Raises:
        ValueError: it is none of them.
    """
    name = environment.get(FORMAT_VARIABLE) or LogFormat.TEXT.value
    try:
        return LogFormat(name)
    except ValueError as error:
        known = " or ".join(each.value for each in LogFormat)
        raise ValueError(f"got {FORMAT_VARIABLE}={name!r}, expected {known}") from error


def configure_logging(log_format: LogFormat, text_format: str = TEXT_FORMAT, level: int = logging.INFO) -> None:
    """Write this process's log to standard error, once."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # no format shows them
    logging.basicConfig(level=level, format=text_format)
    if log_format is LogFormat.JSON:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, for a message of one line; its type's name if it has no text."""
    return next(iter(str(error).splitlines()), type(error).__name__)
