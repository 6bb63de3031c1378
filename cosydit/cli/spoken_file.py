"""The WAV file that a command speaks into, and the line that tells how far it is. Knows nothing of who speaks.

The file appears when it is complete.
"""

from __future__ import annotations

import os
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

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
    try:
        with wave.open(str(partial), "wb") as wav:
            wav.setnchannels(1)
            wav.setsampwidth(PCM16_BYTES)
            wav.setframerate(SAMPLE_RATE_HZ)
            yield wav
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


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
