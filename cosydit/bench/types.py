"""What goes into a benchmark and what comes out: inputs, per-request records with their units, types of arguments."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from servicekit.logs import PlainError
from servicekit.settings import argument, whole

DEFAULT_SPLIT = "wenetspeech4tts"
"""Split of a Hugging Face dataset that is taken if none is named."""


class BenchmarkError(PlainError):
    """A benchmark can't run as asked; the message says what to change."""


@dataclass(frozen=True)
class SpeechInput:
    """One text to speak and the voice to speak it in."""

    utt: str
    """Name of the utterance, unique within its list."""
    text: str
    prompt_text: str | None = None
    """Transcript of the prompt; None if the server is to use its own voice."""
    prompt: Path | bytes | None = None
    """Audio file of the voice: its path or its bytes. None: the server's own voice."""
    voice: str | None = None
    """Name of a voice of the checkpoint, where the row has no prompt of its own."""


@dataclass(frozen=True)
class BadRow:
    """A row of an input list that can't be used."""

    utt: str
    """Name of the utterance, or `row N` if it has none."""
    reason: str
    """What was got, what was expected and where."""


InputRow = SpeechInput | BadRow


@dataclass(frozen=True)
class AudioArrival:
    """A piece of audio as the client got it."""

    at_s: float
    """Seconds from sending the request."""
    audio_s: float
    """The piece's duration in seconds, more than 0."""


@dataclass
class RequestRecord:
    """The outcome of one request."""

    request_id: str
    utt: str
    sent_s: float
    """Seconds from the start of the run; in an open loop the time when the request was due."""
    arrivals: list[AudioArrival] = field(default_factory=list)
    total_s: float = 0.0
    """Seconds from sending the request to its end."""
    error: str | None = None
    """Reason of the failure; None if there was none."""
    dispatch_s: float = 0.0
    """Seconds from `sent_s` to when the request was really sent; 0 in a closed loop."""
    silence_s: float | None = None
    """Seconds of silence before the first sound; None if nobody listened for it, or no sound came."""

    @property
    def is_ok(self) -> bool:
        """True when it ended well and brought audio."""
        return self.error is None and bool(self.arrivals)

    @property
    def ttfa_s(self) -> float | None:
        """Time to first audio in seconds, if any came."""
        return self.arrivals[0].at_s if self.arrivals else None

    @property
    def second_chunk_s(self) -> float | None:
        """Time to the second piece of audio in seconds, if it came."""
        return self.arrivals[1].at_s if len(self.arrivals) > 1 else None

    @property
    def audio_s(self) -> float:
        """Seconds of audio received."""
        return sum(arrival.audio_s for arrival in self.arrivals)

    @property
    def rtf(self) -> float | None:
        """Real-time factor: seconds waited per second of audio."""
        return self.total_s / self.audio_s if self.arrivals else None


@dataclass(frozen=True)
class LoadResult:
    """A finished run."""

    records: list[RequestRecord]
    """Requests in the order in which they ended, without the warm-up."""
    warm_up: list[RequestRecord]
    wall_s: float
    """Seconds from the first request sent to the last one ended, warm-up excluded."""


count, zero_or_more = argument(whole(1)), argument(whole(0))
"""Types of arguments."""


def pair(text: str) -> tuple[str, str]:
    """Read an argument NAME=VALUE.

    Raises:
        ArgumentTypeError: it is something else.
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=VALUE")
    return name, value


def http_url(text: str) -> str:
    """Read an argument that is the URL of an HTTP service.

    Raises:
        ArgumentTypeError: it is something else.
    """
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets or a port that are none
        is_url = False
    if not is_url:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a URL such as http://127.0.0.1:8000")
    return text


def add_source_options(group: argparse._ArgumentGroup, with_text: bool = False) -> None:
    """Add the options that name a list of texts, which `cosydit.bench.inputs.read_source` reads.

    `with_text`: one text, --target-text, may stand in place of a list; the caller reads it.
    """
    source = group.add_mutually_exclusive_group()
    texts = "list of texts: CSV, JSONL, or one text a line; - is standard input"
    source.add_argument("input", nargs="?", type=Path, help=texts)
    source.add_argument("--manifest-path", type=Path, help="file with lines of utt|prompt_text|prompt_wav|text")
    fields = "file of JSON objects with text, and optionally utt, voice, prompt_wav, prompt_text"
    source.add_argument("--jsonl-path", type=Path, help=fields)
    dataset = "dataset with id, target_text, prompt_text and prompt_audio: a name, or a local file or directory"
    source.add_argument("--huggingface-dataset", help=dataset)
    if with_text:
        source.add_argument("--target-text", help="one text to speak")
    group.add_argument("--split-name", default=DEFAULT_SPLIT, help="split of the dataset (default %(default)s)")
