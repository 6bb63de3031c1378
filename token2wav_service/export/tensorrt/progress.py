"""Shows how far a build is, as nested progress bars. Knows nothing of TensorRT."""

from __future__ import annotations

import threading
from typing import Any, TextIO

from tqdm import tqdm


class ProgressBars:
    """One bar for every open phase; may be called from several threads."""

    def __init__(self, title: str, stream: TextIO) -> None:
        """Keep where to write.

        Args:
            title: stands before the outermost phases.
        """
        self._title, self._stream = title, stream
        self._lock = threading.Lock()
        self._bars: dict[str, tqdm[Any]] = {}

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        """Open a bar."""
        text = phase if parent is not None else f"{self._title}: {phase}"
        with self._lock:
            self._close(phase)
            self._bars[phase] = tqdm(total=steps, desc=text, leave=parent is None, file=self._stream, unit="step")

    def step(self, phase: str, index: int) -> None:
        """Move a bar on."""
        with self._lock:
            bar = self._bars.get(phase)
            if bar is not None:
                bar.update(index + 1 - bar.n)

    def finish(self, phase: str) -> None:
        """Close a bar."""
        with self._lock:
            self._close(phase)

    def close(self) -> None:
        """Close what a failed build left open."""
        with self._lock:
            for phase in list(self._bars):
                self._close(phase)

    def _close(self, phase: str) -> None:
        bar = self._bars.pop(phase, None)
        if bar is not None:
            bar.close()
