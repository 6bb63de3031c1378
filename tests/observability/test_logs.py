"""Lines of JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime

import pytest

from gateway.telemetry.call import Call, CallFilter, serving
from servicekit.logs import JsonFormatter, LogFormat, first_line, log_format_of
from servicekit.tracing import Span


def record(message: str, *arguments: object, **facts: object) -> logging.LogRecord:
    made = logging.LogRecord("gateway.speech.speaker", logging.WARNING, __file__, 1, message, arguments, None)
    made.__dict__.update(facts)
    return made


def written(made: logging.LogRecord) -> dict[str, str]:
    line = JsonFormatter().format(made)
    assert "\n" not in line
    read: dict[str, str] = json.loads(line)
    return read


def test_a_line_has_its_facts_and_no_others() -> None:
    line = written(record("stream %s said\n%s", "s1", "“ja”", stream_id="s1", request_id=None, secret="key"))
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        "level": "WARNING",
        "logger": "gateway.speech.speaker",
        "message": "stream s1 said\n“ja”",
        "stream_id": "s1",
    }


def test_an_error_brings_its_traceback() -> None:
    made = record("it failed")
    try:
        raise ValueError("why")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError: why" in written(made)["error"]


class Traced(Span):
    @property
    def trace_id(self) -> str:
        return "ab" * 16


def test_lines_of_a_traced_call_name_its_trace() -> None:
    inside, outside = record("x"), record("x")
    with serving(Call("openai", Traced())):
        assert CallFilter().filter(inside)
    assert CallFilter().filter(outside)
    assert written(inside)["trace_id"] == "ab" * 16
    assert "trace_id" not in written(outside)


def test_the_environment_chooses_the_format_and_a_mistake_is_told() -> None:
    assert log_format_of({}) is LogFormat.TEXT
    assert log_format_of({"COSYDIT_LOG_FORMAT": "json"}) is LogFormat.JSON
    with pytest.raises(ValueError, match="text or json"):
        log_format_of({"COSYDIT_LOG_FORMAT": "yaml"})


def test_an_error_is_named_on_one_line() -> None:
    assert first_line(RuntimeError("CUDA error: no driver\nSearch for it elsewhere")) == "CUDA error: no driver"
    assert first_line(RuntimeError()) == "RuntimeError"
