"""The WAV file that a command speaks into, and the line that tells how far it is. Knows nothing of who speaks.

The file appears when it is complete. Until then it has no name at all where the file system allows that (Linux's
O_TMPFILE), so that even a killed command leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from tqdm import tqdm

from token2wav_service.contract import SAMPLE_RATE_HZ

if TYPE_CHECKING:
    from typing_extensions import Never

PCM16_BYTES = 2
PROGRESS_AFTER_S = 2.0
"""Seconds before the progress line appears: short speech ends before anybody could read one."""
_BAR = "{desc}: {n:.1f} s of audio in {elapsed}{postfix}"


@contextmanager
def written_whole(out: Path) -> Iterator[wave.Wave_write]:
    """Open a WAV of mono 16-bit samples at 24 kHz that is there when it is complete, and not at all after an error.

    Raises:
        OSError: the directory can't be written.
    """
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    with _nameless(out.parent) or partial.open("w+b") as file:
        try:
            with contextlib.closing(_opened(file)) as wav:
                yield wav
            file.flush()
            if not partial.exists():
                _give_name(file, partial)
            os.replace(partial, out)
        finally:
            partial.unlink(missing_ok=True)


def _opened(file: IO[bytes]) -> wave.Wave_write:
    wav = wave.open(file, "wb")
    wav.setnchannels(1)
    wav.setsampwidth(PCM16_BYTES)
    wav.setframerate(SAMPLE_RATE_HZ)
    return wav


def _nameless(folder: Path) -> IO[bytes] | None:
    """Open a file without a name in a folder; None where there is no such thing."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not Path("/proc/self/fd").is_dir():
        return None
    try:
        return os.fdopen(os.open(folder, flag | os.O_RDWR, 0o666), "w+b")
    except OSError:
        return None  # not every file system has them; opening by name says what is wrong with the folder


def _give_name(file: IO[bytes], path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # NOTE: only with a descriptor of a folder does Python follow the link to the file itself.
        os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=folder)
    finally:
        os.close(folder)


class SpeechProgress:
    """A line on standard error that tells how much is spoken, where that is a terminal and it takes a while."""

    def __init__(self, label: str) -> None:
        """Show nothing yet."""
        # NOTE: `disable=None` shows it on terminals only, `delay` not before that many seconds.
        self._bar: tqdm[Never] = tqdm(
            desc=label, bar_format=_BAR, disable=None, delay=PROGRESS_AFTER_S, leave=False, dynamic_ncols=True
        )

    def add(self, samples: int, share: float | None = None) -> None:
        """Tell of more audio, 24 kHz, and which share of the text has come up by now, where that is known."""
        if share is not None:
            self._bar.set_postfix_str(f"{100 * share:.0f} % of the text", refresh=False)
        self._bar.update(samples / SAMPLE_RATE_HZ)

    def __enter__(self) -> SpeechProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.close()
