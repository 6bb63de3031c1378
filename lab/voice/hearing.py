"""What a recogniser that writes as people do has heard of a text: numbers in digits, short forms, hyphens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.lib.word_errors import word_errors
from cosydit.bench.report import describe_environment, write_json
from gateway.text import WHOLE_TEXT, TextFrontEnd
from gateway.text.options import TextOptions
from lab.ears.study import Heard

_DIGIT = re.compile(r"\d")
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


async def heard_as(transcript: str, text: str, front_end: TextFrontEnd) -> Heard:
    """Judge a transcript by the fewest errors of all ways in which its writing can be read.

    Digits are one number or one by one, hyphens join one word (`good-bye`) or part two (`ice-cream`), and a short form
    is one or is none (`No.`).

    Args:
        transcript: as it was written.
        text: what was to be said, as it is spoken.
        front_end: turns writing into English words.
    """
    written = [transcript, _DIGIT.sub(lambda digit: f" {_DIGITS[int(digit[0])]} ", transcript)]
    forms = dict.fromkeys(form for each in written for form in (each, each.replace("-", "")))
    errors = [word_errors(text, each) for each in (transcript, *[await _as_spoken(form, front_end) for form in forms])]
    return Heard(transcript, min(errors, key=lambda each: each.errors))


async def _as_spoken(transcript: str, front_end: TextFrontEnd) -> str:
    stream = front_end.open(TextOptions(language="en"), WHOLE_TEXT)
    segments = [*stream.push(transcript), *stream.flush()]
    return " ".join([(await stream.prepared(segment)).text for segment in segments])


def write_study(path: Path, document: Mapping[str, Any], arguments: Mapping[str, object]) -> str:
    """Write a study's document with the environment of its run; return its figures, a line each.

    Args:
        path: JSON to write.
        document: has numbers by name under `figures`.
        arguments: of the command line; `run`, which is none of the user's, is left out.
    """
    chosen = {name: value for name, value in arguments.items() if name != "run"}
    write_json(path, {**document, "environment": describe_environment(chosen)})
    return "\n".join(f"{name:24} {value:.4g}" for name, value in document["figures"].items())
